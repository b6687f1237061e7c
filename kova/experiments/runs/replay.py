"""A replay buffer that grows with its run."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer


def grow(buffer: ReplayBuffer, frames: int) -> None:
    """Give a buffer room for ``frames`` of all environments together, if it has less; what it holds stays, in order.

    A run's buffer is made for the frames of the run, because a larger one would only make checkpoints larger.
    """
    size = max(frames // buffer.n_envs, 1)
    if size <= buffer.buffer_size:
        return
    held, first = buffer.size(), buffer.pos if buffer.full else 0

    def grown(array: Any) -> Any:
        if isinstance(array, dict):
            return {key: grown(part) for key, part in array.items()}
        room = np.zeros((size, *array.shape[1:]), dtype=array.dtype)
        room[:held] = np.roll(array, -first, axis=0)[:held]
        return room

    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        setattr(buffer, name, grown(getattr(buffer, name)))
    buffer.buffer_size, buffer.pos, buffer.full = size, held, False
