"""Evolution models: P_{t|t-1} = P_{t-1|t-1} + P_v, line 2 of Algorithm 1.

A model is a small immutable value with one method. To write your own, subclass :class:`Evolution` and compose what
:class:`~kova.prediction.Prediction` offers::

    @dataclass(frozen=True)
    class FadingRandomWalk(kova.Evolution):
        eta: float
        variance: float

        def predict(self, P):
            return P.scaled(1 / (1 - self.eta)).shifted(self.variance).guarded(None)

With information e per step and noise R in a direction, fading memory settles at P = ηR/e and prior relaxation at
P = √(η p₀ R / e): relaxation forgets far more at the same η, so choose one that is 10 to 100 times smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from kova import _checks
from kova.memories import Memory
from kova.prediction import Prediction


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a batch says about how the parameters moved before it.

    Attributes:
        size: N.
        log_likelihood: log N(δ; 0, s·S) of the batch's innovation for the S of an evolution model, up to a constant.
        memory: What the model remembered last.
    """

    size: int
    log_likelihood: Callable[[Evolution], float]
    memory: Memory


class Evolution(ABC):
    """How the parameters may have moved between two batches.

    Attributes:
        keeps_memory: Whether P_{t|t-1} depends on P_{t-1|t-1}; if not, no matrix is stored at all.
        judges: Whether ``adapted`` looks at the likelihood of the labels, under more than one model.
    """

    keeps_memory: ClassVar[bool] = True
    judges: ClassVar[bool] = False

    @abstractmethod
    def predict(self, P: Prediction) -> Prediction:
        """Return P_{t|t-1} for P = P_{t-1|t-1}."""

    def adapted(self, evidence: Evidence) -> tuple[Evolution, Memory]:
        """Return the model whose ``predict`` makes this step, and what the next ``evidence.memory`` will hold.

        A model that does not look at the labels is that model itself.
        """
        return self, {}


@dataclass(frozen=True)
class Static(Evolution):
    """P_v = 0: the parameters do not move, and no sample is ever forgotten."""

    def predict(self, P: Prediction) -> Prediction:
        """Return P."""
        return P


@dataclass(frozen=True)
class FadingMemory(Evolution):
    """P_v = η/(1-η) P, the paper's choice, kept bounded.

    Unexcited directions grow by 1/(1-η) every step and overflow float32 after 842 steps at η = 0.1. When a variance
    passes ``max_variance``, P is blended with P₀ by the least weight that brings it back; until then this is exactly
    the paper, and with ``math.inf`` it always is.

    Args:
        eta: η in [0, 1).
        max_variance: The bound; ``None`` means 10 · prior_variance.
    """

    eta: float
    max_variance: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        _set(self, "eta", _checks.forgetting("eta", self.eta))
        _set(self, "max_variance", _bound(self.max_variance))

    def predict(self, P: Prediction) -> Prediction:
        """Return P/(1-η), guarded."""
        return P.scaled(1.0 / (1.0 - self.eta)).guarded(self.max_variance)


@dataclass(frozen=True)
class PriorRelaxation(Evolution):
    """P ← (1-η)P + ηP₀: never above the prior, and rounding errors decay as (1-η)^t.

    Args:
        eta: η in [0, 1).
    """

    eta: float

    def __post_init__(self) -> None:
        """Check the range."""
        _set(self, "eta", _checks.forgetting("eta", self.eta))

    def predict(self, P: Prediction) -> Prediction:
        """Return (1-η)P + ηP₀."""
        return P.blended(self.eta)


@dataclass(frozen=True)
class DirectionalForgetting(Evolution):
    """P_v = η/(1-η) · A (J A)⁻¹ Aᵀ with A = P Jᵀ: forget only what this batch observes.

    Takes the same parameter step as ``FadingMemory`` from the same P. Weakly excited directions can still grow, so the
    same guard applies.

    Args:
        eta: η in [0, 1).
        max_variance: The bound; ``None`` means 10 · prior_variance, ``math.inf`` none.
    """

    eta: float
    max_variance: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        _set(self, "eta", _checks.forgetting("eta", self.eta))
        _set(self, "max_variance", _bound(self.max_variance))

    def predict(self, P: Prediction) -> Prediction:
        """Return P grown in the span of the batch, guarded."""
        return P.inflated_along_batch(self.eta / (1.0 - self.eta)).guarded(self.max_variance)


@dataclass(frozen=True)
class RandomWalk(Evolution):
    """P_v = q·I: every parameter diffuses. Unbounded in directions that no data correct.

    Args:
        variance: q >= 0, added to every variance each step.
    """

    variance: float

    def __post_init__(self) -> None:
        """Check the range."""
        _set(self, "variance", _checks.non_negative("variance", self.variance))

    def predict(self, P: Prediction) -> Prediction:
        """Return P + q·I."""
        return P.shifted(self.variance)


@dataclass(frozen=True)
class Memoryless(Evolution):
    """P_{t|t-1} = P₀/(1-η) at every step: what the authors' public code computes. No matrix is stored.

    Args:
        eta: η in [0, 1); it only rescales P₀ against the observation noise.
    """

    keeps_memory: ClassVar[bool] = False
    eta: float

    def __post_init__(self) -> None:
        """Check the range."""
        _set(self, "eta", _checks.forgetting("eta", self.eta))

    def predict(self, P: Prediction) -> Prediction:
        """Return P₀/(1-η)."""
        return P.scaled(0.0).shifted(P.prior_variance / (1.0 - self.eta))


def _bound(max_variance: float | None) -> float | None:
    if max_variance is None:
        return None
    bound = _checks.number("max_variance", max_variance)
    if bound <= 0.0:
        raise ValueError(f"max_variance must be > 0, got {max_variance!r}")
    return bound


# Stores arguments as Python floats: checkpoints with a NumPy number cannot be read with ``weights_only=True``.
_set = object.__setattr__
