"""Each of the algorithms learns, on three seeds, within a budget like upstream's own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

import kova
from kova.sb3 import A2C, DDPG, DQN, PPO, SAC, TD3, TRPO


@dataclass(frozen=True)
class Task:
    algorithm: type[Any]
    env: str
    steps: int
    at_least: float
    n_envs: int = 1
    normalize: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


PPO_CARTPOLE = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
}
DQN_CARTPOLE = {
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}
PENDULUM = {"gamma": 0.98, "buffer_size": 200_000, "learning_starts": 1_000, "batch_size": 100}
DDPG_PENDULUM = {**PENDULUM, "action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))}
# Upstream's networks would take four times as long.
TD3_PENDULUM = {**DDPG_PENDULUM, "policy_kwargs": {"net_arch": [64, 64]}}
SAC_PENDULUM = {**PENDULUM, "learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64]}}
SMALL_CRITIC = {"policy_kwargs": {"net_arch": [64, 64]}, "critic_kwargs": {"evolution": kova.FadingMemory(0.01)}}

TASKS = {
    "ppo-cartpole": Task(PPO, "CartPole-v1", 30_000, 450.0, n_envs=8, settings=PPO_CARTPOLE),
    "a2c-cartpole": Task(A2C, "CartPole-v1", 100_000, 450.0, n_envs=8),
    "dqn-cartpole": Task(DQN, "CartPole-v1", 50_000, 450.0, settings=DQN_CARTPOLE),
    "ddpg-pendulum": Task(DDPG, "Pendulum-v1", 10_000, -250.0, settings=DDPG_PENDULUM),
    "ddpg-pendulum-small": Task(DDPG, "Pendulum-v1", 10_000, -250.0, settings={**DDPG_PENDULUM, **SMALL_CRITIC}),
    "td3-pendulum": Task(TD3, "Pendulum-v1", 10_000, -250.0, settings=TD3_PENDULUM),
    "sac-pendulum": Task(SAC, "Pendulum-v1", 10_000, -250.0, settings=SAC_PENDULUM),
    "ppo-inverted": Task(PPO, "InvertedPendulum-v5", 60_000, 900.0, normalize=True, settings={"n_steps": 1024}),
    "trpo-inverted": Task(TRPO, "InvertedPendulum-v5", 60_000, 900.0, normalize=True, settings={"n_steps": 1024}),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", TASKS)
def test_it_learns(name, seed):
    task = TASKS[name]
    env = make_vec_env(task.env, n_envs=task.n_envs, seed=seed)
    if task.normalize:
        env = VecNormalize(env)
    # Upstream adds to the policy's arguments.
    model = task.algorithm("MlpPolicy", env, seed=seed, **copy.deepcopy(dict(task.settings)))
    model.learn(task.steps)
    if isinstance(env, VecNormalize):
        env.training = env.norm_reward = False
    mean, _ = evaluate_policy(model, env, n_eval_episodes=20)
    assert mean >= task.at_least
