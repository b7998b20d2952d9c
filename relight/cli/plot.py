"""`relight plot`: the reward curve of a run as an SVG: training reward by step, held-out score by policy version."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from relight.cli import output
from relight.cli.store_reader import StoreReader
from relight.errors import RelightError
from relight.types.views import RunView

EPILOG = """\b
Examples:
  relight plot calculator-1
  relight plot calculator-1 -o curve.svg"""
SMOOTHING_STEPS = 5


async def plot(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, whether it has ended or not.")],
    file: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The SVG file. Default: RUN.svg.")
    ] = None,
) -> None:
    """Draw a run's training reward and held-out score over its steps."""
    async with StoreReader.from_settings(output.settings()) as reader:
        drawn = plot_run(await reader.run(run), file or Path(f"{run}.svg"))
    if not output.emitted({"run": run, "plot": str(drawn.absolute())}):
        output.say(f"reward curve  {drawn}")


def plot_run(view: RunView, path: Path) -> Path:
    """Draw the curve; the file appears whole or not at all.

    Raises:
        RelightError: matplotlib is not installed.
    """
    scores = {one.version: one.score for one in view.evaluations if one.score is not None}
    failed = any(one.failed for one in view.evaluations)
    real = {one.version: one.reward for one in view.evaluations if one.reward is not None} if failed else {}
    return plot_rewards(view.run, view.rewards, scores, path, real)


def plot_rewards(
    title: str,
    rewards: Mapping[int, float],
    held_out: Mapping[int, float],
    path: Path,
    held_out_rewards: Mapping[int, float] | None = None,
) -> Path:
    """Draw training reward and held-out score over the steps; with the mean of the real held-out rewards if given."""
    try:
        from matplotlib.figure import Figure  # not pyplot: no display, no global state
    except ImportError as error:
        raise RelightError("the plot needs matplotlib: install `relight[embedded]`") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    if rewards:
        steps, values = zip(*sorted(rewards.items()), strict=True)
        axes.plot(steps, values, color="#9bb7d4", linewidth=1, label="training reward of a step")
        axes.plot(steps, smoothed(values), color="#1f5fa8", linewidth=2, label=f"its mean over {SMOOTHING_STEPS} steps")
    if held_out:
        versions, values = zip(*sorted(held_out.items()), strict=True)
        axes.plot(versions, values, "o-", color="#d1495b", label="held-out score of a version")
    if held_out_rewards:
        versions, values = zip(*sorted(held_out_rewards.items()), strict=True)
        axes.plot(versions, values, "--", color="#d1495b", linewidth=1, label="its reward, without failures")
    axes.set(title=title, xlabel="step", ylabel="reward")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    if rewards or held_out:
        axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    figure.savefig(temporary, format="svg", metadata={"Date": None})
    temporary.replace(path)
    return path


def smoothed(values: tuple[float, ...]) -> list[float]:
    """Running mean over the last steps."""
    windows = [values[max(0, end - SMOOTHING_STEPS) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]
