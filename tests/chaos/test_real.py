"""The same faults under a real vLLM and a real verl: nothing is lost, and the reward curve is the undisturbed one's."""

from __future__ import annotations

import pytest

from tests.chaos.campaign import play
from tests.chaos.real import KINDS, REAL, STEPS, TOLERANCE


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_nothing_is_lost_with_vllm_and_verl_and_the_reward_curve_agrees() -> None:
    report = await play(1, 600, steps=STEPS, parts=REAL, kinds=KINDS, brief=True, say=print)
    print(report)
    assert report.good, report
    assert report.faults
    assert report.curve_gaps
    assert max(report.curve_gaps) <= TOLERANCE
