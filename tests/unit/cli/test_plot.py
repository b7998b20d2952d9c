"""The plot of a run is a picture that a browser can show."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from relight.cli.plot import plot_run, smoothed

from .example_views import a_run, an_evaluation

SVG = "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize(
    ("rewards", "evaluations"),
    [({}, []), ({1: 0.5, 2: 0.75}, []), ({}, [an_evaluation(0)]), ({2: 0.9, 1: 0.5}, [an_evaluation(2, None)])],
)
def test_any_run_can_be_plotted_as_a_valid_svg(
    tmp_path: Path, rewards: dict[int, float], evaluations: list[object]
) -> None:
    path = plot_run(a_run(rewards=rewards, evaluations=evaluations), tmp_path / "runs" / "calc-1" / "reward.svg")
    assert ElementTree.parse(path).getroot().tag == SVG
    assert [entry.name for entry in path.parent.iterdir()] == ["reward.svg"]


def test_the_plot_has_every_measurement(tmp_path: Path) -> None:
    empty = plot_run(a_run(), tmp_path / "empty.svg").read_text()
    full = plot_run(a_run(rewards={1: 0.5, 2: 0.6}, evaluations=[an_evaluation(0)]), tmp_path / "full.svg").read_text()
    assert full.count("<path") > empty.count("<path")
    assert full.count('id="line2d_') > empty.count('id="line2d_')


def test_the_reward_without_failures_is_drawn_beside_the_score(tmp_path: Path) -> None:
    drawn: list[bool] = []
    for failed in (0, 60):
        view = a_run(evaluations=[an_evaluation(0), an_evaluation(1, 0.6, failed=failed)])
        drawn.append("stroke-dasharray" in plot_run(view, tmp_path / f"{failed}.svg").read_text())
    assert drawn == [False, True]


def test_smoothing_is_the_mean_over_the_last_steps() -> None:
    assert smoothed((0.0, 1.0, 1.0, 1.0, 1.0, 1.0)) == [0.0, 0.5, 2 / 3, 0.75, 0.8, 1.0]
