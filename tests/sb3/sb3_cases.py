"""What the tests of kova.sb3 share: the algorithms beside upstream's, small settings, bitwise comparison."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from kova.sb3 import A2C, DDPG, DQN, PPO, SAC, TD3, TRPO

ON_POLICY = (PPO, A2C, TRPO)
CONTINUOUS = (DDPG, TD3, SAC)
TWINS = (TD3, SAC)
OFF_POLICY = (*CONTINUOUS, DQN)
ALL = (*ON_POLICY, *OFF_POLICY)
DISCRETE = (PPO, A2C, TRPO, DQN)

UPSTREAM: dict[type, type] = {
    PPO: stable_baselines3.PPO,
    A2C: stable_baselines3.A2C,
    TRPO: sb3_contrib.TRPO,
    DDPG: stable_baselines3.DDPG,
    TD3: stable_baselines3.TD3,
    SAC: stable_baselines3.SAC,
    DQN: stable_baselines3.DQN,
}

#: Small enough for seconds; every algorithm updates its critic within ENOUGH steps.
SETTINGS: dict[type, dict[str, Any]] = {
    PPO: {"n_steps": 16, "batch_size": 8, "n_epochs": 2},
    A2C: {"n_steps": 8},
    TRPO: {"n_steps": 16, "batch_size": 8},
    **{algorithm: {"learning_starts": 20, "buffer_size": 400, "batch_size": 8} for algorithm in CONTINUOUS},
    DQN: {"learning_starts": 20, "buffer_size": 400, "batch_size": 8, "target_update_interval": 20},
}
ENOUGH = 32

KOVA_TAGS = {
    f"kova/{name}"
    for name in (
        "nis",
        "log_likelihood",
        "information_gain",
        "trust_region",
        "mean_variance",
        "update_norm",
        "inflation",
    )
}


def environment(algorithm: type) -> str:
    return "Pendulum-v1" if algorithm in CONTINUOUS else "CartPole-v1"


def vectorised(algorithm: type, n_envs: int = 1, seed: int | None = None) -> VecEnv:
    return make_vec_env(environment(algorithm), n_envs=n_envs, seed=seed)


def make(algorithm: type, env: Any = None, policy: str = "MlpPolicy", upstream: bool = False, **kwargs: Any) -> Any:
    """Return a small model of ``algorithm``, or of the upstream class it stands in for."""
    options: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu", **SETTINGS[algorithm]}
    options.update(kwargs)
    options["policy_kwargs"] = copy.deepcopy(options["policy_kwargs"])
    cls = UPSTREAM[algorithm] if upstream else algorithm
    return cls(policy, environment(algorithm) if env is None else env, **options)


def observations(model: Any, count: int) -> np.ndarray:
    """Return a batch of valid observations of a space that is not a dict."""
    return np.stack([model.observation_space.sample() for _ in range(count)])


def actions(model: Any, count: int) -> np.ndarray:
    return np.stack([np.asarray(model.action_space.sample()) for _ in range(count)])


def value_arguments(model: Any, observation: Any, count: int) -> tuple[Any, ...]:
    """Return the arguments of ``predict_value``: off policy the value needs an action."""
    return (observation, actions(model, count)) if isinstance(model, OFF_POLICY) else (observation,)


def snapshot(model: Any) -> dict[str, Any]:
    return copy.deepcopy(model.get_parameters())


def same(first: Any, second: Any) -> bool:
    """Say whether two nested states are equal bit for bit."""
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def filters(algorithm: type) -> set[str]:
    """Return the entries of a checkpoint that are filters."""
    return {"critic_optimizer", *(["critic_optimizer_2"] if algorithm in TWINS else [])}


def actor_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights of an actor-critic policy that V does not depend on."""
    critic = ("value_net", "mlp_extractor.value_net", "vf_features_extractor")
    return {name: w.clone() for name, w in model.policy.state_dict().items() if not name.startswith(critic)}


class SmallCNN(BaseFeaturesExtractor):
    """A convolutional extractor that fits an image of 36 by 36 and a test."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 8) -> None:
        super().__init__(observation_space, features_dim)
        channels = observation_space.shape[0]
        self.layers = nn.Sequential(nn.Conv2d(channels, 4, 8, 6), nn.Tanh(), nn.Flatten(), nn.LazyLinear(features_dim))
        with torch.no_grad():
            self.layers(torch.zeros(1, *observation_space.shape))

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)


SMALL_CNN: dict[str, Any] = {"net_arch": [8], "features_extractor_class": SmallCNN}


class OneSpace(gymnasium.Env):
    """Random observations of a space, random rewards, episodes of a few steps that end both ways."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._step = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._step += 1
        ended = self._step >= 7 and self.np_random.random() < 0.5
        return self.observation_space.sample(), float(self.np_random.normal()), ended, self._step >= 9, {}


IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


def images(algorithm: type) -> OneSpace:
    """Return an environment with images as observations, and actions that ``algorithm`` takes."""
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    return OneSpace(copy.deepcopy(IMAGE), box if algorithm in CONTINUOUS else spaces.Discrete(3))
