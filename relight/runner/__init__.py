"""Runs attempts: each agent in a process of its own, or in a process shared with others.

This package imports nothing by itself, since the process that forks attempts must stay small: its names, which
`__init__.pyi` lists, are imported when they are first used.
"""

from relight.exports import getter

__getattr__ = getter(__name__, __file__)
