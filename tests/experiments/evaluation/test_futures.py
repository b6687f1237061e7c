"""Futures begin in the very state that was kept, and their returns are those of the policy."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from kova.experiments.evaluation.futures import ENDLESS, Moment, copied, moments, returns_from
from kova.sb3 import A2C

TASKS = ["CartPole-v1", "Pendulum-v1", "Hopper-v5", "HalfCheetah-v5"]


@pytest.mark.parametrize("name", TASKS)
def test_a_copy_goes_on_as_the_task_would(name):
    env = gym.make(name)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(7):
        env.step(env.action_space.sample())
    other = copied(env, 1)
    for _ in range(3):
        action = env.action_space.sample()
        observation, reward, *_ = env.step(action)
        again, same, *_ = other.step(action)
        # MuJoCo's solver starts from another guess.
        assert again == pytest.approx(observation, abs=1e-6)
        assert float(same) == pytest.approx(float(reward), abs=1e-6)


def test_copies_of_a_random_task_have_futures_of_their_own():
    env = gym.make("FrozenLake-v1", is_slippery=True)
    env.reset(seed=0)
    ends = {tuple(copied(env, seed).step(2)[0] for _ in range(1)) for seed in range(20)}
    assert len(ends) > 1


def test_returns_are_discounted_as_paid_and_end_with_the_task():
    model = A2C("MlpPolicy", "CartPole-v1", seed=0, gamma=0.5)
    env = gym.make("CartPole-v1", max_episode_steps=ENDLESS)
    observation, _ = env.reset(seed=0)
    found = returns_from(model, Moment(env, observation), 3, seed=0)
    # 1 + ... + 1/2^6, and the critic's word for the last 1/128.
    rest = 2.0**7 * (found - (2.0 - 2.0**-6))
    assert np.abs(rest).max() < 5.0
    env.unwrapped.state = np.array([0.0, 0.0, 0.2, 3.0])
    falling = returns_from(model, Moment(env, np.array(env.unwrapped.state, dtype=np.float32)), 3, seed=0)
    assert falling == pytest.approx(np.ones(3))


def test_an_agent_that_sees_normalised_observations_is_asked_about_them():
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    model = A2C("MlpPolicy", env, seed=0).learn(400)
    env.training = False
    kept = moments(model, "Pendulum-v1", 5, seed=0, steps=450)
    assert len(kept) == 5
    assert all(np.abs(moment.observation[:2]).max() <= 1.0 for moment in kept)
    returns = returns_from(model, kept[0], 4, seed=0)
    # As the task pays: some -8 a step, a hundred steps, where normalised ones would be below ten.
    assert (returns < -100.0).all()
