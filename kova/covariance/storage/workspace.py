"""Buffers of d·N numbers that are used again in every step.

New ones would be returned to the system after every step, and their pages faulted in again: 1,300 page faults a step
were measured on a 17-64-64-1 critic with N = 64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Scratch memory by name; what a name held is overwritten when it is asked for again.

    Args:
        dtype: Of all buffers.
        device: Where they are.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return an uninitialised tensor of that shape."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=self._dtype, device=self._device)
        return buffer[:size].view(shape)

    def __reduce__(self) -> tuple[type[Workspace], tuple[torch.dtype, torch.device]]:
        """A copy starts empty."""
        return Workspace, (self._dtype, self._device)
