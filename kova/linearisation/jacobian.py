"""J = ∂h/∂θ of one batch, kept in factors until its N·d numbers are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


class Columns(ABC):
    """The columns of J that belong to some consecutive parameters.

    Attributes:
        size: How many parameters.
    """

    size: int

    @abstractmethod
    def scaled(self, factors: Sequence[tuple[int, float]]) -> Columns:
        """Return these columns times factors: (how many columns, factor), tensor by tensor."""

    @abstractmethod
    def write_transposed(self, out: Tensor) -> None:
        """Write these rows of Jᵀ into ``out``, (size, N)."""

    @abstractmethod
    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return this block's J Jᵀ, (N, N), accumulated in ``dtype``."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Return diag(J Jᵀ), (N,)."""

    @abstractmethod
    def product(self, vectors: Tensor) -> Tensor:
        """Return J vectorsᵀ, (N, m), for m vectors, (m, size)."""

    @abstractmethod
    def transposed_product(self, weights: Tensor) -> Tensor:
        """Return Jᵀ weights, (size,), for weights (N,), in their dtype."""


class LinearColumns(Columns):
    """A Linear layer called once: its Jacobian row for unit o is g_o · (a, 1).

    Args:
        activation: Inputs a of the layer, (N, fan-in).
        gradient: ∂h/∂(layer's output) g, (N, fan-out).
        weight: Whether the weight is optimised.
        bias: Whether there is a bias and it is optimised.
        unit: What stands for the bias beside the activations: 1, unless the columns were scaled.
    """

    def __init__(self, activation: Tensor, gradient: Tensor, *, weight: bool, bias: bool, unit: float = 1.0) -> None:
        self.activation, self.gradient, self.weight, self.bias = activation, gradient, weight, bias
        self.unit = unit
        fan_in, fan_out = activation.shape[1], gradient.shape[1]
        self._weights = fan_in * fan_out if weight else 0
        self.size = self._weights + (fan_out if bias else 0)

    def scaled(self, factors: Sequence[tuple[int, float]]) -> LinearColumns:
        """Scale a, and the 1 beside it."""
        remaining = [factor for _, factor in factors]
        activation = self.activation * remaining.pop(0) if self.weight else self.activation
        unit = self.unit * remaining.pop(0) if self.bias else self.unit
        return LinearColumns(activation, self.gradient, weight=self.weight, bias=self.bias, unit=unit)

    def write_transposed(self, out: Tensor) -> None:
        """Write g ⊗ a, then g."""
        gradient = self.gradient.T.contiguous()
        if self.weight:
            activation = self.activation.T.contiguous()
            weights = out[: self._weights].view(len(gradient), len(activation), -1)
            torch.mul(gradient[:, None], activation[None], out=weights)
        if self.bias:
            torch.mul(gradient, self.unit, out=out[self._weights :])

    def write_units(self, out: Tensor) -> None:
        """Write Jᵀ unit by unit, g_o · (a, 1), into ``out``, (fan-out, fan-in + 1, N), less if frozen."""
        parts = [self.activation.T] if self.weight else []
        if self.bias:
            parts.append(self.activation.new_full((1, len(self.activation)), self.unit))
        torch.mul(self.gradient.T.contiguous()[:, None], torch.cat(parts)[None], out=out)

    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return (a aᵀ + 1) ∘ (g gᵀ): O(N² (fan-in + fan-out)), J is never formed."""
        gradient = self.gradient.to(dtype)
        result = gradient @ gradient.T
        if self.weight:
            activation = self.activation.to(dtype)
            return result.mul_((activation @ activation.T).add_(self._bias_square()))
        return result.mul_(self._bias_square())

    def squared_norms(self) -> Tensor:
        """Return (|a|² + 1) |g|²."""
        scale = self.activation.square().sum(1) if self.weight else torch.zeros_like(self.gradient[:, 0])
        return self.gradient.square().sum(1).mul_(scale.add_(self._bias_square()))

    def _bias_square(self) -> float:
        return self.unit**2 if self.bias else 0.0

    def product(self, vectors: Tensor) -> Tensor:
        """Return gₙᵀ (V aₙ + v), where a vector is (V, v)."""
        samples, units = self.gradient.shape
        if not self.weight:
            return self.gradient @ vectors.T * self.unit
        changed = self.activation @ vectors[:, : self._weights].reshape(len(vectors) * units, -1).T
        product = torch.bmm(changed.view(samples, -1, units), self.gradient[:, :, None]).squeeze(2)
        return product.addmm_(self.gradient, vectors[:, self._weights :].T, alpha=self.unit) if self.bias else product

    def transposed_product(self, weights: Tensor) -> Tensor:
        """Return Σₙ wₙ gₙ ⊗ (aₙ, 1)."""
        weighted = self.gradient * weights[:, None]
        parts = [(weighted.T @ self.activation.to(weights.dtype)).reshape(-1)] if self.weight else []
        return torch.cat([*parts, self.unit * weighted.sum(0)]) if self.bias else parts[0]


class DenseColumns(Columns):
    """Per-sample derivatives, stored in full.

    Args:
        rows: (N, size).
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.size = rows.shape[1]

    def scaled(self, factors: Sequence[tuple[int, float]]) -> DenseColumns:
        """Scale the rows."""
        counts, values = zip(*factors, strict=True)
        row = self.rows.new_tensor(values).repeat_interleave(torch.tensor(counts, device=self.rows.device))
        return DenseColumns(self.rows * row)

    def write_transposed(self, out: Tensor) -> None:
        """Copy."""
        out.copy_(self.rows.T)

    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return J Jᵀ."""
        rows = self.rows.to(dtype)
        return rows @ rows.T

    def squared_norms(self) -> Tensor:
        """Return the squared length of each row."""
        return self.rows.square().sum(1)

    def product(self, vectors: Tensor) -> Tensor:
        """Return J vectorsᵀ."""
        return self.rows @ vectors.T

    def transposed_product(self, weights: Tensor) -> Tensor:
        """Return Jᵀ weights."""
        return self.rows.T.to(weights.dtype) @ weights


class Jacobian:
    """∂h/∂θ, N×d (the transpose of the paper's ∇h, Eq. 13), columns in the order of ``named_parameters()``.

    Args:
        blocks: Its columns, in order.
        values: h(u; θ), (N,), in the dtype of the critic.
        dtype: Of the derivatives.
    """

    def __init__(self, blocks: Sequence[Columns], values: Tensor, dtype: torch.dtype) -> None:
        self.blocks = list(blocks)
        self.values = values
        self.dtype = dtype
        self.dim = sum(block.size for block in self.blocks)

    def columns_at(self, start: int) -> Columns | None:
        """Return the block whose first column is ``start``, if one begins there."""
        return self._starts.get(start)

    @cached_property
    def _starts(self) -> dict[int, Columns]:
        starts = accumulate((block.size for block in self.blocks[:-1]), initial=0)
        return dict(zip(starts, self.blocks, strict=True))

    def scaled(self, factors: Sequence[tuple[int, float]]) -> Jacobian:
        """Return J diag(f), for factors (how many columns, f), tensor by tensor."""
        blocks, start = [], 0
        for block in self.blocks:
            stop, columns = start, 0
            while columns < block.size:
                columns += factors[stop][0]
                stop += 1
            blocks.append(block.scaled(factors[start:stop]))
            start = stop
        return Jacobian(blocks, self.values, self.dtype)

    def transposed(self, out: Tensor | None = None) -> Tensor:
        """Return Jᵀ, (d, N), written into ``out`` if it is given."""
        if out is None:
            out = torch.empty(self.dim, len(self.values), dtype=self.dtype, device=self.values.device)
        for block, part in zip(self.blocks, out.split([block.size for block in self.blocks]), strict=True):
            block.write_transposed(part)
        return out

    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return J Jᵀ, (N, N), accumulated in ``dtype``, without forming J where a layer factorises."""
        return sum((block.gram(dtype) for block in self.blocks[1:]), start=self.blocks[0].gram(dtype))

    def squared_norms(self) -> Tensor:
        """Return diag(J Jᵀ), (N,)."""
        return sum((block.squared_norms() for block in self.blocks[1:]), start=self.blocks[0].squared_norms())

    def check_finite(self) -> None:
        """Raise ``ValueError`` if a derivative is NaN or infinite."""
        bad = int((~torch.isfinite(self.squared_norms())).sum())
        if bad:
            raise ValueError(f"∂h/∂θ is not finite for {bad} of {len(self.values)} samples although h is")

    def product(self, vectors: Tensor) -> Tensor:
        """Return J vectorsᵀ, (N, m), for m vectors, (m, d)."""
        parts = vectors.split([block.size for block in self.blocks], dim=1)
        products = [block.product(part) for block, part in zip(self.blocks, parts, strict=True)]
        return torch.stack(products).sum(0)

    def transposed_product(self, weights: Tensor) -> Tensor:
        """Return Jᵀ weights, (d,)."""
        return torch.cat([block.transposed_product(weights) for block in self.blocks])
