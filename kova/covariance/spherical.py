"""P = variance · I: the structure of a filter without memory. It holds no matrix and never needs the whole Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from kova import _checks
from kova.covariance.base import Covariance
from kova.covariance.layout import Layout
from kova.covariance.scales import Scales
from kova.linearisation.jacobian import Jacobian
from kova.prediction import Prediction


class Spherical(Covariance):
    """The same variance for every parameter, whatever was observed.

    Args:
        layout: The parameters.
        prior_variance: p₀.
        variance: The variance P keeps, p₀/(1-η) under ``Memoryless(η)``.
        dtype: Precision of the results.
        device: Where the results are.
    """

    name: ClassVar[str] = "memoryless"

    def __init__(
        self,
        layout: Layout,
        prior_variance: float = 1.0,
        variance: float | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dim = layout.dim
        self.scales = Scales.spherical(layout)
        self.prior_variance = _checks.representable("prior_variance", prior_variance, dtype)
        self.variance = self.prior_variance if variance is None else variance
        self.dtype = dtype
        self.device = torch.device(device)

    @property
    def nbytes(self) -> int:
        """Nothing is stored."""
        return 0

    def seen_by(self, jacobian: Jacobian) -> SphericalPrediction:
        """Return P with the Jacobian of a batch."""
        return SphericalPrediction(self.prior_variance, self.variance, self.scales.seen(jacobian), self.scales)

    def variance_of(self, jacobian: Jacobian) -> Tensor:
        """Return diag(J P Jᵀ), (N,)."""
        return self.scales.seen(jacobian).squared_norms() * self.variance

    def dense(self) -> Tensor:
        """Return variance · diag(f²), (d, d)."""
        return torch.diag(self.diagonal())

    def diagonal(self) -> Tensor:
        """Return the d variances."""
        same = torch.full((self.dim,), self.variance, dtype=self.dtype, device=self.device)
        return self.scales.spread(self.scales.spread(same))

    def mean_variance(self) -> Tensor:
        """Return the mean of the variances."""
        return self.diagonal().mean()

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return ``count`` draws from N(0, P)."""
        draws = torch.randn(count, self.dim, dtype=self.dtype, device=self.device, generator=generator)
        return self.scales.spread(draws * math.sqrt(self.variance))

    def rescale(self, scales: Scales) -> Callable[[], None]:
        """Prepare to follow P₀, which is all there is."""

        def store() -> None:
            self.scales = scales

        return store

    def _content(self) -> dict[str, Any]:
        return {}

    def _check_content(self, state: dict[str, Any]) -> None:
        """There is nothing to check."""

    def _restore(self, state: dict[str, Any]) -> None:
        """There is nothing to restore: the variance is the evolution's."""

    def to(self, device: torch.device) -> None:
        """Return results on ``device`` from now on."""
        self.device = device


@dataclass(frozen=True, eq=False)
class SphericalPrediction(Prediction):
    """variance · I seen by one batch, or by none (``jacobian=None``) when a model is only being tried out."""

    prior_variance: float
    variance: float
    jacobian: Jacobian | None = None
    scales: Scales | None = None

    @property
    def exact(self) -> bool:
        """It is one number."""
        return True

    def _scaled(self, factor: float) -> Self:
        return replace(self, variance=factor * self.variance)

    def _shifted(self, variance: float) -> Self:
        return replace(self, variance=self.variance + variance)

    def _inflated_along_batch(self, weight: float) -> Self:
        # Without a batch there is no direction to grow; with one the result would not be spherical.
        if self.jacobian is not None:
            raise TypeError("a memoryless covariance cannot grow along a batch only")
        return self

    def max_variance(self) -> float:
        """Return the variance."""
        return self.variance

    def magnitude(self) -> float:
        """Return the variance."""
        return self.variance

    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return variance · J Jᵀ, from the layers' factors."""
        return self._batch.gram(dtype) * self.variance

    def squared_norms(self) -> Tensor:
        """Return diag(J Jᵀ), (N,)."""
        return self._batch.squared_norms()

    def gain(self, weights: Tensor) -> Tensor:
        """Return variance · Jᵀ weights, one backward pass's worth of work."""
        gain = self._batch.transposed_product(weights) * self.variance
        return gain if self.scales is None else self.scales.spread(gain)

    def condition(self, factor: Tensor, step_size: float) -> Callable[[], None]:
        """Return a function that does nothing: P stays as it is."""
        return lambda: None

    @property
    def _batch(self) -> Jacobian:
        assert self.jacobian is not None, "a trial prediction has no batch"
        return self.jacobian
