"""The report's interactive charts. A trace carries its arm in ``meta``, so that one button toggles it everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from plotly import graph_objects as go

from kova.experiments.report import statistics
from kova.experiments.report.answer import Answer
from kova.experiments.report.comparison import Comparison, Task
from kova.experiments.report.statistics import Interval

Array = npt.NDArray[np.float64]

#: Safe for most kinds of colour vision (Okabe and Ito). With more arms than colours, dashes distinguish them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
DASHES = ("solid", "dash", "dot", "dashdot")

LAYOUT = {
    "template": "simple_white",
    "margin": {"l": 56, "r": 24, "t": 40, "b": 44},
    "height": 300,
    "showlegend": False,
    "hovermode": "x unified",
    "font": {"family": "system-ui, sans-serif", "size": 12},
}


class Palette:
    """A colour and a dash for every arm.

    Args:
        arms: In order.
    """

    def __init__(self, arms: Sequence[str]) -> None:
        self._places = {arm: place for place, arm in enumerate(arms)}

    def colour(self, arm: str) -> str:
        """Return the arm's colour."""
        return COLOURS[self._places[arm] % len(COLOURS)]

    def dash(self, arm: str) -> str:
        """Return the arm's dash."""
        return DASHES[self._places[arm] // len(COLOURS) % len(DASHES)]

    def faint(self, arm: str) -> str:
        """Return the arm's colour for a band."""
        red, green, blue = (int(self.colour(arm)[start : start + 2], 16) for start in (1, 3, 5))
        return f"rgba({red},{green},{blue},0.15)"


def learning(task: Task, metric: str, title: str, palette: Palette) -> go.Figure:
    """Return mean ± standard deviation of a metric against frames, a curve for every arm."""
    figure = go.Figure()
    for arm, curves in task.arms.items():
        mean, std = curves.band(metric)
        known = np.isfinite(mean)
        if known.any():
            _band(
                figure, task.grid[known], mean[known], mean[known] - std[known], mean[known] + std[known], arm, palette
            )
    figure.update_layout(**LAYOUT, title=title, xaxis_title="frames")
    return figure


def profiles(comparison: Comparison, palette: Palette) -> go.Figure:
    """Return the share of runs above each normalised score, with its interval."""
    thresholds = np.linspace(0.0, 1.0, 101)
    figure = go.Figure()
    for arm, scores in comparison.normalised().items():
        shares = statistics.profile(scores, thresholds)
        low, high = statistics.profile_band(scores, thresholds)
        _band(figure, thresholds, shares, low, high, arm, palette)
    figure.update_layout(
        **LAYOUT, title="Performance profiles", xaxis_title="normalised score τ", yaxis_title="runs > τ"
    )
    return figure


def intervals(answer: Answer, palette: Palette) -> list[go.Figure]:
    """Return a chart of every arm's interquartile mean and one of how likely it beats the reference, with intervals."""
    shown = {
        f"{answer.algorithm}: interquartile mean": {one.arm: one.iqm for one in answer.standings},
        f"{answer.algorithm}: P(earns more than {answer.reference})": {
            one.arm: one.improvement for one in answer.standings if one.improvement is not None
        },
    }
    return [_points(title, found, palette) for title, found in shown.items()]


def _points(title: str, found: Mapping[str, Interval], palette: Palette) -> go.Figure:
    figure = go.Figure()
    for arm, interval in found.items():
        known = not np.isnan(interval.low)
        error = {
            "type": "data",
            "symmetric": False,
            "array": [interval.high - interval.estimate if known else 0.0],
            "arrayminus": [interval.estimate - interval.low if known else 0.0],
        }
        marker = {"color": palette.colour(arm), "size": 9}
        figure.add_scatter(x=[interval.estimate], y=[arm], error_x=error, marker=marker, name=arm, meta=arm)
    figure.update_layout(
        **{**LAYOUT, "hovermode": "closest", "height": 90 + 28 * len(found)},
        title=title,
        # Room for the marker of an arm that always wins.
        xaxis={"range": [-0.03, 1.03]},
        yaxis={"autorange": "reversed", "automargin": True},
    )
    return figure


def grid(title: str, etas: Sequence[float], noises: Sequence[str], means: Array) -> go.Figure:
    """Return a heat map of a number over η and the observation noise."""
    texts = [["" if np.isnan(value) else f"{value:.4g}" for value in row] for row in means]
    figure = go.Figure(
        go.Heatmap(
            z=_plain(means),
            x=list(noises),
            y=[f"η = {eta:g}" for eta in etas],
            text=texts,
            texttemplate="%{text}",
            colorscale="Blues",
            showscale=False,
        )
    )
    figure.update_layout(**{**LAYOUT, "hovermode": "closest"}, title=title)
    return figure


def wall_clock(seconds: Mapping[str, Mapping[str, float]], palette: Palette) -> go.Figure:
    """Return the mean minutes of a run for every task and arm."""
    figure = go.Figure()
    for arm, tasks in seconds.items():
        bars = {"x": list(tasks), "y": [value / 60 for value in tasks.values()]}
        figure.add_bar(**bars, name=arm, marker_color=palette.colour(arm), meta=arm)
    figure.update_layout(**{**LAYOUT, "hovermode": "closest"}, title="Wall-clock of a run", yaxis_title="minutes")
    return figure


def _band(figure: go.Figure, x: Array, middle: Array, low: Array, high: Array, arm: str, palette: Palette) -> None:
    outline = [*_plain(high), *reversed(_plain(low))]
    figure.add_scatter(
        x=[*_plain(x), *reversed(_plain(x))],
        y=outline,
        fill="toself",
        fillcolor=palette.faint(arm),
        line={"width": 0},
        hoverinfo="skip",
        meta=arm,
        name=f"{arm}, band",
    )
    figure.add_scatter(
        x=_plain(x),
        y=_plain(middle),
        mode="lines",
        line={"color": palette.colour(arm), "dash": palette.dash(arm), "width": 2},
        meta=arm,
        name=arm,
    )


def _plain(values: Array) -> list[float]:
    """Return numbers as short as a screen needs them: they are most of the page's size."""
    rounded: list[float] = np.vectorize(lambda value: float(f"{value:.5g}"), otypes=[float])(values).tolist()
    return rounded
