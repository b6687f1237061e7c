"""η × observation noise, as in the paper's Figure 4: what each pair does to reward, entropy and policy loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kova.experiments.comparison import Comparison
from kova.experiments.expressions import resolve
from kova.experiments.results import RunResult

Array = npt.NDArray[np.float64]

#: A metric's number is its mean over this last share of the frames.
LAST = 0.1


@dataclass(frozen=True, eq=False)
class NoiseGrid:
    """Means of a metric on one task with one kind of evolution, (etas, noises), NaN where there is no run."""

    task: str
    evolution: str
    metric: str
    etas: Sequence[float]
    noises: Sequence[str]
    means: Array


def noise_grids(comparison: Comparison, runs: Sequence[RunResult], metrics: Sequence[str]) -> list[NoiseGrid]:
    """Return a grid for every task, kind of evolution and metric where the runs vary both η and the noise."""
    kinds: dict[tuple[str, str], dict[tuple[float, str], str]] = {}
    for run in runs:
        if (found := _setting(run)) is not None:
            evolution, *cell = found
            kinds.setdefault((run.task, evolution), {})[tuple(cell)] = run.arm  # type: ignore[index]
    tasks = {task.name: task for task in comparison.tasks}
    grids = []
    for (task, evolution), cells in kinds.items():
        etas = sorted({eta for eta, _ in cells}, reverse=True)
        noises = sorted({noise for _, noise in cells})
        if len(etas) > 1 and len(noises) > 1:
            for metric in metrics:
                means = np.full((len(etas), len(noises)), np.nan)
                for (eta, noise), arm in cells.items():
                    mean, _ = tasks[task].arms[arm].band(metric)
                    last = mean[-max(1, round(LAST * len(mean))) :]
                    means[etas.index(eta), noises.index(noise)] = np.mean(last)
                grids.append(NoiseGrid(task, evolution, metric, etas, noises, means))
    return grids


def _setting(run: RunResult) -> tuple[str, float, str] | None:
    """Return evolution, η and noise of a Kalman critic that names both."""
    evolution, noise = (resolve(run.config.critic.get(name)) for name in ("evolution", "noise"))
    eta = getattr(evolution, "eta", None)
    return None if eta is None or noise is None else (type(evolution).__name__, float(eta), repr(noise))
