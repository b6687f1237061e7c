"""A symmetric matrix kept as row panels of its lower triangle.

Panel i holds rows [lo, hi) and columns [0, hi). Against a square this halves the memory and the flops of a rank-K
update, and leaves one copy of every entry off the diagonal blocks: an asymmetric rounding error, which no observation
would ever correct and fading memory would amplify, has nowhere to live there. Everything is a plain GEMM.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Rows of a panel. Measured for d = 1.7k, 5.4k and 11.4k on two cores: 256-1024 are within a tenth of each other.
PANEL_ROWS = 512

#: Updates between two symmetrisations of the diagonal blocks: an asymmetry may grow by the few factors between them.
SYMMETRISE_EVERY = 4


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

    def rank_update(self, rows: Tensor, signs: Tensor | None, scale: float) -> None:
        """Set B ← scale · (B + rowsᵀ diag(signs) rows) for rows (K, d); the scaling costs no pass of its own.

        ``signs=None`` stands for -1 everywhere.
        """
        signed, sign = (rows, -1.0) if signs is None else (rows * signs[:, None], 1.0)
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            panel.addmm_(signed[:, low:high].T, rows[:, :high], beta=scale, alpha=sign * scale)
        self.updates = (self.updates + 1) % SYMMETRISE_EVERY
        if self.updates == 0:
            self._symmetrise()

    def _symmetrise(self) -> None:
        # GEMM may sum the two halves of a diagonal block in a different order.
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            block = panel[:, low:high]
            block.copy_((block + block.T).mul_(0.5))

    def add_to_diagonal(self, value: float) -> None:
        """Set B ← B + value · I."""
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            panel[:, low:high].diagonal().add_(value)

    def zero_(self) -> None:
        """Set B ← 0."""
        for panel in self.panels:
            panel.zero_()

    def diagonal(self) -> Tensor:
        """Return diag(B), (d,)."""
        blocks = zip(self._edges, self.panels, strict=True)
        return torch.cat([panel[:, low:high].diagonal() for (low, high), panel in blocks])

    def dense(self) -> Tensor:
        """Return B as a (d, d) tensor, symmetric to the last bit."""
        dense = self.panels[0].new_zeros(self.dim, self.dim)
        for (low, high), panel in zip(self._edges, self.panels, strict=True):
            dense[low:high, :high] = panel
        return torch.tril(dense) + torch.tril(dense, -1).T

    def to(self, device: torch.device) -> None:
        """Move it."""
        self.panels = [panel.to(device) for panel in self.panels]
