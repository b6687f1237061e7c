"""The one place where private names of Stable-Baselines3 and sb3-contrib are read, called or set.

A new version of upstream may change any of them without notice; then this file is the one to look at. What cannot
stand here are methods that our classes define because upstream calls them under these names:

- ``_setup_model``: builds the networks; ours adds the filter (``CriticMixin``, ``OnPolicyCritic``).
- ``_excluded_save_params``: attributes that ``save`` leaves out (``CriticMixin``, ``OnPolicyCritic``, ``ThompsonDQN``).
- ``_get_torch_save_params``: what ``save`` keeps as state dicts (``CriticMixin``).
- ``_init_callback``: makes the callback of a training; ours puts one of its own before the user's (``ReturnBands``).
- ``_on_step``, ``_on_training_start``, ``_on_training_end``, ``_on_rollout_end``: a callback's (``FollowReturns``).
- ``_on_step``: called after every step of the environment (``PosteriorDQN``).
- ``_init_setup_model``: the constructor's argument by which ``load`` postpones ``_setup_model`` (``CriticMixin``).
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch.optim import Optimizer


def plain_class(algorithm: type[BaseAlgorithm]) -> type[BaseAlgorithm]:
    """Return the class of Stable-Baselines3 or sb3-contrib that a class of this library, or a user's, is made of."""
    ours = "kova."
    return next(base for base in algorithm.__mro__ if not any(one.__module__.startswith(ours) for one in base.__mro__))


def samples(buffer: RolloutBuffer, indices: np.ndarray) -> RolloutBufferSamples:
    """Return some transitions of a full rollout; the public ``get`` would draw from numpy's global random state."""
    return buffer._get_samples(indices)


def returns_without_values(buffer: RolloutBuffer, ended: np.ndarray) -> np.ndarray:
    """Return the returns of a full rollout as they would be if every value were 0, in the order of ``samples``.

    Args:
        buffer: Before ``get`` has flattened it.
        ended: Whether the last step of each environment ended an episode.
    """
    plain = copy.copy(buffer)
    plain.values, plain.advantages = np.zeros_like(buffer.values), np.zeros_like(buffer.advantages)
    plain.compute_returns_and_advantage(torch.zeros(buffer.n_envs), ended)
    return plain.swap_and_flatten(plain.returns).flatten()


def remaining_progress(model: BaseAlgorithm) -> float:
    """Return the argument of schedules: 1 at the beginning of ``learn``, 0 at its end."""
    return model._current_progress_remaining


def follow_schedule(model: BaseAlgorithm, *optimizers: Optimizer) -> None:
    """Set the optimizers' learning rates to the schedule's present one, and log it."""
    model._update_learning_rate(list(optimizers))


def updates(model: BaseAlgorithm) -> int:
    """Return the count that is logged as ``train/n_updates``."""
    return model._n_updates


def count_update(model: BaseAlgorithm) -> None:
    """Add one to that count."""
    model._n_updates += 1


def entries(model: BaseAlgorithm) -> set[str]:
    """Return the names under which a checkpoint has state dicts."""
    return set(model._get_torch_save_params()[0])


def variables(model: BaseAlgorithm) -> list[str]:
    """Return the names of single tensors that a checkpoint has."""
    return model._get_torch_save_params()[1]


def built_like(kind: type[BaseAlgorithm], model: BaseAlgorithm, policy_kwargs: dict[str, Any]) -> BaseAlgorithm:
    """Return a model of an upstream class with the settings and counters of another, and new networks.

    As ``load`` does it, but with the very environment and replay buffer of the other, and nothing is seeded: both are
    in use.

    Args:
        kind: The class.
        model: The other.
        policy_kwargs: For the networks, in the place of the other's.
    """
    given: dict[str, Any] = {"env": model.env, "device": model.device, "_init_setup_model": False}
    new = kind(model.policy_class, **given)
    excluded = {*new._excluded_save_params(), *(name.split(".")[0] for name in entries(new) | set(variables(new)))}
    # Without an environment a model that is not set up has no spaces.
    known = {*vars(new), "observation_space", "action_space", "n_envs"}
    taken = (known & vars(model).keys()) - excluded
    vars(new).update({name: copy.deepcopy(vars(model)[name]) for name in taken})
    new.policy_kwargs, new.seed = copy.deepcopy(policy_kwargs), None
    if isinstance(new, OffPolicyAlgorithm) and isinstance(model, OffPolicyAlgorithm):
        new.replay_buffer = model.replay_buffer
    new._setup_model()
    new.seed = model.seed
    return new


def last_observation(model: BaseAlgorithm) -> Any:
    """Return the observations that the next actions will be chosen for."""
    return model._last_obs


def last_episode_starts(model: OnPolicyAlgorithm) -> np.ndarray:
    """Return for every environment whether that observation is the first of an episode."""
    return np.asarray(model._last_episode_starts)


def forget_last_observation(model: BaseAlgorithm) -> None:
    """Let the next ``learn`` begin with a reset of the environment."""
    model._last_obs = None


def build_networks(model: BaseAlgorithm, upstream: type[BaseAlgorithm]) -> None:
    """Build policy and buffers again, as the upstream class does, from the present ``policy_kwargs``."""
    upstream._setup_model(model)


def save_as_separate(policy: ActorCriticPolicy) -> None:
    """Let ``policy.save`` say that the features extractors are separate.

    Upstream leaves it out, and ``load`` would put the critic's extractor in the place of the actor's.
    """
    policy._get_constructor_parameters = partial(_separate_parameters, policy)  # type: ignore[method-assign]


def _separate_parameters(policy: ActorCriticPolicy) -> dict[str, Any]:
    return {**type(policy)._get_constructor_parameters(policy), "share_features_extractor": False}
