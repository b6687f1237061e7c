"""P as a block-diagonal matrix of parts, and its prediction P_{t|t-1}.

S is a sum over the parts, to which the noise is added once. Vectors and Jacobians are kept in *store order*: the
parameters of each part are consecutive. Where the parts are slices of θ, this is θ's own order.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from kova import _checks
from kova.covariance.base import Covariance
from kova.covariance.layout import Layout
from kova.covariance.scales import Scales
from kova.covariance.storage.part import Part
from kova.covariance.storage.workspace import Workspace
from kova.errors import NumericalError
from kova.factorise import cholesky_with_jitter
from kova.linearisation.jacobian import Jacobian
from kova.prediction import Prediction


class Blockwise(Covariance):
    """A covariance made of uncorrelated parts.

    Args:
        layout: The parameters.
        prior_variance: P_{0|0} = prior_variance · I.
        dtype: Precision of P.
        device: Where P lives.
    """

    def __init__(
        self,
        layout: Layout,
        prior_variance: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layout = layout
        self.dim = layout.dim
        self.scales = Scales.spherical(layout)
        self.prior_variance = _checks.representable("prior_variance", prior_variance, dtype)
        self.dtype = dtype
        self.device = torch.device(device)
        self._parts = self._cut()
        self._workspace = Workspace(dtype, self.device)
        self._squares: tuple[Scales, Tensor] | None = None

    @abstractmethod
    def _cut(self) -> list[Part]:
        """Return the parts, in store order."""

    def store_order(self, jacobian: Jacobian) -> Tensor:
        """Return Jᵀ, (d, N), in store order, in the workspace."""
        return jacobian.transposed(out=self.scratch("right", self.dim, len(jacobian.values)))

    def scratch(self, name: str, *shape: int) -> Tensor:
        """Return a buffer of the workspace."""
        return self._workspace.take(name, *shape)

    def to_theta(self, stored: Tensor) -> Tensor:
        """Return (…, d) numbers in the order of θ."""
        return stored

    def from_theta(self, numbers: Tensor) -> Tensor:
        """Return (d,) numbers in store order."""
        return numbers

    def seen_by(self, jacobian: Jacobian) -> BlockwisePrediction:
        """Return P_{t-1|t-1} with the Jacobian of a batch."""
        jacobian = self.scales.seen(jacobian)
        return BlockwisePrediction(self, jacobian, self.store_order(jacobian))

    def product(self, right: Tensor, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        """Return (scale · P + shift · I) right, in the workspace, for right (d, N) in store order."""
        out = self.scratch("product", *right.shape)
        sizes = [part.size for part in self._parts]
        for part, given, written in zip(self._parts, right.split(sizes), out.split(sizes), strict=True):
            part.product(given, written, scale, shift)
        return out

    def prepare(self, scale: float, shift: float, columns: Tensor, lost: int, variances: Tensor) -> Callable[[], None]:
        """Prepare the update of every part, see :meth:`Part.prepare`, and return what stores them all."""
        sizes = [part.size for part in self._parts]
        pieces = zip(self._parts, columns.split(sizes), variances.split(sizes), strict=True)
        stores = [part.prepare(scale, shift, own, lost, diagonal) for part, own, diagonal in pieces]

        def store() -> None:
            for store_part in stores:
                store_part()

        return store

    def outer_product(self, columns: Tensor, right: Tensor) -> Tensor:
        """Return columns columnsᵀ, cut to the parts, times right."""
        sizes = [part.size for part in self._parts]
        triples = zip(self._parts, columns.split(sizes), right.split(sizes), strict=True)
        return torch.cat([part.outer_product(own, given) for part, own, given in triples])

    def variances(self) -> Tensor:
        """Return a copy of the diagonal in store order."""
        return torch.cat([part.variances for part in self._parts])

    def max_variance(self) -> float:
        """Return the largest variance."""
        return max(float(part.variances.max()) for part in self._parts)

    def magnitude(self) -> float:
        """Return the largest number that entries of P are computed from."""
        return max(part.magnitude() for part in self._parts)

    @property
    def nbytes(self) -> int:
        """Bytes held by the parts."""
        return sum(part.nbytes for part in self._parts)

    def variance_of(self, jacobian: Jacobian) -> Tensor:
        """Return diag(J P Jᵀ), (N,)."""
        right = self.store_order(self.scales.seen(jacobian))
        return (right * self.product(right)).sum(0)

    def dense(self) -> Tensor:
        """Return P as a (d, d) tensor."""
        stored = torch.block_diag(*(part.dense() for part in self._parts))
        return self.scales.spread(self.scales.spread(self.to_theta(self.to_theta(stored).T)).T)

    def diagonal(self) -> Tensor:
        """Return the d variances."""
        return self.scales.spread(self.scales.spread(self.to_theta(self.variances())))

    def mean_variance(self) -> Tensor:
        """Return tr(P) / d."""
        stored = self.variances()
        if self.scales.trivial:
            return stored.mean()
        if self._squares is None or self._squares[0] is not self.scales:
            # Kept, because every step asks, and bringing variances into θ's order takes longer than the product.
            self._squares = (self.scales, self.from_theta(self.scales.vector(stored)).square())
        return torch.dot(stored, self._squares[1]) / self.dim

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return ``count`` draws from N(0, P), part by part."""
        draws = torch.cat([part.sample(count, generator) for part in self._parts], dim=1)
        return self.scales.spread(self.to_theta(draws))

    def rescale(self, scales: Scales) -> Callable[[], None]:
        """Prepare to store P in other units."""
        like = self._parts[0].variances
        factors = self.from_theta(self.scales.vector(like) / scales.vector(like))
        sizes = [part.size for part in self._parts]
        stores = [part.rescale(own) for part, own in zip(self._parts, factors.split(sizes), strict=True)]

        def store() -> None:
            for store_part in stores:
                store_part()
            self.scales = scales

        return store

    def to(self, device: torch.device) -> None:
        """Move the parts."""
        self._workspace = Workspace(self.dtype, device)
        self._squares = None
        for part in self._parts:
            part.to(device)
        # Set last, so that a move that is interrupted is made again.
        self.device = device

    def _content(self) -> dict[str, Any]:
        return {"parts": [part.content() for part in self._parts]}

    def _check_content(self, state: dict[str, Any]) -> None:
        saved = state["parts"]
        if not isinstance(saved, list) or len(saved) != len(self._parts):
            raise ValueError(f"the checkpoint's covariance does not have the {len(self._parts)} parts expected")
        for part, content in zip(self._parts, saved, strict=True):
            part.check(content)

    def _restore(self, state: dict[str, Any]) -> None:
        for part, content in zip(self._parts, state["parts"], strict=True):
            part.restore(content)


@dataclass(frozen=True, eq=False)
class _Span:
    """The part of a prediction that an inflation along the batch added: A = cross·a + b·Jᵀ + weight·(DDᵀ Jᵀ).

    D = ``directions`` are whitened; ``grown`` is DDᵀ Jᵀ cut to the parts.
    """

    cross: Tensor
    directions: Tensor
    grown: Tensor
    weight: float
    a: float = 1.0
    b: float = 0.0


@dataclass(frozen=True, eq=False)
class _Common:
    """What all predictions scale · P + shift · I of one batch are made of: P Jᵀ, J P Jᵀ and J Jᵀ."""

    product: Tensor
    gram: Tensor
    identity_gram: Tensor


@dataclass(frozen=True, eq=False)
class BlockwisePrediction(Prediction):
    """scale · P + shift · I (+ span) for a stored P."""

    covariance: Blockwise
    jacobian: Jacobian
    right: Tensor
    scale: float = 1.0
    shift: float = 0.0
    span: _Span | None = None
    common: _Common | None = None

    @property
    def prior_variance(self) -> float:  # type: ignore[override]
        """p₀."""
        return self.covariance.prior_variance

    @property
    def depends_on_batch(self) -> bool:
        """Whether it was inflated along the batch."""
        return self.span is not None

    def max_variance(self) -> float:
        """Return the largest variance."""
        if self.span is None:
            return self.scale * self.covariance.max_variance() + self.shift
        return float(self._variances().max())

    def magnitude(self) -> float:
        """Return the largest number that entries of P are computed from."""
        stored = self.scale * self.covariance.magnitude() + self.shift
        return stored if self.span is None else max(stored, self.max_variance())

    def shared(self) -> Self:
        """Compute P Jᵀ, J P Jᵀ and J Jᵀ once for all predictions made from this one, which must be P itself."""
        assert (self.scale, self.shift, self.span) == (1.0, 0.0, None), "only P itself can be shared"
        product = self.covariance.product(self.right)
        gram, identity_gram = self.right.T @ product, self.right.T @ self.right
        return replace(self, common=_Common(product, (gram + gram.T).mul_(0.5), identity_gram))

    def gram(self, dtype: torch.dtype) -> Tensor:
        """Return J P Jᵀ accumulated in ``dtype``."""
        if self.common is not None and self.span is None and dtype == self.common.gram.dtype:
            return (self.common.gram * self.scale).add_(self.common.identity_gram, alpha=self.shift)
        gram = self.right.to(dtype).T @ self._cross.to(dtype)
        return (gram + gram.T).mul_(0.5)

    def squared_norms(self) -> Tensor:
        """Return diag(J Jᵀ), (N,)."""
        return self.jacobian.squared_norms()

    def gain(self, weights: Tensor) -> Tensor:
        """Return P Jᵀ weights."""
        gain = self.covariance.to_theta(self._cross.to(weights.dtype) @ weights)
        return self.covariance.scales.spread(gain)

    def gains(self, weights: Tensor) -> Tensor:
        """Return (P Jᵀ weights)ᵀ by one product for all columns."""
        gains = self.covariance.to_theta((self._cross.to(weights.dtype) @ weights).T)
        return self.covariance.scales.spread(gains)

    def condition(self, factor: Tensor, step_size: float) -> Callable[[], None]:
        """Prepare P ← P - α W Wᵀ with W = P Jᵀ L⁻ᵀ: one symmetric rank-N update, K is never formed."""
        columns = self._whiten(factor)
        if step_size != 1.0:
            columns.mul_(math.sqrt(step_size))
        lost = columns.shape[1]
        variances = self._variances().sub_(_squared_norms(columns))
        if self.span is not None:
            columns = torch.cat([columns, self.span.directions * math.sqrt(self.span.weight)], dim=1)
        if not _checks.all_finite(variances):
            raise NumericalError("the updated covariance is not finite; nothing was changed")
        return self.covariance.prepare(self.scale, self.shift, columns, lost, variances)

    def _scaled(self, factor: float) -> Self:
        span = self.span and replace(
            self.span, weight=factor * self.span.weight, a=factor * self.span.a, b=factor * self.span.b
        )
        return replace(self, scale=factor * self.scale, shift=factor * self.shift, span=span)

    def _shifted(self, variance: float) -> Self:
        span = self.span and replace(self.span, b=self.span.b + variance)
        shifted = replace(self, shift=self.shift + variance, span=span)
        if "_cross" in vars(self):
            # Taken over: the product with P is most of a step's work.
            vars(shifted)["_cross"] = self._cross.add(self.right, alpha=variance)
        return shifted

    def _inflated_along_batch(self, weight: float) -> Self:
        if self.span is not None:
            raise RuntimeError("a prediction can be inflated along its batch once")
        # Equal samples make J A singular, and smooth critics nearly so. Directions below the jitter are not inflated in
        # full; it can be small because the sum is in float64, where only the rounding of A is left. The last tries are
        # far above the matrix itself: where P is indefinite, next to nothing is inflated, and the step repairs P.
        gram = self.gram(torch.float64)
        mean = float(gram.diagonal().mean())
        if not mean > 0.0:
            return self
        jitter = 0.01 * torch.finfo(self.covariance.dtype).eps * mean
        directions = self._whiten(cholesky_with_jitter("J P Jᵀ", gram, jitter, tries=24)).clone()
        grown = self.covariance.outer_product(directions, self.right)
        return replace(self, span=_Span(self._cross, directions, grown, weight))

    def _whiten(self, factor: Tensor) -> Tensor:
        """Return A L⁻ᵀ, (d, N), in the workspace."""
        # Inverting the small triangle (never S) turns a slow triangular solve with d columns into a product.
        identity = torch.eye(len(factor), dtype=torch.float64, device=factor.device)
        inverse: Tensor = torch.linalg.solve_triangular(factor.double(), identity, upper=False)
        columns = self.covariance.scratch("whitened", *self._cross.shape)
        if factor.dtype != columns.dtype:
            return columns.copy_(self._cross.to(inverse.dtype) @ inverse.T)
        return torch.mm(self._cross, inverse.to(columns.dtype).T, out=columns)

    @cached_property
    def _cross(self) -> Tensor:
        """A = P Jᵀ, (d, N)."""
        if self.span is None and self.common is not None:
            blended = self.covariance.scratch("blended", *self.right.shape)
            return torch.mul(self.common.product, self.scale, out=blended).add_(self.right, alpha=self.shift)
        if self.span is None:
            return self.covariance.product(self.right, self.scale, self.shift)
        cross = self.span.cross * self.span.a
        cross.add_(self.span.grown, alpha=self.span.weight)
        return cross.add_(self.right, alpha=self.span.b) if self.span.b else cross

    def _variances(self) -> Tensor:
        variances = self.covariance.variances().mul_(self.scale).add_(self.shift)
        if self.span is not None:
            variances.add_(_squared_norms(self.span.directions), alpha=self.span.weight)
        return variances


def _squared_norms(columns: Tensor) -> Tensor:
    """Return the diagonal of columns columnsᵀ without a temporary of that size."""
    norms: Tensor = torch.linalg.vector_norm(columns, dim=1)
    return norms.square_()
