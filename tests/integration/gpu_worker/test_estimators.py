"""verl's advantage estimators on one entry per rollout."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from relight.errors import ConfigError
from relight.types.run_file import Estimator
from tests.integration.gpu_worker.by_hand import verl_in_this_process


@pytest.fixture(scope="module", autouse=True)
def verl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with verl_in_this_process(tmp_path_factory.mktemp("store")):
        yield


def estimators() -> Any:
    """Imported late: verl looks at the platform when it is imported."""
    return importlib.import_module("relight.gpu_worker.estimators")


def options_of(estimator: str, rollouts: int) -> dict[str, Any]:
    return {"lengths": [3 + i % 5 for i in range(rollouts)]} if estimator == "opo" else {}


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo_no_std", [0.5, -0.5, 0.25, -0.75, 0.25, 0.25]),
        ("rloo", [1.0, -1.0, 1 / 3, -1.0, 1 / 3, 1 / 3]),
        ("rloo_vectorized", [1.0, -1.0, 1 / 3, -1.0, 1 / 3, 1 / 3]),
    ],
)
def test_estimators_see_each_rollout_once(estimator: str, expected: list[float]) -> None:
    compute_advantages = estimators().compute_advantages
    rewards, groups = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b", "b", "b"]
    assert compute_advantages(estimator, rewards, groups) == pytest.approx(expected, abs=1e-5)


def test_more_estimators_with_their_options() -> None:
    compute_advantages = estimators().compute_advantages
    rewards, groups = [1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"]
    for estimator in ("grpo", "grpo_vectorized"):
        assert compute_advantages(estimator, rewards, groups)[:2] == pytest.approx([0.7071, -0.7071], abs=1e-3)
        plain = compute_advantages(estimator, rewards, groups, {"norm_adv_by_std_in_grpo": False})
        assert plain == pytest.approx([0.5, -0.5, 0.5, -0.5])
    assert sum(compute_advantages("reinforce_plus_plus_baseline", rewards, groups)) == pytest.approx(0, abs=1e-5)
    assert sum(compute_advantages("reinforce_plus_plus", rewards, groups)) == pytest.approx(0, abs=1e-5)
    assert compute_advantages("gpg", rewards, groups) == pytest.approx([1, -1, 1, -1])
    assert compute_advantages("grpo_passk", rewards, groups)[1] == 0
    by_length = compute_advantages("opo", rewards, groups, {"lengths": [3, 1, 1, 1]})
    assert by_length == pytest.approx([0.25, -0.75, 0.5, -0.5])


@pytest.mark.parametrize(
    ("estimator", "options", "complaint"),
    [
        ("gae", {}, "`gae` is not supported: it needs a critic.*allowed: .*grpo"),
        ("grpoo", {}, "algorithm.name: `grpoo` is unknown; allowed: .*grpo"),
        ("rloo", {"norm_adv_by_std_in_grpo": True}, "would ignore the option `norm_adv_by_std_in_grpo`"),
        ("remax", {}, "`remax` is not supported: it needs a greedy rollout of each task"),
        ("opo", {}, "needs `lengths`, one for each rollout"),
    ],
)
def test_an_estimator_that_cannot_be_used_is_an_error_that_names_those_that_can(
    estimator: str, options: dict[str, Any], complaint: str
) -> None:
    compute_advantages = estimators().compute_advantages
    with pytest.raises(ConfigError, match=complaint):
        compute_advantages(estimator, [1.0, 0.0], ["a", "a"], options)


def test_a_run_file_can_name_every_estimator_that_there_is() -> None:
    assert set(get_args(Estimator)) == set(estimators().ESTIMATORS)


@pytest.mark.parametrize("estimator", sorted(set(get_args(Estimator)) - {"reinforce_plus_plus"}))
@pytest.mark.parametrize("others", [[1.0, 0.0, 0.25, 0.75], [0.3] * 4])
def test_a_group_of_equal_rewards_has_no_advantage_despite_rounding(estimator: str, others: list[float]) -> None:
    rewards = [*[0.7] * 8, *[0.9] * 8, *[0.1 + 0.2, 0.3] * 4, *others]
    groups = [*"a" * 8, *"b" * 8, *"c" * 8, *"d" * 4]
    found = estimators().compute_advantages(estimator, rewards, groups, options_of(estimator, len(rewards)))
    assert found[:24] == [0.0] * 24
    assert any(found[24:]) == (others[0] != others[1])
