"""Figures 3 and 4 for papers: mean ± standard deviation over seeds, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from kova.experiments.files import replacing
from kova.experiments.report.comparison import RETURN, Comparison, Task
from kova.experiments.report.palette import Palette

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
#: Words stay words in SVG; asked for when a file is written, too.
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "svg.fonttype": "none",
}
LABELS = {RETURN: "mean episode reward", "entropy": "policy entropy", "policy_loss": "policy loss"}
#: What each figure of the paper shows.
METRICS = {"fig3": [RETURN], "fig4": list(LABELS)}


def paths(comparison: Comparison, folder: Path) -> list[Path]:
    """Return the files that :func:`save` writes."""
    return [path for own in _pictures(comparison, folder).values() for path in own]


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Draw a picture of the rewards of each algorithm, as Figure 3, and one with entropy and loss, as Figure 4.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for (algorithm, name), files in _pictures(comparison, folder).items():
        tasks = [task for task in comparison.tasks if _algorithm(task) == algorithm]
        figure = _draw(tasks, METRICS[name], Palette(comparison.arms))
        for path in files:
            with mpl.rc_context(STYLE), replacing(path) as draft:
                figure.savefig(draft, dpi=150)
    return paths(comparison, folder)


def _pictures(comparison: Comparison, folder: Path) -> dict[tuple[str, str], list[Path]]:
    """Return {(algorithm, figure): its files}."""
    algorithms = dict.fromkeys(_algorithm(task) for task in comparison.tasks)
    return {
        (algorithm, name): [folder / f"{name}-{algorithm.lower()}.{kind}" for kind in ("png", "svg")]
        for algorithm in algorithms
        for name in METRICS
    }


def _algorithm(task: Task) -> str:
    return task.name.split()[0]


def _draw(tasks: Sequence[Task], metrics: Sequence[str], palette: Palette) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(tasks) + 0.4, 2.5 * len(metrics) + 0.7), layout="constrained")
        panels = figure.subplots(len(metrics), len(tasks), squeeze=False)
        lines: dict[str, Any] = {}
        for place, (row, metric) in enumerate(zip(panels, metrics, strict=True)):
            for axis, task in zip(row, tasks, strict=True):
                for arm in task.arms:
                    mean, low, high = task.band(arm, metric)
                    style = {"color": palette.colour(arm), "linestyle": DASHES[palette.dash(arm)]}
                    # A line needs two points.
                    marker = "o" if np.isfinite(mean).sum() == 1 else ""
                    lines[arm] = axis.plot(task.grid, mean, lw=1.4, marker=marker, **style)[0]
                    axis.fill_between(task.grid, low, high, color=palette.colour(arm), alpha=0.15, lw=0)
                axis.xaxis.set_major_formatter(EngFormatter(sep=""))
                if place == 0:
                    axis.set_title(task.name)
                if place == len(metrics) - 1:
                    axis.set_xlabel("frames")
            row[0].set_ylabel(LABELS[metric])
        columns = max(1, min(len(lines), round(1.5 * len(tasks))))
        figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=columns, frameon=False)
    return figure
