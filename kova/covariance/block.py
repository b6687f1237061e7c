"""The full covariance cut along θ into blocks of at most a given size."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from kova import _checks
from kova.covariance.blockwise import Blockwise
from kova.covariance.cost import Cost
from kova.covariance.layout import Layout
from kova.covariance.storage.batched import BatchedPart
from kova.covariance.storage.dense import DensePart
from kova.covariance.storage.part import Part


class Block(Blockwise):
    """Consecutive blocks of ``size`` parameters, the last one possibly smaller: d·size numbers.

    Args:
        layout: The parameters.
        size: Of a block.
        prior_variance: P_{0|0} = prior_variance · I.
        dtype: Precision of P.
        device: Where P lives.
    """

    name: ClassVar[str] = "block"

    def __init__(
        self,
        layout: Layout,
        size: int,
        prior_variance: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = _checks.count("size", size)
        super().__init__(layout, prior_variance, dtype, device)

    @classmethod
    def cost(cls, layout: Layout, size: int) -> Cost:
        """Return how many numbers and operations it takes."""
        count, rest = divmod(layout.dim, size)
        numbers = BatchedPart.bytes_needed(count, size, 1) if count > 1 else count * DensePart.bytes_needed(size, 1)
        numbers += DensePart.bytes_needed(rest, 1) if rest else 0
        return Cost(numbers, 4 * (count * size**2 + rest**2))

    def _cut(self) -> list[Part]:
        count, rest = divmod(self.dim, self.size)
        settings = (self.prior_variance, self.dtype, self.device)
        parts: list[Part] = []
        if count > 1:
            parts.append(BatchedPart(count, self.size, *settings))
        elif count:
            parts.append(DensePart(self.size, *settings))
        if rest:
            parts.append(DensePart(rest, *settings))
        return parts

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "size": self.size}
