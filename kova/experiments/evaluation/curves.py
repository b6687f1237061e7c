"""Pictures of runs: learning curves, and the value with its error band along an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from kova.experiments.evaluation.play import RETURN_LEVEL, Episode
from kova.experiments.evaluation.wording import UNITS
from kova.experiments.files import replacing
from kova.experiments.runs.logs import read_rows

COLOURS = ("#d95f02", "#1b9e77", "#7570b3", "#e7298a")


def training_returns(run: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return frame and return of every training episode of a run directory."""
    rows = read_rows(run / "monitor.csv")
    return np.array([float(row["step"]) for row in rows]), np.array([float(row["r"]) for row in rows])


def smoothed(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of each value and up to a twentieth of all values before it."""
    window = max(1, len(values) // 20)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: npt.NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def save(path: Path, runs: Mapping[str, Sequence[Path]], episode: Episode | None, title: str) -> None:
    """Draw the learning curves of some arms and, beside them, the value along an episode.

    Args:
        path: The picture.
        runs: {arm: its run directories}.
        episode: Of a Kalman critic, if there is one.
        title: Of the picture.
    """
    banded = episode is not None and episode.mean is not None
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}):
        figure = Figure(figsize=(11 if banded else 6, 4), layout="constrained")
        axes = figure.subplots(1, 2 if banded else 1, squeeze=False)[0]
        for colour, (arm, paths) in zip(COLOURS, runs.items(), strict=False):
            for index, run in enumerate(paths):
                frames, returns = training_returns(run)
                axes[0].plot(frames, returns, ".", color=colour, alpha=0.2, markersize=4, mec="none")
                label = arm if index == 0 else None
                axes[0].plot(frames, smoothed(returns), color=colour, label=label)
        axes[0].set(xlabel="frames", ylabel=f"return of a training episode,\n{UNITS}", title=title)
        axes[0].xaxis.set_major_locator(MaxNLocator(6))
        axes[0].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes[0].legend(frameon=False)
        if banded and episode is not None:
            _band(axes[1], episode)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            figure.savefig(draft, dpi=120)


def _band(axis: Any, episode: Episode) -> None:
    assert episode.mean is not None
    assert episode.stddev is not None
    frames = np.arange(episode.length)
    if episode.low is not None and episode.high is not None:
        label = f"{RETURN_LEVEL:.0%} of returns"
        axis.fill_between(frames, episode.low, episode.high, color=COLOURS[1], alpha=0.15, lw=0, label=label)
    low, high = episode.mean - 2 * episode.stddev, episode.mean + 2 * episode.stddev
    axis.fill_between(frames, low, high, color=COLOURS[0], alpha=0.35, lw=0, label="± 2σ of the value")
    axis.plot(frames, episode.mean, color=COLOURS[0], label="value, Kalman critic")
    known = episode.known
    axis.plot(frames[:known], episode.realised[:known], color="0.3", lw=1, label="discounted return that followed")
    if known < episode.length:
        # The critic values what would have followed; the episode does not tell.
        style: dict[str, Any] = {"color": "0.6", "lw": 1, "ls": ":", "label": "… cut off by the time limit"}
        axis.plot(frames[max(known - 1, 0) :], episode.realised[max(known - 1, 0) :], **style)
    axis.set(
        xlabel="frame of an episode",
        ylabel=f"discounted return,\n{UNITS}",
        title="The value, its error, and where returns fall",
    )
    axis.legend(frameon=False)
