import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from sb3_cases import ENOUGH, same, snapshot
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.type_aliases import ReplayBufferSamples

import kova
from kova.experiments.problems.deep_sea import DeepSea
from kova.sb3.exploration import UCBDQN, ThompsonDQN

STRUCTURES = ("full", "layer", "neuron", "diagonal", "block:7", "low_rank:5", "last_layer")
BOTH = (ThompsonDQN, UCBDQN)


def make(algorithm=ThompsonDQN, env="CartPole-v1", **kwargs):
    options = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu", "buffer_size": 400, "batch_size": 16}
    return algorithm("MlpPolicy", env, **{**options, **kwargs})


def observations(model, count=20):
    return np.stack([model.observation_space.sample() for _ in range(count)])


def transition(model, count=6):
    states, later = (torch.as_tensor(observations(model, count)) for _ in range(2))
    dones = torch.tensor([0.0, 1.0]).repeat(count // 2)[:, None]
    return ReplayBufferSamples(states, torch.zeros(count, 1).long(), later, dones, torch.rand(count, 1))


@pytest.mark.parametrize("algorithm", BOTH)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_can_be_drawn_from(algorithm, structure):
    options = {"covariance": structure, "prior_variance": 0.1, "noise": kova.ConstantNoise(1.0)}
    model = make(algorithm, critic_kwargs=options).learn(ENOUGH)
    assert model.critic_optimizer.steps > 0
    assert all(torch.isfinite(p).all() for p in model.policy.parameters())


def test_the_draw_is_one_of_the_posterior_and_acts_for_a_whole_episode():
    model = make(env=DeepSea(4))
    draws = []

    def remember(local, _):
        draws.append((model._episode_num, model.q_net_target.q_net[0].weight.clone()))
        assert local["actions"][0] == model.q_net_target(torch.as_tensor(model._last_obs)).argmax()
        return True

    model.learn(ENOUGH, callback=remember)
    by_episode = {}
    for episode, weight in draws:
        assert torch.equal(by_episode.setdefault(episode, weight), weight)
    first, second, *_ = by_episode.values()
    assert not torch.equal(first, second)

    torch.manual_seed(5)
    model._draw()
    torch.manual_seed(5)
    expected = model.critic_optimizer.sample(1)
    for name, parameter in model.q_net_target.named_parameters():
        torch.testing.assert_close(parameter, expected[name][0])


def test_the_label_bootstraps_from_the_draw_that_acts():
    model = make(gamma=0.9)
    batch = transition(model)
    following = model.q_net_target(batch.next_observations).amax(dim=1, keepdim=True)
    expected = batch.rewards + 0.9 * (1 - batch.dones) * following
    torch.testing.assert_close(model._labels(batch, model._following(batch)), expected)
    states = batch.observations.numpy()
    assert np.array_equal(model.predict(states)[0], model.q_net_target(batch.observations).argmax(dim=1).numpy())


def test_between_episodes_the_draw_agrees_with_itself():
    # On what was tried the draw obeys Bellman's equation; what was not is the prior's draw.
    options = {"prior_variance": 1.0, "noise": kova.ConstantNoise(1e-4)}
    model = make(
        env=DeepSea(4), policy_kwargs={"net_arch": []}, batch_size=64, gradient_steps=20, critic_kwargs=options
    )
    model.learn(20 * 4)
    buffer = model.replay_buffer
    batch = buffer._get_samples(np.arange(buffer.pos - 4))
    chosen = model.q_net_target(batch.observations).gather(1, batch.actions)
    assert float((model._labels(batch, model._following(batch)) - chosen.detach()).abs().max()) < 0.2
    spread = torch.stack([model.critic_optimizer.sample(1)["q_net.0.weight"][0] for _ in range(200)]).std(dim=0)
    # Cells above the diagonal cannot be reached.
    unreachable = spread.view(2, 4, 4)[:, 0, 1:]
    torch.testing.assert_close(unreachable, torch.ones_like(unreachable), atol=0.2, rtol=0.0)
    assert float(spread[:, 0].max()) < 0.5


def test_the_bound_is_the_mean_plus_sigmas():
    model = make(UCBDQN, confidence=2.0, gamma=0.9)
    batch = transition(model)
    states = batch.next_observations.numpy()
    means = model.q_net_target(batch.next_observations)
    sigmas = [model.predict_value(states, np.full(len(states), action)).stddev for action in range(2)]
    bound = means + 2.0 * torch.stack(sigmas, dim=1)
    assert np.array_equal(model.predict(states)[0], bound.argmax(dim=1).numpy())
    expected = batch.rewards + 0.9 * (1 - batch.dones) * bound.amax(dim=1, keepdim=True)
    torch.testing.assert_close(model._labels(batch, model._following(batch)), expected)


@pytest.mark.parametrize("algorithm", BOTH)
def test_deterministic_is_the_mean_and_shapes_are_upstreams(algorithm):
    model = make(algorithm).learn(ENOUGH)
    states = observations(model)
    greedy = model.q_net(torch.as_tensor(states)).argmax(dim=1).numpy()
    assert np.array_equal(model.predict(states, deterministic=True)[0], greedy)
    assert model.predict(states)[0].shape == (20,)
    assert model.predict(states[0])[0].shape == ()


@pytest.mark.parametrize("algorithm", BOTH)
def test_a_loaded_model_continues_bit_for_bit(algorithm, tmp_path):
    model = make(algorithm).learn(ENOUGH)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = algorithm.load(tmp_path / "model", env=make_vec_env("CartPole-v1"))
    loaded.load_replay_buffer(tmp_path / "buffer")
    for one in (model, loaded):
        one.set_random_seed(3)
        one._last_obs = None
        one.learn(ENOUGH, reset_num_timesteps=False)
    assert same(snapshot(model), snapshot(loaded))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="train_freq must be in episodes"):
        make(train_freq=4)
    with pytest.raises(ValueError, match="confidence must be >= 0"):
        make(UCBDQN, confidence=-1.0)
    with pytest.raises(TypeError, match="keeps no uncertainty"):
        make(critic="adam")
