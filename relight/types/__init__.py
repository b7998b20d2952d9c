"""Types that several packages share: rollouts, the run file, payloads, wire messages. They import pydantic alone.

Importing this package loads none of them; those that `__init__.pyi` lists are imported when a name is first used.
"""

from relight.exports import getter

__getattr__ = getter(__name__, __file__)
