"""The figures of campaigns, for people and for programs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tests.chaos.faults import PROCESSES, Fault

DEADLY = ("kill", "terminate")


@dataclass
class Report:
    """The figures of a campaign."""

    seed: int
    title: str = ""
    kinds: list[str] = field(default_factory=list[str])
    """Faults that could be done on this machine."""
    runs_started: int = 0
    runs_completed: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    rollouts_finished: int = 0
    rollouts_lost: int = 0
    """Finished rollouts that ran again."""
    trained_twice: int = 0
    prompts_skipped: int = 0
    step_gaps: int = 0
    runs_that_differ: int = 0
    """From the undisturbed run, in any weight, reward or ledger row; with real parts, in the reward curve."""
    curve_gaps: list[float] = field(default_factory=list[float])
    """How far each run's reward curve is from the undisturbed one's, where weights can't be equal."""
    attempts_repeated: int = 0
    """Under way when something died, and run again from their start."""
    repeated_by_fault: Counter[str] = field(default_factory=Counter[str])
    """Those closed as the platform's failure between a fault and the next one."""
    broken_invariants: list[str] = field(default_factory=list[str])
    contradictions: list[str] = field(default_factory=list[str])
    """Between what the agents wrote down, Postgres and Temporal."""
    run_seconds: list[float] = field(default_factory=list[float])
    recovery_seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """From a fault (where it lasts: from its end) to progress."""
    later_fault_seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """For how much of each of those other faults lasted: Temporal may be kept down for two minutes of it."""
    burst_seconds: list[float] = field(default_factory=list[float])
    """From the end of the last of some faults that followed one another without progress to the next progress."""
    kept: str | None = None
    """Where logs, histories and a dump are, if anything went wrong."""

    @property
    def good(self) -> bool:
        """Nothing was lost, and every run ended as the undisturbed one."""
        lost = self.rollouts_lost + self.trained_twice + self.prompts_skipped + self.step_gaps + self.runs_that_differ
        wrong = self.broken_invariants or self.contradictions
        return not lost and not wrong and self.runs_completed == self.runs_started > 0

    def count(self, fault: Fault) -> None:
        """One more."""
        self.faults[str(fault)] += 1

    def recovered(self, fault: str, seconds: float, later_fault_seconds: float = 0.0) -> None:
        """Progress was made so long after it, with so much of that under faults that came later."""
        self.recovery_seconds.setdefault(fault, []).append(seconds)
        self.later_fault_seconds.setdefault(fault, []).append(later_fault_seconds)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        by_process = {name: Took.of(seconds) for name, seconds in self.by_process().items()}
        return {
            **vars(self),  # `asdict` makes counts of pairs out of a Counter
            "good": self.good,
            "by_process": {name: asdict(took) for name, took in by_process.items() if took},
        }

    def by_process(self) -> dict[str, list[float]]:
        """Seconds from the death of a process, alone, to progress."""
        return {
            name: [s for kind in DEADLY for s in self.recovery_seconds.get(f"{kind} {name}", [])] for name in PROCESSES
        }

    def __str__(self) -> str:
        return table([self])


@dataclass(frozen=True)
class Took:
    """How long something took."""

    times: int
    median: float
    worst: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Took | None:
        return cls(len(seconds), round(statistics.median(seconds), 1), round(max(seconds), 1)) if seconds else None


def table(reports: Sequence[Report]) -> str:
    """Campaigns beside one another, and under them what the faults of the last one did."""
    last = reports[-1]
    lines = _columns([("", *(report.title or f"seed {report.seed}" for report in reports)), *_figures(reports)])
    if last.faults:
        lines += ["", *_fault_lines(last), "", *_process_lines(last.by_process())]
    for report in reports:
        lines += [f"  broken: {broken}" for broken in [*report.broken_invariants, *report.contradictions]]
        lines += [f"  logs, histories and a dump are in {report.kept}"] if report.kept else []
    return "\n".join(lines)


def _figures(reports: Sequence[Report]) -> Iterable[tuple[str, ...]]:
    rows: Mapping[str, Any] = {
        "runs completed of runs started": lambda r: f"{r.runs_completed} of {r.runs_started}",
        "faults": lambda r: sum(r.faults.values()),
        "finished rollouts": lambda r: r.rollouts_finished,
        "finished rollouts lost": lambda r: r.rollouts_lost,
        "rollouts trained twice": lambda r: r.trained_twice,
        "prompts skipped": lambda r: r.prompts_skipped,
        "gaps in steps": lambda r: r.step_gaps,
        "runs that differ from the undisturbed one": lambda r: r.runs_that_differ,
        "reward curves apart by, at most": lambda r: f"{max(r.curve_gaps):.3f}" if r.curve_gaps else "0",
        "broken invariants": lambda r: len(r.broken_invariants),
        "contradictions with the agents' own ledger": lambda r: len(r.contradictions),
        "attempts under way that were repeated": lambda r: r.attempts_repeated,
        "seconds from the last fault of a burst to progress, median": lambda r: _took(r.burst_seconds, "median"),
        "... and at most": lambda r: _took(r.burst_seconds, "worst"),
        "seconds a run, median": lambda r: f"{statistics.median(r.run_seconds):.1f}" if r.run_seconds else "-",
    }
    return [(name, *(str(figure(report)) for report in reports)) for name, figure in rows.items()]


def _took(seconds: Sequence[float], which: Literal["median", "worst"]) -> str:
    took = Took.of(seconds)
    return f"{getattr(took, which):.1f}" if took else "-"


def _fault_lines(report: Report) -> list[str]:
    head = ("fault", "times", "attempts repeated", "seconds to progress, median", "worst", "without later faults")
    rows: list[tuple[str, ...]] = [head]
    for name, times in sorted(report.faults.items()):
        all_seconds, later = report.recovery_seconds.get(name, []), report.later_fault_seconds.get(name, [])
        own = [seconds - of_others for seconds, of_others in zip(all_seconds, later, strict=True)]
        took = Took.of(all_seconds)
        figures = (f"{took.median:.1f}", f"{took.worst:.1f}", f"{max(own):.1f}") if took else ("-", "-", "-")
        rows.append((name, str(times), str(report.repeated_by_fault[name]), *figures))
    return _columns(rows)


def _process_lines(by_process: Mapping[str, Sequence[float]]) -> list[str]:
    rows = [("process that died alone", "times", "seconds to progress, median", "worst")]
    for name, seconds in by_process.items():
        if took := Took.of(seconds):
            rows.append((name, str(took.times), f"{took.median:.1f}", f"{took.worst:.1f}"))
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
