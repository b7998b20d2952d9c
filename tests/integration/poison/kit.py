"""Runs on the stack of these tests, and every count that is shown of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families
from temporalio.client import Client, WorkflowHandle

from relight.cli.store_reader import StoreReader
from relight.stack.embedded import EmbeddedStack
from relight.store.database import Database
from relight.types import names
from tests.support.pid_namespaces import pid_of

PARTS = Path(__file__).parent / "parts"
NOTED = "pids"
"""The folder in which agents note their processes."""
AGENTS = ("poison", "shared", "silent", "broken", "rewardless", "judge", "strict")
Counts = dict[str, int]
RUN_SECONDS = 150


@dataclass
class PoisonStack:
    """The booted stack."""

    stack: EmbeddedStack
    database: Database
    client: Client
    folder: Path

    def write_tasks(self, name: str, kinds: list[list[str]], **more: Any) -> str:
        """A data set with a task for each group: what its samples do, in order."""
        tasks = [{"kinds": group, "pids": str(self.folder / NOTED / f"{name}.pids"), **more} for group in kinds]
        (self.folder / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, tasks)))
        return f"{name}.jsonl"

    async def kill_fork_servers(self, run: str) -> None:
        """Kill the fork servers that agents ask for, until this is cancelled."""
        asked = self.folder / NOTED / f"{run}.pids.kill"
        while True:
            if asked.exists() and (noted := asked.read_text()):
                asked.unlink()
                if (pid := pid_of(noted)) is not None:
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.1)

    async def start(self, run: str, kinds: list[list[str]], **changes: Any) -> WorkflowHandle[Any, Any]:
        """Start a run of one step that plays all tasks; pauses and preflight are off unless asked for."""
        file = {
            "agent": "poison",
            "model": "policy",
            "data": {"train": self.write_tasks(run, kinds), "shuffle": False},
            "group_size": max(map(len, kinds)),
            "batch_size": len(kinds),
            "steps": 1,
            "preflight": False,
            "engine_wait_seconds": 2,
            "failures": {"pause_above": None},
            **changes,
        }
        return await self.client.start_workflow(
            names.TRAINING_WORKFLOW, file, id=names.train_id(run), task_queue=names.ORCHESTRATOR_QUEUE
        )

    async def result(self, handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
        """The end of a run; where none comes, what it is stuck in."""
        try:
            async with asyncio.timeout(RUN_SECONDS):
                return await handle.result()
        except TimeoutError:
            text = "select rollout_id, status, failure_class, attempts, deaths, failure from rollouts where run = $1"
            run = handle.id.removeprefix("train/")
            rows = await self.database.pool.fetch(text, run)
            rows += await self.database.pool.fetch(
                "select status, phase, waiting_for, error from runs where run = $1", run
            )
            rows += await self.database.pool.fetch("select run, state, detail from gpu_hosts")
            raise AssertionError("\n".join(str(dict(row)) for row in rows)) from None

    async def command(self, *arguments: str) -> list[dict[str, Any]]:
        """What `relight ... --json` says, line by line."""
        environment = {
            **os.environ,
            "RELIGHT_HOME": str(self.stack.settings.home),
            "RELIGHT_STORE_URL": self.stack.settings.store_url,
            "RELIGHT_TOKEN": self.stack.settings.token_value or "",
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relight.cli", *arguments, "--json"),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        text, _ = await process.communicate()
        assert process.returncode == 0
        return [orjson.loads(line) for line in text.splitlines()]

    async def metrics(self) -> Counts:
        """Failed training rollouts of all runs, by class, as `/metrics` tells."""
        headers = {"Authorization": f"Bearer {self.stack.settings.token_value}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{self.stack.settings.store_url}/metrics") as answer,
        ):
            families = text_string_to_metric_families(await answer.text())
        return {
            sample.labels["failure_class"]: int(sample.value)
            for family in families
            for sample in family.samples
            if sample.name == "relight_rollouts_failed" and sample.labels["kind"] == "train"
        }

    async def shown(self, run: str, result: dict[str, Any]) -> dict[str, Counts]:
        """Failures by class as each place shows them."""
        listed = await self.command("rollouts", run, "--limit", "1000")
        status = (await self.command("status", run))[0]
        async with StoreReader.from_settings(self.stack.settings) as reader:
            steps = await reader.steps(run)
        classes = Counter(row["failure_class"] for row in listed if row["kind"] == "train" and row["failure_class"])
        counted = {name: number for name, number in result["counters"].items() if name not in ("rollouts", "retried")}
        return {
            "relight rollouts": dict(classes),
            "relight status": dict(status["steps"][0]["rollouts"]["failures"]),
            "runs view": dict(steps[0].rollouts.failures),
            "progress": counted,
        }

    def survivors(self, run: str) -> list[int]:
        """Processes that its agents noted and that are still there."""
        path = self.folder / NOTED / f"{run}.pids"
        noted = path.read_text().split() if path.exists() else []
        return [pid for one in noted if (pid := pid_of(one)) is not None]


def more(after: Counts, before: Counts) -> Counts:
    """What was added between two counts."""
    return {name: number - before.get(name, 0) for name, number in after.items() if number != before.get(name, 0)}
