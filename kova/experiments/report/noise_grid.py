"""η × observation noise, as in the paper's Figure 4: what each pair does to reward, entropy and policy loss."""

from __future__ import annotations

import itertools
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
        etas: {arm: its η}.
    """

    name: str
    arms: dict[str, tuple[Array, Array]]
    etas: dict[str, float]

    @property
    def pairs(self) -> tuple[Array, Array]:
        """Entropy and return of all runs."""
        entropy, earned = zip(*self.arms.values(), strict=True)
        return np.concatenate(entropy), np.concatenate(earned)

    @property
    def forgetting(self) -> tuple[Array, Array]:
        """η and entropy of all runs."""
        etas = [np.full(len(entropy), self.etas[arm]) for arm, (entropy, _) in self.arms.items()]
        return np.concatenate(etas), self.pairs[0]


def explorations(comparison: Comparison, runs: Sequence[RunResult]) -> list[Exploration]:
    """Return one for every grid and noise, of the runs that logged their entropy."""
    found = []
    for name, kind in _kinds(runs).items():
        for noise, word in _in_short(kind.noises).items():
            etas = {arm: eta for (eta, n), arm in sorted(kind.cells.items()) if n == noise}
            own = {arm: _task(comparison, kind).arms[arm] for arm in etas}
            arms = {arm: (curves.number("entropy"), curves.number(RETURN)) for arm, curves in own.items()}
            known = {arm: pair for arm, pair in arms.items() if np.isfinite(pair).all()}
            if known:
                found.append(Exploration(f"{name}, {word}", known, etas))
    return found


@dataclass(frozen=True, eq=False)
class Duel:
    """Two noises on one task, each η on its own.

    Attributes:
        name: Which task and evolution.
        noises: The two.
        scores: {task and η: scores of the runs} of each.
    """

    name: str
    noises: tuple[str, str]
    scores: tuple[dict[str, Array], dict[str, Array]]


def duels(comparison: Comparison, runs: Sequence[RunResult]) -> list[Duel]:
    """Return one for every grid and pair of noises, the one that its sweep names first against the other."""
    found = []
    for name, kind in _kinds(runs).items():
        words = _in_short(kind.noises)
        finals = {
            cell: (f"{name}, η = {cell[0]:g}", _task(comparison, kind).arms[arm].final)
            for cell, arm in kind.cells.items()
        }
        # The cells are in the order of the sweep.
        for pair in itertools.combinations(dict.fromkeys(noise for _, noise in kind.cells), 2):
            first, second = (dict(own for (_, noise), own in finals.items() if noise == one) for one in pair)
            if first.keys() & second.keys():
                found.append(Duel(name, (words[pair[0]], words[pair[1]]), (first, second)))
    return found


def _in_short(noises: Sequence[str]) -> dict[str, str]:
    """Return {noise: its name, without arguments where no other has it}."""
    names = [noise.partition("(")[0] for noise in noises]
    return {noise: name if names.count(name) == 1 else noise for noise, name in zip(noises, names, strict=True)}


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
