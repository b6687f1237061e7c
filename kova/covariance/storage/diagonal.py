"""Parameters that are correlated with nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kova.covariance.storage.part import Part, check_entry


class DiagonalPart(Part):
    """Uncorrelated parameters.

    Args:
        size: How many.
        prior_variance: Of each, at first.
        dtype: Precision.
        device: Where they are stored.
    """

    def __init__(self, size: int, prior_variance: float, dtype: torch.dtype, device: torch.device) -> None:
        self.size = size
        self.variances = torch.full((size,), prior_variance, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.variances.nbytes

    def product(self, right: Tensor, out: Tensor, scale: float, shift: float) -> None:
        """Write (scale · P + shift · I) right."""
        torch.mul(right, (self.variances * scale + shift)[:, None], out=out)

    def prepare(self, scale: float, shift: float, columns: Tensor, lost: int, variances: Tensor) -> Callable[[], None]:
        """Keep the diagonal of the update."""
        # Where an update removes nearly all of a variance, rounding can leave it just below zero.
        clamped = variances.clamp(min=0.0)

        def store() -> None:
            self.variances = clamped

        return store

    def rescale(self, factors: Tensor) -> Callable[[], None]:
        """Scale the variances."""
        squares = factors.square()

        def store() -> None:
            self.variances.mul_(squares)

        return store

    def outer_product(self, columns: Tensor, right: Tensor) -> Tensor:
        """Return diag(columns columnsᵀ) right."""
        return right * columns.square().sum(1)[:, None]

    def dense(self) -> Tensor:
        """Return the diagonal matrix."""
        return torch.diag(self.variances)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw each parameter by itself."""
        like = self.variances
        return torch.randn(count, self.size, dtype=like.dtype, device=like.device, generator=generator) * like.sqrt()

    def content(self) -> dict[str, Any]:
        """Return the variances."""
        return {"variances": self.variances.clone()}

    def check(self, content: dict[str, Any]) -> None:
        """Check shape, dtype and numbers."""
        check_entry("variances", content["variances"], (self.size,), self.variances.dtype)

    def restore(self, content: dict[str, Any]) -> None:
        """Take over the variances."""
        self.variances = content["variances"].to(self.variances.device, copy=True)

    def to(self, device: torch.device) -> None:
        """Move the variances."""
        self.variances = self.variances.to(device)
