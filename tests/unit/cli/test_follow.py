"""Watching a run: it ends with the run's outcome, and Ctrl-C leaves the run alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from relight.cli import output
from relight.cli.display import Display, JsonDisplay, LiveDisplay, PlainDisplay, make_display
from relight.cli.follow import RunSource, follow
from relight.cli.progress import ProgressEvent, RunOutcome, RunSnapshot
from relight.cli.store_reader import StoreReader
from relight.cli.train import DETACHED_EXIT_CODE, watch
from relight.errors import NotFoundError, StoreError
from relight.settings import Settings
from relight.types.views import RunView, StepView

from .example_views import NOW, a_run, a_step, an_evaluation


class Script:
    """A source whose looks are written down."""

    def __init__(self, *looks: RunSnapshot) -> None:
        self.looks = iter(looks)

    async def snapshot(self) -> RunSnapshot:
        return next(self.looks)


class RecordingDisplay(Display):
    """A display that keeps what it was shown."""

    def __init__(self) -> None:
        self.events: list[ProgressEvent] = []
        self.lines: list[str] = []

    def event(self, event: ProgressEvent) -> None:
        self.events.append(event)

    def status(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def json_wanted() -> Iterator[None]:
    output.current = output.GlobalOptions(json=True)
    yield
    output.current = output.GlobalOptions()


async def test_watching_ends_with_the_run() -> None:
    display = RecordingDisplay()
    looks = [
        RunSnapshot(),
        RunSnapshot(a_run(), [a_step(1)]),
        RunSnapshot(a_run(step=1), [a_step(2)], RunOutcome("finished")),
    ]
    last = await follow(Script(*looks), display, interval_seconds=0)
    assert last.outcome == RunOutcome("finished")
    assert [event.kind for event in display.events] == ["step", "step", "end"]
    assert len(display.lines) == 3


@pytest.mark.parametrize(
    ("display", "expected"),
    [(PlainDisplay, "step  1/60"), (LiveDisplay, "step  1/60"), (JsonDisplay, '{"event":"step"')],
)
async def test_every_screen_shows_the_steps(
    display: type[Display], expected: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with display() as shown:
        await follow(Script(RunSnapshot(a_run(), [a_step(1)], RunOutcome("finished"))), shown, interval_seconds=0)
    assert expected in capfdbinary.readouterr().out.decode()


def test_json_is_an_object_a_line(json_wanted: None, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    display = make_display()
    display.event(ProgressEvent("waiting", "waiting for a runner"))
    display.status("sampling")
    display.event(ProgressEvent("end", "", {"status": "failed", "message": "no weights"}))
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert lines == [
        {"event": "waiting", "text": "waiting for a runner"},
        {"event": "end", "status": "failed", "message": "no weights"},
    ]


class Store(StoreReader):
    """A store that answers from a script; an exception in it is raised."""

    def __init__(self, *answers: RunView | Exception) -> None:
        super().__init__("http://nowhere", None)
        self.answers = list(answers)

    async def run(self, run: str) -> RunView:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def steps(self, run: str, *, after: int = 0, recorded: bool | None = None) -> list[StepView]:
        return [a_step(number) for number in range(after + 1, 4)]


async def test_a_store_that_is_down_is_waited_for() -> None:
    source = RunSource("calc-1", Store(StoreError(), a_run()), None, "relight")
    assert (await source.snapshot()).note == "waiting: the store service does not answer"
    assert [step.step for step in (await source.snapshot()).steps] == [1, 2, 3]


async def test_steps_are_fetched_once() -> None:
    source = RunSource("calc-1", Store(a_run(), a_run()), None, "relight")
    assert len((await source.snapshot()).steps) == 3
    assert (await source.snapshot()).steps == []


class Temporal(RunSource):
    """A source that is told what Temporal says."""

    def __init__(self, state: str, *answers: RunView | Exception) -> None:
        super().__init__("calc-1", Store(*answers), None, "relight")
        self.state = state

    async def _state(self) -> str:
        return self.state


async def test_an_unknown_run_is_an_error() -> None:
    with pytest.raises(NotFoundError, match="there is no run 'calc-1'"):
        await Temporal("unknown", NotFoundError()).snapshot()


async def test_a_run_that_begins_has_no_row_yet() -> None:
    assert (
        await Temporal("under way", NotFoundError()).snapshot()
    ).note == "starting: an orchestrator stores the run and its data sets"


async def test_a_run_in_progress_does_not_end_by_an_earlier_state_of_its_row() -> None:
    assert (await Temporal("under way", a_run(status="failed", error="earlier")).snapshot()).outcome is None


async def test_a_run_that_temporal_lost_is_shown_as_interrupted() -> None:
    outcome = (await Temporal("unknown", a_run()).snapshot()).outcome
    assert outcome is not None
    assert (outcome.status, outcome.finished) == ("interrupted", False)


async def test_a_run_that_will_be_driven_again_is_watched_further() -> None:
    again = a_run(status="interrupted", error="timed out; it is driven again by itself", drive_again_at=NOW)
    shown = await Temporal("failed", again).snapshot()
    assert (shown.outcome, shown.note) == (None, "timed out; it is driven again by itself")


async def test_a_finished_run_past_retention_is_finished_by_its_row() -> None:
    assert (await Temporal("unknown", a_run(status="finished")).snapshot()).outcome == RunOutcome("finished")


async def test_a_failed_run_reports_why() -> None:
    shown = await Temporal("failed", a_run(status="failed", error="no weights")).snapshot()
    assert shown.outcome == RunOutcome("failed", "no weights")


async def test_ctrl_c_detaches_and_prints_how_to_attach_again(capsys: pytest.CaptureFixture[str]) -> None:
    shown = asyncio.Event()

    class Endless(Store):
        async def run(self, run: str) -> RunView:
            shown.set()
            return a_run(evaluations=[an_evaluation(0)])

    async def watching() -> int:
        try:
            await watch("calc-1", Endless(), None, Settings())
        except SystemExit as end:
            return int(str(end.code))

    task = asyncio.create_task(watching())
    await shown.wait()
    task.cancel()
    assert await task == DETACHED_EXIT_CODE
    assert "relight status --watch calc-1" in capsys.readouterr().out
