"""Where each parameter stands in θ, and which of them form a layer or a unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from kova.linearisation.observation import trainable


@dataclass(frozen=True)
class Slot:
    """One parameter tensor: entries [start, start + size) of θ.

    Attributes:
        name: As in ``named_parameters()``.
        shape: Its shape.
        start: Its first entry.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def owner(self) -> str:
        """Path of the module it belongs to."""
        return self.name.rpartition(".")[0]

    def units(self) -> int:
        """Number of output units: the first dimension."""
        return self.shape[0] if self.shape else 1


@dataclass(frozen=True)
class Layout:
    """The optimised parameters in the order of θ.

    Attributes:
        slots: One per parameter tensor.
    """

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, parameters: nn.Module | Mapping[str, Tensor]) -> Layout:
        """Return the layout of a module's parameters that require grad, or of named parameters."""
        named = trainable(parameters) if isinstance(parameters, nn.Module) else parameters
        slots, start = [], 0
        for name, parameter in named.items():
            slots.append(Slot(name, tuple(parameter.shape), start))
            start += parameter.numel()
        return cls(tuple(slots))

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return sum(slot.size for slot in self.slots)

    def layers(self) -> list[list[Slot]]:
        """Return the parameters of one module together: a layer's weight and bias."""
        return [list(group) for _, group in groupby(self.slots, key=lambda slot: slot.owner)]

    def unit_groups(self) -> list[list[Slot]]:
        """Return, layer by layer, the parameters whose first dimension counts the same units."""
        return [list(group) for layer in self.layers() for _, group in groupby(layer, key=Slot.units)]


def unit_order(slots: list[Slot]) -> Tensor:
    """Return the entries of θ that belong to each unit, (units, width): its incoming weights, then its bias."""
    columns = [torch.arange(slot.start, slot.start + slot.size).view(slot.units(), -1) for slot in slots]
    return torch.cat(columns, dim=1)
