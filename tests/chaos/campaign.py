"""Runs under faults: which faults, what the runs lost (nothing), and how long each took to get on again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import asyncpg
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from relight.errors import RelightError
from relight.store.maintenance.check import check_store
from tests.chaos.checker import contradictions
from tests.chaos.evidence import kept_on_failure
from tests.chaos.faults import KINDS, Fault, inflict, possible, seeded
from tests.chaos.network import open_network
from tests.chaos.report import Report
from tests.chaos.stack import FAST, ChaosStack, Outcome, Parts, chaos_stack, open_folder

AWAY = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
STEPS = 12
POLL_SECONDS = 0.2
"""Between two looks at what is done."""
PROGRESS = """
select (select count(*) from attempts where status = 'succeeded')
     + (select count(*) from steps where status = 'recorded')
"""
REPEATED = "select count(*) from attempts where failure_class = 'infrastructure'"
FINISHED = "select count(*) from attempts where status = 'succeeded'"


async def play(
    seed: int,
    seconds: float,
    *,
    steps: int = STEPS,
    parts: Parts = FAST,
    kinds: Collection[str] = tuple(KINDS),
    brief: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """A campaign on a stack of its own. Where it goes wrong, what explains it is kept, and the report says where."""
    faulty = bool(seconds)
    with open_folder() as folder:
        async with (
            open_network(seed) as network,
            chaos_stack(folder, network if faulty else None, parts=parts, clocks=faulty and "jump" in kinds) as chaos,
        ):
            report = Report(seed, kinds=[kind for kind in possible(chaos) if kind in kinds])
            async with kept_on_failure(chaos, f"seed-{seed}", report):
                await campaign(chaos, report, seconds, steps, brief=brief, say=say)
    return report


async def campaign(
    chaos: ChaosStack,
    report: Report,
    seconds: float,
    steps: int = STEPS,
    *,
    brief: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Play runs one after the other for so long, with faults, and compare each with one that had none.

    Without time it is one run without faults, compared with another.
    """
    await (await chaos.start("undisturbed", steps)).result()
    reference = await chaos.outcome("undisturbed")
    injection = asyncio.create_task(_inject_faults(chaos, report, seconds, brief, say)) if seconds else None
    while True:
        await _play(chaos, report, reference, steps, say)
        if injection is None or injection.done():
            break
    if injection is not None:
        await injection
    await _compare_records(chaos, report)
    return report


async def _compare_records(chaos: ChaosStack, report: Report) -> None:
    """Compare all records after the last run."""
    await asyncio.wait_for(chaos.stack.wait_ready(), chaos.parts.run_seconds)
    report.broken_invariants += [str(broken) for broken in await check_store(chaos.database)]
    report.contradictions += await contradictions(chaos)
    report.attempts_repeated = int(await _ask(chaos, REPEATED) or 0)
    report.rollouts_finished = int(await _ask(chaos, FINISHED) or 0)


async def _play(chaos: ChaosStack, report: Report, reference: Outcome, steps: int, say: Callable[[str], None]) -> None:
    report.runs_started += 1
    began = time.monotonic()
    run = f"chaos-{report.runs_started}"
    with suppress(WorkflowAlreadyStartedError):  # by a try whose answer was lost
        await _insist(chaos, lambda: chaos.start(run, steps))
    await _ended(chaos, run)
    report.run_seconds.append(time.monotonic() - began)
    outcome: Outcome = await _insist(chaos, lambda: chaos.outcome(run))
    differing = report.runs_that_differ
    compare(report, outcome, reference, chaos.parts.tolerance)
    say(f"{run}: {outcome.status}, {'as undisturbed' if report.runs_that_differ == differing else 'DIFFERS'}")


def compare(report: Report, outcome: Outcome, reference: Outcome, tolerance: float | None = None) -> None:
    """Count what is not as in the undisturbed run."""
    trained = [(step, rollout) for step, rollout, *_ in outcome.trained]
    report.runs_completed += outcome.status == "finished"
    report.rollouts_lost += len(outcome.ran_again)
    report.trained_twice += len(trained) - len({rollout for _, rollout in trained})
    wanted = Counter((step, task) for step, _, _, _, task in reference.trained)
    got = Counter((step, task) for step, _, _, _, task in outcome.trained)
    report.prompts_skipped += (wanted - got).total()
    report.step_gaps += len(set(reference.steps) - set(outcome.steps))
    if tolerance is None:
        report.runs_that_differ += outcome != reference
    elif report.runs_completed == report.runs_started:
        gap = outcome.apart_from(reference)
        report.curve_gaps.append(gap)
        report.runs_that_differ += gap > tolerance


async def _inject_faults(
    chaos: ChaosStack, report: Report, seconds: float, brief: bool, say: Callable[[str], None]
) -> None:
    """One fault after the other until the time is over; then everything is as it should be, but for what recovers."""
    until = time.monotonic() + seconds
    watches: list[asyncio.Task[None]] = []
    repeated, bursts = Repeated(chaos, report), Bursts(report)
    watches.append(asyncio.create_task(bursts.watch(chaos)))
    for fault in seeded(report.seed, report.kinds, brief=brief):
        await asyncio.sleep(fault.pause_seconds * chaos.parts.pause_factor)
        if time.monotonic() > until:
            break
        report.count(fault)
        say(str(fault))
        await repeated.blame(str(fault))
        bursts.begins(time.monotonic())
        await inflict(chaos, fault)
        bursts.ended(time.monotonic())
        watches.append(asyncio.create_task(_watch(chaos, report, fault, bursts, time.monotonic())))
    for clock in chaos.clocks.values():
        clock.jump(0)
    if chaos.network:
        await chaos.network.heal()
    bursts.over = True
    await asyncio.gather(*watches)
    await repeated.blame("")


class Bursts:
    """Notes how long progress takes after the last of the faults that leave no time for it between them."""

    def __init__(self, report: Report) -> None:
        self.over = False
        """True once there will be no more faults."""
        self._report = report
        self._quiet_since: float | None = None
        self._before: int | None = None
        self._fault_since: float | None = None
        self._fault_seconds = 0.0

    def begins(self, at: float) -> None:
        """A fault: where nothing was done since the one before, it goes on with that one's burst."""
        self._quiet_since, self._fault_since = None, at

    def ended(self, at: float) -> None:
        """The fault is over: progress counts from the next poll."""
        self._fault_seconds = self.fault_seconds(at)
        self._quiet_since, self._before, self._fault_since = at, None, None

    def fault_seconds(self, at: float) -> float:
        """How long faults have lasted until then, all of them together."""
        return self._fault_seconds + (at - self._fault_since if self._fault_since is not None else 0.0)

    def seen(self, done: int | None, at: float) -> None:
        """So much is done by now, as far as anything can be learnt."""
        if done is None:
            return
        if self._before is not None and done > self._before and self._quiet_since is not None:
            self._report.burst_seconds.append(at - self._quiet_since)
            self._quiet_since = None
        self._before = done

    async def watch(self, chaos: ChaosStack) -> None:
        """Until the last burst is over, and what it held up goes on."""
        until = float("inf")
        while not self.over or (self._quiet_since is not None and time.monotonic() < until):
            if self.over and until == float("inf"):
                until = time.monotonic() + chaos.parts.run_seconds
            self.seen(await _progress(chaos), time.monotonic())
            await asyncio.sleep(POLL_SECONDS)


class Repeated:
    """Puts attempts that the platform lost down to the last fault before them."""

    def __init__(self, chaos: ChaosStack, report: Report) -> None:
        self._chaos = chaos
        self._report = report
        self._seen = 0
        self._blamed = ""

    async def blame(self, fault: str) -> None:
        """From now on it is this one's; while Postgres is away, the one before has what comes too."""
        seen = await _ask(self._chaos, REPEATED)
        if seen is None:
            return
        if self._blamed:
            self._report.repeated_by_fault[self._blamed] += seen - self._seen
        self._seen, self._blamed = seen, fault


async def _watch(chaos: ChaosStack, report: Report, fault: Fault, bursts: Bursts, began: float) -> None:
    """Note when its targets are back and the first rollout or step after that is on record."""
    before, earlier_seconds = None, bursts.fault_seconds(began)
    while time.monotonic() - began < chaos.parts.run_seconds:
        now = await _progress(chaos)
        if before is None:
            before = now
        elif now is not None and now > before and _are_back(chaos, fault):
            at = time.monotonic()
            report.recovered(str(fault), at - began, bursts.fault_seconds(at) - earlier_seconds)
            return
        await asyncio.sleep(POLL_SECONDS)


def _are_back(chaos: ChaosStack, fault: Fault) -> bool:
    """Disks and edges are as soon as the fault is over."""
    keepers = [chaos.stack.supervisors[name] for name in fault.targets if name in chaos.stack.supervisors]
    return fault.kind == "fill" or all(keeper.ready.is_set() for keeper in keepers)


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
    """Wait for a run through outages of the services that report it."""
    async with asyncio.timeout(chaos.parts.run_seconds):
        while True:
            if await _ask(chaos, "select status from runs where run = $1", run) not in (None, "running"):
                return
            await asyncio.sleep(0.3)


async def _insist(chaos: ChaosStack, call: Callable[[], Any]) -> Any:
    """Do it once whatever is needed for it is there."""
    async with asyncio.timeout(chaos.parts.run_seconds):
        while True:
            try:
                return await asyncio.wait_for(call(), 15)
            except (*AWAY, RPCError, RelightError):
                await asyncio.sleep(0.5)
            except WorkflowFailureError as error:
                raise AssertionError(f"a run failed: {error.cause}") from error
