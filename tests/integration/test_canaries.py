"""Secrets that agents say are nowhere afterwards: not in Postgres, not in Temporal's histories, not in any log line."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from relight.observability.process_reports import Doing
from relight.runner.attempt_activity import RunnerActivities
from relight.runner.process_isolation import IsolatedRunner
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.temporal.activity_interceptor import ActivityInterceptor
from relight.types import names
from tests.integration import leaky_agents
from tests.integration.otlp.test_redaction import tables_with
from tests.rules.test_rule_03_platform_failures import NOWHERE, Present
from tests.support.orchestration import cluster, run_file, write_tasks

MARK = "canary"
FILE = run_file(agent="leaky", group_size=6, steps=1, data="train.jsonl")


def texts(value: Any) -> list[str]:
    """Every string of a history, payloads decoded."""
    if isinstance(value, dict):
        found = [text for item in value.values() for text in texts(item)]
        data = value.get("data")
        return found + ([base64.b64decode(data).decode(errors="replace")] if isinstance(data, str) else [])
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


async def histories(client: Client) -> list[str]:
    """The histories of all rollouts, batches and the run, as text."""
    ids = [names.train_id("leaky"), names.batch_id("leaky", 1, 0)]
    ids += [f"rollout/leaky-s0001-g{group:02}-i{index}" for group in range(2) for index in range(6)]
    read = [orjson.loads((await client.get_workflow_handle(name).fetch_history()).to_json()) for name in ids]
    return [text for history in read for text in texts(history)]


async def test_no_secret_that_an_agent_emits_is_in_postgres_histories_or_logs(
    temporal: Client, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    write_tasks(tmp_path)
    agents = IsolatedRunner([f"{leaky_agents.__file__}:leaky"])
    async with cluster(temporal, database, tmp_path) as stack, agents:
        store = await PostgresStore.create(database, "http://gateway")
        activities = RunnerActivities(store, agents, Present(NOWHERE), "leaky", "worker")
        queue = names.runner_queue(names.RUNNER_QUEUE, "leaky")
        beside = [ActivityInterceptor(2.0, Doing())]
        async with Worker(temporal, task_queue=queue, activities=[activities.run_attempt], interceptors=beside):
            await (await stack.start("leaky", FILE)).result()
    failed = await database.pool.fetch("select failure_class, count(*) as n from rollouts group by 1 order by 1")
    assert [tuple(row) for row in failed] == [("agent_error", 4), ("invalid_reward", 2), (None, 6)]
    assert await database.pool.fetchval("select count(*) from spans where attributes::text like '%[redacted]%'") > 0
    assert await database.pool.fetchval("select count(*) from attempts where output like '%[redacted]%'") == 12
    assert await tables_with(database, MARK) + await tables_with(database, MARK.upper()) == []
    assert [text for text in await histories(temporal) if MARK in text.lower()] == []
    assert [line for line in caplog.text.splitlines() if MARK in line.lower()] == []
