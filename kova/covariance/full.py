"""The full d×d covariance of the paper."""

from __future__ import annotations

from typing import ClassVar

from kova.covariance.blockwise import Blockwise
from kova.covariance.cost import Cost
from kova.covariance.layout import Layout
from kova.covariance.storage.dense import DensePart
from kova.covariance.storage.part import Part


class Full(Blockwise):
    """Every covariance between every two parameters: d²/2 numbers, 3d² flops per sample."""

    name: ClassVar[str] = "full"

    @classmethod
    def cost(cls, layout: Layout) -> Cost:
        """Return how many numbers and operations it takes."""
        return Cost(DensePart.bytes_needed(layout.dim, 1), 3 * layout.dim**2, exact=True)

    def _cut(self) -> list[Part]:
        return [DensePart(self.dim, self.prior_variance, self.dtype, self.device)]
