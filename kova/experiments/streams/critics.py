"""The critics that learn from streams: upstream's networks, with upstream's initialisation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def value_network(inputs: int, hidden: Sequence[int] = (64, 64), seed: int = 0) -> nn.Sequential:
    """Return the value network of upstream's on-policy ``MlpPolicy``: tanh, orthogonal, biases 0."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = [inputs, *hidden, 1]
        for number, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            layer = nn.Linear(fan_in, fan_out)
            nn.init.orthogonal_(layer.weight, 1.0 if number == len(hidden) else 2**0.5)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def action_network(inputs: int, outputs: int, hidden: Sequence[int] = (64, 64), seed: int = 0) -> nn.Sequential:
    """Return the network of upstream's DQN and DDPG: ReLU, torch's own initialisation."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = [inputs, *hidden, outputs]
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def chosen_value(network: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    """Return Q(s, a), (N, 1), of a network with one output per action."""
    observations, actions = inputs
    values: Tensor = network(observations)
    return values.gather(1, actions.long())


def joint_value(network: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    """Return Q(s, a), (N, 1), of a network that takes both."""
    values: Tensor = network(torch.cat(inputs, dim=1))
    return values
