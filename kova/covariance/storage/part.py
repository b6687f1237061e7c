"""A piece of a block-diagonal P: some parameters that are correlated with each other and with no others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Part(ABC):
    """The covariance of ``size`` parameters.

    Attributes:
        size: How many.
        variances: The diagonal, (size,).
    """

    size: int
    variances: Tensor

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held."""

    def magnitude(self) -> float:
        """Return the largest number that entries of P are computed from; P's rounding errors are proportional to it."""
        return float(self.variances.max())

    @abstractmethod
    def product(self, right: Tensor, out: Tensor, scale: float, shift: float) -> None:
        """Write (scale · P + shift · I) right into ``out``, both (size, N)."""

    @abstractmethod
    def prepare(self, scale: float, shift: float, columns: Tensor, lost: int, variances: Tensor) -> Callable[[], None]:
        """Prepare P ← scale · P + shift · I - L + G, cut to this part's shape.

        Whatever can fail, and whatever needs memory, is done here. The function that is returned stores the result: it
        only exchanges references and computes in place, in memory that is allocated already.

        Args:
            scale: >= 0.
            shift: >= 0.
            columns: (size, K): L = columns columnsᵀ of the first ``lost`` of them, G of the others.
            lost: How many reduce P.
            variances: The diagonal of the result, (size,).
        """

    @abstractmethod
    def rescale(self, factors: Tensor) -> Callable[[], None]:
        """Prepare P ← diag(factors) P diag(factors), for factors (size,) > 0, and return what stores it.

        It applies to P as it is then: an update may be stored in between.
        """

    def outer_product(self, columns: Tensor, right: Tensor) -> Tensor:
        """Return columns columnsᵀ, cut to this part's shape, times right (size, N)."""
        return columns @ (columns.T @ right)

    @abstractmethod
    def dense(self) -> Tensor:
        """Return P, (size, size)."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return ``count`` draws from N(0, P), (count, size)."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Return copies of every number that determines the next step."""

    @abstractmethod
    def check(self, content: dict[str, Any]) -> None:
        """Raise ``ValueError`` unless :meth:`restore` can take ``content`` over."""

    @abstractmethod
    def restore(self, content: dict[str, Any]) -> None:
        """Take over what :meth:`content` gave."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move it."""


def check_entry(name: str, value: object, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite tensor of that dtype and shape (``None``: any length)."""
    if not isinstance(value, Tensor):
        raise ValueError(f"the checkpoint's {name} is {type(value).__name__}, not a tensor")
    fits = value.dim() == len(shape) and all(
        want in (None, have) for want, have in zip(shape, value.shape, strict=True)
    )
    if not fits or value.dtype != dtype:
        raise ValueError(f"the checkpoint's {name} is {tuple(value.shape)} {value.dtype}, expected {shape} {dtype}")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"the checkpoint's {name} is not finite")


def check_number(name: str, value: object) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number >= 0."""
    if not isinstance(value, int | float) or not 0.0 <= value < float("inf"):
        raise ValueError(f"the checkpoint's {name} is {value!r}, expected a number >= 0")
