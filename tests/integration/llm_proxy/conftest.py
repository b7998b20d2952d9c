"""Fixtures of the gateway's tests on real parts."""

from tests.support.engine import engine_socket
from tests.support.served import served

__all__ = ["engine_socket", "served"]
