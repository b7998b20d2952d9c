"""Runs under faults: which faults, what the runs lost (nothing), and how long each took to get on again."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import asyncpg
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from relight.errors import RelightError
from relight.store.check import check_store
from tests.chaos.faults import Fault, inflict, seeded
from tests.chaos.stack import ChaosStack, Outcome

AWAY = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
RUN_SECONDS = 600
"""How long a run may take after the last fault."""
PROGRESS = """
select (select count(*) from attempts where status = 'succeeded')
     + (select count(*) from steps where status = 'recorded')
"""


@dataclass
class Report:
    """The figures of a campaign."""

    seed: int
    runs_started: int = 0
    runs_completed: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    rollouts_lost: int = 0
    """Finished rollouts that ran again."""
    trained_twice: int = 0
    prompts_skipped: int = 0
    step_gaps: int = 0
    runs_that_differ: int = 0
    """From the undisturbed run, in any weight, reward or ledger row."""
    broken_invariants: list[str] = field(default_factory=list[str])
    run_seconds: list[float] = field(default_factory=list[float])
    recovery_seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def good(self) -> bool:
        """Nothing was lost, and every run ended as the undisturbed one."""
        lost = self.rollouts_lost + self.trained_twice + self.prompts_skipped + self.step_gaps + self.runs_that_differ
        return not lost and not self.broken_invariants and self.runs_completed == self.runs_started > 0

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "good": self.good}

    def __str__(self) -> str:
        seconds = statistics.median(self.run_seconds) if self.run_seconds else 0.0
        lines = [
            f"seed {self.seed}: {sum(self.faults.values())} faults, "
            f"{self.runs_completed} of {self.runs_started} runs completed, {seconds:.1f} s a run",
            f"  finished rollouts that ran again {self.rollouts_lost}, trained twice {self.trained_twice}, "
            f"prompts skipped {self.prompts_skipped}, gaps in steps {self.step_gaps}, "
            f"runs that differ from the undisturbed one {self.runs_that_differ}, "
            f"broken invariants {len(self.broken_invariants)}",
        ]
        if self.faults:
            lines.append("  fault                            times   seconds to progress: median   worst")
        for name, times in sorted(self.faults.items()):
            took = self.recovery_seconds.get(name, [])
            figures = f"{statistics.median(took):27.1f} {max(took):7.1f}" if took else ""
            lines.append(f"  {name:32} {times:5} {figures}")
        return "\n".join(lines + [f"  {broken}" for broken in self.broken_invariants])


async def campaign(
    chaos: ChaosStack, seed: int, seconds: float, steps: int, say: Callable[[str], None] = lambda line: None
) -> Report:
    """Play runs one after the other for so long, with faults, and compare each with one that had none.

    Without time it is one run without faults, compared with another.
    """
    report = Report(seed)
    await (await chaos.start("undisturbed", steps)).result()
    reference = await chaos.outcome("undisturbed")
    if not seconds:
        await _play(chaos, report, reference, steps, say)
    tormentor = asyncio.create_task(_torment(chaos, report, seconds, say))
    while not tormentor.done():
        await _play(chaos, report, reference, steps, say)
    await tormentor
    report.broken_invariants += [str(broken) for broken in await check_store(chaos.database)]
    return report


async def _play(chaos: ChaosStack, report: Report, reference: Outcome, steps: int, say: Callable[[str], None]) -> None:
    report.runs_started += 1
    began = time.monotonic()
    run = f"chaos-{report.runs_started}"
    with suppress(WorkflowAlreadyStartedError):  # by a try whose answer was lost
        await _insist(lambda: chaos.start(run, steps))
    await _ended(chaos, run)
    report.run_seconds.append(time.monotonic() - began)
    outcome: Outcome = await _insist(lambda: chaos.outcome(run))
    compare(report, outcome, reference)
    say(f"{run}: {outcome.status}, {'as undisturbed' if outcome == reference else 'DIFFERS'}")


def compare(report: Report, outcome: Outcome, reference: Outcome) -> None:
    """Count what is not as in the undisturbed run."""
    trained = [(step, rollout) for step, rollout, *_ in outcome.trained]
    report.runs_completed += outcome.status == "finished"
    report.rollouts_lost += len(outcome.ran_again)
    report.trained_twice += len(trained) - len({rollout for _, rollout in trained})
    wanted = Counter((step, task) for step, _, _, _, task in reference.trained)
    got = Counter((step, task) for step, _, _, _, task in outcome.trained)
    report.prompts_skipped += (wanted - got).total()
    report.step_gaps += len(set(reference.steps) - set(outcome.steps))
    report.runs_that_differ += outcome != reference


async def _torment(chaos: ChaosStack, report: Report, seconds: float, say: Callable[[str], None]) -> None:
    """One fault after the other until the time is over."""
    until = time.monotonic() + seconds
    watches: list[asyncio.Task[None]] = []
    for fault in seeded(report.seed):
        await asyncio.sleep(fault.pause_seconds)
        if time.monotonic() > until:
            break
        report.faults[str(fault)] += 1
        say(str(fault))
        before = await _progress(chaos)
        began = time.monotonic()
        await inflict(chaos.stack, fault)
        watches.append(asyncio.create_task(_watch(chaos, report, fault, before, began)))
    await asyncio.gather(*watches)


async def _watch(chaos: ChaosStack, report: Report, fault: Fault, before: int | None, began: float) -> None:
    """Note when the first rollout or step after a fault is on record."""
    while time.monotonic() - began < RUN_SECONDS:
        now = await _progress(chaos)
        if before is None:
            before = now
        elif now is not None and now > before:
            report.recovery_seconds[str(fault)].append(time.monotonic() - began)
            return
        await asyncio.sleep(0.2)


async def _progress(chaos: ChaosStack) -> int | None:
    return await _ask(chaos, PROGRESS)


async def _ask(chaos: ChaosStack, query: str, *values: object) -> Any:
    """One value, on a connection of its own; None while Postgres is away."""
    try:
        connection = await asyncpg.connect(chaos.stack.settings.postgres_url, timeout=5, command_timeout=5)
        try:
            return await connection.fetchval(query, *values)
        finally:
            connection.terminate()
    except AWAY:
        return None


async def _ended(chaos: ChaosStack, run: str) -> None:
    """Wait for a run through outages of those that would tell."""
    async with asyncio.timeout(RUN_SECONDS):
        while True:
            if await _ask(chaos, "select status from runs where run = $1", run) not in (None, "running"):
                return
            await asyncio.sleep(0.3)


async def _insist(call: Callable[[], Any]) -> Any:
    """Do it once whatever is needed for it is there."""
    async with asyncio.timeout(RUN_SECONDS):
        while True:
            try:
                return await asyncio.wait_for(call(), 15)
            except (*AWAY, RPCError, RelightError):
                await asyncio.sleep(0.5)
            except WorkflowFailureError as error:
                raise AssertionError(f"a run failed: {error.cause}") from error
