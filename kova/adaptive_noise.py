"""Noise models that adapt: to past innovations, to the uncertainty of the bootstrapped value, to outliers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kova import _checks
from kova.memories import Memory
from kova.noise import Batch, Noise

#: The initial guess of a variance counts as this many samples.
PRIOR_SAMPLES = 10.0


@dataclass(frozen=True)
class InnovationNoise(Noise):
    """σᵢ = the scatter seen so far beyond what the filter's own uncertainty explains.

    Innovations have variance v + R with v = diag(J P Jᵀ), so δ² - v estimates R, with weight (R/(v + R))²: nothing can
    be learned about the noise while the value itself is unknown. The noise of a batch is the estimate from the batches
    before it.

    Labels that bootstrap contain the critic, and labels of one episode share their rewards: both look less noisy than
    they are. An estimate that believed them would fall, the gain of the next odd batch would be near one, and the
    critic would follow every batch. ``floor`` keeps a tenth of the labels' own variance as noise; where labels are
    known to scatter independently it can be far smaller.

    Args:
        initial: Variance of a label before anything was seen, > 0; it counts as ten samples. With
            :class:`kova.LabelUnits` the unit is the variance of the labels.
        rate: Share of the past that is forgotten with every batch, in [0, 1).
        floor: The estimate never falls below this fraction of ``initial``, > 0.
    """

    initial: float = 1.0
    rate: float = 0.01
    floor: float = 0.1

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("initial", "floor"):
            object.__setattr__(self, name, _checks.positive(name, getattr(self, name)))
        object.__setattr__(self, "rate", _checks.forgetting("rate", self.rate))

    def covariance(self, batch: Batch) -> float:
        """Return the estimate, one variance for all."""
        return batch.memory.get("variance", self.initial)

    def remember(self, batch: Batch) -> Memory:
        """Update the running estimate with the batch."""
        assert batch.predicted is not None
        variance, count = self.covariance(batch), batch.memory.get("count", PRIOR_SAMPLES)
        weights = (variance / (batch.predicted.clamp(min=0.0) + variance)).square()
        excess = batch.innovation.square() - batch.predicted - variance
        count = (1.0 - self.rate) * count + float(weights.sum())
        estimate = variance + float((weights * excess).sum()) / count
        return {"count": count, "variance": max(estimate, self.floor * self.initial)}


@dataclass(frozen=True)
class InverseVariance(Noise):
    """σᵢ = variance + γ² var V(s'ᵢ): a label that bootstraps from an uncertain value weighs less.

    Args:
        variance: Of one reward, > 0.
        gamma: Discount of the bootstrapped value, in [0, 1].
    """

    variance: float = 1.0
    gamma: float = 0.99

    needs = frozenset({"next_variance"})

    def __post_init__(self) -> None:
        """Check the ranges."""
        object.__setattr__(self, "variance", _checks.positive("variance", self.variance))
        object.__setattr__(self, "gamma", _checks.non_negative("gamma", self.gamma))
        if self.gamma > 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma!r}")

    def covariance(self, batch: Batch) -> Tensor:
        """Return variance + γ² var V(s'), (N,).

        Raises:
            ValueError: No variance of the bootstrapped values was given.
        """
        if batch.next_variance is None:
            raise ValueError(
                "InverseVariance needs next_variance: pass step(..., next_variance=optimizer.predict(next).variance), "
                "0 where the task ended"
            )
        return self.variance + self.gamma**2 * batch.next_variance


@dataclass(frozen=True)
class Robust(Noise):
    """R / w² with w² = 1 / (1 + δ²/(R c²)), the weighted-observation-likelihood filter's inverse multiquadric.

    The further a label is outside the noise, the less it weighs, so that its influence on θ is bounded. With c = ∞ it
    is the model inside.

    Args:
        model: The noise without outliers.
        c: How many standard deviations of the noise are still ordinary, > 0.
    """

    model: Noise
    c: float = 3.0

    def __post_init__(self) -> None:
        """Check the kinds and ranges."""
        if not isinstance(self.model, Noise):
            raise TypeError(f"model must be a kova.Noise such as kova.BatchSize(), got {self.model!r}")
        value = _checks.number("c", self.c)
        if not value > 0.0:
            raise ValueError(f"c must be > 0, got {self.c!r}")
        object.__setattr__(self, "c", value)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the model inside needs."""
        return self.model.needs

    @property
    def correlates(self) -> bool:  # type: ignore[override]
        """Whether the model inside does."""
        return self.model.correlates

    def covariance(self, batch: Batch) -> Tensor | float:
        """Return the model's P_n with every label's share divided by its weight."""
        inner = self.model.covariance(batch)
        if self.c == math.inf:
            return inner
        if not isinstance(inner, Tensor) or inner.dim() < 2:
            return inner + batch.innovation.square() / self.c**2
        inflation = (1.0 + batch.innovation.square() / (inner.diagonal() * self.c**2)).sqrt()
        return inner * torch.outer(inflation, inflation)

    def remember(self, batch: Batch) -> Memory:
        """Let the model inside remember the batch, with every innovation multiplied by its weight w."""
        inner = self.model.covariance(batch)
        variances = inner.diagonal() if isinstance(inner, Tensor) and inner.dim() == 2 else inner
        weights = (1.0 + batch.innovation.square() / (variances * self.c**2)).rsqrt()
        return self.model.remember(replace(batch, innovation=batch.innovation * weights))
