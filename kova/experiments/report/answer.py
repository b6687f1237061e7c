"""What the runs say, in one sentence for every algorithm, with the intervals that the sentence rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kova.experiments.report import statistics
from kova.experiments.report.comparison import Comparison
from kova.experiments.report.statistics import Interval


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
    """

    algorithm: str
    reference: str
    standings: Sequence[Standing]
    tasks: int
    seeds: tuple[int, int]

    @property
    def sentence(self) -> str:
        """Which arm is ahead, by how much, and whether the runs can tell."""
        few, many = self.seeds
        runs = f"{few} to {many} seeds" if few < many else f"{many} seed{'s' if many > 1 else ''}"
        start = f"{self.algorithm}, {self.tasks} task{'s' if self.tasks > 1 else ''}, {runs}: "
        best = max(self.standings, key=lambda standing: standing.iqm.estimate)
        if best.arm == self.reference:
            return f"{start}no arm has a larger interquartile mean than {self.reference}, {_words(best.iqm)}."
        ahead = f"{start}{best.arm} is ahead, interquartile mean {_words(best.iqm)}"
        base = next((one for one in self.standings if one.arm == self.reference), None)
        if base is None:
            return f"{ahead}; {self.reference}, the reference, has no runs here."
        ahead = f"{ahead} against {_words(base.iqm)} of {self.reference}"
        if best.improvement is None:
            return f"{ahead}; they have no task in common."
        chance = best.improvement
        return f"{ahead}; a run of it earns more with probability {_words(chance)}: {_verdict(chance)}."


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
        counts = [len(curves.seeds) for task in tasks for curves in task.arms.values()]
        found.append(Answer(algorithm, reference, standings, len(tasks), (min(counts), max(counts))))
    return found


def _verdict(chance: Interval) -> str:
    if np.isnan(chance.low):
        return "too few runs for an interval"
    if chance.low > 0.5:
        return "the interval is above one half"
    if chance.high < 0.5:
        return "the interval is below one half, so the two measures disagree"
    return "the runs cannot tell them apart"


def _words(interval: Interval) -> str:
    ends = "" if np.isnan(interval.low) else f" ({interval.low:.2f} to {interval.high:.2f})"
    return f"{interval.estimate:.2f}{ends}"
