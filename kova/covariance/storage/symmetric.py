"""A symmetric matrix kept as row panels of its lower triangle.

Panel i holds rows [lo, hi) and columns [0, hi). Compared with a square this halves the memory, and the flops of a
rank-K update. Entries outside the diagonal blocks are stored once, so that rounding cannot make them asymmetric; no
observation would ever correct such an error, and fading memory would amplify it. Every operation is a plain GEMM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Rows of a panel. Measured for d = 1.7k, 5.4k and 11.4k on two cores: 256-1024 are within a tenth of each other.
PANEL_ROWS = 512

#: Updates between two symmetrisations of the diagonal blocks; in so few an asymmetry hardly grows.
SYMMETRISE_EVERY = 4


@dataclass(frozen=True, eq=False)
class Scratch:
    """Memory for one :meth:`SymmetricMatrix.rank_update`, taken before anything is changed.

    Attributes:
        signed: A panel's rows with their signs.
        signs: Room for the signs themselves.
        block: A diagonal block.
        diagonal: The diagonal.
    """

    signed: Tensor
    signs: Tensor
    block: Tensor
    diagonal: Tensor


class SymmetricMatrix:
    """A (d, d) symmetric matrix B, zero at first.

    Args:
        dim: d.
        dtype: Precision.
        device: Where it is stored.
    """

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dim = dim
        self.updates = 0
        self._edges = [(low, min(low + PANEL_ROWS, dim)) for low in range(0, dim, PANEL_ROWS)]
        self.panels = [torch.zeros(high - low, high, dtype=dtype, device=device) for low, high in self._edges]

    @staticmethod
    def bytes_needed(dim: int, itemsize: int) -> int:
        """Return the bytes a matrix of this size will hold."""
        full, rest = divmod(dim, PANEL_ROWS)
        entries = PANEL_ROWS * PANEL_ROWS * full * (full + 1) // 2 + rest * dim
        return entries * itemsize

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(panel.nbytes for panel in self.panels)

    def add_product(self, out: Tensor, right: Tensor, alpha: float) -> None:
        """Add alpha · B · right to ``out``; both are (d, N)."""
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            out[:high].addmm_(panel.T, right[low:high], alpha=alpha)
            if low:
                out[low:high].addmm_(panel[:, :low], right[:low], alpha=alpha)

    def scratch(self, rows: int) -> Scratch:
        """Return the memory for an update by that many rows."""
        like, width = self.panels[0], min(PANEL_ROWS, self.dim)
        return Scratch(
            like.new_empty(rows, width), like.new_empty(rows), like.new_empty(width, width), like.new_empty(self.dim)
        )

    def rank_update(self, rows: Tensor, signs: Tensor | None, scale: float, scratch: Scratch) -> None:
        """Set B ← scale · (B + rowsᵀ diag(signs) rows) for rows (K, d); the scaling costs no pass of its own.

        ``signs=None`` stands for -1 everywhere.
        """
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            left, sign = rows[:, low:high], -1.0
            if signs is not None:
                left, sign = torch.mul(left, signs[:, None], out=scratch.signed[: len(rows), : high - low]), 1.0
            panel.addmm_(left.T, rows[:, :high], beta=scale, alpha=sign * scale)
        self.updates = (self.updates + 1) % SYMMETRISE_EVERY
        if self.updates == 0:
            self._symmetrise(scratch)

    def _symmetrise(self, scratch: Scratch) -> None:
        # GEMM may sum the two halves of a diagonal block in different orders.
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            block, mean = panel[:, low:high], scratch.block[: high - low, : high - low]
            torch.add(block, block.T, out=mean)
            block.copy_(mean.mul_(0.5))

    def add_to_diagonal(self, value: float) -> None:
        """Set B ← B + value · I."""
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            panel[:, low:high].diagonal().add_(value)

    def rescale(self, factors: Tensor) -> None:
        """Set B ← diag(factors) B diag(factors)."""
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            panel.mul_(factors[low:high, None]).mul_(factors[:high])

    def zero_(self) -> None:
        """Set B ← 0."""
        for panel in self.panels:
            panel.zero_()

    def diagonal(self, out: Tensor) -> Tensor:
        """Write diag(B) into ``out``, (d,), and return it."""
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            out[low:high] = panel[:, low:high].diagonal()
        return out

    def dense(self) -> Tensor:
        """Return B as a (d, d) tensor, symmetric to the last bit."""
        dense = self.panels[0].new_zeros(self.dim, self.dim)
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            dense[low:high, :high] = panel
        return torch.tril(dense) + torch.tril(dense, -1).T

    def to(self, device: torch.device) -> None:
        """Move it."""
        self.panels = [panel.to(device) for panel in self.panels]
