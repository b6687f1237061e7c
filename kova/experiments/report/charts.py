"""The report's interactive charts. A trace carries its arm in ``meta``, so that one button toggles it everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from plotly import graph_objects as go

from kova.experiments.report import statistics
from kova.experiments.report.answer import Answer
from kova.experiments.report.comparison import Comparison, Task
from kova.experiments.report.numbers import decimals
from kova.experiments.report.palette import Palette
from kova.experiments.report.statistics import Interval

Array = npt.NDArray[np.float64]

LAYOUT = {
    # Colours are the page's, which is light or dark.
    "template": "none",
    "margin": {"l": 56, "r": 16, "t": 28, "b": 44},
    "height": 300,
    "showlegend": False,
    "hovermode": "x unified",
    "font": {"family": "system-ui, sans-serif", "size": 12},
}


def learning(task: Task, metric: str, title: str, palette: Palette, floor: float | None = None) -> go.Figure:
    """Return mean ± standard deviation of a metric against frames, a curve for every arm.

    What is below ``floor`` is not in sight until the reader zooms out.
    """
    figure, lowest, highest = go.Figure(), np.inf, -np.inf
    for arm in task.arms:
        mean, low, high = task.band(arm, metric)
        known = np.isfinite(mean)
        if known.any():
            _band(figure, task.grid[known], mean[known], low[known], high[known], arm, palette)
            lowest, highest = np.fmin(lowest, np.nanmin(mean)), np.fmax(highest, np.nanmax(mean))
    _lay_out(figure, title, xaxis_title="frames")
    if floor is not None and lowest < floor < highest:
        figure.update_yaxes(range=[floor, highest + 0.03 * (highest - floor)])
    return figure


def profiles(comparison: Comparison, palette: Palette) -> go.Figure:
    """Return the share of runs above each normalised score, with its interval."""
    thresholds = np.linspace(0.0, 1.0, 101)
    figure = go.Figure()
    for arm, scores in comparison.normalised().items():
        shares = statistics.profile(scores, thresholds)
        low, high = statistics.profile_band(scores, thresholds)
        _band(figure, thresholds, shares, low, high, arm, palette)
    _lay_out(figure, "Performance profiles", xaxis_title="normalised score τ", yaxis_title="runs > τ")
    return figure


def intervals(answer: Answer, palette: Palette) -> list[go.Figure]:
    """Return a chart of every arm's interquartile mean and one of how likely it beats the reference, with intervals."""
    means = {one.arm: one.iqm for one in answer.standings}
    chances = {one.arm: one.improvement for one in answer.standings if one.improvement is not None}
    figures = [_points(f"{answer.algorithm}: interquartile mean", means, palette)]
    if chances:
        figures.append(_points(f"{answer.algorithm}: P(earns more than {answer.reference})", chances, palette))
        # Where neither earns more.
        figures[-1].add_vline(0.5, line={"color": "#888", "width": 1, "dash": "dot"})
    return figures


def _points(title: str, found: Mapping[str, Interval], palette: Palette) -> go.Figure:
    figure = go.Figure()
    for arm, interval in found.items():
        known = not np.isnan(interval.low)
        ends = [np.array([end]) for end in (interval.estimate, interval.low, interval.high)]
        error = _errors(*ends) if known else None
        marker = {"color": palette.colour(arm), "size": 9}
        figure.add_scatter(x=[interval.estimate], y=[arm], error_x=error, marker=marker, name=arm, meta=arm)
    _lay_out(
        figure,
        title,
        hovermode="closest",
        height=80 + 26 * len(found),
        # Room for the marker of an arm that always wins.
        xaxis={"range": [-0.03, 1.03]},
        yaxis={"autorange": "reversed", "automargin": True},
    )
    return figure


def grid(title: str, etas: Sequence[float], noises: Sequence[str], means: Array) -> go.Figure:
    """Return a heat map of a number over η and the observation noise."""
    places = decimals(means.ravel())
    texts = [["" if np.isnan(value) else f"{value:,.{places}f}" for value in row] for row in means]
    figure = go.Figure(
        go.Heatmap(
            z=_plain(means),
            x=[_in_lines(noise) for noise in noises],
            y=[f"η = {eta:g}" for eta in etas],
            text=texts,
            texttemplate="%{text}",
            colorscale="Blues",
            showscale=False,
        )
    )
    labels = {"automargin": True, "showgrid": False}
    _lay_out(
        figure, title, hovermode="closest", xaxis={**labels, "tickangle": 0, "tickfont": {"size": 10}}, yaxis=labels
    )
    return figure


def exploration(title: str, arms: Mapping[str, tuple[Array, Array]], palette: Palette) -> go.Figure:
    """Return a point for every run: its entropy and its return."""
    figure = go.Figure()
    for arm, (entropy, earned) in arms.items():
        marker = {"color": palette.colour(arm), "size": 9}
        figure.add_scatter(x=_plain(entropy), y=_plain(earned), mode="markers", marker=marker, name=arm, meta=arm)
    _lay_out(figure, title, hovermode="closest", xaxis_title="policy entropy", yaxis_title="return")
    return figure


def _in_lines(noise: str) -> str:
    """Return a model in lines short enough to stand beside others; of one argument the name is not needed."""
    kind, _, arguments = noise.partition("(")
    if arguments.count("=") == 1:
        arguments = arguments.partition("=")[2]
    return f"{kind}(<br>{arguments.replace(', ', ',<br>')}"


def wall_clock(seconds: Mapping[str, Mapping[str, float]], palette: Palette) -> go.Figure:
    """Return the mean minutes of a run for every task and arm."""
    figure = go.Figure()
    for arm, tasks in seconds.items():
        bars = {"x": list(tasks), "y": [value / 60 for value in tasks.values()]}
        figure.add_bar(**bars, name=arm, marker_color=palette.colour(arm), meta=arm)
    _lay_out(figure, "Wall-clock of a run", hovermode="closest", yaxis_title="minutes")
    return figure


def _lay_out(figure: go.Figure, title: str, **own: Any) -> None:
    figure.update_layout(**{**LAYOUT, **own}, title=title)


def _band(figure: go.Figure, x: Array, middle: Array, low: Array, high: Array, arm: str, palette: Palette) -> None:
    banded = bool(np.isfinite(low).any())
    if banded and len(x) > 1:
        figure.add_scatter(
            x=[*_plain(x), *reversed(_plain(x))],
            y=[*_plain(high), *reversed(_plain(low))],
            fill="toself",
            fillcolor=palette.faint(arm),
            line={"width": 0},
            # Of few points plotly would draw markers, too.
            mode="lines",
            hoverinfo="skip",
            meta=arm,
            name=f"{arm}, band",
        )
    figure.add_scatter(
        x=_plain(x),
        y=_plain(middle),
        # A line needs two points.
        mode="lines" if len(x) > 1 else "markers",
        error_y=_errors(middle, low, high) if banded and len(x) == 1 else None,
        line={"color": palette.colour(arm), "dash": palette.dash(arm), "width": 2},
        marker={"color": palette.colour(arm), "size": 9},
        meta=arm,
        name=arm,
    )


def _errors(middle: Array, low: Array, high: Array) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": (high - middle).tolist(),
        "arrayminus": (middle - low).tolist(),
    }


def _plain(values: Array) -> list[float]:
    """Return numbers as short as a screen needs them: they are most of the page's size."""
    rounded: list[float] = np.vectorize(lambda value: float(f"{value:.5g}"), otypes=[float])(values).tolist()
    return rounded
