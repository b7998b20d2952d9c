"""Fixtures of the gateway's tests on real parts."""

from tests.support.engine import engine_socket

__all__ = ["engine_socket"]
