"""Runs attempts: an agent in a process of its own (`isolated`) or beside others (`shared`).

Import what you need from its modules: this package imports nothing by itself, since the template process that forks
attempts must stay small.
"""
