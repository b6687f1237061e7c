"""P_n of one batch, checked and ready to be added to J P Jᵀ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from kova import _checks


@dataclass(frozen=True, eq=False)
class ObservationNoise:
    """P_n of one batch, checked: one variance for all, (N,) variances or an (N, N) covariance.

    Attributes:
        value: The number or tensor.
        log_det: log|P_n|.
        size: N.
    """

    value: Tensor | float
    log_det: Tensor | float
    size: int

    @classmethod
    def of(cls, value: object, like: Tensor) -> ObservationNoise:
        """Check ``value`` and bring it to the dtype and device of ``like``, which is (N,).

        Raises:
            TypeError: It is neither a number nor a tensor.
            ValueError: Wrong shape, non-finite, not positive, asymmetric or singular.
        """
        if isinstance(value, Real):
            variance = _checks.representable("noise", value, like.dtype)
            return cls(variance, like.shape[0] * math.log(variance), like.shape[0])
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
        return cls(value, value.double().log().sum(), size)

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
        return cls(value, spectrum.log().sum() + 2.0 * scale.log().sum(), len(value))

    @property
    def correlated(self) -> bool:
        """Whether it is a matrix."""
        return isinstance(self.value, Tensor) and self.value.dim() == 2

    def part(self, piece: slice) -> ObservationNoise:
        """Return the noise of some samples, where it is not a matrix."""
        if not isinstance(self.value, Tensor):
            size = piece.stop - piece.start
            return ObservationNoise(self.value, size * math.log(self.value), size)
        variances = self.value[piece]
        return ObservationNoise(variances, variances.double().log().sum(), len(variances))

    def times(self, factor: float) -> ObservationNoise:
        """Return factor · P_n, for factor > 0."""
        if factor == 1.0:
            return self
        return ObservationNoise(self.value * factor, self.log_det + self.size * math.log(factor), self.size)

    def mean(self) -> float:
        """Return the mean of the variances."""
        if not isinstance(self.value, Tensor):
            return self.value
        return float((self.value.diagonal() if self.correlated else self.value).mean())

    def squared_norm(self, delta: Tensor) -> float:
        """Return δᵀ P_n⁻¹ δ, for δ (N,)."""
        wide = delta.double()
        if not self.correlated or not isinstance(self.value, Tensor):
            return float((wide.square() / self.value).sum())
        return float(wide @ torch.linalg.solve(self.value.double(), wide))

    def pivots(self) -> Tensor | float:
        """Return the squared diagonal of P_n's Cholesky factor: a number or (N,)."""
        if self.correlated and isinstance(self.value, Tensor):
            factor: Tensor = torch.linalg.cholesky(self.value.double())
            return factor.diagonal().square()
        return self.value

    def added_to(self, matrix: Tensor) -> Tensor:
        """Return matrix + P_n."""
        if isinstance(self.value, Tensor) and self.value.dim() == 2:
            return matrix + self.value
        total = matrix.clone()
        total.diagonal().add_(self.value)
        return total
