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
    """Means of a metric on one task, (etas, noises), NaN where there is no run."""

    task: str
    metric: str
    etas: Sequence[float]
    noises: Sequence[str]
    means: Array


def noise_grids(comparison: Comparison, runs: Sequence[RunResult], metrics: Sequence[str]) -> list[NoiseGrid]:
    """Return a grid for every task and metric if the runs vary η and the noise, none if they do not."""
    settings = {run.arm: found for run in runs if (found := _setting(run)) is not None}
    etas = sorted({eta for eta, _ in settings.values()}, reverse=True)
    noises = sorted({noise for _, noise in settings.values()})
    if len(etas) < 2 or len(noises) < 2:
        return []
    grids = []
    for task in comparison.tasks:
        for metric in metrics:
            means = np.full((len(etas), len(noises)), np.nan)
            for arm, (eta, noise) in settings.items():
                if arm in task.arms:
                    mean, _ = task.arms[arm].band(metric)
                    last = mean[-max(1, round(LAST * len(mean))) :]
                    means[etas.index(eta), noises.index(noise)] = np.mean(last)
            grids.append(NoiseGrid(task.name, metric, etas, noises, means))
    return grids


def _setting(run: RunResult) -> tuple[float, str] | None:
    """Return η and the kind of noise of a Kalman critic that names both."""
    evolution, noise = (resolve(run.config.critic.get(name)) for name in ("evolution", "noise"))
    eta = getattr(evolution, "eta", None)
    return None if eta is None or noise is None else (float(eta), type(noise).__name__)
