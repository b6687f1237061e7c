"""The same seed gives the same run."""

import numpy as np
import pytest
import torch
from sb3_cases import ALL, CONTINUOUS, ENOUGH, OFF_POLICY, ON_POLICY, SETTINGS, make, same, snapshot, vectorised
from stable_baselines3.common.noise import NormalActionNoise


def episodes(model):
    return [(episode["r"], episode["l"]) for episode in model.ep_info_buffer]


@pytest.mark.parametrize("critic", ["kova", "adam"])
@pytest.mark.parametrize("algorithm", ALL)
def test_the_same_seed_gives_the_same_run(algorithm, critic):
    noise = {"action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))} if algorithm in CONTINUOUS else {}
    first, second = (make(algorithm, seed=5, critic=critic, **noise).learn(ENOUGH) for _ in range(2))
    assert same(snapshot(first), snapshot(second))
    assert episodes(first) == episodes(second)


@pytest.mark.parametrize("algorithm", ALL)
def test_another_seed_gives_another_run(algorithm):
    first, second = (make(algorithm, seed=seed).learn(ENOUGH) for seed in (1, 2))
    assert not same(snapshot(first)["critic_optimizer"], snapshot(second)["critic_optimizer"])


@pytest.mark.parametrize("algorithm", ALL)
def test_several_environments(algorithm):
    options = {"gradient_steps": -1} if algorithm in OFF_POLICY else {}
    runs = [make(algorithm, vectorised(algorithm, 3), **options).learn(66) for _ in range(2)]
    assert runs[0].num_timesteps == runs[1].num_timesteps >= 66
    assert runs[0].critic_optimizer.steps > 0
    assert same(snapshot(runs[0]), snapshot(runs[1]))


@pytest.mark.parametrize("algorithm", ALL)
def test_seeding_later(algorithm):
    runs = []
    for _ in range(2):
        model = make(algorithm, seed=0)
        model.set_random_seed(11)
        runs.append(snapshot(model.learn(ENOUGH)))
    assert same(*runs)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_without_a_seed_torchs_decides(algorithm):
    orders = []
    for _ in range(2):
        torch.manual_seed(23)
        orders.append(make(algorithm, seed=None)._critic_rng.permutation(50))
    assert np.array_equal(*orders)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_critic_takes_none_of_the_policys_random_numbers(algorithm):
    states = []
    for epochs in (0, 4):
        # One rollout: afterwards the value decides on the next advantages.
        make(algorithm, critic_epochs=epochs, critic_batch_size=4).learn(SETTINGS[algorithm]["n_steps"])
        states.append((torch.get_rng_state(), np.random.get_state()[1].copy()))  # noqa: NPY002 - upstream draws there
    assert torch.equal(states[0][0], states[1][0])
    assert np.array_equal(states[0][1], states[1][1])


@pytest.mark.parametrize("algorithm", ALL)
def test_looking_at_a_value_changes_nothing(algorithm):
    runs = []
    for looks in (0, 3):
        model = make(algorithm).learn(ENOUGH)
        observation = np.zeros((3, *model.observation_space.shape), np.float32)
        action = np.zeros((3, *model.action_space.shape), model.action_space.dtype)
        for _ in range(looks):
            model.predict_value(*((observation, action) if algorithm in OFF_POLICY else (observation,)))
        runs.append(snapshot(model.learn(ENOUGH, reset_num_timesteps=False)))
    assert same(*runs)


@pytest.mark.parametrize("algorithm", ALL)
def test_deterministic_predictions_repeat(algorithm):
    model = make(algorithm).learn(ENOUGH)
    observation = np.stack([model.observation_space.sample() for _ in range(20)])
    first, second = (model.predict(observation, deterministic=True)[0] for _ in range(2))
    assert np.array_equal(first, second)
