"""The observation function h(u; θ) of Table 1 for the networks of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor, nn


class StateValue(nn.Module):
    """V(s; θ) of an actor-critic policy: its own layers, in place, without the actor's.

    Which parameters belong to the value is asked of autograd, so that any policy with separate networks will do.

    Args:
        policy: The policy; it keeps owning its layers.

    Raises:
        ValueError: The value has no parameters of its own, or shares some with the actor.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        # In a tuple, so that the actor's layers are not registered here.
        self._policy = (policy,)
        own, common = _value_parameters(policy)
        if common:
            raise ValueError(
                f"the critic shares {len(common)} parameters with the policy, {sorted(common)[0]!r} among them; a "
                "Kalman critic needs its own: policy_kwargs=dict(share_features_extractor=False) and separate networks"
            )
        for name, layer in _layers_of(policy, own):
            self.add_module(name.replace(".", "_"), layer)

    def forward(self, observations: PyTorchObs) -> Tensor:
        """Return V(s), (N, 1)."""
        return self._policy[0].predict_values(observations)


def action_value(critic: nn.Module, inputs: Any) -> Tensor:
    """Return Q(s, a; θ), (N, 1), of a continuous critic."""
    values: tuple[Tensor, ...] = critic(*inputs)
    return values[0]


def chosen_value(q_net: nn.Module, inputs: Any) -> Tensor:
    """Return Q(s, a; θ), (N, 1), of a network with one output per action."""
    observations, actions = inputs
    values: Tensor = q_net(observations)
    return values.gather(1, actions.long())


def shares_with_actor(policy: ActorCriticPolicy) -> bool:
    """Say whether a parameter serves both the value and the actions."""
    return bool(_value_parameters(policy)[1])


def has_running_statistics(module: nn.Module) -> bool:
    """Say whether a batch norm in there learns from the batches it sees."""
    return any("running_" in name for name, _ in module.named_buffers())


def save_as_separate(policy: ActorCriticPolicy) -> None:
    """Let ``policy.save`` say that the features extractors are separate.

    Upstream leaves it out, and ``load`` would put the critic's extractor in the place of the actor's.
    """
    policy._get_constructor_parameters = partial(_separate_parameters, policy)  # type: ignore[method-assign]


def _separate_parameters(policy: ActorCriticPolicy) -> dict[str, Any]:
    return {**type(policy)._get_constructor_parameters(policy), "share_features_extractor": False}


def _value_parameters(policy: ActorCriticPolicy) -> tuple[set[str], set[str]]:
    """Return the names of the parameters that V depends on: its own, and those it has in common with the actor."""
    observation, training = _any_observation(policy), policy.training
    # A batch norm in training mode takes no batch of one, and would count this one.
    policy.set_training_mode(False)
    with torch.enable_grad():
        value = policy.predict_values(observation).sum()
        actions = policy.get_distribution(observation)
        action = actions.mode().detach()
        log_prob = actions.log_prob(action).sum()
    policy.set_training_mode(training)
    seen_by_value, seen_by_actor = _reached(policy, value), _reached(policy, log_prob)
    return seen_by_value - seen_by_actor, seen_by_value & seen_by_actor


def _reached(policy: nn.Module, output: Tensor) -> set[str]:
    named = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
    found = torch.autograd.grad(output, [p for _, p in named], allow_unused=True)
    return {name for (name, _), gradient in zip(named, found, strict=True) if gradient is not None}


def _any_observation(policy: ActorCriticPolicy) -> PyTorchObs:
    """Return a batch of one valid observation, without touching any random state."""
    space = policy.observation_space
    zeros = space.spaces if hasattr(space, "spaces") else None
    if isinstance(zeros, dict):
        return {key: _zeros(policy, part) for key, part in zeros.items()}
    return _zeros(policy, space)


def _zeros(policy: ActorCriticPolicy, space: Any) -> Tensor:
    dtype = torch.float32 if space.dtype.kind == "f" or is_image_space(space) else torch.long
    return torch.zeros(1, *get_obs_shape(space), dtype=dtype, device=policy.device)


def _layers_of(module: nn.Module, own: set[str], prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the largest submodules whose every parameter is in ``own``."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        parameters = [f"{path}.{inner}" for inner, _ in child.named_parameters()]
        if parameters and all(parameter in own for parameter in parameters):
            yield path, child
        else:
            yield from _layers_of(child, own, f"{path}.")
