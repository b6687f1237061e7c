"""What the runs say, in one sentence for every algorithm, with the intervals that the sentence rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kova.experiments.report import statistics
from kova.experiments.report.comparison import Comparison, Task
from kova.experiments.report.numbers import decimals, in_words, listed
from kova.experiments.report.statistics import Interval

#: Names that a sentence has room for.
NAMED = 3


@dataclass(frozen=True)
class Standing:
    """How an arm does over the tasks of an algorithm.

    Attributes:
        arm: Its name.
        iqm: Interquartile mean of its normalised final scores.
        improvement: Probability that a run of it earns more than one of the reference; None for the reference.
    """

    arm: str
    iqm: Interval
    improvement: Interval | None


@dataclass(frozen=True)
class Answer:
    """What the runs of one algorithm say.

    Attributes:
        algorithm: Its name, as tasks begin with it.
        reference: The arm that others are compared with.
        standings: Of every arm, as the sweep has them.
        tasks: How many.
        seeds: How many runs an arm has on a task, fewest and most.
        leads: {arm: probability that a run of the best arm earns more than one of it}, where they have a common task.
    """

    algorithm: str
    reference: str
    standings: Sequence[Standing]
    tasks: int
    seeds: tuple[int, int]
    leads: Mapping[str, Interval]

    @property
    def best(self) -> Standing:
        """The arm with the largest interquartile mean."""
        return _best(self.standings)

    @property
    def level(self) -> list[str]:
        """Arms that the best one is not separated from, the better first."""
        others = sorted((one for one in self.standings if one is not self.best), key=lambda one: -one.iqm.estimate)
        return [one.arm for one in others if not self._separated(one)]

    def _separated(self, other: Standing) -> bool:
        """Return whether the best arm is ahead of another by both measures, and not by chance.

        A run of it earns more with a probability whose interval is above one half, and the interval of neither's
        interquartile mean holds the other's.
        """
        best, lead = self.best.iqm, self.leads.get(other.arm)
        return lead is not None and lead.low > 0.5 and best.low > other.iqm.estimate and best.estimate > other.iqm.high

    @property
    def sentence(self) -> str:
        """Which arm earned most, and whether the runs can tell."""
        best = self.best
        extent = f"{self.algorithm}, {_extent(self.tasks, self.seeds)}"
        if len({one.iqm.estimate for one in self.standings}) == 1:
            return f"{extent}: all arms have the same interquartile mean, {in_words(best.iqm)}."
        start = f"{extent}: {best.arm}"
        if np.isnan(best.iqm.low):
            found = f"has the largest interquartile mean, {in_words(best.iqm)}; too few runs for an interval"
        elif self.level:
            found = f"has the largest interquartile mean, {in_words(best.iqm)}, not separated from {_some(self.level)}"
        else:
            every = " of every other arm" if len(self.standings) > 2 else ""
            found = f"is ahead{every}, interquartile mean {in_words(best.iqm)}"
        return f"{start} {found}{self._against_the_reference()}."

    def _against_the_reference(self) -> str:
        if self.best.arm == self.reference:
            return "; it is the reference"
        base = next((one for one in self.standings if one.arm == self.reference), None)
        if base is None:
            return f"; {self.reference}, the reference, has no runs here"
        words = f"; {self.reference} has {in_words(base.iqm)}"
        chance = self.leads.get(self.reference)
        if chance is None:
            return f"{words}, and they have no task in common"
        verdict = "" if np.isnan(chance.low) or self._separated(base) else ": not separated"
        return f"{words}, and a run of {self.best.arm} earns more with probability {in_words(chance)}{verdict}"


def answers(comparison: Comparison) -> list[Answer]:
    """Return what there is to say of every algorithm with more than one arm on a task."""
    normalised, found = comparison.normalised(), []
    for algorithm in dict.fromkeys(task.name.split()[0] for task in comparison.compared):
        tasks = [task for task in comparison.compared if task.name.split()[0] == algorithm]
        names, reference = {task.name for task in tasks}, tasks[0].reference
        scores = {
            arm: {name: values for name, values in own.items() if name in names} for arm, own in normalised.items()
        }
        than = scores.get(reference, {})
        standings = []
        for arm, own in scores.items():
            if own:
                common = arm != reference and own.keys() & than.keys()
                improvement = statistics.improvement_interval(own, than) if common else None
                standings.append(Standing(arm, statistics.iqm_interval(own).within(0.0, 1.0), improvement))
        best = _best(standings).arm
        leads = {
            one.arm: statistics.improvement_interval(scores[best], scores[one.arm])
            for one in standings
            if one.arm != best and scores[best].keys() & scores[one.arm].keys()
        }
        found.append(Answer(algorithm, reference, standings, len(tasks), _seeds(tasks), leads))
    return found


def sentences(comparison: Comparison) -> list[str]:
    """Return a sentence for every algorithm; of one whose arms meet nowhere, it says what they earned."""
    compared = {answer.algorithm: answer.sentence for answer in answers(comparison)}
    algorithms = dict.fromkeys(task.name.split()[0] for task in comparison.tasks)
    return [
        compared.get(name) or _alone(name, [task for task in comparison.tasks if task.name.split()[0] == name])
        for name in algorithms
    ]


def _alone(algorithm: str, tasks: Sequence[Task]) -> str:
    """Return what arms earned that have no other arm on any of their tasks."""
    arms = dict.fromkeys(arm for task in tasks for arm in task.arms)
    earned = [f"{arm} earned {_some([_earned(task, arm) for task in tasks if arm in task.arms])}" for arm in arms]
    several = any(len(curves.seeds) > 1 for task in tasks for curves in task.arms.values())
    measure = "interquartile mean over seeds, with its 95 % interval" if several else "one seed has no interval"
    return (
        f"{algorithm}, {_extent(len(tasks), _seeds(tasks))}: {'; '.join(earned)} in the last 100 episodes ({measure}). "
        "There is no other arm to compare with."
    )


def _earned(task: Task, arm: str) -> str:
    final = task.arms[arm].final
    interval = statistics.iqm_interval({task.name: final}).within(float(final.min()), float(final.max()))
    return f"{in_words(interval, decimals(final))} on {' '.join(task.name.split()[1:])}"


def _best(standings: Sequence[Standing]) -> Standing:
    return max(standings, key=lambda standing: standing.iqm.estimate)


def _seeds(tasks: Sequence[Task]) -> tuple[int, int]:
    counts = [len(curves.seeds) for task in tasks for curves in task.arms.values()]
    return min(counts), max(counts)


def _extent(tasks: int, seeds: tuple[int, int]) -> str:
    few, many = seeds
    runs = f"{few} to {many} seeds" if few < many else f"{many} seed{'s' if many > 1 else ''}"
    return f"{tasks} task{'s' if tasks > 1 else ''}, {runs}"


def _some(words: list[str]) -> str:
    """Return the first of some words, and how many more there are."""
    left = len(words) - NAMED
    return listed(words if left <= 1 else [*words[:NAMED], f"{left} others"])
