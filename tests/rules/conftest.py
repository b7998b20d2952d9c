"""Real servers for the tests of the rules."""

from __future__ import annotations

from tests.integration.conftest import shared_temporal_address, temporal, temporal_address

__all__ = ["shared_temporal_address", "temporal", "temporal_address"]
