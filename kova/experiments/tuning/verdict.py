"""The verdict: what was found and what the search began with, on seeds that no trial has seen.

The best of many trials is the luckiest, too: what it earned in the search says nothing about how well it is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kova.experiments.files import write_whole
from kova.experiments.report import statistics
from kova.experiments.report.numbers import in_words
from kova.experiments.report.statistics import Interval
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.run_directory import RUNS, RunDirectory
from kova.experiments.sweeps.grid import MANIFEST, Sweep
from kova.experiments.tuning.trials import score

DEFAULT, TUNED = "default", "tuned"


def comparison(
    base: RunConfig, given: Mapping[str, Any], found: Mapping[str, Any], seeds: Sequence[int], name: str
) -> Sweep:
    """Return the sweep of both settings, of one if nothing was found that the search did not begin with.

    Args:
        base: What the search begins with.
        given: Settings of the user's that are in it.
        found: Settings of the best trial.
        seeds: Fresh ones.
        name: Of the sweep.
    """
    common = {"steps": base.steps, **given}
    arms = {DEFAULT: common, TUNED: {**common, **found}} if found else {DEFAULT: common}
    return Sweep(
        name,
        [base.algo],
        [base.env],
        {arm: {"critic": base.critic["optimizer"], "set": settings} for arm, settings in arms.items()},
        list(seeds),
        base.preset,
        description="the verdict of kova tune, on seeds that no trial has seen",
    )


def write_manifest(sweep: Sweep, folder: Path) -> None:
    """Write down what the runs in a folder are, for ``kova report``."""
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{MANIFEST}.yaml", sweep.to_yaml())


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the fresh seeds say.

    Attributes:
        scores: {arm: of its finished runs}; an arm may have none.
    """

    scores: Mapping[str, npt.NDArray[np.float64]]

    @classmethod
    def of(cls, sweep: Sweep, folder: Path) -> Verdict:
        """Read the runs of :func:`comparison`; those that failed, or in which no episode ended, do not count."""
        found: dict[str, list[float]] = {arm: [] for arm in sweep.arms}
        for run in sweep.runs():
            path = folder / RUNS / run.name
            if RunDirectory(path).is_finished():
                found[run.arm].append(score(path))
        return cls({arm: np.array([one for one in own if np.isfinite(one)]) for arm, own in found.items()})

    def interval(self, arm: str) -> Interval | None:
        """Return an arm's interquartile mean with its interval, None if no run of it counts."""
        own = self.scores[arm]
        if not len(own):
            return None
        return statistics.iqm_interval({"": own}).within(*self._range)

    @property
    def improvement(self) -> Interval | None:
        """The probability that a run with the tuned setting earns more than one with the default's."""
        if not all(len(self.scores.get(arm, ())) for arm in (DEFAULT, TUNED)):
            return None
        return statistics.improvement_interval({"": self.scores[TUNED]}, {"": self.scores[DEFAULT]})

    @property
    def sentence(self) -> str:
        """Whether tuning helped, and whether the runs can tell."""
        if TUNED not in self.scores:
            return "Tuning found nothing better: of all trials the default earned most."
        chance = self.improvement
        if chance is None:
            failed = " and ".join(arm for arm, own in self.scores.items() if not len(own))
            return f"There is no verdict: no run of {failed} was finished."
        seeds = min(len(own) for own in self.scores.values())
        words = f"earns more than one of the default with probability {in_words(chance)}"
        if np.isnan(chance.low):
            return f"There is no verdict: a run of the tuned setting {words}; {seeds} seed has no interval."
        if chance.low > 0.5:
            return f"Tuning helped: a run of the tuned setting {words}."
        if chance.high < 0.5:
            return f"Tuning did harm: a run of the tuned setting {words}."
        return f"Tuning did not beat the default: a run of the tuned setting {words}, and {seeds} seeds cannot tell."

    @property
    def _range(self) -> tuple[float, float]:
        pooled = np.concatenate(list(self.scores.values()))
        return float(pooled.min()), float(pooled.max())
