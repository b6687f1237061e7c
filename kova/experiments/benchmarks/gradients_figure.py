"""The figure of ``kova bench gradients``: explained variance and the direction of the policy gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kova.experiments.files import replacing

STYLE: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
COLOURS = {"KOVA": "#0072B2", "Adam × 10": "#D55E00", "Adam × 1": "#E69F00"}
TITLES = {
    "explained": "explained variance of\nMonte-Carlo returns",
    "cosine": "cosine with the gradient\nof a large batch",
}
Results = Sequence[Mapping[str, Any]]


def save_figure(path: Path, results: Results) -> None:
    """Draw a row of panels for each of the two numbers and a column for each task; Adam at its best rate there."""
    tasks = list(dict.fromkeys(result["environment"] for result in results))
    if not tasks:
        return
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.4 * len(tasks) + 0.6, 5.0), layout="constrained")
        axes = figure.subplots(len(TITLES), len(tasks), squeeze=False, sharex=True)
        for line, (what, title) in zip(axes, TITLES.items(), strict=True):
            for axis, task in zip(line, tasks, strict=True):
                _panel(axis, [result for result in results if result["environment"] == task], what)
                if what == "explained":
                    axis.set_title(task)
                    axis.set_ylim(-0.5, 1.0)
            line[0].set_ylabel(title)
        for axis in axes[-1]:
            axis.set_xlabel("frames (thousands)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        with replacing(path) as draft:
            figure.savefig(draft, dpi=150)


def best_rate(results: Results, family: str, what: str) -> str:
    """Return the arm of a family whose mean over seeds and frames is the largest: in hindsight, which favours it."""
    arms: dict[str, None] = dict.fromkeys(
        r["arm"] for r in results if r["arm"] == family or r["arm"].startswith(f"{family}, ")
    )
    return max(arms, key=lambda arm: float(np.mean([max(r[what], -1.0) for r in results if r["arm"] == arm])))


def _panel(axis: Axes, results: Results, what: str) -> None:
    for family, colour in COLOURS.items():
        arm = best_rate(results, family, what)
        own = [result for result in results if result["arm"] == arm]
        frames = sorted({result["frames"] for result in own})
        found = [[result[what] for result in own if result["frames"] == frame] for frame in frames]
        thousands = [frame / 1000 for frame in frames]
        label = family if family == arm else f"{family} (best rate)"
        axis.plot(thousands, [float(np.mean(values)) for values in found], color=colour, label=label, marker="o", ms=3)
        low, high = [min(values) for values in found], [max(values) for values in found]
        axis.fill_between(thousands, low, high, color=colour, alpha=0.15, lw=0)
    axis.axhline(0.0, color="0.85", lw=1, zorder=0)
