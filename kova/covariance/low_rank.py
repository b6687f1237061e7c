"""P = c·I + Uᵀ diag(σ) U with at most R rows in U: the prior, corrected in the R directions that matter most."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from kova import _checks
from kova.covariance.blockwise import Blockwise
from kova.covariance.cost import ARRAYS, Cost
from kova.covariance.layout import Layout
from kova.covariance.storage.low_rank import LowRankPart
from kova.covariance.storage.part import Part


class LowRank(Blockwise):
    """R·d numbers. Directions that do not fit return to c·I: what the data taught there is forgotten.

    Args:
        layout: The parameters.
        rank: R.
        prior_variance: P_{0|0} = prior_variance · I.
        dtype: Precision of P.
        device: Where P lives.
    """

    name: ClassVar[str] = "low_rank"

    def __init__(
        self,
        layout: Layout,
        rank: int,
        prior_variance: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.rank = min(_checks.count("rank", rank), layout.dim)
        super().__init__(layout, prior_variance, dtype, device)

    @classmethod
    def cost(cls, layout: Layout, rank: int) -> Cost:
        """Return how many numbers and operations it takes."""
        # Recompressing holds the factor and the new rows in float64, twice.
        return Cost((rank + 1) * layout.dim, 10 * rank * layout.dim, arrays=ARRAYS + 6, scratch=6 * rank * layout.dim)

    def _cut(self) -> list[Part]:
        return [LowRankPart(self.dim, self.rank, self.prior_variance, self.dtype, self.device)]

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "rank": self.rank}
