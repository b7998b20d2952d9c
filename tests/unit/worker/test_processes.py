"""Keepers on real processes: shell commands that live, die and linger."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.errors import StackError
from relight.worker import processes
from relight.worker.pidfd import open_process
from relight.worker.processes import Event, Keeper, Part


async def at_once(pid: int) -> bool:
    return True


async def never(pid: int) -> bool:
    return False


class Watched:
    """A keeper and the events that it reported."""

    def __init__(self, part: Part) -> None:
        self.events: list[Event] = []
        self.changed = asyncio.Condition()
        self.keeper = Keeper(part, self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._task = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, kind: str, count: int = 1) -> Event:
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


@pytest.fixture
def part(tmp_path: Path) -> Part:
    return Part(
        name="part",
        command=["sleep", "60"],
        log=tmp_path / "part.log",
        ready=at_once,
        environment=dict(os.environ),
        folder=tmp_path,
        ask_seconds=0.01,
    )


@asynccontextmanager
async def kept(part: Part) -> AsyncGenerator[Watched]:
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


async def test_a_part_that_is_killed_is_started_again(part: Part) -> None:
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


async def test_what_a_dead_part_leaves_in_its_group_is_killed(part: Part, tmp_path: Path) -> None:
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


async def test_stop_asks_first(part: Part, tmp_path: Path) -> None:
    script = (
        f"trap 'echo bye > {tmp_path / 'said'}; exit 0' TERM; echo > {tmp_path / 'up'}; while :; do sleep 0.01; done"
    )

    async def is_up(pid: int) -> bool:
        return (tmp_path / "up").exists()

    async with kept(replace(part, command=["sh", "-c", script], ready=is_up)) as watched:
        await watched.until("ready")
    assert (tmp_path / "said").read_text() == "bye\n"
    assert watched.events[-1].kind == "stopped"


async def test_a_part_that_does_not_obey_is_killed(part: Part, tmp_path: Path) -> None:
    script = f"trap '' TERM; echo > {tmp_path / 'up'}; while :; do sleep 0.01; done"

    async def is_up(pid: int) -> bool:
        return (tmp_path / "up").exists()

    stubborn = replace(part, command=["sh", "-c", script], ready=is_up, stop_seconds=0.1)
    async with kept(stubborn) as watched:
        await watched.until("ready")
        pid = watched.keeper.pid
        assert pid
    assert not alive(pid)


async def test_bad_input_ends_the_boot_at_once_with_the_part_s_own_words(part: Part) -> None:
    refusing = replace(part, command=["sh", "-c", "echo 'error: no agent x.y' >&2; exit 2"], ready=never)
    async with kept(refusing) as watched:
        with pytest.raises(
            StackError, match=r"part can't be started: exit status 2: no agent x\.y \(log: .*part.log\)"
        ):
            await asyncio.wait_for(watched.keeper.failure, 20)
    assert watched.keeper.restarts == 0


async def test_a_part_that_keeps_dying_at_boot_is_given_up(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FIRST_DELAY_SECONDS", 0.01)
    async with kept(replace(part, command=["sh", "-c", "echo broken; exit 7"], ready=never)) as watched:
        with pytest.raises(StackError, match="exit status 7: broken"):
            await asyncio.wait_for(watched.keeper.failure, 20)
    assert len(watched.of("starting")) == processes.BOOT_TRIES


async def test_a_part_that_was_ready_once_is_never_given_up(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(processes, "LONGEST_DELAY_SECONDS", 0.01)
    async with kept(replace(part, command=["sh", "-c", "sleep 0.05; exit 2"])) as watched:
        await watched.until("restarting", processes.BOOT_TRIES + 2)
        assert not watched.keeper.failure.done()


async def test_a_program_that_does_not_exist_is_named(part: Part) -> None:
    async with kept(replace(part, command=["/nowhere/program"], ready=never)) as watched:
        with pytest.raises(StackError, match="can't run /nowhere/program"):
            await asyncio.wait_for(watched.keeper.failure, 20)


async def test_preparation_that_is_refused_ends_the_boot(part: Part) -> None:
    async def refuse() -> None:
        raise StackError("the data is of another version")

    async with kept(replace(part, prepare=refuse)) as watched:
        with pytest.raises(StackError, match="the data is of another version"):
            await asyncio.wait_for(watched.keeper.failure, 20)


async def test_the_log_is_for_its_owner_alone(part: Part) -> None:
    async with kept(replace(part, command=["sh", "-c", "echo hello; exec sleep 60"])) as watched:
        await watched.until("ready")
        assert part.log.stat().st_mode & 0o777 == 0o600


PARENT = """
import subprocess, sys, time
from relight.worker.processes import leashed
import signal
child = subprocess.Popen(leashed(["sleep", "60"], signal.SIGKILL, None), start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


async def test_a_child_on_the_leash_ends_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout
    child = int(await parent.stdout.readline())
    assert alive(child)
    parent.kill()
    await parent.wait()
    await gone(child)


def test_a_leash_without_a_parent_does_not_run_the_command() -> None:
    command = [sys.executable, "-I", "-S", str(processes.LEASH), "1", "9", "-", "echo", "ran"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the parent process is gone" in done.stderr


@given(st.lists(st.floats(min_value=0, max_value=120), min_size=1, max_size=30))
def test_the_delay_doubles_up_to_its_limit_and_a_healthy_minute_resets_it(lives: list[float]) -> None:
    delay: float | None = None
    for lived in lives:
        before, delay = delay, processes.next_delay(delay, lived)
        if before is None or lived >= processes.HEALTHY_SECONDS:
            assert delay == processes.FIRST_DELAY_SECONDS
        else:
            assert delay == min(before * 2, processes.LONGEST_DELAY_SECONDS)


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit status 0"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_exit_statuses_are_told_in_words(status: int, words: str) -> None:
    assert processes.describe_exit(status) == words


def test_last_words_prefer_the_error_line(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("starting\nerror: no Postgres is set\nbye\n\n")
    assert processes.last_words(log) == "no Postgres is set"
    log.write_text("starting\nTraceback\nKeyError: 'x'\n")
    assert processes.last_words(log) == "KeyError: 'x'"


async def test_a_log_that_has_grown_long_is_put_aside(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LONGEST_LOG_BYTES", 10)
    part.log.write_text("what was said before")
    async with kept(part) as watched:
        await watched.until("ready")
    assert part.log.read_text() == ""
    assert part.log.with_name("part.old.log").read_text() == "what was said before"
