"""Priors: P₀, how far each weight may be from where it starts, before anything was observed.

A prior is a small immutable value with one method, and gives one variance to every parameter tensor. The evolution
models return to it, and guard P in proportion to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from kova import _checks
from kova.covariance.layout import Layout, Slot
from kova.suggest import suggestion


class Prior(ABC):
    """The variances of P₀, which is diagonal."""

    @abstractmethod
    def variances(self, layout: Layout) -> Mapping[str, float]:
        """Return {parameter name: variance of each of its entries}, all > 0."""


@dataclass(frozen=True)
class Isotropic(Prior):
    """P₀ = variance · I, the paper's choice.

    Args:
        variance: > 0.
    """

    variance: float = 1.0

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(self, "variance", _checks.positive("variance", self.variance))

    def variances(self, layout: Layout) -> Mapping[str, float]:
        """Return the same variance for all."""
        return {slot.name: self.variance for slot in layout.slots}


@dataclass(frozen=True)
class FanIn(Prior):
    """Weights have variance / fan-in, biases have variance.

    The sum over a unit's inputs then varies as much at every width, and so does the value under the prior: with the
    same variance for all weights, j P₀ jᵀ grows with the width of the network, and the first batches move a wide
    critic further than a narrow one.

    Args:
        variance: > 0.
    """

    variance: float = 1.0

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(self, "variance", _checks.positive("variance", self.variance))

    def variances(self, layout: Layout) -> Mapping[str, float]:
        """Return variance / fan-in; the fan-in of a single number per unit is 1."""
        return {slot.name: self.variance / fan_in(slot) for slot in layout.slots}


@dataclass(frozen=True)
class ByName(Prior):
    """Variances by the names of the parameters, and another prior for those that are not named.

    Args:
        named: {parameter name: variance}, each > 0.
        others: For the rest.
    """

    named: Mapping[str, float]
    others: Prior = FanIn()

    def __post_init__(self) -> None:
        """Check the kinds and ranges."""
        if not isinstance(self.named, Mapping):
            raise TypeError(f"named must be a mapping of parameter names to variances, got {self.named!r}")
        checked = {name: _checks.positive(f"named[{name!r}]", value) for name, value in self.named.items()}
        object.__setattr__(self, "named", checked)
        if not isinstance(self.others, Prior):
            raise TypeError(f"others must be a kova.Prior such as kova.FanIn(), got {self.others!r}")

    def variances(self, layout: Layout) -> Mapping[str, float]:
        """Return the named variances, and the others.

        Raises:
            ValueError: A name is not a parameter's.
        """
        known = {slot.name for slot in layout.slots}
        unknown = [name for name in self.named if name not in known]
        if unknown:
            raise ValueError(f"prior names {unknown[0]!r}, which is not optimised{suggestion(unknown[0], known)}")
        return {**self.others.variances(layout), **self.named}


def fan_in(slot: Slot) -> int:
    """Return how many numbers of a parameter tensor meet in one output unit."""
    return max(1, math.prod(slot.shape[1:]))
