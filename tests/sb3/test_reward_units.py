"""Rewards in any unit: the agents train to the end, and the critic's values have the units of the rewards."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_cases import A2C, DDPG, DQN, OFF_POLICY, ON_POLICY, PPO, SAC, TD3, TRPO, make, same

import kova


def paid(environment: str, factor: float = 1.0, bonus: float = 0.0) -> gym.Env:
    return gym.wrappers.TransformReward(gym.make(environment), lambda reward: factor * float(reward) + bonus)


OFF = {"learning_starts": 100, "policy_kwargs": {"net_arch": [16, 16]}}
CASES = [
    (DDPG, "Pendulum-v1", 1e3, 0.0, {**OFF, "batch_size": 32}),
    (DDPG, "Pendulum-v1", 1.0, 1e4, {**OFF, "batch_size": 32}),
    (TD3, "Pendulum-v1", 1e3, 0.0, {**OFF, "batch_size": 32}),
    (SAC, "Pendulum-v1", 1e3, 0.0, {**OFF, "batch_size": 32}),
    (DQN, "CartPole-v1", 1e6, 0.0, {**OFF, "train_freq": 1, "target_update_interval": 100}),
    (PPO, "Pendulum-v1", 1e3, 0.0, {"n_steps": 128}),
    (PPO, "Pendulum-v1", 1.0, 1e4, {"n_steps": 128}),
    (A2C, "Pendulum-v1", 1e3, 0.0, {}),
    (A2C, "CartPole-v1", 1e6, 0.0, {}),
    (TRPO, "Pendulum-v1", 1e3, 1e4, {"n_steps": 128}),
]


@pytest.mark.parametrize(("algorithm", "environment", "factor", "bonus", "settings"), CASES)
def test_rewards_of_any_size_train_to_the_end(algorithm, environment, factor, bonus, settings):
    # Upstream adds to the dict it is given.
    settings = copy.deepcopy(settings)
    model = algorithm("MlpPolicy", paid(environment, factor, bonus), seed=0, gamma=0.9, **settings).learn(1500)
    seen = model.replay_buffer if algorithm in OFF_POLICY else model.rollout_buffer
    observations = seen.observations.reshape(-1, *model.observation_space.shape)[: 20 if algorithm is A2C else 100]
    actions = [np.stack([model.action_space.sample() for _ in observations])] if algorithm in OFF_POLICY else []
    value = model.predict_value(observations, *actions)
    assert bool(torch.isfinite(value.mean).all() & torch.isfinite(value.stddev).all())
    # No value can be larger than the largest reward for ever.
    largest = 10.0 * (factor * (17.0 if environment == "Pendulum-v1" else 1.0) + bonus)
    assert float(value.mean.abs().max()) < 2.0 * largest
    assert float(value.mean.abs().max()) > 0.01 * factor


@pytest.mark.parametrize(
    ("critic_kwargs", "noise"),
    [
        ({}, kova.ConstantNoise(1.0)),
        ({"noise": kova.InnovationNoise()}, kova.InnovationNoise()),
        ({"units": kova.RawUnits()}, kova.BatchSize()),
        ({"prior_variance": 2.0}, kova.BatchSize()),
    ],
)
def test_dqns_own_noise_is_for_units_and_gives_way_to_the_users(critic_kwargs, noise):
    model = make(DQN, "CartPole-v1", critic_kwargs=critic_kwargs)
    assert model.critic_optimizer.noise == noise
    assert model.critic_optimizer.evolution == kova.PriorRelaxation(0.01)


def test_ddpg_keeps_the_noise_with_which_it_learned():
    assert make(DDPG, "Pendulum-v1").critic_optimizer.noise == kova.ConstantNoise(0.1)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_first_labels_hold_rewards_only(algorithm):
    """An untrained critic that says a million must not be taken for the scale of the rewards."""
    found = {}
    for loud in (False, True):
        model = make(algorithm, "CartPole-v1", gamma=0.9)
        if loud:
            with torch.no_grad():
                model.policy.value_net.bias.fill_(1e6)
        first = []
        model.critic_optimizer.register_step_pre_hook(
            lambda _, args, kwargs, first=first: first.append(args[-1].clone())
        )
        model.learn(model.n_steps)
        assert float(first[0].abs().max()) <= 10.0
        assert not model.critic_optimizer.begins
        found[loud] = model.critic_optimizer.state_dict()["units"]["scale"]
    assert max(found.values()) < 10.0


@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_the_target_begins_where_the_critic_begins(algorithm):
    environment = "CartPole-v1" if algorithm is DQN else "Pendulum-v1"
    model = make(algorithm, environment, learning_starts=20, train_freq=1, gradient_steps=1, tau=0.5)
    labels = []
    model.critic_optimizer.register_step_pre_hook(lambda _, args, kwargs: labels.append(args[-1].clone()))
    model.learn(22)
    critic, target = (model.q_net, model.q_net_target) if algorithm is DQN else (model.critic, model.critic_target)
    rewards = {round(float(r), 4) for r in model.replay_buffer.rewards[: model.replay_buffer.pos].flatten()}
    assert {round(float(label), 4) for label in labels[0].flatten()} <= rewards
    if len(labels) == 1:
        assert same(critic.state_dict(), target.state_dict())


def test_a_trained_critic_keeps_its_values():
    """A plain model's critic is in the units of its rewards; a filter that begins with it must not scale it again."""
    import stable_baselines3

    plain = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu").learn(64)
    with torch.no_grad():
        plain.policy.value_net.bias.fill_(40.0)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu")
    with pytest.warns(UserWarning, match="holds no filter"):
        model.set_parameters(copy.deepcopy(plain.get_parameters()))
    assert model.critic_optimizer.units == kova.LabelUnits(start=False)
    assert not model.critic_optimizer.begins
    observations = np.stack([model.observation_space.sample() for _ in range(20)])
    before = model.predict_value(observations).mean
    optimizer = model.critic_optimizer
    states = torch.as_tensor(observations)
    optimizer.step(states, before + 3.0 * torch.randn(20, generator=torch.Generator().manual_seed(0)))
    assert float((model.predict_value(observations).mean - before).abs().max()) < 10.0
