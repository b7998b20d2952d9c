"""The rollout store: its methods, its SQL, its clients, and one in memory.

Importing this package loads no database driver; a store of `__init__.pyi` is imported when its name is first used.
"""

from relight.exports import getter

__getattr__ = getter(__name__, __file__)
