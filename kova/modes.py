"""The caller's autograd, inference and autocast modes, put aside while the filter computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def without_modes(device: torch.device, work: Callable[[], T]) -> T:
    """Return ``work()``, done without autograd, inference mode and autocast; afterwards all is as it was.

    A function and not a context manager: a signal may interrupt a manager at the first instruction of its ``__exit__``,
    and the user would go on with autograd switched off. Here a second ``finally`` covers that case.
    """
    modes = _Modes(device)
    try:
        try:
            modes.leave()
            return work()
        finally:
            modes.restore()
    finally:
        modes.restore()


class _Modes:
    def __init__(self, device: torch.device) -> None:
        self._device = device.type
        self._grad = torch.is_grad_enabled()
        self._autocast = torch.is_autocast_enabled(self._device)
        # A tensor made in inference mode could not be updated in place later.
        self._inference = torch.inference_mode(False) if torch.is_inference_mode_enabled() else None

    def leave(self) -> None:
        if self._inference is not None:
            self._inference.__enter__()
        torch.set_autocast_enabled(self._device, False)
        torch._C._set_grad_enabled(False)

    def restore(self) -> None:
        """Set everything back; doing it twice does no harm."""
        if self._inference is not None and not torch.is_inference_mode_enabled():
            self._inference.__exit__(None, None, None)
        torch.set_autocast_enabled(self._device, self._autocast)
        torch._C._set_grad_enabled(self._grad)
