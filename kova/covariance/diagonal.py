"""A variance for every parameter and no covariances."""

from __future__ import annotations

from typing import ClassVar

from kova.covariance.blockwise import Blockwise
from kova.covariance.cost import Cost
from kova.covariance.layout import Layout
from kova.covariance.storage.diagonal import DiagonalPart
from kova.covariance.storage.part import Part


class Diagonal(Blockwise):
    """d numbers."""

    name: ClassVar[str] = "diagonal"

    @classmethod
    def cost(cls, layout: Layout) -> Cost:
        """Return how many numbers and operations it takes."""
        return Cost(layout.dim, 4 * layout.dim)

    def _cut(self) -> list[Part]:
        return [DiagonalPart(self.dim, self.prior_variance, self.dtype, self.device)]
