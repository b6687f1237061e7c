"""One dense block per output unit: the node-decoupled filter of Puskorius and Feldkamp (1991)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from kova.covariance.blockwise import Blockwise
from kova.covariance.cost import Cost
from kova.covariance.layout import Layout, Slot, unit_order
from kova.covariance.storage.batched import BatchedPart
from kova.covariance.storage.part import Part
from kova.linearisation.jacobian import Jacobian, LinearColumns


class Neuron(Blockwise):
    """A unit's incoming weights and bias correlate with each other only: Σ fan-out · (fan-in + 1)² numbers.

    The units of a layer have blocks of one size and are updated together. A unit is a row of a Linear layer, a filter
    of a convolution, a feature of a LayerNorm, a row of an Embedding: whatever the first dimension counts.
    """

    name: ClassVar[str] = "neuron"

    @classmethod
    def cost(cls, layout: Layout) -> Cost:
        """Return how many numbers and operations it takes."""
        shapes = [_shape(group) for group in layout.unit_groups()]
        numbers = sum(BatchedPart.bytes_needed(units, width, 1) for units, width in shapes)
        return Cost(numbers, sum(4 * units * width**2 for units, width in shapes))

    def _cut(self) -> list[Part]:
        self._groups = self.layout.unit_groups()
        self._order = torch.cat([unit_order(group).reshape(-1) for group in self._groups]).to(self.device)
        shapes = [_shape(group) for group in self._groups]
        return [BatchedPart(units, width, self.prior_variance, self.dtype, self.device) for units, width in shapes]

    def store_order(self, jacobian: Jacobian) -> Tensor:
        """Return Jᵀ unit by unit; a Linear layer's straight from its factors, g_o · (a, 1)."""
        out = self.scratch("right", self.dim, len(jacobian.values))
        whole: Tensor | None = None
        start = 0
        for group in self._groups:
            units, width = _shape(group)
            written = out[start : start + units * width]
            block = jacobian.columns_at(group[0].start)
            if isinstance(block, LinearColumns) and block.size == len(written):
                block.write_units(written.view(units, width, -1))
            else:
                whole = jacobian.transposed() if whole is None else whole
                torch.index_select(whole, 0, self._order[start : start + len(written)], out=written)
            start += len(written)
        return out

    def from_theta(self, numbers: Tensor) -> Tensor:
        """Return (d,) numbers unit by unit."""
        return numbers[self._order]

    def to_theta(self, stored: Tensor) -> Tensor:
        """Return (…, d) numbers in the order of θ."""
        theta = torch.empty_like(stored)
        theta[..., self._order] = stored
        return theta

    def to(self, device: torch.device) -> None:
        """Move the parts."""
        super().to(device)
        self._order = self._order.to(device)


def _shape(group: list[Slot]) -> tuple[int, int]:
    """Return (units, width) of a group of parameters."""
    units = group[0].units()
    return units, sum(slot.size for slot in group) // units
