"""The picture of a search: what every trial earned, which settings mattered, and where the good ones lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState

from kova.experiments.evaluation.wording import UNITS
from kova.experiments.files import replacing
from kova.experiments.report.palette import COLOURS
from kova.experiments.report.paper_figures import STYLE
from kova.experiments.tuning.importance import ENOUGH, importances
from kova.experiments.tuning.ranges import Dimension
from kova.experiments.tuning.study import TuningStudy

BLUE, ORANGE, GREEN = COLOURS[:3]
GREY = "0.6"
#: Settings whose slices are drawn.
SLICES = 4


def save(study: TuningStudy, path: Path, title: str) -> None:
    """Draw the search.

    Args:
        study: Its trials.
        path: The picture.
        title: Of the picture.
    """
    weights = importances(study.trials, study.space)
    space = sorted(study.space, key=lambda one: -weights.get(one.key, 0.0))[:SLICES]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.4), layout="constrained")
        halves = figure.subfigures(2, 1, height_ratios=[1.15, 1], squeeze=False)
        history, bars = halves[0, 0].subplots(1, 2, width_ratios=[2, 1])
        _draw_history(history, study, title)
        _draw_importances(bars, weights)
        axes = halves[1, 0].subplots(1, len(space), sharey=True, squeeze=False)[0]
        for axis, dimension in zip(axes, space, strict=True):
            _draw_slice(axis, study.trials, dimension)
        axes[0].set_ylabel("score of the trial")
        with replacing(path) as draft:
            figure.savefig(draft, dpi=130)


def _draw_history(axis: Axes, study: TuningStudy, title: str) -> None:
    complete, pruned, failed = (
        [trial for trial in study.trials if trial.state is state]
        for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    )
    numbers, values = _points(complete)
    axis.plot(numbers, values, "o", color=BLUE, label="complete", mec="none")
    cut = [trial for trial in pruned if trial.intermediate_values]
    last = [trial.intermediate_values[max(trial.intermediate_values)] for trial in cut]
    axis.plot([trial.number for trial in cut], last, "x", color=GREY, label="pruned, score by then")
    for place, trial in enumerate(failed):
        axis.axvline(trial.number, color=ORANGE, lw=1, ls=":", label="failed" if place == 0 else None)
    if len(values):
        axis.step(numbers, np.maximum.accumulate(values), where="post", color=GREEN, lw=1.4, label="best so far")
    if complete and complete[0].number == 0:
        axis.axhline(values[0], color="0.3", lw=1, ls="--", label="default")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(title=title, xlabel="trial", ylabel=f"mean of the last 100 episodes,\n{UNITS}")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8)


def _draw_importances(axis: Axes, weights: dict[str, float]) -> None:
    axis.set_title("importance of the settings")
    if not weights:
        axis.text(0.5, 0.5, f"needs {ENOUGH} trials with a score", ha="center", va="center", color=GREY)
        axis.set_axis_off()
        return
    axis.barh(list(weights), list(weights.values()), color=BLUE, height=0.6)
    axis.invert_yaxis()
    axis.set_xlabel("share of the ranks that it explains alone")


def _draw_slice(axis: Axes, trials: Sequence[FrozenTrial], dimension: Dimension) -> None:
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    numbers, values = _points(complete)
    where = [dimension.number(trial.params[dimension.key]) for trial in complete]
    dots = axis.scatter(where, values, c=numbers, cmap="Blues", vmin=-0.5 * max(numbers, default=1), ec="0.4", lw=0.4)
    dots.set_clip_on(False)
    axis.axvline(dimension.number(dimension.start), color="0.3", lw=1, ls="--")
    # The whole range: where nothing was tried is worth seeing.
    ends = [dimension.number(end) for end in (dimension.distribution.low, dimension.distribution.high)]
    margin = 0.04
    if dimension.log:
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
        factor = max(ends[1] / ends[0], 1.2) ** margin
        axis.set_xlim(ends[0] / factor, ends[1] * factor)
    else:
        width = margin * (ends[1] - ends[0])
        axis.set_xlim(ends[0] - width, ends[1] + width)
    if isinstance(dimension.distribution, IntDistribution):
        # Of a whole number that doubles, powers of ten say little.
        axis.xaxis.set_major_locator(LogLocator(base=2))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(dimension.label)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color="0.93")


def _points(trials: Sequence[FrozenTrial]) -> tuple[list[int], list[float]]:
    return [trial.number for trial in trials], [trial.values[0] for trial in trials]
