"""The figure of ``kova bench scale``: explained variance and return against the scale of the rewards."""

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
Results = Sequence[Mapping[str, Any]]


def _style(arm: str) -> dict[str, Any]:
    """Return how an arm is drawn: the filter strong, upstream in orange, the rates of Adam in a family of greys."""
    fixed: dict[str, dict[str, Any]] = {
        "KOVA": {"color": "#0072B2", "lw": 2.4, "marker": "o", "zorder": 4},
        "KOVA + VecNormalize": {"color": "#56B4E9", "lw": 1.4, "marker": "o", "ls": "--", "zorder": 3},
        "upstream": {"color": "#D55E00", "lw": 1.8, "marker": "s", "zorder": 3},
        "upstream + VecNormalize": {"color": "#E69F00", "lw": 1.4, "marker": "s", "ls": "--", "zorder": 3},
    }
    return fixed.get(arm, {"color": "0.6", "lw": 1.0, "marker": ".", "zorder": 2})


def save_figure(path: Path, results: Results) -> None:
    """Draw two rows of panels for each algorithm, explained variance and return, and a column for each task."""
    tasks = list(dict.fromkeys(result["environment"] for result in results))
    rows = [(algo, what) for algo in sorted({r["algorithm"] for r in results}) for what in ("explained", "return")]
    if not tasks:
        return
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.6 * len(tasks) + 0.6, 1.9 * len(rows) + 0.7), layout="constrained")
        axes = figure.subplots(len(rows), len(tasks), squeeze=False, sharex=True)
        for line, (algo, what) in zip(axes, rows, strict=True):
            for axis, task in zip(line, tasks, strict=True):
                own = [r for r in results if r["algorithm"] == algo and r["environment"] == task]
                _panel(axis, own, what)
                if algo == rows[0][0] and what == "explained":
                    axis.set_title(task)
            line[0].set_ylabel(f"{algo.upper()}\n" + ("explained variance" if what == "explained" else "return"))
        for axis in axes[-1]:
            axis.set_xlabel("rewards ×")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        with replacing(path) as draft:
            figure.savefig(draft, dpi=150)


def _panel(axis: Axes, results: Results, what: str) -> None:
    """Draw the median of every arm over the seeds, and the range of the seeds for the filter and upstream."""
    labelled = False
    for arm in dict.fromkeys(result["arm"] for result in results):
        scales = sorted({result["scale"] for result in results if result["arm"] == arm})
        found = [[r[what] for r in results if r["arm"] == arm and r["scale"] == scale] for scale in scales]
        style, rate = _style(arm), arm.startswith("Adam")
        label = ("Adam critic, 1e-4 … 3e-3" if not labelled else None) if rate else arm
        labelled |= rate
        middles = [float(np.median(values)) for values in found]
        if len(scales) == 1 and "VecNormalize" in arm:
            axis.axhline(middles[0], label=label, color=style["color"], ls="--", lw=style["lw"], zorder=style["zorder"])
            continue
        axis.plot(scales, middles, label=label, ms=4, **style)
        if arm in ("KOVA", "upstream"):
            low, high = [min(values) for values in found], [max(values) for values in found]
            axis.fill_between(scales, low, high, color=style["color"], alpha=0.15, lw=0)
    axis.set_xscale("log")
    scales = sorted({result["scale"] for result in results})
    axis.set_xticks(scales, labels=[f"{scale:g}" for scale in scales])
    axis.minorticks_off()
    if what == "explained":
        axis.set_ylim(-0.3, 1.0)
        axis.axhline(0.0, color="0.85", lw=1, zorder=0)
