"""The unit of every parameter: P is stored as it would be if each parameter were measured in its own.

With P₀ = p₀ diag(f²), P = diag(f) P̃ diag(f) where P̃ starts as p₀·I: a structure that knows a spherical prior then knows
any diagonal one. A batch is seen through J diag(f), and what comes back is multiplied by f.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kova.covariance.layout import Layout
from kova.linearisation.jacobian import Jacobian


@dataclass(frozen=True)
class Scales:
    """f, one number for every parameter tensor.

    Attributes:
        counts: Entries of each tensor, in the order of θ.
        values: Their f, > 0.
    """

    counts: tuple[int, ...]
    values: tuple[float, ...]

    @classmethod
    def of_prior(cls, layout: Layout, variances: Mapping[str, float], prior_variance: float) -> Scales:
        """Return f = √(variance / p₀) for the variances of a prior, by name."""
        values = (math.sqrt(variances[slot.name] / prior_variance) for slot in layout.slots)
        return cls(tuple(slot.size for slot in layout.slots), tuple(values))

    @classmethod
    def spherical(cls, layout: Layout) -> Scales:
        """Return f = 1 for all."""
        return cls(tuple(slot.size for slot in layout.slots), (1.0,) * len(layout.slots))

    def times(self, factors: Sequence[float]) -> Scales:
        """Return these scales, each times its factor."""
        return Scales(self.counts, tuple(f * factor for f, factor in zip(self.values, factors, strict=True)))

    @property
    def trivial(self) -> bool:
        """Whether every f is 1."""
        return all(value == 1.0 for value in self.values)

    def seen(self, jacobian: Jacobian) -> Jacobian:
        """Return J diag(f)."""
        return jacobian if self.trivial else jacobian.scaled(self._pairs)

    def vector(self, like: Tensor) -> Tensor:
        """Return f for every entry of θ, (d,), in the dtype and on the device of ``like``."""
        key = (like.dtype, like.device)
        if key not in self._vectors:
            self._vectors[key] = torch.cat([like.new_full((count,), value) for count, value in self._pairs])
        return self._vectors[key]

    def spread(self, numbers: Tensor) -> Tensor:
        """Return (…, d) numbers times f."""
        return numbers if self.trivial else numbers * self.vector(numbers)

    @cached_property
    def _vectors(self) -> dict[tuple[torch.dtype, torch.device], Tensor]:
        """What :meth:`vector` has given: it is asked for in every step."""
        return {}

    @cached_property
    def _pairs(self) -> list[tuple[int, float]]:
        return list(zip(self.counts, self.values, strict=True))
