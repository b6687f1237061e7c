"""Observation noise models: P_n, the covariance of the target labels around h(u; θ).

A model is a small immutable value with one method. To write your own, subclass :class:`Noise`::

    @dataclass(frozen=True)
    class Huber(kova.Noise):
        threshold: float

        def covariance(self, batch):
            return (batch.innovation.abs() / self.threshold).clamp(min=1.0)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from kova import _checks


@dataclass(frozen=True, eq=False)
class Batch:
    """What a noise model may look at.

    Attributes:
        innovation: δ = y - h(u; θ), (N,).
        ratio: π_old(a|s)/π_new(a|s) per sample, (N,), if the caller gave it.
    """

    innovation: Tensor
    ratio: Tensor | None = None

    @property
    def size(self) -> int:
        """N."""
        return self.innovation.shape[0]


class Noise(ABC):
    """How far the target labels scatter around the value."""

    @abstractmethod
    def covariance(self, batch: Batch) -> Tensor | float:
        """Return P_n: one variance for all, (N,) variances, or an (N, N) covariance."""


@dataclass(frozen=True)
class BatchSize(Noise):
    """σᵢ = scale · N, the paper's *batch-size* setting: the batch weighs as one sample would at σ = scale.

    Args:
        scale: Factor > 0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(self, "scale", _checks.positive("scale", self.scale))

    def covariance(self, batch: Batch) -> float:
        """Return scale · N."""
        return self.scale * batch.size


@dataclass(frozen=True)
class MaxRatio(Noise):
    """σᵢ = scale · N · max(1, 1/(rᵢ + ε)), the paper's *max-ratio* setting: distrust off-policy samples.

    Args:
        scale: Factor > 0.
        eps: ε > 0.
        orientation: ``"paper"`` takes r = π_old/π_new as printed, ``"code"`` r = π_new/π_old as the authors' code does.
    """

    scale: float = 1.0
    eps: float = 1e-5
    orientation: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        """Check the ranges."""
        object.__setattr__(self, "scale", _checks.positive("scale", self.scale))
        object.__setattr__(self, "eps", _checks.positive("eps", self.eps))
        if self.orientation not in ("paper", "code"):
            raise ValueError(f'orientation must be "paper" or "code", got {self.orientation!r}')

    def covariance(self, batch: Batch) -> Tensor:
        """Return scale · N · max(1, 1/(r + ε)), (N,).

        Raises:
            ValueError: No ratio was given.
        """
        if batch.ratio is None:
            raise ValueError("MaxRatio needs ratio: pass step(..., ratio=π_old(a|s)/π_new(a|s)) of shape (N,)")
        ratio = batch.ratio if self.orientation == "paper" else batch.ratio.reciprocal()
        return (ratio + self.eps).reciprocal().clamp(min=1.0) * (self.scale * batch.size)


@dataclass(frozen=True)
class ConstantNoise(Noise):
    """σᵢ = variance: the right choice when the scatter of the returns is known.

    Args:
        variance: Of one target label, > 0.
    """

    variance: float

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(self, "variance", _checks.positive("variance", self.variance))

    def covariance(self, batch: Batch) -> float:
        """Return the variance."""
        return self.variance


@dataclass(frozen=True, eq=False)
class ObservationNoise:
    """P_n of one batch, checked: one variance for all, (N,) variances or an (N, N) covariance.

    Attributes:
        value: The number or tensor.
        log_det: log|P_n|.
    """

    value: Tensor | float
    log_det: Tensor | float

    @classmethod
    def of(cls, value: object, like: Tensor) -> ObservationNoise:
        """Check ``value`` and bring it to the dtype and device of ``like``, which is (N,).

        Raises:
            TypeError: It is neither a number nor a tensor.
            ValueError: Wrong shape, non-finite, not positive, asymmetric or singular.
        """
        if isinstance(value, Real):
            variance = _checks.representable("noise", value, like.dtype)
            return cls(variance, like.shape[0] * math.log(variance))
        if not isinstance(value, Tensor):
            raise TypeError(f"noise must be a number or a tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise ValueError(f"noise must have a floating dtype, got {value.dtype}")
        if value.device != like.device:
            raise ValueError(f"noise is on {value.device}, the critic on {like.device}")
        size = like.shape[0]
        if value.shape not in (torch.Size([]), torch.Size([size]), torch.Size([size, size])):
            raise ValueError(
                f"noise must be a scalar, ({size},) or ({size}, {size}) for a batch of {size}, got {tuple(value.shape)}"
            )
        value = _checks.finite("noise", value.detach().to(like.dtype))
        if value.dim() == 2:
            return cls._of_matrix(value)
        value = value.expand(size)
        if not bool((value > 0).all()):
            bad = int((value <= 0).sum())
            raise ValueError(f"noise must be > 0, {bad} of {size} variances are not (smallest {float(value.min()):g})")
        return cls(value, value.double().log().sum())

    @classmethod
    def _of_matrix(cls, value: Tensor) -> ObservationNoise:
        precision = torch.finfo(value.dtype).eps
        if float((value - value.T).abs().max()) > 100 * precision * float(value.abs().max()):
            raise ValueError("noise must be a symmetric covariance matrix, it is asymmetric")
        scale = value.diagonal().double().sqrt()
        # Judged by the correlations: labels may differ in scale by any factor.
        correlations = value.double() / (scale[:, None] * scale[None, :])
        regular = bool((value.diagonal() > 0).all())
        spectrum = torch.linalg.eigvalsh(correlations) if regular else torch.zeros(1)
        if float(spectrum[0]) <= len(value) * precision:
            raise ValueError("noise must be positive definite, it is singular or indefinite")
        return cls(value, spectrum.log().sum() + 2.0 * scale.log().sum())

    def added_to(self, matrix: Tensor) -> Tensor:
        """Return matrix + P_n."""
        if isinstance(self.value, Tensor) and self.value.dim() == 2:
            return matrix + self.value
        total = matrix.clone()
        total.diagonal().add_(self.value)
        return total
