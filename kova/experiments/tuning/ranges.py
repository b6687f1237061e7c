"""Ranges of a search: how a setting is varied around the one it begins with.

Every range makes a :class:`Dimension` from the setting's present value. A range is widened to hold that value, so that
no search begins outside of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from optuna.distributions import FloatDistribution, IntDistribution
from stable_baselines3.common.utils import LinearSchedule

Number = int | float


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched.

    Attributes:
        key: The setting.
        distribution: What the study draws from.
        start: The present value, as the study would draw it, or the nearest that it can draw.
        write: From what was drawn to the setting's value.
        number: From what was drawn to the number that people compare, for pictures.
        label: What that number is.
    """

    key: str
    distribution: FloatDistribution | IntDistribution
    start: Number
    write: Callable[[Any], Any]
    number: Callable[[Any], float]
    label: str

    @property
    def log(self) -> bool:
        """Whether its numbers are shown on a logarithmic axis."""
        return self.distribution.log or isinstance(self.distribution, IntDistribution)


class Range(Protocol):
    """How a setting is varied."""

    def around(self, key: str, value: Any) -> Dimension:
        """Return the dimension of a setting whose present value, resolved, is given."""


@dataclass(frozen=True)
class Real:
    """A number from ``low`` to ``high``."""

    low: float
    high: float
    log: bool = False

    def around(self, key: str, value: Any) -> Dimension:
        """Return the dimension of a setting."""
        return Dimension(key, *_real(self.low, self.high, self.log, value), _rounded, _rounded, key)


@dataclass(frozen=True)
class Whole:
    """A whole number >= 1, on a logarithmic scale: 2 and 4 differ as much as 8 and 16."""

    low: int
    high: int

    def around(self, key: str, value: Any) -> Dimension:
        """Return the dimension of a setting."""
        low, high = min(self.low, value), max(self.high, value)
        return Dimension(key, IntDistribution(low, high, log=True), value, int, float, key)


@dataclass(frozen=True)
class Doublings:
    """The present value, halved and doubled some times: batches that divided a rollout still do."""

    halvings: int
    doublings: int

    def around(self, key: str, value: Any) -> Dimension:
        """Return the dimension of a setting."""

        def times(power: int) -> int:
            return max(1, round(float(value) * 2.0**power))

        distribution = IntDistribution(-self.halvings, self.doublings)
        return Dimension(key, distribution, 0, times, lambda power: float(times(power)), key)

    def at_most(self, value: int, limit: float) -> Doublings:
        """Return the range without what exceeds a limit; the present value always stays."""
        doublings = max((power for power in range(self.doublings + 1) if value * 2**power <= limit), default=0)
        return replace(self, doublings=doublings)


@dataclass(frozen=True)
class FromOne:
    """A number below 1, by its distance from 1: a discount of 0.99 is to 0.999 what 0.9 is to 0.99."""

    nearest: float
    farthest: float

    def around(self, key: str, value: Any) -> Dimension:
        """Return the dimension of a setting."""

        def below(distance: float) -> float:
            return round(1.0 - _rounded(distance), 6)

        distribution, start = _real(self.nearest, self.farthest, True, 1.0 - value)
        return Dimension(key, distribution, start, below, _rounded, f"1 - {key}")


@dataclass(frozen=True)
class Rate:
    """A rate, or the first of a schedule that keeps its shape."""

    low: float
    high: float

    def around(self, key: str, value: Any) -> Dimension:
        """Return the dimension of a setting."""
        if not isinstance(value, LinearSchedule):
            return Real(self.low, self.high, log=True).around(key, value)
        ends = value.end / value.start

        def schedule(start: float) -> str:
            start = _rounded(start)
            return f"linear({start!r}, {_rounded(ends * start)!r})"

        return Dimension(key, *_real(self.low, self.high, True, value.start), schedule, _rounded, key)


@dataclass(frozen=True)
class Field:
    """A number of a model, which stays of its kind."""

    name: str
    low: float
    high: float

    def around(self, key: str, value: Any) -> Dimension:
        """Return the dimension of a setting."""

        def model(number: float) -> str:
            return repr(replace(value, **{self.name: _rounded(number)}))

        distribution, start = _real(self.low, self.high, True, getattr(value, self.name))
        return Dimension(key, distribution, start, model, _rounded, f"{key}: {self.name}")


def _real(low: float, high: float, log: bool, start: float) -> tuple[FloatDistribution, float]:
    """Return a distribution that holds ``start``, and ``start``; no logarithmic one can hold zero."""
    if log and start <= 0:
        start = low
    return FloatDistribution(min(low, start), max(high, start), log=log), start


def _rounded(number: float) -> float:
    """Return three digits of a number: more would be noise, and a preset is read by people."""
    return float(f"{number:.3g}")
