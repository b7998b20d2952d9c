"""What a run's progress looks like: lines for what has happened, one for what happens now. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from relight.types.views import Counts, EvaluationView, RunView, StepView

PHASES = ("plan", "rollouts", "update", "publish", "record")
"""Order in which the seconds of a step are shown; others follow, the total comes first."""
OLD_STEPS = 10
"""Steps shown of those that were done before one attached."""
EventKind = Literal["step", "evaluation", "waiting", "warning", "note", "end"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: str
    message: str = ""

    @property
    def finished(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True)
class Look:
    """One look at a run."""

    view: RunView | None = None
    """None while the run has no row or the store is away."""
    steps: list[StepView] = field(default_factory=list[StepView])
    """Recorded since the last look."""
    outcome: Outcome | None = None
    note: str | None = None
    """Why there is nothing to see, or what stands in the way."""
    training_seconds: float | None = None
    """All recorded steps of the run together."""


@dataclass(frozen=True)
class Event:
    """A line that stays."""

    kind: EventKind
    text: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class Narrator:
    """Turns looks into events, each once."""

    def __init__(self) -> None:
        self._first = True
        self._evaluations: set[int] = set()
        self._waiting: str | None = None
        self._warnings: dict[str, str] = {}

    def events(self, look: Look) -> list[Event]:
        """What is new in this look, in the order in which it happened."""
        news = [*self._results(look), *self._warned(look), *self._obstacles(look)]
        if look.outcome:
            news.append(_end_event(look.outcome))
        return news

    def _results(self, look: Look) -> Iterable[Event]:
        total = look.view.total_steps if look.view else None
        placed = [(step.step, 0, step_event(step, total)) for step in look.steps]
        for evaluation in look.view.evaluations if look.view else []:
            if evaluation.version not in self._evaluations and is_complete(evaluation):
                self._evaluations.add(evaluation.version)
                placed.append((evaluation.version, 1, evaluation_event(evaluation)))
        placed.sort(key=lambda item: item[:2])
        if self._first and look.view:
            self._first = False
            placed, hidden = _newest(placed)
            if hidden:
                yield Event("note", f"({hidden} earlier steps)")
        yield from (event for _, _, event in placed)

    def _warned(self, look: Look) -> Iterable[Event]:
        if look.view is None:
            return
        for name, text in sorted(look.view.warnings.items()):
            if self._warnings.get(name) != text:
                yield Event("warning", f"warning: {text}", {"name": name, "text": text})
        self._warnings = look.view.warnings

    def _obstacles(self, look: Look) -> Iterable[Event]:
        obstacle = look.note or (obstacle_of(look.view) if look.view and not look.outcome else None)
        if obstacle != self._waiting:
            self._waiting = obstacle
            if obstacle:
                yield Event("waiting", obstacle)


def is_complete(evaluation: EvaluationView) -> bool:
    """Whether the evaluation's figures are all there."""
    return evaluation.reward is not None or evaluation.failed > 0


def obstacle_of(view: RunView) -> str | None:
    """Why a run does not move, or None."""
    if view.paused:
        why = f": {view.pause_reason.rstrip('.')}" if view.pause_reason else ""
        return f"paused{why}; `relight resume {view.run}` goes on"
    return f"waiting for {view.waiting_for}" if view.waiting_for else None


def status_line(look: Look) -> str:
    """What happens now."""
    if look.note:
        return look.note
    view = look.view
    if view is None:
        return "starting"
    obstacle = obstacle_of(view)
    place = f"step {view.open_step.step if view.open_step else view.step}/{view.total_steps}"
    if obstacle:
        return f"{place}  {obstacle}"
    if view.phase == "evaluating" and view.open_evaluation:
        evaluation = view.open_evaluation
        return f"evaluating version {evaluation.version}: {counts_text(evaluation.rollouts)}{_engine_trouble(view)}"
    if view.phase == "sampling" and view.open_step:
        return f"{place}  sampling: {counts_text(view.open_step.rollouts)}{_engine_trouble(view)}"
    if view.phase == "preflight":
        return f"{place}  preflight: a rollout of each kind, before anything is trained"
    if view.phase in ("starting", "waiting"):
        return "starting the engines and the trainer" if view.gpu_hosts else "starting"
    return f"{place}  {view.phase or view.status}"


def _engine_trouble(view: RunView) -> str:
    """Model calls wait at the gateway while no engine is ready."""
    if any(engine.state in ("ready", "loading") for engine in view.engines):
        return ""
    return "; model calls wait for an engine"


def counts_text(counts: Counts) -> str:
    """Rollouts under way."""
    done = counts.succeeded + counts.failed + counts.cancelled
    parts = [f"{done}/{counts.planned} rollouts done", f"{counts.running} running"]
    return ", ".join([*parts, *_trouble(counts)])


def step_event(step: StepView, total: int | None) -> Event:
    """A recorded step."""
    counts = step.rollouts
    head = f"step {step.step:>{len(str(total or ''))}}{f'/{total}' if total is not None else ''}"
    reward = step.reward if step.reward is not None else counts.reward_mean
    parts = [
        ", ".join([f"{counts.succeeded + counts.failed + counts.cancelled} rollouts", *_trouble(counts)]),
        f"reward {number_text(reward)}{' (weights unchanged)' if step.unchanged else ''}",
        seconds_text(step.seconds),
    ]
    return Event("step", f"{head}  {'  '.join(part for part in parts if part)}", step.model_dump(mode="json"))


def evaluation_event(evaluation: EvaluationView) -> Event:
    """A finished evaluation."""
    took = f", {evaluation.seconds:.1f} s" if evaluation.seconds is not None else ""
    text = (
        f"held-out reward of version {evaluation.version}: {number_text(evaluation.reward)}"
        f" ({evaluation.rewarded} samples, {evaluation.failed} failed{took})"
    )
    return Event("evaluation", text, evaluation.model_dump(mode="json"))


def seconds_text(seconds: dict[str, float]) -> str:
    """Where a step's time went: `3.4 s (plan 0.1, rollouts 2.0, ...)`."""
    order = {name: place for place, name in enumerate(PHASES)}
    phases = sorted((name for name in seconds if name != "total"), key=lambda name: (order.get(name, 99), name))
    if not phases and "total" not in seconds:
        return ""
    total = seconds.get("total", sum(seconds.values()))
    parts = ", ".join(f"{name} {seconds[name]:.1f}" for name in phases)
    return f"{total:.1f} s{f' ({parts})' if parts else ''}"


def number_text(value: float | None) -> str:
    """A reward, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def held_out_summary(evaluations: Iterable[EvaluationView]) -> str | None:
    """`held-out reward: 0.52 -> 0.93`, from the given model to the newest version; None with fewer than two."""
    rewards = [(one.version, one.reward) for one in evaluations if one.reward is not None]
    if len(rewards) < 2:
        return None
    (_, first), (_, last) = min(rewards), max(rewards)
    return f"held-out reward: {first:.2f} -> {last:.2f}"


def summary_lines(view: RunView) -> list[str]:
    """A run at a glance, for `relight status RUN`."""
    facts: list[tuple[str, str | None]] = [
        ("run", f"{view.run}  ({view.agent}, {view.algorithm}, epoch {view.epoch})"),
        ("status", view.status if view.status != "running" else status_line(Look(view))),
        ("step", f"{view.step} of {view.total_steps}"),
        ("error", view.error),
        *(("warning", text) for _, text in sorted(view.warnings.items())),
        ("reward", f"{number_text(view.reward)} at step {view.step}" if view.reward is not None else None),
        ("held-out", ", ".join(f"v{one.version} {number_text(one.reward)}" for one in view.evaluations) or None),
        ("versions", _versions_text(view)),
        ("files", _files_text(view)),
        ("engines", ", ".join(f"{one.engine_id} {one.state} v{one.version}" for one in view.engines) or None),
    ]
    return [f"{name:<9} {text}" for name, text in facts if text]


def _versions_text(view: RunView) -> str | None:
    if view.published is None:
        return None
    kept = "none" if view.checkpointed is None else f"version {view.checkpointed}"
    return f"newest published: {view.published}; newest checkpoint: {kept}"


def _files_text(view: RunView) -> str | None:
    if not view.stored_bytes:
        return None
    kept = ", ".join(map(str, view.checkpoints)) or "none"
    return f"{size_text(view.stored_bytes)}; checkpoints that a fork can start from: {kept}"


def size_text(size_bytes: int) -> str:
    """Bytes for people."""
    units = ["B", "KB", "MB", "GB", "TB"]
    number, unit = float(size_bytes), 0
    while number >= 1000 and unit < len(units) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.{1 if unit else 0}f} {units[unit]}"


def _trouble(counts: Counts) -> list[str]:
    classes = ", ".join(f"{name} {number}" for name, number in sorted(counts.failures.items()))
    failed = counts.failed + counts.cancelled
    return [f"{failed} failed{f' ({classes})' if classes else ''}", f"{counts.retried} retried"]


def _newest(placed: list[tuple[int, int, Event]]) -> tuple[list[tuple[int, int, Event]], int]:
    steps = [step for step, order, _ in placed if order == 0]
    hidden = set(steps[:-OLD_STEPS])
    return [item for item in placed if item[1] == 1 or item[0] not in hidden], len(hidden)


def _end_event(outcome: Outcome) -> Event:
    text = f"the run is {outcome.status}{f': {outcome.message}' if outcome.message else ''}"
    return Event("end", text, {"status": outcome.status, "message": outcome.message})
