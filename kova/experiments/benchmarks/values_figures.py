"""Figures of the value benchmark: error against samples, reliability, and a chain with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from kova.experiments.benchmarks.value_methods import METHODS
from kova.experiments.files import replacing
from kova.experiments.problems import RandomWalkChain

if TYPE_CHECKING:
    from kova.experiments.benchmarks.values import MethodScore

STYLE: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
#: Errors above this are drawn at it: a diverged method must not flatten the others.
WORST = 10.0
CHAIN_EPISODES = 30


def save_curves(path: Path, scores: Sequence[MethodScore], grid: Sequence[int]) -> None:
    """Draw the median error of every arm against the transitions seen, a panel per problem."""
    names = list(dict.fromkeys(item.problem for item in scores))
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.4 * columns, 2.8 * rows + 0.6), layout="constrained")
        axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
        for axis, name in zip(axes, names, strict=False):
            for index, arm in enumerate(METHODS):
                own = [item.errors for item in scores if item.arm == arm and item.problem == name]
                if not own:
                    continue
                middle = np.median(np.minimum(np.array(own), WORST), axis=0)
                axis.plot(grid, middle, color=_colour(index), ls=_dash(arm), label=arm, lw=1.6 if "KOVA" in arm else 1)
            axis.set(title=name, xscale="log", yscale="log", xlabel="transitions")
        for axis in axes[len(names) :]:
            axis.set_visible(False)
        axes[0].set_ylabel("RMSE / std of V")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
        _save(figure, path)


def save_reliability(path: Path, scores: Sequence[MethodScore], levels: Sequence[float]) -> None:
    """Draw observed against nominal coverage of the exact values, over all problems and seeds."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.4), layout="constrained")
        axis = figure.subplots()
        axis.plot([0, 1], [0, 1], color="0.7", lw=1)
        for index, arm in enumerate(METHODS):
            own = [item.coverage for item in scores if item.arm == arm and item.coverage is not None]
            if own:
                mean = np.mean(np.array(own), axis=0)
                axis.plot(levels, mean, marker="o", ms=3, color=_colour(index), ls=_dash(arm), label=arm)
            beliefs = (item.coverage_believed for item in scores if item.arm == arm)
            before = [belief for belief in beliefs if belief is not None]
            if before:
                label = f"{arm}: P alone"
                axis.plot(levels, np.mean(np.array(before), axis=0), color=_colour(index), ls=":", lw=1, label=label)
        axis.set(xlabel="nominal level", ylabel="exact values inside", title="Reliability, all problems")
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _save(figure, path)


def save_chain(path: Path) -> None:
    """Draw the value of the random walk with its 2σ band and the truth, after a few episodes."""
    problem = RandomWalkChain()
    rng = np.random.default_rng(0)
    learner = METHODS["KOVA"].make(problem, 1.0, 0)
    for _ in range(CHAIN_EPISODES):
        learner.update(problem.episode(rng))
    truth = problem.evaluation
    estimate = learner.predict(problem.features(truth.states))
    assert estimate.variance is not None
    mean, spread = estimate.mean.numpy(), torch.sqrt(estimate.variance).numpy()
    states = np.arange(1, len(mean) + 1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axis: Any = figure.subplots()
        axis.fill_between(states, mean - 2 * spread, mean + 2 * spread, color="#d95f02", alpha=0.25, label="± 2σ")
        axis.plot(states, mean, color="#d95f02", label=f"KOVA after {CHAIN_EPISODES} episodes")
        axis.plot(states, truth.values.numpy(), "k--", lw=1, label="exact value")
        axis.set(xlabel="state of the random walk", ylabel="value")
        axis.legend(frameon=False)
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as draft:
        figure.savefig(draft, dpi=110)


def _colour(index: int) -> Any:
    return mpl.colormaps["tab20"](index)


def _dash(arm: str) -> str:
    return "--" if "network" in arm else "-"
