"""Whether a step is taken as the linearised critic proposes it.

The step is right for the linearised critic and the noise it was told. Both can be checked: the loss after the step
against the loss that it predicted, and the innovations before it against the scatter that S predicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from kova import _checks
from kova.memories import Memory

Step = TypeVar("Step")

#: The share of the way to a NIS of 1, in powers, that the noise goes with every batch.
PACE = 0.25
#: The NIS that one batch counts as, at least and at most: outliers can make it any size, chance does not make it small.
LEAST_NIS, MOST_NIS = 0.1, 2.0


@dataclass(frozen=True)
class Outcome:
    """What came of a step that was tried.

    Attributes:
        gain_ratio: How much the loss fell, relative to what the linearised critic predicted.
        nis: δᵀS⁻¹δ / N.
        noise: The mean variance of P_n without its factor, in units of the labels' variance.
    """

    gain_ratio: float
    nis: float
    noise: float


class Trust(ABC):
    """How steps are checked.

    Attributes:
        checks: Whether the outcome of a step has to be computed at all; it takes a forward pass.
        tries: How often one batch is tried at most; the last try is taken as it is.
    """

    checks: ClassVar[bool] = True
    tries: int = 1

    @abstractmethod
    def inflation(self, memory: Memory) -> float:
        """Return the factor of P_n for the next batch."""

    @abstractmethod
    def judge(self, outcome: Outcome, inflation: float) -> tuple[bool, Memory]:
        """Return whether a step with that factor of P_n is good, and what to remember for the next, or the next try."""


@dataclass(frozen=True)
class Unchecked(Trust):
    """Take every step as it is: the paper's filter."""

    checks: ClassVar[bool] = False

    def inflation(self, memory: Memory) -> float:
        """Return 1."""
        return 1.0

    def judge(self, outcome: Outcome, inflation: float) -> tuple[bool, Memory]:
        """Take it."""
        return True, {}


@dataclass(frozen=True)
class GainRatio(Trust):
    """A factor of P_n that is learned, as the damping of Levenberg and Marquardt is, and as a noise level is.

    With δ₊ the innovation after the step and δ_lin = δ - JΔ what the linearised critic makes of it,

        ρ = (δᵀP_n⁻¹δ - δ₊ᵀP_n⁻¹δ₊) / (δᵀP_n⁻¹δ - δ_linᵀP_n⁻¹δ_lin).

    A step with ρ < ``low`` is not taken: P_n is multiplied by ``factor`` and the step computed again. That bounds
    steps where the critic bends, but cannot tell that labels are noisier than P_n says: fitting noise lowers the loss
    as predicted. So with every step that is taken the factor also moves towards NIS = 1, where labels scatter as S
    says. Labels that bootstrap agree with the critic more than returns do: ``floor`` bounds P_n from below.

    A batch that is taken in pieces, or comes with a noise of its own, is not checked.

    Args:
        low: ρ below which a step is tried again, in (0, 1).
        factor: By which P_n is then multiplied, > 1.
        tries: How often one batch is tried at most.
        floor: The least P_n, as a share of the labels' variance, > 0.
    """

    low: float = 0.25
    factor: float = 4.0
    tries: int = 10
    floor: float = 0.1

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("low", "factor", "floor"):
            object.__setattr__(self, name, _checks.positive(name, getattr(self, name)))
        if self.low >= 1.0:
            raise ValueError(f"low must be in (0, 1), got {self.low!r}")
        if self.factor <= 1.0:
            raise ValueError(f"factor must be > 1, got {self.factor!r}")
        object.__setattr__(self, "tries", _checks.count("tries", self.tries))

    def inflation(self, memory: Memory) -> float:
        """Return the factor learned so far."""
        return memory.get("inflation", 1.0)

    def judge(self, outcome: Outcome, inflation: float) -> tuple[bool, Memory]:
        """Raise the factor where the critic bends, and else follow the innovations."""
        # Written so that a loss that is not finite is not good.
        if not outcome.gain_ratio >= self.low:
            return False, {"inflation": self.factor * inflation}
        surprise = min(max(outcome.nis, LEAST_NIS), MOST_NIS)
        least = self.floor / outcome.noise
        return True, {"inflation": max(inflation * surprise**PACE, least)}


def trusted(trust: Trust, memory: Memory, attempt: Callable[[float], tuple[Step, Outcome]]) -> tuple[Step, Memory]:
    """Return the first step that is good, or the last one that was tried, and what to remember.

    Args:
        trust: The judge.
        memory: What it remembers.
        attempt: Computes the step for a factor of P_n, and what comes of it.
    """
    for number in range(trust.tries):
        inflation = trust.inflation(memory)
        step, outcome = attempt(inflation)
        good, memory = trust.judge(outcome, inflation)
        if good or number + 1 == trust.tries:
            return step, memory
    raise ValueError(f"{trust!r} must try a step at least once")
