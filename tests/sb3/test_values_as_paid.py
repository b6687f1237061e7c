"""``predict_value`` answers in the units in which the environment pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sb3_cases import ALL, DDPG, DQN, PPO, SAC, make, observations, value_arguments, vectorised
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize
from torch.distributions import Normal

from kova.sb3 import UCBDQN, ThompsonDQN
from kova.sb3.reward_unit import reward_unit

STEPS = 64


def normalised(algorithm: type, **settings: Any) -> VecNormalize:
    return VecNormalize(vectorised(algorithm, seed=0), gamma=0.9, **settings)


def asked(model: Any) -> tuple[Any, ...]:
    return value_arguments(model, observations(model, 5), 5)


def of_the_critic(model: Any, arguments: tuple[Any, ...], *, calibrated: bool) -> Normal:
    """Return what the filter itself says."""
    states = torch.as_tensor(arguments[0])
    if len(arguments) == 1:
        return model.critic_optimizer.predict(states, calibrated=calibrated)
    actions = torch.as_tensor(arguments[1])
    # Discrete actions are a column of numbers in the replay buffer, continuous ones are scaled to [-1, 1].
    stored = actions[:, None] if isinstance(model, DQN) else torch.as_tensor(model.policy.scale_action(arguments[1]))
    return model.critic_optimizer.predict((states, stored), calibrated=calibrated)


def assert_multiplied(value: Normal, critic: Normal, unit: float) -> None:
    torch.testing.assert_close(value.mean, unit * critic.mean)
    torch.testing.assert_close(value.stddev, unit * critic.stddev)


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_value_is_multiplied_by_what_rewards_are_divided_by(algorithm, calibrated):
    env = normalised(algorithm)
    model = make(algorithm, env, gamma=0.9).learn(STEPS)
    unit = float(np.sqrt(env.ret_rms.var + env.epsilon))
    assert abs(unit - 1.0) > 0.2
    arguments = asked(model)
    value = model.predict_value(*arguments, calibrated=calibrated)
    assert_multiplied(value, of_the_critic(model, arguments, calibrated=calibrated), unit)


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("normalise", [vectorised, lambda algorithm: normalised(algorithm, norm_reward=False)])
def test_without_normalised_rewards_it_is_the_critics_own(algorithm, normalise):
    model = make(algorithm, normalise(algorithm)).learn(STEPS)
    arguments = asked(model)
    value, critic = model.predict_value(*arguments), of_the_critic(model, arguments, calibrated=False)
    assert torch.equal(value.mean, critic.mean)
    assert torch.equal(value.stddev, critic.stddev)


def test_the_normalisation_is_found_below_other_wrappers():
    inner = normalised(PPO)
    outer: VecEnv = VecFrameStack(inner, 2)
    model = make(PPO, outer).learn(STEPS)
    arguments = asked(model)
    assert reward_unit(outer) == reward_unit(inner) != 1.0
    assert_multiplied(
        model.predict_value(*arguments), of_the_critic(model, arguments, calibrated=False), reward_unit(inner)
    )


@pytest.mark.parametrize("algorithm", [PPO, DDPG, SAC])
def test_a_loaded_model_says_the_same_with_its_environment_and_without(algorithm, tmp_path):
    env = normalised(algorithm)
    model = make(algorithm, env, gamma=0.9).learn(STEPS)
    arguments = asked(model)
    value = model.predict_value(*arguments)
    model.save(tmp_path / "model")
    env.save(str(tmp_path / "normalisation"))
    saved = VecNormalize.load(str(tmp_path / "normalisation"), vectorised(algorithm))
    again = algorithm.load(tmp_path / "model", env=saved, device="cpu").predict_value(*arguments)
    assert torch.equal(again.mean, value.mean)
    assert torch.equal(again.stddev, value.stddev)
    alone = algorithm.load(tmp_path / "model", device="cpu")
    assert reward_unit(env) != 1.0
    assert torch.equal(alone.predict_value(*arguments).mean, value.mean)
    alone.set_env(saved)
    assert torch.equal(alone.predict_value(*arguments).mean, value.mean)


@pytest.mark.parametrize("algorithm", [ThompsonDQN, UCBDQN])
def test_exploration_does_not_depend_on_the_unit(algorithm):
    """Draws and bounds are compared with labels, which are in the critic's units."""
    env = normalised(DQN)
    model = algorithm("MlpPolicy", env, seed=0, policy_kwargs={"net_arch": [8]}, device="cpu").learn(STEPS)
    states = observations(model, 200)
    chosen, _ = model.predict(states)
    env.ret_rms.var *= 1e4
    np.testing.assert_array_equal(model.predict(states)[0], chosen)
