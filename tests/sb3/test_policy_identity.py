"""The policy's updates are upstream's with the value term removed, bit for bit."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_cases import (
    A2C,
    CONTINUOUS,
    DQN,
    IMAGE,
    ON_POLICY,
    PPO,
    SAC,
    SETTINGS,
    SMALL_CNN,
    TD3,
    TRPO,
    OneSpace,
    actor_weights,
    make,
    same,
)
from stable_baselines3.common.noise import NormalActionNoise

#: What takes the value term out of upstream.
WITHOUT_VALUE = {PPO: {"vf_coef": 0.0}, A2C: {"vf_coef": 0.0}, TRPO: {"n_critic_updates": 0}}

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")

# Upstream's TRPO takes the mean of the critic's losses, of which there are none here.
no_losses = pytest.mark.filterwarnings(
    "ignore:Mean of empty slice:RuntimeWarning", "ignore:invalid value encountered:RuntimeWarning"
)


def clip(algorithm, norm):
    return {} if algorithm is TRPO else {"max_grad_norm": norm, "ent_coef": 0.01}


@no_losses
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_four_rollouts_move_the_policy_as_upstream_does(algorithm, environment):
    steps = 4 * SETTINGS[algorithm]["n_steps"]
    options = {"env": environment, **clip(algorithm, 0.05)}
    theirs = make(algorithm, upstream=True, **options, **WITHOUT_VALUE[algorithm]).learn(steps)
    ours = make(algorithm, **options, critic_epochs=0)
    start = actor_weights(ours)
    ours.learn(steps)
    assert same(ours.policy.state_dict(), theirs.policy.state_dict())
    assert not same(start, actor_weights(ours))


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_the_clip_of_these_tests_clips(algorithm):
    clipped, free = (make(algorithm, "Pendulum-v1", **clip(algorithm, norm)).learn(32) for norm in (0.05, 1e6))
    assert not same(actor_weights(clipped), actor_weights(free))


@no_losses
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_within_a_rollout_the_filter_leaves_the_policy_alone(algorithm, environment):
    steps = SETTINGS[algorithm]["n_steps"]
    options = {"env": environment, **clip(algorithm, 0.05)}
    theirs = make(algorithm, upstream=True, **options, **WITHOUT_VALUE[algorithm]).learn(steps)
    ours = make(algorithm, **options).learn(steps)
    assert same(actor_weights(ours), actor_weights(theirs))
    assert ours.critic_optimizer.steps > 0
    assert not same(ours.policy.value_net.state_dict(), theirs.policy.value_net.state_dict())


@no_losses
@pytest.mark.filterwarnings("ignore:no effect on a Kalman critic")
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_weight_of_the_value_term_does_not_reach_the_policy(algorithm):
    steps = SETTINGS[algorithm]["n_steps"]
    weights = ({"n_critic_updates": 1}, {"n_critic_updates": 7}) if algorithm is TRPO else ({}, {"vf_coef": 100.0})
    first, second = (make(algorithm, **clip(algorithm, 0.05), **weight).learn(2 * steps) for weight in weights)
    assert same(first.policy.state_dict(), second.policy.state_dict())


@no_losses
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_images_and_a_separate_extractor(algorithm):
    steps = 2 * SETTINGS[algorithm]["n_steps"]
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def run(upstream, policy_kwargs, **options):
        env = OneSpace(copy.deepcopy(IMAGE), box)
        options = {**clip(algorithm, 0.05), **options}
        model = make(algorithm, env, "CnnPolicy", upstream, policy_kwargs=policy_kwargs, **options)
        return model.learn(steps)

    theirs = run(True, {**SMALL_CNN, "share_features_extractor": False}, **WITHOUT_VALUE[algorithm])
    ours = run(False, SMALL_CNN, critic_epochs=0)
    assert same(ours.policy.state_dict(), theirs.policy.state_dict())


@no_losses
def test_early_stopping_on_kl_stops_where_upstream_does():
    options = {"target_kl": 1e-4, "n_epochs": 8, "learning_rate": 0.01}
    theirs = make(PPO, upstream=True, vf_coef=0.0, **options).learn(48)
    ours = make(PPO, critic_epochs=0, **options).learn(48)
    assert same(ours.policy.state_dict(), theirs.policy.state_dict())
    assert ours._n_updates == theirs._n_updates < 3 * 8


IN_ROUNDS = {"gradient_steps": 3, "train_freq": (2, "step")}
CASES = [
    *((algorithm, options) for algorithm in CONTINUOUS for options in ({}, IN_ROUNDS, {"n_steps": 3})),
    (TD3, {"policy_delay": 3, "target_policy_noise": 1.0, "target_noise_clip": 0.3}),
    (SAC, {"ent_coef": 0.3}),
    (SAC, {**IN_ROUNDS, "target_update_interval": 2}),
    (SAC, {"use_sde": True, "sde_sample_freq": 4}),
]


@pytest.mark.parametrize(("algorithm", "options"), CASES)
def test_with_adam_it_is_upstreams(algorithm, options):
    def run(upstream, **ours):
        noise = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
        return make(algorithm, upstream=upstream, action_noise=noise, **options, **ours).learn(60)

    theirs, ours = run(True), run(False, critic="adam")
    assert same(ours.policy.state_dict(), theirs.policy.state_dict())
    assert same(ours.actor.optimizer.state_dict(), theirs.actor.optimizer.state_dict())
    states = [state for adam in ours.critic_optimizers for state in adam.state_dict()["state"].values()]
    assert same(states, list(theirs.critic.optimizer.state_dict()["state"].values()))
    assert ours._n_updates == theirs._n_updates > 0
    logged = ours.logger.name_to_value
    for tag in ("critic_loss", "actor_loss", *(("ent_coef",) if algorithm is SAC else ())):
        assert logged[f"train/{tag}"] == pytest.approx(theirs.logger.name_to_value[f"train/{tag}"], rel=1e-6)


def test_dqn_explores_and_samples_as_upstream_does():
    # Before the first update nothing but the exploration acts, and then the same batch is sampled.
    theirs, ours = (make(DQN, upstream=upstream, exploration_initial_eps=1.0).learn(40) for upstream in (True, False))
    assert np.array_equal(ours.replay_buffer.observations[:20], theirs.replay_buffer.observations[:20])
    assert np.array_equal(ours.replay_buffer.actions[:20], theirs.replay_buffer.actions[:20])
    assert ours._n_updates == theirs._n_updates > 0


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_critic_is_not_in_the_policys_optimizer(algorithm):
    model = make(algorithm)
    critic = {id(p) for p in model.value_function.parameters()}
    optimised = {id(p) for group in model.policy.optimizer.param_groups for p in group["params"]}
    assert critic
    assert not critic & optimised
    assert critic | optimised == {id(p) for p in model.policy.parameters()}


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_training_leaves_every_parameter_trainable(algorithm):
    model = make(algorithm).learn(32)
    assert all(parameter.requires_grad for parameter in model.policy.parameters())
    assert all(parameter.grad is None for parameter in model.value_function.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in model.policy.parameters())
