"""Keepers on real processes: shell commands that live, die and linger."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from relight.errors import StackError
from relight.stack import supervisor
from relight.stack.pidfd import open_process
from relight.stack.supervisor import ManagedProcess, ProcessSupervisor, StackEvent


async def at_once(pid: int) -> bool:
    return True


async def never(pid: int) -> bool:
    return False


class Watched:
    """A keeper and the events that it reported."""

    def __init__(self, part: ManagedProcess) -> None:
        self.events: list[StackEvent] = []
        self.changed = asyncio.Condition()
        self.keeper = ProcessSupervisor(part, self._hear)

    def _hear(self, event: StackEvent) -> None:
        self.events.append(event)
        self._task = asyncio.ensure_future(self._report())

    async def _report(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, kind: str, count: int = 1) -> StackEvent:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    def of(self, kind: str) -> list[StackEvent]:
        return [event for event in self.events if event.kind == kind]


@pytest.fixture
def part(tmp_path: Path) -> ManagedProcess:
    return ManagedProcess(
        name="part",
        command=["sleep", "60"],
        log=tmp_path / "part.log",
        ready=at_once,
        environment=dict(os.environ),
        folder=tmp_path,
        ask_seconds=0.01,
    )


@asynccontextmanager
async def kept(part: ManagedProcess) -> AsyncGenerator[Watched]:
    watched = Watched(part)
    async with asyncio.TaskGroup() as group:
        group.create_task(watched.keeper.run())
        try:
            yield watched
        finally:
            await watched.keeper.stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: int) -> None:
    with suppress(ProcessLookupError), open_process(pid) as process:
        assert await asyncio.to_thread(process.ends, 10), f"process {pid} is still there"


async def test_a_killed_process_is_restarted(part: ManagedProcess) -> None:
    async with kept(part) as watched:
        await watched.until("ready")
        first = watched.keeper.pid
        assert first
        os.kill(first, signal.SIGKILL)
        death = await watched.until("restarting")
        assert death.text == f"part (pid {first}) died: killed by SIGKILL; restart in 0.5 s"
        await watched.until("ready", 2)
        assert watched.keeper.pid != first
        assert watched.keeper.restarts == 1


async def test_what_a_dead_process_leaves_in_its_group_is_killed(part: ManagedProcess, tmp_path: Path) -> None:
    script = f"sleep 61 & echo $! > {tmp_path / 'child'}; exec sleep 60"

    async def has_child(pid: int) -> bool:
        return (tmp_path / "child").exists()

    async with kept(replace(part, command=["sh", "-c", script], ready=has_child)) as watched:
        await watched.until("ready")
        child = int((tmp_path / "child").read_text())
        assert watched.keeper.pid
        os.kill(watched.keeper.pid, signal.SIGKILL)
        await watched.until("restarting")
        await gone(child)


async def test_stop_sends_sigterm_first(part: ManagedProcess, tmp_path: Path) -> None:
    script = (
        f"trap 'echo bye > {tmp_path / 'said'}; exit 0' TERM; echo > {tmp_path / 'up'}; while :; do sleep 0.01; done"
    )

    async def is_up(pid: int) -> bool:
        return (tmp_path / "up").exists()

    async with kept(replace(part, command=["sh", "-c", script], ready=is_up)) as watched:
        await watched.until("ready")
    assert (tmp_path / "said").read_text() == "bye\n"
    assert watched.events[-1].kind == "stopped"


async def test_a_process_that_ignores_sigterm_is_killed(part: ManagedProcess, tmp_path: Path) -> None:
    script = f"trap '' TERM; echo > {tmp_path / 'up'}; while :; do sleep 0.01; done"

    async def is_up(pid: int) -> bool:
        return (tmp_path / "up").exists()

    stubborn = replace(part, command=["sh", "-c", script], ready=is_up, stop_seconds=0.1)
    async with kept(stubborn) as watched:
        await watched.until("ready")
        pid = watched.keeper.pid
        assert pid
    assert not alive(pid)


async def test_bad_input_ends_the_boot_at_once_with_the_processs_own_message(part: ManagedProcess) -> None:
    refusing = replace(part, command=["sh", "-c", "echo 'error: no agent x.y' >&2; exit 2"], ready=never)
    async with kept(refusing) as watched:
        with pytest.raises(
            StackError, match=r"part can't be started: exit status 2: no agent x\.y \(log: .*part.log\)"
        ):
            await asyncio.wait_for(watched.keeper.failure, 20)
    assert watched.keeper.restarts == 0


async def test_a_process_that_keeps_dying_at_boot_is_given_up(part: ManagedProcess) -> None:
    dying = replace(part, command=["sh", "-c", "echo broken; exit 7"], ready=never, first_delay_seconds=0.01)
    async with kept(dying) as watched:
        with pytest.raises(StackError, match="exit status 7: broken"):
            await asyncio.wait_for(watched.keeper.failure, 20)
    assert len(watched.of("starting")) == supervisor.BOOT_TRIES


async def test_a_process_that_was_ready_once_is_always_restarted(part: ManagedProcess) -> None:
    delays = {"first_delay_seconds": 0.01, "longest_delay_seconds": 0.01}
    async with kept(replace(part, command=["sh", "-c", "sleep 0.05; exit 2"], **delays)) as watched:
        await watched.until("restarting", supervisor.BOOT_TRIES + 2)
        assert not watched.keeper.failure.done()


async def test_a_program_that_does_not_exist_is_named(part: ManagedProcess) -> None:
    async with kept(replace(part, command=["/nowhere/program"], ready=never)) as watched:
        with pytest.raises(StackError, match="can't run /nowhere/program"):
            await asyncio.wait_for(watched.keeper.failure, 20)


async def test_preparation_that_is_refused_ends_the_boot(part: ManagedProcess) -> None:
    async def refuse() -> None:
        raise StackError("the data is of another version")

    async with kept(replace(part, prepare=refuse)) as watched:
        with pytest.raises(StackError, match="the data is of another version"):
            await asyncio.wait_for(watched.keeper.failure, 20)


async def test_the_log_is_for_its_owner_alone(part: ManagedProcess) -> None:
    async with kept(replace(part, command=["sh", "-c", "echo hello; exec sleep 60"])) as watched:
        await watched.until("ready")
        assert part.log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("healthy_seconds", "delays"), [(60.0, [0.01, 0.02, 0.02]), (0.0, [0.01, 0.01, 0.01])])
async def test_the_delay_doubles_up_to_its_limit_and_a_healthy_period_resets_it(
    part: ManagedProcess, healthy_seconds: float, delays: list[float]
) -> None:
    limits = {"first_delay_seconds": 0.01, "longest_delay_seconds": 0.02, "healthy_seconds": healthy_seconds}
    async with kept(replace(part, command=["sh", "-c", "sleep 0.05; exit 2"], **limits)) as watched:
        await watched.until("restarting", 3)
        assert [event.data["restart_seconds"] for event in watched.of("restarting")[:3]] == delays


async def test_a_long_log_is_rotated(part: ManagedProcess) -> None:
    part.log.write_text("what was said before")
    async with kept(replace(part, longest_log_bytes=10)) as watched:
        await watched.until("ready")
    assert part.log.read_text() == ""
    assert part.log.with_name("part.old.log").read_text() == "what was said before"


async def test_a_ready_process_is_shown_as_unresponsive_while_it_does_not_answer(part: ManagedProcess) -> None:
    answering = True

    async def answers(pid: int) -> bool:
        return answering

    async with kept(replace(part, answers=answers, check_seconds=0.01)) as watched:
        await watched.until("ready")
        answering = False
        await watched.until("unresponsive")
        assert (watched.keeper.state, watched.keeper.ready.is_set()) == ("unresponsive", False)
        answering = True
        await watched.until("ready", 2)
        assert (watched.keeper.restarts, watched.keeper.ready.is_set()) == (0, True)


async def test_a_server_that_is_shutting_down_gets_further_signals_until_it_ends(
    part: ManagedProcess, tmp_path: Path
) -> None:
    """A signal that it ignores is followed by the next; then it is started again."""
    ending = tmp_path / "ending"
    script = f"trap '' INT; trap 'rm {ending}; exit 0' QUIT; touch {tmp_path / 'set'}; while :; do sleep 0.05; done"

    async def is_set(pid: int) -> bool:
        return (tmp_path / "set").exists()

    shutting = replace(
        part,
        command=["env", "--default-signal=INT,QUIT", "sh", "-c", script],  # a shell ignores both in the background
        ready=is_set,
        answers=is_set,
        check_seconds=0.01,
        is_ending=ending.exists,
        end_signals=((signal.SIGINT, 0.2), (signal.SIGQUIT, 20.0)),
    )
    async with kept(shutting) as watched:
        await watched.until("ready")
        ending.touch()
        stopping = await watched.until("stopping")
        assert stopping.data["pid"] == watched.keeper.pid
        assert "exit status 0" in (await watched.until("restarting")).text
        await watched.until("ready", 2)
