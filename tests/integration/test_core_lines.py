"""Temporal's core writes to stderr by itself; here its lines are log lines like any other."""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.service import RPCError

from relight.cli import output
from relight.cli.home_log import HomeLog
from relight.observability.logs import LineFormatter
from relight.settings import load_settings
from relight.temporal.connection import connect_temporal
from tests.chaos.network import LOOPBACK, Edge, Target


async def test_messages_of_temporals_core_about_a_server_that_is_down_go_to_the_log_and_not_the_terminal(
    temporal_address: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edge = Edge("test->temporal", random.Random(1))
    edge.target = Target.of(temporal_address)
    await edge.listen()
    client = await connect_temporal(load_settings(home=tmp_path, temporal_address=f"{LOOPBACK}:{edge.port}"))
    await edge.close()
    monkeypatch.setitem(output.current.flags, "home", tmp_path)
    kept, core = HomeLog(), logging.getLogger("temporalio.core")
    core.addHandler(kept)
    (tmp_path / "logs").mkdir()
    with pytest.raises(RPCError):
        await client.get_workflow_handle("any").describe(rpc_timeout=timedelta(seconds=5))
    core.removeHandler(kept)
    lines = [LineFormatter().format(record) for record in caplog.records if record.name.startswith("temporalio.core")]
    assert any("warning temporal_core" in line and "describe_workflow_execution retried" in line for line in lines)
    assert all(line.isprintable() and "Status {" not in line for line in lines)
    assert capfd.readouterr().err == ""
    written = (tmp_path / "logs" / "commands.log").read_text().splitlines()
    assert any("describe_workflow_execution retried" in line for line in written)
    assert all(line.isprintable() and "Status {" not in line for line in written)
