"""η × observation noise, as in the paper's Figure 4: what each pair does to reward, entropy and policy loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kova.experiments.report.comparison import LAST, Comparison
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
    kinds: dict[str, _Kind] = {}
    for run in runs:
        if (found := _cell(run)) is not None:
            evolution, eta, noise, rest = found
            kind = kinds.setdefault(
                repr((run.task, evolution, sorted(rest.items()))), _Kind(run.task, evolution, rest, {})
            )
            kind.cells[eta, noise] = run.arm
    tasks = {task.name: task for task in comparison.tasks}
    grids = []
    for kind in kinds.values():
        etas = sorted({eta for eta, _ in kind.cells}, reverse=True)
        noises = sorted({noise for _, noise in kind.cells})
        if len(etas) > 1 and len(noises) > 1:
            alike = [other.rest for other in kinds.values() if other.task == kind.task]
            name = ", ".join(filter(None, (kind.task, kind.evolution, differences(kind.rest, alike))))
            for metric in metrics:
                means = np.full((len(etas), len(noises)), np.nan)
                for (eta, noise), arm in kind.cells.items():
                    mean, _ = tasks[kind.task].arms[arm].band(metric)
                    last = mean[-max(1, round(LAST * len(mean))) :]
                    means[etas.index(eta), noises.index(noise)] = np.mean(last)
                grids.append(NoiseGrid(name, metric, etas, noises, means))
    return grids


@dataclass(frozen=True)
class _Kind:
    """Critics of one task that differ in η and noise alone, {(η, noise): arm}."""

    task: str
    evolution: str
    rest: dict[str, Any]
    cells: dict[tuple[float, str], str]


def _cell(run: RunResult) -> tuple[str, float, str, dict[str, Any]] | None:
    """Return evolution, η, noise and all other settings of a Kalman critic that names evolution and noise."""
    evolution, noise = (resolve(run.config.critic.get(name)) for name in ("evolution", "noise"))
    if noise is None or not hasattr(evolution, "eta"):
        return None
    rest = settings(run.config)
    del rest["critic.evolution"], rest["critic.noise"]
    rest |= {f"evolution.{name}": value for name, value in vars(evolution).items() if name != "eta"}
    return type(evolution).__name__, float(evolution.eta), repr(noise), rest
