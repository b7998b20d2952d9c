"""Runs attempts: each agent in a process of its own, or in a process shared with others.

Import from its modules: this package imports nothing by itself, since the process that forks attempts must stay small.
"""
