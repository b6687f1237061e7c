"""The answer as a picture for papers: every arm's interquartile mean, and how likely it beats the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kova.experiments.files import replacing
from kova.experiments.report.answer import Answer, answers
from kova.experiments.report.comparison import Comparison, Task
from kova.experiments.report.palette import Palette
from kova.experiments.report.paper_figures import STYLE
from kova.experiments.report.statistics import Interval


def paths(comparison: Comparison, folder: Path) -> list[Path]:
    """Return the files that :func:`save` writes."""
    return [path for answer in answers(comparison) for path in _files(answer, folder)]


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Draw a picture for every algorithm that has arms to compare: intervals over all tasks, then every run of each.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for answer in answers(comparison):
        tasks = [task for task in comparison.compared if task.name.split()[0] == answer.algorithm]
        figure = _draw(answer, tasks, Palette(comparison.arms))
        for path in _files(answer, folder):
            with mpl.rc_context(STYLE), replacing(path) as draft:
                figure.savefig(draft, dpi=150)
    return paths(comparison, folder)


def _files(answer: Answer, folder: Path) -> list[Path]:
    return [folder / f"intervals-{answer.algorithm.lower()}.{kind}" for kind in ("png", "svg")]


def _draw(answer: Answer, tasks: Sequence[Task], palette: Palette) -> Figure:
    arms = [standing.arm for standing in answer.standings]
    with mpl.rc_context(STYLE):
        size = (4.4 + 1.7 * (2 + len(tasks)), 1.0 + 0.3 * len(arms))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, 2 + len(tasks), sharey=True, width_ratios=[1.4, 1.4, *[1.0] * len(tasks)])
        _intervals(axes[0], {standing.arm: standing.iqm for standing in answer.standings}, arms, palette)
        axes[0].set(title="interquartile mean", xlim=(-0.03, 1.03))
        chances = {s.arm: s.improvement for s in answer.standings if s.improvement is not None}
        _intervals(axes[1], chances, arms, palette)
        axes[1].axvline(0.5, color="0.7", lw=1, zorder=0)
        axes[1].set(title=f"P(earns more than\n{answer.reference})", xlim=(-0.03, 1.03))
        for axis, task in zip(axes[2:], tasks, strict=True):
            _runs(axis, task, arms, palette)
        axes[0].set_yticks(range(len(arms)), arms)
        # Half an arm of room at either end, the first arm on top: of two, matplotlib's margins cut the bars in half.
        axes[0].set_ylim(len(arms) - 0.5, -0.5)
    return figure


def _intervals(axis: Axes, found: dict[str, Interval], arms: Sequence[str], palette: Palette) -> None:
    for arm, interval in found.items():
        height = arms.index(arm)
        if not np.isnan(interval.low):
            axis.plot([interval.low, interval.high], [height, height], color=palette.colour(arm), lw=5, alpha=0.35)
        axis.plot(interval.estimate, height, "o", color=palette.colour(arm))
    axis.grid(axis="x", color="0.93")


def _runs(axis: Axes, task: Task, arms: Sequence[str], palette: Palette) -> None:
    """Draw the final return of every run, and their mean."""
    for arm, curves in task.arms.items():
        height = arms.index(arm)
        axis.plot(curves.final, np.full(len(curves.final), height), ".", color=palette.colour(arm), alpha=0.6)
        axis.plot(curves.final.mean(), height, "|", color=palette.colour(arm), markersize=14, mew=2)
    axis.set_title(" ".join(task.name.split()[1:]))
    axis.locator_params(axis="x", nbins=3)
    axis.grid(axis="x", color="0.93")
