"""The full d×d covariance of the paper, P = c·I + s·(B + Uᵀ diag(σ) U).

c and s absorb the evolution in O(1). U holds the last rank-N corrections that have not been folded into B yet: they go
in as one larger, faster product, which also folds s. All numbers equal those of the undeferred filter to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from kova import _checks
from kova.covariance.base import Covariance
from kova.covariance.symmetric import SymmetricMatrix
from kova.errors import NumericalError
from kova.factorise import cholesky_with_jitter
from kova.jacobian import Jacobian
from kova.prediction import Prediction

#: Rows of U. Four batches of 64: deeper costs memory traffic in the product, shallower leaves the flush skinny.
DEFERRED_ROWS = 256

#: s is folded outside this range. Above 1 it amplifies the rounding of B, which then must cancel; below, U overflows.
SCALE_RANGE = (2.0**-20, 2.0)


class Full(Covariance):
    """Every covariance between every two parameters.

    Args:
        dim: Number of parameters d.
        prior_variance: P_{0|0} = prior_variance · I.
        dtype: Precision of P.
        device: Where P lives.
    """

    name: ClassVar[str] = "full"
    state_keys: ClassVar[tuple[str, ...]] = ("shift", "scale", "panels", "rows", "signs", "variances")

    def __init__(
        self,
        dim: int,
        prior_variance: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dim = dim
        self.prior_variance = prior_variance
        self.dtype = dtype
        self.device = torch.device(device)
        self._shift = prior_variance
        self._scale = 1.0
        self._matrix = SymmetricMatrix(dim, dtype, self.device)
        self._rows = torch.zeros(DEFERRED_ROWS, dim, dtype=dtype, device=self.device)
        self._signs = torch.zeros(DEFERRED_ROWS, dtype=dtype, device=self.device)
        self._used = 0
        self._variances = torch.full((dim,), prior_variance, dtype=dtype, device=self.device)

    @staticmethod
    def bytes_needed(dim: int, dtype: torch.dtype) -> int:
        """Return the bytes this structure allocates for d parameters."""
        return SymmetricMatrix.bytes_needed(dim, dtype.itemsize) + (DEFERRED_ROWS + 1) * dim * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes held by B, U and the diagonal."""
        return self._matrix.nbytes + self._rows.nbytes + self._signs.nbytes + self._variances.nbytes

    def predict(self, jacobian: Jacobian) -> FullPrediction:
        """Return P_{t-1|t-1} as the batch behind ``jacobian`` sees it."""
        return FullPrediction(self, jacobian)

    def product(self, right: Tensor, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        """Return (scale · P + shift · I) right for right (d, N): the only product with the d×d matrix."""
        total = scale * self._scale
        out = right * (scale * self._shift + shift)
        if total:
            self._matrix.add_product(out, right, total)
            if self._used:
                rows, signs = self._rows[: self._used], self._signs[: self._used]
                out.addmm_(rows.T, (rows @ right).mul_(signs[:, None]), alpha=total)
        return out

    def update(self, scale: float, shift: float, rows: Tensor, signs: Tensor, variances: Tensor) -> None:
        """Set P ← scale · P + shift · I + rowsᵀ diag(signs) rows, whose diagonal is ``variances``."""
        if self._used + len(rows) > DEFERRED_ROWS:
            self._flush()
        self._shift = scale * self._shift + shift
        self._scale *= scale
        self._variances = variances
        if self._scale == 0.0:
            self._matrix.zero_()
            self._used, self._scale = 0, 1.0
        rows = rows / math.sqrt(self._scale)
        if len(rows) > DEFERRED_ROWS:
            self._matrix.rank_update(rows, signs, self._scale)
            self._settle()
            return
        end = self._used + len(rows)
        self._rows[self._used : end] = rows
        self._signs[self._used : end] = signs
        self._used = end
        if end == DEFERRED_ROWS or not SCALE_RANGE[0] <= self._scale <= SCALE_RANGE[1]:
            self._flush()

    def _flush(self) -> None:
        self._matrix.rank_update(self._rows[: self._used], self._signs[: self._used], self._scale)
        self._settle()

    def _settle(self) -> None:
        self._used, self._scale = 0, 1.0
        # c beyond the prior would have to cancel against B where the data hold P small.
        if self._shift > self.prior_variance:
            self._matrix.add_to_diagonal(self._shift)
            self._shift = 0.0
        self._variances = self._matrix.diagonal() + self._shift

    def variance_of(self, jacobian: Jacobian) -> Tensor:
        """Return diag(J P Jᵀ), (N,)."""
        transposed = jacobian.transposed()
        return (transposed * self.product(transposed)).sum(0)

    def dense(self) -> Tensor:
        """Return P as a (d, d) tensor."""
        dense = self._matrix.dense()
        rows = self._rows[: self._used]
        dense.addmm_((rows * self._signs[: self._used, None]).T, rows)
        # The two halves of the product may differ in the last bit.
        dense = torch.tril(dense) + torch.tril(dense, -1).T
        dense *= self._scale
        dense.diagonal().add_(self._shift)
        return dense

    def diagonal(self) -> Tensor:
        """Return the d variances."""
        return self._variances.clone()

    def mean_variance(self) -> Tensor:
        """Return tr(P) / d."""
        return self._variances.mean()

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return ``count`` draws from N(0, P) by a Cholesky factor; O(d³)."""
        # Rounding may leave eigenvalues of a well-determined P at -eps of the largest variance.
        jitter = float(self._variances.max()) * torch.finfo(self.dtype).eps
        factor = cholesky_with_jitter("P", self.dense(), jitter)
        draws = torch.randn(count, self.dim, dtype=self.dtype, device=self.device, generator=generator)
        return draws @ factor.T

    def _content(self) -> dict[str, Any]:
        return {
            "shift": self._shift,
            "scale": self._scale,
            "panels": [panel.clone() for panel in self._matrix.panels],
            "rows": self._rows[: self._used].clone(),
            "signs": self._signs[: self._used].clone(),
            "variances": self._variances.clone(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        for panel, saved in zip(self._matrix.panels, state["panels"], strict=True):
            panel.copy_(saved)
        self._used = len(state["rows"])
        self._rows[: self._used] = state["rows"].to(self.device)
        self._signs[: self._used] = state["signs"].to(self.device)
        self._variances = state["variances"].to(self.device, copy=True)
        self._shift, self._scale = float(state["shift"]), float(state["scale"])

    def to(self, device: torch.device) -> None:
        """Move P."""
        self.device = device
        self._matrix.to(device)
        self._rows, self._signs = self._rows.to(device), self._signs.to(device)
        self._variances = self._variances.to(device)


@dataclass(frozen=True, eq=False)
class _Span:
    """The part of a prediction that an inflation along the batch added: A = cross·a + b·Jᵀ + weight·rowsᵀ overlap."""

    cross: Tensor
    rows: Tensor
    overlap: Tensor
    weight: float
    a: float = 1.0
    b: float = 0.0


@dataclass(frozen=True, eq=False)
class FullPrediction(Prediction):
    """scale · P + shift · I (+ span) for a stored full P."""

    covariance: Full
    jacobian: Jacobian
    scale: float = 1.0
    shift: float = 0.0
    span: _Span | None = None

    @property
    def prior_variance(self) -> float:  # type: ignore[override]
        """p₀."""
        return self.covariance.prior_variance

    def scaled(self, factor: float) -> Self:
        """Return factor · P."""
        span = self.span and replace(
            self.span, weight=factor * self.span.weight, a=factor * self.span.a, b=factor * self.span.b
        )
        return replace(self, scale=factor * self.scale, shift=factor * self.shift, span=span)

    def shifted(self, variance: float) -> Self:
        """Return P + variance · I."""
        span = self.span and replace(self.span, b=self.span.b + variance)
        return replace(self, shift=self.shift + variance, span=span)

    def inflated_along_batch(self, weight: float) -> Self:
        """Return P + weight · A (J A)⁻¹ Aᵀ.

        Raises:
            RuntimeError: It was inflated along the batch before.
        """
        if self.span is not None:
            raise RuntimeError("a prediction can be inflated along its batch once")
        transposed = self.jacobian.transposed()
        cross = self._cross
        # Equal samples make J A singular, smooth critics nearly so; a direction below the jitter is not inflated in
        # full. A float64 sum leaves only the rounding of A in the way of a small one.
        gram = self.gram(torch.float64)
        jitter = 0.01 * torch.finfo(self.covariance.dtype).eps * float(gram.diagonal().mean())
        rows = _whiten(cholesky_with_jitter("J P Jᵀ", gram, jitter), cross)
        return replace(self, span=_Span(cross, rows, overlap=rows @ transposed, weight=weight))

    def max_variance(self) -> float:
        """Return the largest variance."""
        return float(self._variances().max())

    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return J P Jᵀ accumulated in ``dtype``."""
        gram = self.jacobian.transposed().to(dtype).T @ self._cross.to(dtype)
        return (gram + gram.T).mul_(0.5)

    def gain(self, weights: Tensor) -> Tensor:
        """Return P Jᵀ weights."""
        return self._cross.to(weights.dtype) @ weights

    def condition(self, factor: Tensor, step_size: float) -> Callable[[], None]:
        """Prepare P ← P - α WᵀW with W = L⁻¹ J P: one symmetric rank-N update, K is never formed."""
        rows = _whiten(factor, self._cross).mul_(math.sqrt(step_size))
        signs = rows.new_full((len(rows),), -1.0)
        if self.span is not None:
            rows = torch.cat([rows, self.span.rows * math.sqrt(self.span.weight)])
            signs = torch.cat([signs, -signs])
        variances = self._inflated_diagonal().add_(torch.einsum("k,kd,kd->d", signs, rows, rows))
        if not _checks.all_finite(variances):
            raise NumericalError("the updated covariance is not finite; nothing was changed")
        return lambda: self.covariance.update(self.scale, self.shift, rows, signs, variances)

    @cached_property
    def _cross(self) -> Tensor:
        """A = P Jᵀ, (d, N)."""
        transposed = self.jacobian.transposed()
        if self.span is None:
            return self.covariance.product(transposed, self.scale, self.shift)
        cross = self.span.cross * self.span.a
        cross.addmm_(self.span.rows.T, self.span.overlap, alpha=self.span.weight)
        return cross.add_(transposed, alpha=self.span.b) if self.span.b else cross

    def _inflated_diagonal(self) -> Tensor:
        return self.covariance.diagonal().mul_(self.scale).add_(self.shift)

    def _variances(self) -> Tensor:
        variances = self._inflated_diagonal()
        if self.span is not None:
            variances.add_(self.span.rows.square().sum(0), alpha=self.span.weight)
        return variances


def _whiten(factor: Tensor, cross: Tensor) -> Tensor:
    """Return L⁻¹ Aᵀ, (N, d), in the dtype of A."""
    rows: Tensor = torch.linalg.solve_triangular(factor, cross.T.to(factor.dtype), upper=False)
    return rows.to(cross.dtype)
