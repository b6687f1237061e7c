"""One dense block, P = c·I + s·(B + Uᵀ diag(σ) U).

c and s absorb the evolution in O(1). U holds the latest rank-N corrections, which are not part of B yet: they are
folded in later as one larger, faster product, and s with them. Up to rounding, the result is that of folding at every
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kova.covariance.storage.part import Part, check_entry, check_number
from kova.covariance.storage.symmetric import Scratch, SymmetricMatrix
from kova.factorise import cholesky_with_jitter

#: Rows of U, four batches of 64. More cost memory traffic in every product; fewer make the folding product too narrow.
DEFERRED_ROWS = 256
#: Below this many parameters half as many rows are as fast and take half the memory.
SMALL = 4096

#: s is folded outside this range: a large s amplifies the rounding errors of B, and with a small one U overflows.
SCALE_RANGE = (2.0**-20, 2.0)

#: c is folded when it passes this many prior variances, for the same reason.
SHIFT_LIMIT = 4.0


class DensePart(Part):
    """Every covariance between every two of its parameters.

    Args:
        size: Number of parameters.
        prior_variance: P starts as prior_variance · I.
        dtype: Precision.
        device: Where it is stored.
    """

    def __init__(self, size: int, prior_variance: float, dtype: torch.dtype, device: torch.device) -> None:
        self.size = size
        self.variances = torch.full((size,), prior_variance, dtype=dtype, device=device)
        self._prior_variance = prior_variance
        self._shift = prior_variance
        self._scale = 1.0
        self._matrix = SymmetricMatrix(size, dtype, device)
        self._capacity = _capacity(size)
        self._rows = torch.zeros(self._capacity, size, dtype=dtype, device=device)
        self._signs = torch.zeros(self._capacity, dtype=dtype, device=device)
        self._used = 0
        self._gained = 0

    @staticmethod
    def bytes_needed(size: int, itemsize: int) -> int:
        """Return the bytes a block of that size allocates."""
        return SymmetricMatrix.bytes_needed(size, itemsize) + (_capacity(size) + 1) * size * itemsize

    @property
    def nbytes(self) -> int:
        """Bytes held by B, U and the diagonal."""
        return self._matrix.nbytes + self._rows.nbytes + self._signs.nbytes + self.variances.nbytes

    def magnitude(self) -> float:
        """Return c, or the largest variance if that is larger."""
        return max(self._shift, super().magnitude())

    def product(self, right: Tensor, out: Tensor, scale: float, shift: float) -> None:
        """Write (scale · P + shift · I) right: the only product with the dense matrix."""
        torch.mul(right, scale * self._shift + shift, out=out)
        total = scale * self._scale
        if total:
            self._matrix.add_product(out, right, total)
            if self._used:
                rows, signs = self._rows[: self._used], self._signs[: self._used]
                out.addmm_(rows.T, (rows @ right).mul_(signs[:, None]), alpha=total)

    def prepare(self, scale: float, shift: float, columns: Tensor, lost: int, variances: Tensor) -> Callable[[], None]:
        """Defer the update in U; where U has no room, fold it into B."""
        added = columns.shape[1]
        crowded = bool(self._used) and self._used + added > self._capacity
        total = scale * (1.0 if crowded else self._scale)
        # A scale of zero forgets B and U; the new rows then need no weight.
        weight = 1.0 / math.sqrt(total) if total else 1.0
        start = 0 if crowded or not total else self._used
        end = start + added
        # The new rows do not fit behind those in use.
        displaced = start < self._used or added > self._capacity
        if displaced:
            fresh = (columns.T * weight).contiguous()
        else:
            # Rows beyond those in use are free: they are written now and count once ``_used`` includes them.
            fresh = torch.mul(columns.T, weight, out=self._rows[start:end])
        low, high = SCALE_RANGE
        full = end >= self._capacity or scale * self._shift + shift > SHIFT_LIMIT * self._prior_variance
        scratch = self._matrix.scratch(max(self._used, end))

        def store() -> None:
            if crowded:
                self._fold(self._rows[: self._used], self._signs[: self._used], scratch)
            self._shift = scale * self._shift + shift
            self._scale = total or 1.0
            self.variances = variances
            if not total:
                self._matrix.zero_()
                self._used = self._gained = 0
            self._gained += added - lost
            if added > self._capacity:
                self._fold(fresh, _write_signs(scratch.signs[:added], lost), scratch)
                return
            if displaced:
                self._rows[start:end] = fresh
            _write_signs(self._signs[start:end], lost)
            self._used = end
            if full or not low <= self._scale <= high:
                self._fold(self._rows[:end], self._signs[:end], scratch)

        return store

    def rescale(self, factors: Tensor) -> Callable[[], None]:
        """Fold everything into B, and scale its rows and columns."""
        scratch = self._matrix.scratch(self._capacity)

        def store() -> None:
            self._fold(self._rows[: self._used], self._signs[: self._used], scratch)
            # c·I is not a multiple of I in other units.
            self._matrix.add_to_diagonal(self._shift)
            self._shift = 0.0
            self._matrix.rescale(factors)
            self.variances = self._matrix.diagonal(out=scratch.diagonal)

        return store

    def _fold(self, rows: Tensor, signs: Tensor, scratch: Scratch) -> None:
        """Fold deferred rows and s into B."""
        self._matrix.rank_update(rows, signs if self._gained else None, self._scale, scratch)
        self._used, self._gained, self._scale = 0, 0, 1.0
        # A c above the prior would have to cancel against B where the data keep P small.
        if self._shift > self._prior_variance:
            self._matrix.add_to_diagonal(self._shift)
            self._shift = 0.0
        self._matrix.diagonal(out=scratch.diagonal)
        self.variances = scratch.diagonal.add_(self._shift)

    def dense(self) -> Tensor:
        """Return P, symmetric to the last bit."""
        dense = self._matrix.dense()
        rows = self._rows[: self._used]
        dense.addmm_((rows * self._signs[: self._used, None]).T, rows)
        # The two halves of the product may differ in the last bit.
        dense = torch.tril(dense) + torch.tril(dense, -1).T
        dense *= self._scale
        dense.diagonal().add_(self._shift)
        return dense

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw by a Cholesky factor; O(size³)."""
        # Rounding may leave eigenvalues of a well-determined P at -eps of the largest variance.
        jitter = float(self.variances.max()) * torch.finfo(self.variances.dtype).eps
        factor = cholesky_with_jitter("P", self.dense(), jitter)
        draws = torch.randn(count, self.size, dtype=factor.dtype, device=factor.device, generator=generator)
        return draws @ factor.T

    def content(self) -> dict[str, Any]:
        """Return B, U, σ, c, s and the diagonal."""
        return {
            "shift": self._shift,
            "scale": self._scale,
            "updates": self._matrix.updates,
            "panels": [panel.clone() for panel in self._matrix.panels],
            "rows": self._rows[: self._used].clone(),
            "signs": self._signs[: self._used].clone(),
            "variances": self.variances.clone(),
        }

    def check(self, content: dict[str, Any]) -> None:
        """Check every shape, dtype and number."""
        dtype = self.variances.dtype
        check_number("shift", content["shift"])
        check_number("scale", content["scale"])
        check_number("updates", content["updates"])
        panels = content["panels"]
        if not isinstance(panels, list) or len(panels) != len(self._matrix.panels):
            raise ValueError(f"the checkpoint's panels are not the {len(self._matrix.panels)} expected")
        for panel, own in zip(panels, self._matrix.panels, strict=True):
            check_entry("panels", panel, tuple(own.shape), dtype)
        check_entry("rows", content["rows"], (None, self.size), dtype)
        used = len(content["rows"])
        if used >= self._capacity:
            raise ValueError(f"the checkpoint's rows are {used}, expected fewer than {self._capacity}")
        check_entry("signs", content["signs"], (used,), dtype)
        check_entry("variances", content["variances"], (self.size,), dtype)

    def restore(self, content: dict[str, Any]) -> None:
        """Take over B, U, σ, c, s and the diagonal."""
        device = self.variances.device
        for panel, saved in zip(self._matrix.panels, content["panels"], strict=True):
            panel.copy_(saved)
        self._used = len(content["rows"])
        self._rows[: self._used] = content["rows"].to(device)
        self._signs[: self._used] = content["signs"].to(device)
        self._gained = int((content["signs"] > 0).sum())
        self.variances = content["variances"].to(device, copy=True)
        self._matrix.updates = int(content["updates"])
        self._shift, self._scale = float(content["shift"]), float(content["scale"])

    def to(self, device: torch.device) -> None:
        """Move B, U and the diagonal."""
        self._matrix.to(device)
        self._rows, self._signs = self._rows.to(device), self._signs.to(device)
        self.variances = self.variances.to(device)


def _capacity(size: int) -> int:
    return DEFERRED_ROWS if size >= SMALL else max(1, DEFERRED_ROWS // 2)


def _write_signs(out: Tensor, lost: int) -> Tensor:
    """Write σ of new rows, of which the first ``lost`` reduce P, and return it."""
    out[:lost] = -1.0
    out[lost:] = 1.0
    return out
