"""How many examples property tests try, and which: a profile with the same ones each time, and one with fresh ones.

pytest -m hypothesis --hypothesis-profile=fresh
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

USUAL = 100
FRESH_FACTOR = 5
LOCAL_CODE = "is_local_module_file"
"""Hypothesis' function."""


def load_profiles() -> None:
    """Register both, and load that whose verdict does not depend on chance."""
    # How long an example takes says more about the machine than about the code.
    common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    settings.register_profile("same", common, max_examples=USUAL, derandomize=True)
    settings.register_profile("fresh", common, max_examples=USUAL * FRESH_FACTOR, print_blob=True)
    settings.load_profile("same")
    # Hypothesis also draws constants of the project's modules that are loaded: the tests that ran before would decide.
    setattr(providers, LOCAL_CODE, lambda path: False)


def examples(number: int) -> int:
    """So many, or that many times more where fresh ones are asked for; for `settings(max_examples=...)`."""
    return number * settings().max_examples // USUAL
