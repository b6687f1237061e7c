"""One dense block per layer: weights and bias correlate within a layer, not across."""

from __future__ import annotations

from typing import ClassVar

from kova.covariance.blockwise import Blockwise
from kova.covariance.cost import Cost
from kova.covariance.layout import Layout, Slot
from kova.covariance.storage.dense import DensePart
from kova.covariance.storage.part import Part


class Layer(Blockwise):
    """The paper's layer factorisation: Σ d_l²/2 numbers over layers of d_l parameters."""

    name: ClassVar[str] = "layer"

    @classmethod
    def cost(cls, layout: Layout) -> Cost:
        """Return how many numbers and operations it takes."""
        sizes = [_size(layer) for layer in layout.layers()]
        return Cost(sum(DensePart.bytes_needed(size, 1) for size in sizes), sum(3 * size**2 for size in sizes))

    def _cut(self) -> list[Part]:
        sizes = [_size(layer) for layer in self.layout.layers()]
        return [DensePart(size, self.prior_variance, self.dtype, self.device) for size in sizes]


def _size(layer: list[Slot]) -> int:
    return sum(slot.size for slot in layer)
