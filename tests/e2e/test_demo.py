"""`relight demo` as a user runs it: real Temporal, Postgres, vLLM and verl, in processes that may die."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import asyncpg
import pytest

from relight.cli.demo_crash import KILL_ORDER
from relight.settings import read_stack
from tests.e2e.demo_kit import demo, relight, wait_until_gone

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
STEP_LINE = re.compile(r"step +(\d+)/4  16 rollouts, .* reward \d")
LAST_LINE = re.compile(r"held-out score: [01]\.\d\d -> [01]\.\d\d")


def test_an_interrupted_demo_leaves_no_process_and_continues_where_it_was(tmp_path: Path) -> None:
    with demo(tmp_path, "--set", "steps=4") as first:
        first.wait_for("step 1/4")
        first.interrupt()
        assert first.ended(60) != 0
    assert wait_until_gone(tmp_path) == []
    with demo(tmp_path, "--set", "steps=4") as second:
        assert "calculator-1 is resumed" in second.wait_for("run calculator-")
        assert second.ended() == 0
    assert LAST_LINE.fullmatch(second.lines[-1])
    assert [match[1] for match in map(STEP_LINE.match, second.lines) if match] == ["1", "2", "3", "4"]
    assert ElementTree.parse(tmp_path / "runs" / "calculator-1" / "reward.svg").getroot().tag.endswith("svg")
    assert wait_until_gone(tmp_path) == []


async def test_the_demo_finishes_though_every_process_is_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    with demo(tmp_path, "--crash", "--keep", "--set", "steps=10") as running:
        assert running.ended(1200) == 0, running.output
    assert f"no step lost: {', '.join(KILL_ORDER)}" in running.output
    assert LAST_LINE.fullmatch(running.lines[-1])
    try:
        await check_the_ledger(read_stack(tmp_path)["settings"]["postgres_url"])
        shown = json.loads(relight(tmp_path, "status", "calculator-1", "--json").stdout)
        assert (shown["status"], shown["step"]) == ("finished", 10)
    finally:
        relight(tmp_path, "down")
    assert wait_until_gone(tmp_path) == []


async def check_the_ledger(url: str) -> None:
    """No step is missing, no attempt was consumed twice, no finished rollout was run again."""
    connection = await asyncpg.connect(url)
    try:
        steps = await connection.fetch("select step, status from steps where step > 0 order by step")
        assert [(row["step"], row["status"]) for row in steps] == [(number, "recorded") for number in range(1, 11)]
        twice = "select count(*) - count(distinct attempt_id) from step_rollouts"
        assert await connection.fetchval(twice) == 0
        again = """
            select count(*) from attempts later join attempts earlier using (rollout_id)
            where earlier.status = 'succeeded' and later.sequence_id > earlier.sequence_id"""
        assert await connection.fetchval(again) == 0
        versions = await connection.fetchval("select array_agg(version order by version) from policy_versions")
        assert versions == list(range(11))
    finally:
        await connection.close()
