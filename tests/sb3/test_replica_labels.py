"""Replicas of an agent's critic: their labels come from the rollout, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env

from kova.replicas import Replicas
from kova.sb3 import A2C, PPO, TRPO, upstream
from kova.sb3 import replica_labels as module

COUNT = 3
ALGORITHMS = {
    A2C: {"n_steps": 8},
    PPO: {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    TRPO: {"n_steps": 16, "batch_size": 16},
}


def agent(algorithm: type = PPO, replicas: int = COUNT, **settings: object):
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    given = {**ALGORITHMS[algorithm], **settings}
    return algorithm("MlpPolicy", env, seed=0, critic_kwargs={"replicas": replicas}, device="cpu", **given)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.__name__)
def test_policy_and_critic_learn_the_same_with_replicas(algorithm):
    plain, replicated = (agent(algorithm, count).learn(96) for count in (0, COUNT))
    for one, other in zip(plain.policy.parameters(), replicated.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    assert replicated.critic_optimizer.state_dict()["replicas"].shape[0] == COUNT


def collected(steps: int):
    """Return an agent that has learned a little, its next rollout, and the observations and values after it."""
    model = agent(n_steps=steps)
    model.learn(2 * steps)
    model.rollout_buffer.reset()
    _, callback = model._setup_learn(2 * steps)
    callback.on_training_start({}, {})
    model.collect_rollouts(model.env, callback, model.rollout_buffer, steps)
    last = model.policy.obs_to_tensor(upstream.last_observation(model))[0]
    with torch.no_grad():
        values = model.policy.predict_values(last).flatten()
    return model, model.rollout_buffer, model.critic_optimizer, last, values


def test_labels_are_those_of_the_rollout_with_noise_of_its_own_for_every_reward():
    """Frame by frame, from the buffer: with errors of 0 the replicas differ by the noise of the rewards alone."""
    model, buffer, filter_, last, last_values = collected(64)
    filter_._replicas = Replicas(COUNT, torch.zeros(COUNT, filter_.covariance.dim))
    ended = upstream.last_episode_starts(model)
    found = module.of_rollout(filter_, buffer, last, last_values, ended)
    noise = filter_.replica_noise(128).view(64, 2, COUNT).numpy()
    values = np.concatenate([buffer.values, last_values.numpy()[None]])
    alive = 1.0 - np.concatenate([buffer.episode_starts[1:], ended[None]])
    assert (alive == 0).sum() > 0, "an episode must end on the way"
    following, expected = np.zeros((2, COUNT)), np.zeros((64, 2, COUNT))
    for step in reversed(range(64)):
        td = buffer.rewards[step] + model.gamma * alive[step] * values[step + 1] - values[step]
        following = noise[step] * td[:, None] + model.gamma * model.gae_lambda * alive[step][:, None] * following
        expected[step] = following + buffer.returns[step][:, None]
    np.testing.assert_allclose(found.view(2, 64, COUNT).swapaxes(0, 1).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_replicas_bootstrap_from_their_own_values():
    model, buffer, filter_, last, last_values = collected(32)
    never = np.zeros(2, dtype=bool)
    own = filter_.replica_values(last) - last_values[:, None]
    found = module.of_rollout(filter_, buffer, last, last_values, never).view(2, 32, COUNT)[:, -1]
    td = buffer.rewards[-1] + model.gamma * last_values.numpy() - buffer.values[-1]
    noise = filter_.replica_noise(64).view(32, 2, COUNT)[-1]
    label = torch.as_tensor(buffer.rewards[-1] + model.gamma * last_values.numpy())[:, None]
    torch.testing.assert_close(
        found, label + noise * torch.as_tensor(td)[:, None] + model.gamma * own, rtol=1e-4, atol=1e-4
    )


def test_a_saved_agent_goes_on_with_its_replicas(tmp_path):
    model = agent()
    model.learn(64)
    model.save(tmp_path / "model")
    other = PPO.load(tmp_path / "model", env=model.env)
    assert torch.equal(other.critic_optimizer.state_dict()["replicas"], model.critic_optimizer.state_dict()["replicas"])
    observation = model.observation_space.sample()
    told = [m.predict_value(observation, calibrated=True).stddev for m in (model, other)]
    assert torch.equal(*told)
    assert not torch.equal(told[0], model.predict_value(observation).stddev)
