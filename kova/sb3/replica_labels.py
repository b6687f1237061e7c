"""Labels for the replicas of a critic, from a rollout: see :mod:`kova.replicas`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

from kova.optimizer import KOVA
from kova.targets import replica_targets


def of_rollout(optimizer: KOVA, buffer: RolloutBuffer, last: Any, last_values: Tensor, ended: np.ndarray) -> Tensor:
    """Return a label for every frame of a full rollout and every replica, (T · envs, m), in the order of ``samples``.

    The value of a state that a time limit cut off is part of the reward, as upstream adds it: there the replicas do not
    differ, which is the last frame of an episode.

    Args:
        optimizer: The filter, at the weights with which the rollout's values were made.
        buffer: Before ``get`` has flattened it.
        last: The observations after the rollout, as tensors.
        last_values: Their values, (envs,).
        ended: Whether the last step of each environment ended an episode, (envs,).
    """
    steps, envs = buffer.rewards.shape
    # Time first: frames of one step are neighbours.
    frames = _mapped(lambda array: torch.as_tensor(array.reshape(steps * envs, *array.shape[2:])), buffer.observations)
    everything = _joined(_mapped(lambda tensor: tensor.to(last_values.device), frames), last)
    replicas = optimizer.replica_values(everything).view(steps + 1, envs, -1)
    values = torch.cat([torch.as_tensor(buffer.values, device=last_values.device), last_values[None]])
    ends = torch.as_tensor(np.concatenate([buffer.episode_starts[1:], ended[None]]), device=values.device).bool()
    found = replica_targets(
        torch.as_tensor(buffer.rewards, device=values.device),
        values[:-1],
        values[1:],
        replicas[:-1],
        replicas[1:],
        optimizer.replica_noise(steps * envs).view(steps, envs, -1),
        ends,
        torch.zeros_like(ends),
        gamma=buffer.gamma,
        gae_lambda=buffer.gae_lambda,
    )
    return found.swapaxes(0, 1).flatten(0, 1)


def _mapped(function: Any, observations: Any) -> Any:
    if isinstance(observations, dict):
        return {key: function(value) for key, value in observations.items()}
    return function(observations)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {key: torch.cat([value, second[key].to(value.dtype)]) for key, value in first.items()}
    return torch.cat([first, second.to(first.dtype)])
