"""c·I and a few signed directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kova.covariance.storage.part import Part, check_entry, check_number


class LowRankPart(Part):
    """c·I plus R signed directions.

    Args:
        size: Number of parameters.
        rank: R.
        prior_variance: c at first.
        dtype: Precision.
        device: Where it is stored.
    """

    def __init__(self, size: int, rank: int, prior_variance: float, dtype: torch.dtype, device: torch.device) -> None:
        self.size = size
        self._rank = rank
        self._shift = prior_variance
        self._rows = torch.zeros(0, size, dtype=dtype, device=device)
        self._signs = torch.zeros(0, dtype=dtype, device=device)
        self.variances = torch.full((size,), prior_variance, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._rows.nbytes + self._signs.nbytes + self.variances.nbytes

    def magnitude(self) -> float:
        """Return c, or the largest variance if that is larger."""
        return max(self._shift, super().magnitude())

    def product(self, right: Tensor, out: Tensor, scale: float, shift: float) -> None:
        """Write (scale · P + shift · I) right through the factor."""
        torch.mul(right, scale * self._shift + shift, out=out)
        out.addmm_(self._rows.T, (self._rows @ right).mul_(self._signs[:, None]), alpha=scale)

    def prepare(self, scale: float, shift: float, columns: Tensor, lost: int, variances: Tensor) -> Callable[[], None]:
        """Append the columns, and compress the factor to R directions if it has more."""
        total = scale * self._shift + shift
        stacked = torch.cat([self._rows * math.sqrt(scale), columns.T])
        gained = columns.shape[1] - lost
        weights = torch.cat([self._signs, -columns.new_ones(lost), columns.new_ones(gained)])
        if len(stacked) > self._rank:
            basis, values = _eigenpairs(stacked, weights)
            largest = values.abs().argsort(descending=True)[: self._rank]
            stacked = basis[largest] * values[largest].abs().sqrt()[:, None]
            weights = values[largest].sign()
            variances = total + weights @ stacked.square()

        def store() -> None:
            self._shift, self._rows, self._signs, self.variances = total, stacked, weights, variances

        return store

    def rescale(self, factors: Tensor) -> Callable[[], None]:
        """Scale the directions; c·I, all that is known of the others, stays the prior's and follows its units."""
        squares = self._rows.new_empty(self._rank, self.size)
        variances = torch.empty_like(self.variances)

        def store() -> None:
            count = len(self._rows)
            self._rows.mul_(factors)
            torch.mul(self._rows, self._rows, out=squares[:count])
            self.variances = torch.mv(squares[:count].T, self._signs, out=variances).add_(self._shift)

        return store

    def dense(self) -> Tensor:
        """Return P."""
        dense = (self._rows * self._signs[:, None]).T @ self._rows
        dense = torch.tril(dense) + torch.tril(dense, -1).T
        dense.diagonal().add_(self._shift)
        return dense

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw by the symmetric square root, which differs from √c·I only along the factor."""
        like = self.variances
        draws = torch.randn(count, self.size, dtype=like.dtype, device=like.device, generator=generator)
        root = math.sqrt(self._shift)
        if len(self._rows) == 0:
            return draws * root
        basis, values = _eigenpairs(self._rows, self._signs)
        stretch = (values + self._shift).clamp(min=0.0).sqrt() - root
        return draws * root + (draws @ basis.T * stretch) @ basis

    def content(self) -> dict[str, Any]:
        """Return c, U and σ."""
        return {
            "shift": self._shift,
            "rows": self._rows.clone(),
            "signs": self._signs.clone(),
            "variances": self.variances.clone(),
        }

    def check(self, content: dict[str, Any]) -> None:
        """Check every shape, dtype and number."""
        dtype = self.variances.dtype
        check_number("shift", content["shift"])
        check_entry("rows", content["rows"], (None, self.size), dtype)
        if len(content["rows"]) > self._rank:
            raise ValueError(f"the checkpoint's rows are {len(content['rows'])}, expected at most {self._rank}")
        check_entry("signs", content["signs"], (len(content["rows"]),), dtype)
        check_entry("variances", content["variances"], (self.size,), dtype)

    def restore(self, content: dict[str, Any]) -> None:
        """Take over c, U and σ."""
        device = self.variances.device
        self._shift = float(content["shift"])
        self._rows, self._signs = (content[key].to(device, copy=True) for key in ("rows", "signs"))
        self.variances = content["variances"].to(device, copy=True)

    def to(self, device: torch.device) -> None:
        """Move the factor."""
        self._rows, self._signs = self._rows.to(device), self._signs.to(device)
        self.variances = self.variances.to(device)


def _eigenpairs(rows: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal eigenvectors (as rows) and eigenvalues of rowsᵀ diag(signs) rows, by the small Gram matrix."""
    wide = rows.double()
    squares, directions = torch.linalg.eigh(wide @ wide.T)
    # Directions below this are rounding errors; normalised, they would be noise.
    known = squares > len(rows) * torch.finfo(rows.dtype).eps * squares[-1]
    lengths, directions = squares[known].sqrt(), directions[:, known]
    core = (directions.T * signs.double()) @ directions * lengths[:, None] * lengths[None, :]
    values, turn = torch.linalg.eigh(core)
    basis = (turn.T / lengths) @ directions.T @ wide
    return basis.to(rows.dtype), values.to(rows.dtype)
