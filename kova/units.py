"""The units of the labels: what the filter assumes, it assumes of labels with mean 0 and deviation 1.

θ and P are about values in the labels' own units, and ``critic(states)`` is the value itself. Only the assumptions
follow the units: P_n = s² P̃_n, and the prior of the output layer, whose weights are values per feature, s² P̃₀. Then
labels c·y + b give values c·V + b, whatever the rewards are paid in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from kova import _checks

#: A label further than this many deviations from the mean counts as one at that distance.
CUT = 10.0
#: Labels whose deviation is below this share of their size are all the same, up to rounding.
SAME = 1e-6


@dataclass(frozen=True)
class UnitState:
    """Mean and deviation of the labels.

    Attributes:
        mean: μ, of the labels seen, running.
        square: Mean of (y - μ)², running.
        scale: s, in force: it follows √square once that has moved by more than a tenth. Until labels differ from each
            other it is a guess: their size, or 1.
        batches: How many were seen since labels have differed.
    """

    mean: float = 0.0
    square: float = 0.0
    scale: float = 1.0
    batches: int = 0

    @property
    def known(self) -> bool:
        """Whether labels that differ from each other have been seen."""
        return self.batches > 0

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state: object) -> UnitState:
        """Return the state of a snapshot.

        Raises:
            ValueError: It is not one.
        """
        sound = isinstance(state, Mapping) and state.keys() == asdict(cls()).keys()
        if sound and isinstance(state, Mapping):
            numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in state.values())
            if numbers and state["scale"] > 0.0 and state["square"] >= 0.0 and state["batches"] >= 0:
                return cls(float(state["mean"]), float(state["square"]), float(state["scale"]), int(state["batches"]))
        raise ValueError(f"the checkpoint's units are {state!r}, expected mean, square, scale > 0 and a count")


class Units(ABC):
    """How the filter learns the units of its labels."""

    @abstractmethod
    def updated(self, state: UnitState, labels: Tensor, *, centred: bool) -> UnitState:
        """Return the units after a batch of labels, (N,); ``centred``: whether the critic can hold a mean."""

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether there are units at all."""

    #: Whether the output layer starts in the units of the first batch.
    start: bool = False


@dataclass(frozen=True)
class LabelUnits(Units):
    """Running mean and deviation of the labels.

    The first batch sets them; later ones move them slowly, and outliers count as ten deviations.

    Args:
        memory: Batches that the running estimate looks back on, >= 1.
        tolerance: s moves when the estimate has left it by more than this share, > 0.
        start: Whether the output layer starts at s·w and μ + s·b with the first batch. Say no for a critic that has
            been trained already: its values are in the units of the labels.
    """

    memory: int = 200
    tolerance: float = 0.1
    start: bool = True

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not isinstance(self.start, bool):
            raise TypeError(f"start must be True or False, got {self.start!r}")
        object.__setattr__(self, "memory", _checks.count("memory", self.memory))
        object.__setattr__(self, "tolerance", _checks.positive("tolerance", self.tolerance))

    @property
    def active(self) -> bool:
        """There are."""
        return True

    def updated(self, state: UnitState, labels: Tensor, *, centred: bool) -> UnitState:
        """Take in a batch."""
        # Plain numbers: a handful of small torch operations would take a tenth of a small step.
        numbers: list[float] = labels.tolist()
        if not state.known:
            return _first(numbers, centred=centred)
        batches = state.batches + 1
        rate = max(1.0 / batches, 1.0 / self.memory)
        reach = CUT * math.sqrt(state.square)
        low, high = state.mean - reach, state.mean + reach
        if min(numbers) < low or max(numbers) > high:
            numbers = [min(max(number, low), high) for number in numbers]
        mean = state.mean + rate * (_mean(numbers) - state.mean) if centred else 0.0
        square = state.square + rate * (_mean_square(numbers, mean) - state.square)
        # It falls to nothing only if labels have not differed for as long as the estimate looks back.
        found = math.sqrt(square) or state.scale
        moved = abs(math.log(found / state.scale)) > math.log1p(self.tolerance)
        return UnitState(mean, square, found if moved else state.scale, batches)


def _first(labels: list[float], *, centred: bool) -> UnitState:
    """Return the units of the first labels; equal ones, as a reward of 1 a step gives, tell their size only."""
    mean = _mean(labels) if centred else 0.0
    square, size = _mean_square(labels, mean), max(abs(label) for label in labels)
    if math.sqrt(square) > SAME * size:
        return UnitState(mean, square, math.sqrt(square), 1)
    return UnitState(mean, 0.0, size or 1.0, 0)


def _mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _mean_square(numbers: list[float], mean: float) -> float:
    return math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)


@dataclass(frozen=True)
class RawUnits(Units):
    """None: the assumptions are about the labels as they are, as in the paper."""

    @property
    def active(self) -> bool:
        """There are not."""
        return False

    def updated(self, state: UnitState, labels: Tensor, *, centred: bool) -> UnitState:
        """Leave them."""
        return state
