"""Runs side by side: every task's arms on one grid of frames, and the numbers that compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kova.experiments.errors import UsageError
from kova.experiments.report import statistics
from kova.experiments.report.results import METRICS, RunResult
from kova.experiments.report.statistics import Interval

Array = npt.NDArray[np.float64]

#: Points of a curve.
POINTS = 100
#: A metric's number of a run is its mean over this last share of the frames.
LAST = 0.1
RETURN = "return"


@dataclass(frozen=True, eq=False)
class ArmCurves:
    """One arm on one task.

    Attributes:
        seeds: Of its runs.
        curves: {"return" or a metric: (runs, POINTS)}, NaN where a run has nothing yet.
        seconds: Wall-clock of each run.
    """

    seeds: Sequence[int]
    curves: dict[str, Array]
    seconds: Array

    def band(self, metric: str) -> tuple[Array, Array]:
        """Return mean and standard deviation over the runs."""
        return statistics.mean_and_std(self.curves[metric])

    @property
    def final(self) -> Array:
        """The score of each run: its last 100 episodes."""
        return self.curves[RETURN][:, -1]

    def number(self, metric: str) -> Array:
        """One number of each run: its score, or the mean of a metric over the last tenth of the frames."""
        if metric == RETURN:
            return self.final
        number: Array = self.curves[metric][:, -max(1, round(LAST * POINTS)) :].mean(axis=1)
        return number


@dataclass(frozen=True, eq=False)
class Task:
    """One algorithm on one environment, and arms of others that a sweep compares with it.

    Attributes:
        name: Its name.
        grid: Frames, (POINTS,); the last is where the longest run ended, which is a rollout's end after ``steps``.
        arms: {name: curves}.
        reference: The arm others are compared with, which may have no run here: the one asked for, or else the
            algorithm's first without a filter, or else its first.
    """

    name: str
    grid: Array
    arms: dict[str, ArmCurves]
    reference: str

    def band(self, arm: str, metric: str) -> tuple[Array, Array, Array]:
        """Return an arm's mean, and mean ± standard deviation as far as any run of the task has ever been.

        Of two runs at the top of the scale, the deviation would reach beyond it.
        """
        mean, std = self.arms[arm].band(metric)
        seen = np.concatenate([curves.curves[metric].ravel() for curves in self.arms.values()])
        seen = seen[np.isfinite(seen)]
        if not len(seen):
            return mean, mean - std, mean + std
        return mean, np.maximum(mean - std, seen.min()), np.minimum(mean + std, seen.max())

    def efficiency(self, arm: str) -> float:
        """Return frames of the reference / frames of the arm, each to the reference's final score."""
        curves = [self.arms[name].band(RETURN)[0] for name in (arm, self.reference)]
        return statistics.sample_efficiency(self.grid, *curves)


@dataclass(frozen=True)
class Row:
    """An arm's line in the table of statistics, against each task's reference.

    Attributes:
        arm: Its name.
        iqm: Interquartile mean of the normalised final scores; None where there is no other arm on any of its tasks.
        finals: {task: (mean, standard deviation)} of the final scores; NaN for the deviation of one run.
        improvement: Probability that a run beats one of the reference; None where it is the reference itself.
        efficiency: {task: frames of the reference / frames of this arm, to the reference's final score}.
        seconds: Mean wall-clock of a run.
    """

    arm: str
    iqm: Interval | None
    finals: dict[str, tuple[float, float]]
    improvement: Interval | None
    efficiency: dict[str, float]
    seconds: float


class Comparison:
    """Everything a report says about finished runs.

    Args:
        runs: Finished ones.
        against: The arm that others are compared with, if not the first without a filter.

    Raises:
        UsageError: No run is of that arm.
    """

    def __init__(self, runs: Sequence[RunResult], against: str | None = None) -> None:
        self.arms = list(dict.fromkeys(run.arm for run in runs))
        if against is not None and against not in self.arms:
            known = f"one of {', '.join(map(repr, self.arms))}" if self.arms else "there are none"
            raise UsageError(f"--against must be an arm of the finished runs, {known}; got {against!r}")
        self._against = against
        self.tasks = [
            _task(name, [run for run in runs if run.task == name], self._reference(runs, name))
            for name in dict.fromkeys(run.task for run in runs)
        ]

    def _reference(self, runs: Sequence[RunResult], task: str) -> str:
        if self._against is not None:
            return self._against
        # Chosen for the algorithm, not for the task: where its runs failed, no other arm must take its place.
        own = [run for run in runs if run.task.split()[0] == task.split()[0]]
        plain = {run.arm for run in own if run.config.critic["optimizer"] != "kova"} or {run.arm for run in own}
        return next(arm for arm in self.arms if arm in plain)

    @property
    def references(self) -> list[str]:
        """The arms that others are compared with: one, unless the tasks have different ones."""
        return list(dict.fromkeys(task.reference for task in self.compared))

    @property
    def compared(self) -> list[Task]:
        """The tasks on which there is more than one arm: an arm on its own cannot be compared."""
        return [task for task in self.tasks if len(task.arms) > 1]

    def normalised(self) -> dict[str, dict[str, Array]]:
        """Return {arm: {task: final scores}} of the compared tasks; 0 is the worst run of a task and 1 the best."""
        scores = {arm: {t.name: t.arms[arm].final for t in self.compared if arm in t.arms} for arm in self.arms}
        return statistics.normalised({arm: own for arm, own in scores.items() if own})

    def table(self) -> list[Row]:
        """Return a row for every arm."""
        normalised = self.normalised()
        return [self._row(arm, normalised) for arm in self.arms]

    def pairs(self) -> dict[str, dict[str, Interval]]:
        """Return {arm: {other arm: probability that a run of the first beats one of the other}}."""
        normalised = self.normalised()
        return {
            arm: {
                other: statistics.improvement_interval(own, than)
                for other, than in normalised.items()
                if other != arm and own.keys() & than.keys()
            }
            for arm, own in normalised.items()
        }

    def differences(self, metric: str) -> dict[str, dict[str, Interval]]:
        """Return {arm: {task: how much more it has of a metric than the task's reference}}, where both have it."""
        found: dict[str, dict[str, Interval]] = {}
        for task in self.compared:
            base = task.arms.get(task.reference)
            for arm, own in task.arms.items():
                if base is None or arm == task.reference:
                    continue
                interval = statistics.difference_interval(own.number(metric), base.number(metric))
                if np.isfinite(interval.estimate):
                    found.setdefault(arm, {})[task.name] = interval
        return found

    def _row(self, arm: str, normalised: dict[str, dict[str, Array]]) -> Row:
        own = {task.name: task.arms[arm] for task in self.tasks if arm in task.arms}
        bands = {name: curves.band(RETURN) for name, curves in own.items()}
        compared = [task for task in self.tasks if {arm, task.reference} <= task.arms.keys() and arm != task.reference]
        references = {task.name: normalised[task.reference][task.name] for task in compared}
        return Row(
            arm,
            statistics.iqm_interval(normalised[arm]).within(0.0, 1.0) if arm in normalised else None,
            {name: (float(mean[-1]), float(std[-1])) for name, (mean, std) in bands.items()},
            statistics.improvement_interval(normalised[arm], references) if compared else None,
            {task.name: task.efficiency(arm) for task in compared},
            float(np.concatenate([curves.seconds for curves in own.values()]).mean()),
        )


def _task(name: str, runs: Sequence[RunResult], reference: str) -> Task:
    end = max(max(run.config.steps, run.frames) for run in runs)
    grid = np.linspace(end / POINTS, end, POINTS)
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        groups.setdefault(run.arm, []).append(run)
    arms = {arm: _arm(sorted(own, key=lambda r: r.config.seed), grid) for arm, own in groups.items()}
    return Task(name, grid, arms, reference)


def _arm(runs: Sequence[RunResult], grid: Array) -> ArmCurves:
    def stacked(one: Callable[[RunResult], Array]) -> Array:
        return np.stack([one(run) for run in runs])

    curves = {RETURN: stacked(lambda run: statistics.curve(run.returns.frames, run.returns.values, grid))}
    for metric in METRICS:
        curves[metric] = stacked(
            lambda run, metric=metric: statistics.sampled(  # type: ignore[misc]
                run.metrics[metric].frames, run.metrics[metric].values, grid
            )
        )
    return ArmCurves([run.config.seed for run in runs], curves, np.array([run.seconds for run in runs]))
