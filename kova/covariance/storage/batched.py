"""Many dense blocks of one small size, updated together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kova.covariance.storage.part import Part, check_entry, check_number
from kova.factorise import cholesky_with_jitter

#: Updates between two symmetrisations. An antisymmetric rounding error is never corrected by data and grows with the
#: evolution; a factor of 5 in 16 steps, at η = 0.1, does no harm.
SYMMETRISE_EVERY = 16


class BatchedPart(Part):
    """``count`` blocks of ``width`` parameters each, one after the other.

    Args:
        count: Number of blocks.
        width: Parameters of each.
        prior_variance: P starts as prior_variance · I.
        dtype: Precision.
        device: Where it is stored.
    """

    def __init__(self, count: int, width: int, prior_variance: float, dtype: torch.dtype, device: torch.device) -> None:
        self.size = count * width
        self._count, self._width = count, width
        self._blocks = torch.zeros(count, width, width, dtype=dtype, device=device)
        self._diagonals().fill_(prior_variance)
        self._updates = 0
        self.variances = self._diagonals().reshape(-1)

    @staticmethod
    def bytes_needed(count: int, width: int, itemsize: int) -> int:
        """Return the bytes that many blocks allocate."""
        return count * width * (width + 1) * itemsize

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._blocks.nbytes + self.variances.nbytes

    def product(self, right: Tensor, out: Tensor, scale: float, shift: float) -> None:
        """Write (scale · P + shift · I) right, all blocks at once."""
        given = right.view(self._count, self._width, -1)
        target = out.view(self._count, self._width, -1)
        torch.baddbmm(given, self._blocks, given, beta=shift, alpha=scale, out=target)

    def prepare(self, scale: float, shift: float, columns: Tensor, lost: int, variances: Tensor) -> Callable[[], None]:
        """Update every block, in place."""
        split = columns.view(self._count, self._width, -1)
        reduce, grow = split[..., :lost], split[..., lost:]
        updates = (self._updates + 1) % SYMMETRISE_EVERY
        transposed = torch.empty_like(self._blocks) if updates == 0 else None
        diagonal = torch.empty_like(self.variances)

        def store() -> None:
            self._blocks.baddbmm_(reduce, reduce.mT, beta=scale, alpha=-1.0)
            if grow.shape[2]:
                self._blocks.baddbmm_(grow, grow.mT)
            if shift:
                self._diagonals().add_(shift)
            if transposed is not None:
                self._blocks.add_(transposed.copy_(self._blocks.mT)).mul_(0.5)
            diagonal.view(self._count, self._width).copy_(self._diagonals())
            self._updates, self.variances = updates, diagonal

        return store

    def rescale(self, factors: Tensor) -> Callable[[], None]:
        """Scale rows and columns of every block."""
        own = factors.view(self._count, self._width)
        diagonal = torch.empty_like(self.variances)

        def store() -> None:
            self._blocks.mul_(own[:, :, None]).mul_(own[:, None, :])
            diagonal.view(self._count, self._width).copy_(self._diagonals())
            self.variances = diagonal

        return store

    def outer_product(self, columns: Tensor, right: Tensor) -> Tensor:
        """Return columns columnsᵀ, cut to the blocks, times right."""
        split = columns.view(self._count, self._width, -1)
        product: Tensor = split @ (split.mT @ right.view(self._count, self._width, -1))
        return product.reshape(self.size, -1)

    def dense(self) -> Tensor:
        """Return the block-diagonal matrix."""
        dense: Tensor = torch.block_diag(*(self._blocks + self._blocks.mT).mul_(0.5))
        return dense

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw block by block."""
        jitter = float(self.variances.max()) * torch.finfo(self.variances.dtype).eps
        factors = cholesky_with_jitter("P", (self._blocks + self._blocks.mT).mul_(0.5), jitter)
        shape = (self._count, self._width, count)
        draws = torch.randn(shape, dtype=factors.dtype, device=factors.device, generator=generator)
        return (factors @ draws).reshape(self.size, count).T

    def content(self) -> dict[str, Any]:
        """Return the blocks."""
        return {"blocks": self._blocks.clone(), "updates": self._updates, "variances": self.variances.clone()}

    def check(self, content: dict[str, Any]) -> None:
        """Check every shape, dtype and number."""
        check_entry("blocks", content["blocks"], tuple(self._blocks.shape), self._blocks.dtype)
        check_entry("variances", content["variances"], (self.size,), self._blocks.dtype)
        check_number("updates", content["updates"])

    def restore(self, content: dict[str, Any]) -> None:
        """Take over the blocks."""
        self._blocks.copy_(content["blocks"])
        self._updates = int(content["updates"])
        self.variances = content["variances"].to(self._blocks.device, copy=True)

    def to(self, device: torch.device) -> None:
        """Move the blocks."""
        self._blocks, self.variances = self._blocks.to(device), self.variances.to(device)

    def _diagonals(self) -> Tensor:
        """The diagonals, (count, width), as a view."""
        return self._blocks.diagonal(dim1=1, dim2=2)
