"""Fixtures of several packages' unit tests."""

from __future__ import annotations

import asyncio
import sys

import pytest

from relight.confinement import sandbox


@pytest.fixture(scope="module", params=["without namespaces", "in namespaces"])
def namespaces(request: pytest.FixtureRequest) -> bool:
    """Whether fork servers get namespaces: tests are run without and with them."""
    if request.param == "without namespaces":
        return False
    if lacking := asyncio.run(sandbox.namespace_error(sys.executable)):
        pytest.skip(lacking)
    return True
