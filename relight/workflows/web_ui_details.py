"""The details of a run that the Temporal Web UI shows."""

from __future__ import annotations

from relight.types.payloads import Progress


def progress_table(progress: Progress) -> str:
    """The run as a table in markdown."""
    rows = [
        ("phase", "paused" if progress.paused else progress.phase),
        ("waiting", progress.waiting_for or "-"),
        *((f"warning: {name}", text.replace("|", "/")) for name, text in sorted(progress.warnings.items())),
        ("step", f"{progress.step} of {progress.total_steps}"),
        ("batches of this step", f"{progress.batches_done} of {progress.batches} closed"),
        ("reward of the last steps", " ".join(f"{reward:.2f}" for reward in progress.rewards) or "-"),
        ("held-out score by version", ", ".join(f"{v}: {r:.3f}" for v, r in progress.evaluations.items()) or "-"),
        *((f"{name}", str(number)) for name, number in sorted(progress.counters.items())),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)
