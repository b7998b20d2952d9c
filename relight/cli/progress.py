"""The text of a run's progress: lines for what has happened, and one line for what happens now. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from relight.types.hyperparameters import NONFINITE_STEPS, REJECTED_STEPS, STEP_COUNTS
from relight.types.views import Counts, EngineView, EvaluationFigures, EvaluationView, RunView, StepView

PHASES = ("plan", "rollouts", "update", "publish", "record")
"""Order in which the seconds of a step are shown; others follow, the total comes first."""
OLD_STEPS = 10
"""Number of earlier steps that are shown when watching begins."""
EventKind = Literal["step", "evaluation", "waiting", "warning", "note", "end"]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    status: str
    message: str = ""

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def text(self) -> str:
        verb = {"failed": "failed", "finished": "finished"}.get(self.status, f"was {self.status}")
        return f"the run {verb}{f': {self.message}' if self.message else ''}"


@dataclass(frozen=True)
class RunSnapshot:
    """The state of a run at one moment."""

    view: RunView | None = None
    """None while the run has no row or the store does not answer."""
    steps: list[StepView] = field(default_factory=list[StepView])
    """Recorded since the last snapshot."""
    outcome: RunOutcome | None = None
    note: str | None = None
    """Why there is nothing to show, or why the run waits."""
    training_seconds: float | None = None
    """All recorded steps of the run together."""


@dataclass(frozen=True)
class ProgressEvent:
    """Something that has happened, shown as a line that stays."""

    kind: EventKind
    text: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class ProgressReporter:
    """Turns snapshots into events, each once."""

    def __init__(self) -> None:
        self._first = True
        self._evaluations: set[int] = set()
        self._waiting: str | None = None
        self._warnings: dict[str, str] = {}

    def events(self, snapshot: RunSnapshot) -> list[ProgressEvent]:
        """What is new in this snapshot, in the order in which it happened."""
        events = [*self._results(snapshot), *self._new_warnings(snapshot), *self._waits(snapshot)]
        if snapshot.outcome:
            how = {"status": snapshot.outcome.status, "message": snapshot.outcome.message}
            events.append(ProgressEvent("end", snapshot.outcome.text, how))
        return events

    def _results(self, snapshot: RunSnapshot) -> Iterable[ProgressEvent]:
        total = snapshot.view.total_steps if snapshot.view else None
        ordered = [(step.step, 0, step_event(step, total)) for step in snapshot.steps]
        for evaluation in snapshot.view.evaluations if snapshot.view else []:
            if evaluation.version not in self._evaluations and evaluation.score is not None:
                self._evaluations.add(evaluation.version)
                ordered.append((evaluation.version, 1, evaluation_event(evaluation)))
        ordered.sort(key=lambda item: item[:2])
        if self._first and snapshot.view:
            self._first = False
            ordered, hidden = _newest(ordered)
            if hidden:
                yield ProgressEvent("note", f"({hidden} earlier steps)")
        yield from (event for _, _, event in ordered)

    def _new_warnings(self, snapshot: RunSnapshot) -> Iterable[ProgressEvent]:
        if snapshot.view is None:
            return
        for name, text in sorted(snapshot.view.warnings.items()):
            if self._warnings.get(name) != text:
                yield ProgressEvent("warning", f"warning: {text}", {"name": name, "text": text})
        self._warnings = snapshot.view.warnings

    def _waits(self, snapshot: RunSnapshot) -> Iterable[ProgressEvent]:
        waiting = snapshot.note or (why_waiting(snapshot.view) if snapshot.view and not snapshot.outcome else None)
        if waiting != self._waiting:
            self._waiting = waiting
            if waiting:
                yield ProgressEvent("waiting", waiting)


def why_waiting(view: RunView) -> str | None:
    """Why a run makes no progress, or None."""
    if view.status == "running" and view.cancel_requested:
        return "being cancelled"
    if view.paused:
        why = f": {view.pause_reason.rstrip('.')}" if view.pause_reason else ""
        return f"paused{why}; to go on: `relight resume {view.run}`"
    return f"waiting: {view.waiting_for}" if view.waiting_for else None


def status_line(snapshot: RunSnapshot) -> str:
    """What happens now."""
    if snapshot.note:
        return snapshot.note
    view = snapshot.view
    if view is None:
        return "starting"
    waiting = why_waiting(view)
    step = f"step {view.open_step.step if view.open_step else view.step}/{view.total_steps}"
    if waiting:
        return f"{step}  {waiting}"
    if view.phase == "evaluating" and view.open_evaluation:
        evaluation = view.open_evaluation
        return f"evaluating version {evaluation.version}: {counts_text(evaluation.rollouts)}{_no_engine_text(view)}"
    if view.phase == "sampling" and view.open_step:
        return f"{step}  sampling: {counts_text(view.open_step.rollouts)}{_no_engine_text(view)}"
    if view.phase == "preflight":
        return f"{step}  preflight: one rollout of each kind, before training begins"
    if view.phase in ("starting", "waiting"):
        return "starting the engines and the trainer" if view.gpu_hosts else "starting"
    return f"{step}  {view.phase or view.status}"


def _no_engine_text(view: RunView) -> str:
    """Says so if no engine is ready: model calls then wait at the gateway."""
    if any(engine.state in ("ready", "loading") for engine in view.engines):
        return ""
    return "; model calls wait for an engine"


def counts_text(counts: Counts) -> str:
    """How many rollouts are done, running, failed and retried."""
    parts = [f"{counts.done}/{counts.planned} rollouts done", f"{counts.running} running"]
    return ", ".join([*parts, *_failure_texts(counts)])


def step_event(step: StepView, total: int | None) -> ProgressEvent:
    """A recorded step."""
    counts = step.rollouts
    head = f"step {step.step:>{len(str(total or ''))}}{f'/{total}' if total is not None else ''}"
    reward = step.reward if step.reward is not None else counts.reward_mean
    left_out = step.metrics.get("calls_left_out", 0)
    parts = [
        ", ".join([f"{counts.done} rollouts", *_failure_texts(counts)]),
        f"reward {number_text(reward)}{' (weights unchanged)' if step.unchanged else ''}",
        f"{left_out:.0f} model calls not trained: they have no token ids or logprobs" if left_out else "",
        _skipped_text(step),
        seconds_text(step.seconds),
    ]
    return ProgressEvent("step", f"{head}  {'  '.join(part for part in parts if part)}", step.model_dump(mode="json"))


def _skipped_text(step: StepView) -> str:
    """Optimizer steps that were skipped, and why."""
    counts = {name: int(step.metrics.get(name, 0)) for name in STEP_COUNTS}
    reasons = {NONFINITE_STEPS: "gradient not finite", REJECTED_STEPS: "every token rejected"}
    skipped = ", ".join(f"{counts[name]} {reason}" for name, reason in reasons.items() if counts[name])
    return f"optimizer steps skipped of {sum(counts.values())}: {skipped}" if skipped else ""


def evaluation_event(evaluation: EvaluationView) -> ProgressEvent:
    """A finished evaluation."""
    text = f"held-out score of version {evaluation.version}: {figures_text(evaluation)}"
    if evaluation.sources:
        text += "; " + "; ".join(f"{name} {figures_text(one)}" for name, one in sorted(evaluation.sources.items()))
    return ProgressEvent("evaluation", text, evaluation.model_dump(mode="json"))


def figures_text(figures: EvaluationFigures) -> str:
    """The score and its parts."""
    parts = [f"reward {number_text(figures.reward)} of {figures.rewarded} samples", f"{figures.failed} failed"]
    if figures.samples > 1:
        parts += [f"pass@{figures.samples} {number_text(figures.pass_at_k)}", f"spread {number_text(figures.spread)}"]
    if figures.seconds is not None:
        parts.append(f"{figures.seconds:.1f} s")
    return f"{number_text(figures.score)} ({', '.join(parts)})"


def seconds_text(seconds: dict[str, float]) -> str:
    """The time of a step by phase: `3.4 s (plan 0.1, rollouts 2.0, ...)`."""
    order = {name: position for position, name in enumerate(PHASES)}
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
    """`held-out score: 0.52 -> 0.93`, from the given model to the newest version; None with fewer than two."""
    scores = [(one.version, one.score) for one in evaluations if one.score is not None]
    if len(scores) < 2:
        return None
    (_, first), (_, last) = min(scores), max(scores)
    return f"held-out score: {first:.2f} -> {last:.2f}"


def summary_lines(view: RunView) -> list[str]:
    """The summary of a run for `relight status RUN`."""
    facts: list[tuple[str, str | None]] = [
        ("run", f"{view.run}  ({view.agent}, {view.algorithm}, epoch {view.epoch})"),
        ("status", view.status if view.status != "running" else status_line(RunSnapshot(view))),
        ("step", f"{view.step} of {view.total_steps}"),
        ("error", view.error),
        *(("warning", text) for _, text in sorted(view.warnings.items())),
        ("reward", f"{number_text(view.reward)} at step {view.step}" if view.reward is not None else None),
        ("held-out", ", ".join(map(_held_out_text, view.evaluations)) or None),
        *(("by source", text) for text in _source_texts(view.evaluations[-1:])),
        ("versions", _versions_text(view)),
        ("files", _files_text(view)),
        ("engines", ", ".join(map(_engine_text, view.engines)) or None),
    ]
    return [f"{name:<9} {text}" for name, text in facts if text]


def _held_out_text(evaluation: EvaluationView) -> str:
    failed = f" (reward {number_text(evaluation.reward)}, {evaluation.failed} failed)" if evaluation.failed else ""
    return f"v{evaluation.version} {number_text(evaluation.score)}{failed}"


def _source_texts(newest: Sequence[EvaluationView]) -> list[str]:
    sources = [(name, figures) for one in newest for name, figures in sorted(one.sources.items())]
    return [f"v{newest[0].version} {name}: {figures_text(figures)}" for name, figures in sources]


def _engine_text(engine: EngineView) -> str:
    version = "" if engine.version is None else f" v{engine.version}"
    return f"{engine.engine_id} {engine.state}{version}"


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
    """A number of bytes with a unit, such as 1.5 GB."""
    units = ["B", "KB", "MB", "GB", "TB"]
    number, unit = float(size_bytes), 0
    while number >= 1000 and unit < len(units) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.{1 if unit else 0}f} {units[unit]}"


def _failure_texts(counts: Counts) -> list[str]:
    classes = ", ".join(f"{name} {number}" for name, number in sorted(counts.failures.items()))
    failed = counts.failed + counts.cancelled
    return [f"{failed} failed{f' ({classes})' if classes else ''}", f"{counts.retried} retried"]


def _newest(ordered: list[tuple[int, int, ProgressEvent]]) -> tuple[list[tuple[int, int, ProgressEvent]], int]:
    steps = [step for step, order, _ in ordered if order == 0]
    hidden = set(steps[:-OLD_STEPS])
    return [item for item in ordered if item[1] == 1 or item[0] not in hidden], len(hidden)
