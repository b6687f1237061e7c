"""The observation function h(u; θ) of Table 1 for the networks of Stable-Baselines3."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from stable_baselines3.common.policies import ActorCriticPolicy, ContinuousCritic
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor, nn
from torch.func import functional_call


class StateValue(nn.Module):
    """V(s; θ) of an actor-critic policy: the value's own trainable parameters, in place, without the actor's.

    Autograd says which parameters belong to the value, so that any policy with separate networks will do. A layer that
    is the value's alone is registered whole, under its path in the policy with underscores for dots. A parameter beside
    others that are not trained with the value, such as a token on a module with a frozen backbone, is registered alone.

    Args:
        policy: The policy; it keeps owning its layers.

    Raises:
        ValueError: The value shares parameters with the actor.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        # In a tuple, so that the actor's layers are not registered here.
        self._value = (_Value(policy),)
        own, common = _value_parameters(policy)
        if common:
            raise ValueError(
                f"the critic shares {len(common)} parameters with the policy, {sorted(common)[0]!r} among them; a "
                "Kalman critic needs its own: policy_kwargs=dict(share_features_extractor=False) and separate networks"
            )
        #: {name in the policy: name here} of the parameters that are registered alone.
        self._alone: dict[str, str] = {}
        self._register(policy, {id(parameter) for parameter in own.values()})

    def forward(self, observations: PyTorchObs) -> Tensor:
        """Return V(s), (N, 1)."""
        value = self._value[0]
        if not self._alone:
            return value.policy.predict_values(observations)
        # Whoever swaps parameters here, as torch.func does, must reach those that are not part of a layer too.
        present: dict[str, Tensor] = {
            f"policy.{theirs}": attrgetter(ours)(self) for theirs, ours in self._alone.items()
        }
        result: Tensor = functional_call(value, present, (observations,), tie_weights=False)
        return result

    def _register(self, module: nn.Module, own: set[int], path: str = "") -> None:
        """Register the parameters in ``own`` that are directly on ``module``, then its children."""
        alone = {name: p for name, p in module.named_parameters(recurse=False) if id(p) in own}
        holder = nn.Module() if path else self
        for name, parameter in alone.items():
            holder.register_parameter(name, parameter)
            self._alone[_joined(path, name)] = _joined(_flat(path), name)
        if alone and path:
            self.add_module(_flat(path), holder)
        for name, child in module.named_children():
            inner = _joined(path, name)
            if _is_whole(child, own):
                self.add_module(_flat(inner), child)
            else:
                self._register(child, own, inner)


class _Value(nn.Module):
    """V(s) as a module's output."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: PyTorchObs) -> Tensor:
        return self.policy.predict_values(observations)


class ActionValue(nn.Module):
    """Q_i(s, a; θ), one of the Q-functions of a continuous critic: its own parameters, in place.

    Upstream's Q-functions have a features extractor in common. Its parameters, of which only extractors of images and
    the like have any, belong to the first; the others take the features as they are.

    Args:
        critic: The network with all Q-functions; it keeps owning its layers.
        index: Which of them, from 0.
    """

    def __init__(self, critic: ContinuousCritic, index: int) -> None:
        super().__init__()
        # In a tuple, so that the layers of the others are not registered here.
        self._critic, self._index = (critic,), index
        if index == 0:
            self.features_extractor = critic.features_extractor
        # Upstream's name, under which 0.1.0 saved it.
        self.add_module(f"qf{index}", critic.q_networks[index])

    def forward(self, inputs: Any) -> Tensor:
        """Return Q_i(s, a), (N, 1)."""
        [critic], (observations, actions) = self._critic, inputs
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._index == 0):
            features = critic.extract_features(observations, critic.features_extractor)
        values: Tensor = critic.q_networks[self._index](torch.cat([features, actions], dim=1))
        return values


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


def _value_parameters(policy: ActorCriticPolicy) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Return the trainable parameters that V depends on: its own, and those it has in common with the actor."""
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
    own = {name: p for name, p in seen_by_value.items() if name not in seen_by_actor}
    return own, {name: p for name, p in seen_by_value.items() if name in seen_by_actor}


def _reached(policy: nn.Module, output: Tensor) -> dict[str, nn.Parameter]:
    named = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    if not output.requires_grad:
        return {}
    found = torch.autograd.grad(output, list(named.values()), allow_unused=True)
    return {name: p for (name, p), gradient in zip(named.items(), found, strict=True) if gradient is not None}


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


def _is_whole(module: nn.Module, own: set[int]) -> bool:
    """Say whether every parameter is in ``own``; frozen ones may stand beside them in a layer without children."""
    parameters = list(module.parameters())
    if next(module.children(), None) is None:
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
    return bool(parameters) and all(id(parameter) in own for parameter in parameters)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _flat(path: str) -> str:
    return path.replace(".", "_")
