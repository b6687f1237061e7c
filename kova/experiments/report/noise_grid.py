"""η × observation noise, as in the paper's Figure 4: what each pair does to reward, entropy and policy loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kova.experiments.report.comparison import LAST, RETURN, Comparison, Task
from kova.experiments.report.results import RunResult, differences, settings
from kova.experiments.runs.expressions import resolve

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NoiseGrid:
    """Means of a metric on one task with one kind of evolution, (etas, noises), NaN where there is no run.

    ``name`` says which task and evolution, and what else distinguishes it from other grids.
    """

    name: str
    metric: str
    etas: Sequence[float]
    noises: Sequence[str]
    means: Array


def noise_grids(comparison: Comparison, runs: Sequence[RunResult], metrics: Sequence[str]) -> list[NoiseGrid]:
    """Return a grid for every task, kind of critic and metric where the runs vary both η and the noise."""
    grids = []
    for name, kind in _kinds(runs).items():
        for metric in metrics:
            means = np.full((len(kind.etas), len(kind.noises)), np.nan)
            for (eta, noise), arm in kind.cells.items():
                mean, _ = _task(comparison, kind).arms[arm].band(metric)
                last = mean[-max(1, round(LAST * len(mean))) :]
                means[kind.etas.index(eta), kind.noises.index(noise)] = np.mean(last)
            grids.append(NoiseGrid(name, metric, kind.etas, kind.noises, means))
    return grids


@dataclass(frozen=True, eq=False)
class Exploration:
    """How entropy and return of runs go together that have one noise and differ in η.

    Attributes:
        name: Which task, evolution and noise.
        arms: {arm: (entropy of each run, its return)}.
    """

    name: str
    arms: dict[str, tuple[Array, Array]]

    @property
    def pairs(self) -> tuple[Array, Array]:
        """Entropy and return of all runs."""
        entropy, earned = zip(*self.arms.values(), strict=True)
        return np.concatenate(entropy), np.concatenate(earned)


def explorations(comparison: Comparison, runs: Sequence[RunResult]) -> list[Exploration]:
    """Return one for every grid and noise, of the runs that logged their entropy."""
    found = []
    for name, kind in _kinds(runs).items():
        short = [noise.partition("(")[0] for noise in kind.noises]
        for noise, word in zip(kind.noises, short, strict=True):
            own = {arm: _task(comparison, kind).arms[arm] for (_, n), arm in sorted(kind.cells.items()) if n == noise}
            arms = {arm: (curves.number("entropy"), curves.number(RETURN)) for arm, curves in own.items()}
            known = {arm: pair for arm, pair in arms.items() if np.isfinite(pair).all()}
            if known:
                found.append(Exploration(f"{name}, {word if short.count(word) == 1 else noise}", known))
    return found


@dataclass(frozen=True)
class _Kind:
    """Critics of one task that differ in η and noise alone, {(η, noise): arm}."""

    task: str
    evolution: str
    rest: dict[str, Any]
    cells: dict[tuple[float, str], str]

    @property
    def etas(self) -> list[float]:
        return sorted({eta for eta, _ in self.cells}, reverse=True)

    @property
    def noises(self) -> list[str]:
        return sorted({noise for _, noise in self.cells})


def _kinds(runs: Sequence[RunResult]) -> dict[str, _Kind]:
    """Return those that vary both η and the noise, {what distinguishes it from the others: kind}."""
    kinds: dict[str, _Kind] = {}
    for run in runs:
        if (found := _cell(run)) is not None:
            evolution, eta, noise, rest = found
            kind = kinds.setdefault(
                repr((run.task, evolution, sorted(rest.items()))), _Kind(run.task, evolution, rest, {})
            )
            kind.cells[eta, noise] = run.arm
    named = {}
    for kind in kinds.values():
        if len(kind.etas) > 1 and len(kind.noises) > 1:
            alike = [other.rest for other in kinds.values() if other.task == kind.task]
            named[", ".join(filter(None, (kind.task, kind.evolution, differences(kind.rest, alike))))] = kind
    return named


def _task(comparison: Comparison, kind: _Kind) -> Task:
    return next(task for task in comparison.tasks if task.name == kind.task)


def _cell(run: RunResult) -> tuple[str, float, str, dict[str, Any]] | None:
    """Return evolution, η, noise and all other settings of a Kalman critic that names evolution and noise."""
    evolution, noise = (resolve(run.config.critic.get(name)) for name in ("evolution", "noise"))
    if noise is None or not hasattr(evolution, "eta"):
        return None
    rest = settings(run.config)
    del rest["critic.evolution"], rest["critic.noise"]
    rest |= {f"evolution.{name}": value for name, value in vars(evolution).items() if name != "eta"}
    return type(evolution).__name__, float(evolution.eta), repr(noise), rest
