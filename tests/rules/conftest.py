"""Real servers for the tests of the rules."""

from __future__ import annotations

from tests.integration.conftest import temporal, temporal_address

__all__ = ["temporal", "temporal_address"]
