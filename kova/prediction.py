"""The prediction P_{t|t-1} that an evolution model builds from P_{t-1|t-1}."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from kova import _checks

#: A guarded evolution lets a variance grow to this many times the prior's unless told otherwise.
DEFAULT_GUARD = 10.0


class Prediction(ABC):
    """P_{t|t-1} as one batch sees it: immutable, lazy, and nothing is stored until the step commits it.

    An evolution model receives P_{t-1|t-1} in this form and returns P_{t-1|t-1} + P_v (line 2 of Algorithm 1), composed
    from the methods here. The optimizer then asks it for J P Jᵀ and P Jᵀ x, and conditions it on the batch.

    Attributes:
        prior_variance: p₀ of P_{0|0} = p₀ I.
    """

    prior_variance: float

    @property
    def depends_on_batch(self) -> bool:
        """Whether the evolution depends on the batch, which then cannot be taken in pieces."""
        return False

    @property
    def exact(self) -> bool:
        """Whether P has no rounding errors, because no matrix of earlier steps is in it."""
        return False

    def shared(self) -> Self:
        """Return the same P, from which several predictions are made at about the price of one."""
        return self

    def scaled(self, factor: float) -> Self:
        """Return factor · P, for factor >= 0."""
        return self._scaled(_checks.non_negative("factor", factor))

    def shifted(self, variance: float) -> Self:
        """Return P + variance · I, for variance >= 0."""
        return self._shifted(_checks.non_negative("variance", variance))

    def inflated_along_batch(self, weight: float) -> Self:
        """Return P + weight · A (J A)⁻¹ Aᵀ with A = P Jᵀ, for weight >= 0: grow only what this batch will correct."""
        return self._inflated_along_batch(_checks.non_negative("weight", weight))

    @abstractmethod
    def _scaled(self, factor: float) -> Self: ...

    @abstractmethod
    def _shifted(self, variance: float) -> Self: ...

    @abstractmethod
    def _inflated_along_batch(self, weight: float) -> Self: ...

    @abstractmethod
    def max_variance(self) -> float:
        """Return the largest diagonal entry of P."""

    @abstractmethod
    def magnitude(self) -> float:
        """Return the largest number that entries of P are computed from; P's rounding errors are proportional to it."""

    def blended(self, weight: float) -> Self:
        """Return (1 - weight) · P + weight · P₀, for weight in [0, 1]."""
        return self.scaled(1.0 - weight).shifted(weight * self.prior_variance)

    def guarded(self, max_variance: float | None) -> Self:
        """Return P, blended with P₀ by the least weight that brings every variance to ``max_variance`` or below.

        Clipping would bound P too, but rounding errors would still grow with every step; the blend shrinks them.

        Args:
            max_variance: The bound; ``None`` means 10 p₀, ``math.inf`` no guard.

        Raises:
            ValueError: The bound does not exceed p₀, so that no blend can reach it.
        """
        bound = DEFAULT_GUARD * self.prior_variance if max_variance is None else max_variance
        if bound <= self.prior_variance:
            raise ValueError(f"max_variance must exceed prior_variance = {self.prior_variance:g}, got {bound:g}")
        if bound == math.inf:
            return self
        largest = self.max_variance()
        if largest <= bound:
            return self
        return self.blended((largest - bound) / (largest - self.prior_variance))

    @abstractmethod
    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return J P Jᵀ, symmetric (N, N), accumulated in ``dtype``."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Return diag(J Jᵀ), (N,): what a shift by 1 adds to the variance of each value."""

    @abstractmethod
    def gain(self, weights: Tensor) -> Tensor:
        """Return P Jᵀ weights, (d,), for weights (N,), in their dtype."""

    def gains(self, weights: Tensor) -> Tensor:
        """Return the same for m columns of weights, (N, m), as (m, d)."""
        return torch.stack([self.gain(column) for column in weights.unbind(1)])

    @abstractmethod
    def condition(self, factor: Tensor, step_size: float) -> Callable[[], None]:
        """Prepare P ← P - α P Jᵀ S⁻¹ J P for S = factor factorᵀ, and return the function that stores it.

        Raises:
            NumericalError: The result is not finite.
        """
