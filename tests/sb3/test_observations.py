"""Observations and actions of every kind upstream takes, MLP and CNN, and what sharing layers means."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_cases import (
    ALL,
    CONTINUOUS,
    DISCRETE,
    DQN,
    ENOUGH,
    OFF_POLICY,
    ON_POLICY,
    PPO,
    SMALL_CNN,
    TWINS,
    OneSpace,
    SmallCNN,
    actions,
    images,
    make,
    observations,
    value_arguments,
)
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, FakeImageEnv, IdentityEnv, SimpleMultiObsEnv
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

BOX = spaces.Box(-2.0, 3.0, (2,), np.float32)

SPACES = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (3, 2), np.float32),
    "double": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "integers": spaces.Box(-5, 5, (3,), np.int64),
}


def action_space(algorithm):
    return copy.deepcopy(BOX if algorithm in CONTINUOUS else spaces.Discrete(3))


def usable(model):
    """Check that the filter stepped, and that values can be asked for one state and for several."""
    assert model.critic_optimizer.steps > 0
    one, many = model.observation_space.sample(), observations(model, 4)
    chosen, _ = model.predict(many)
    assert chosen.shape == (4, *model.action_space.shape)
    single, _ = model.predict(one)
    assert single.shape == model.action_space.shape
    for given, count in ((one, 1), (many, 4)):
        value = model.predict_value(*value_arguments(model, given, count))
        assert value.mean.shape == value.stddev.shape == (count,)
        assert torch.isfinite(value.mean).all()
        assert (value.stddev > 0).all()


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("algorithm", ALL)
def test_observation_spaces(algorithm, name):
    env = OneSpace(copy.deepcopy(SPACES[name]), action_space(algorithm))
    usable(make(algorithm, env).learn(ENOUGH))


@pytest.mark.parametrize("name", ["multi-discrete", "multi-binary", "box", "discrete"])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_action_spaces(algorithm, name):
    env = OneSpace(copy.deepcopy(SPACES["box"]), copy.deepcopy(SPACES[name]))
    usable(make(algorithm, env).learn(ENOUGH))


@pytest.mark.parametrize("algorithm", DISCRETE)
def test_identity(algorithm):
    usable(make(algorithm, IdentityEnv(3)).learn(ENOUGH))


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_state_dependent_exploration(algorithm, squash):
    policy_kwargs = {"net_arch": [8], "squash_output": squash}
    model = make(algorithm, "Pendulum-v1", use_sde=True, sde_sample_freq=4, policy_kwargs=policy_kwargs)
    usable(model.learn(ENOUGH))
    assert "log_std" not in dict(model.value_function.named_parameters())
    assert np.isfinite(model.logger.name_to_value["train/entropy"])


@pytest.mark.parametrize("algorithm", ALL)
def test_images(algorithm):
    model = make(algorithm, images(algorithm), "CnnPolicy", policy_kwargs=SMALL_CNN).learn(ENOUGH)
    usable(model)
    if algorithm in TWINS:
        first, second = ({id(p) for p in each.observation.parameters.values()} for each in model.critic_optimizers)
        extractor = {id(p) for p in model.critic.features_extractor.parameters()}
        assert first == extractor | {id(p) for p in model.critic.qf0.parameters()}
        assert second == {id(p) for p in model.critic.qf1.parameters()}
    if algorithm in ON_POLICY:
        assert model.policy.pi_features_extractor is not model.policy.vf_features_extractor
        moved = {id(p) for p in model.critic_optimizer.observation.parameters.values()}
        assert moved >= {id(p) for p in model.policy.vf_features_extractor.parameters()}
        assert not moved & {id(p) for p in model.policy.pi_features_extractor.parameters()}


@pytest.mark.parametrize("algorithm", ALL)
def test_channels_last_and_first_give_one_value(algorithm):
    model = make(algorithm, images(algorithm), "CnnPolicy", policy_kwargs=SMALL_CNN)
    last = np.random.default_rng(0).integers(0, 256, (4, 36, 36, 1), np.uint8)
    action = actions(model, 4) if algorithm in OFF_POLICY else None
    first, second = (
        model.predict_value(*((given,) if action is None else (given, action)))
        for given in (last, last.transpose(0, 3, 1, 2))
    )
    assert torch.equal(first.mean, second.mean)


@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_the_default_network_for_images(algorithm):
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1)
    policy_kwargs = {"features_extractor_kwargs": {"features_dim": 16}}
    model = make(
        algorithm, env, "CnnPolicy", policy_kwargs=policy_kwargs, critic_kwargs={"covariance": "diagonal"}
    ).learn(40)
    assert model.critic_optimizer.steps > 0
    assert model.critic_optimizer.covariance.dim > 50_000


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_a_shared_extractor_is_refused(algorithm):
    policy_kwargs = {**SMALL_CNN, "share_features_extractor": True}
    with pytest.raises(ValueError, match=r"the critic shares \d+ parameters with the policy.*features_extractor"):
        make(algorithm, images(algorithm), "CnnPolicy", policy_kwargs=policy_kwargs)


@pytest.mark.parametrize("algorithm", CONTINUOUS)
def test_a_shared_extractor_is_refused_off_policy_too(algorithm):
    policy_kwargs = {**SMALL_CNN, "share_features_extractor": True}
    with pytest.raises(ValueError, match=r"the critic shares \d+ parameters with the policy"):
        make(algorithm, images(algorithm), "CnnPolicy", policy_kwargs=policy_kwargs)


@pytest.mark.parametrize("algorithm", [*ON_POLICY, *CONTINUOUS])
def test_sharing_an_extractor_without_parameters_is_fine(algorithm):
    model = make(algorithm, policy_kwargs={"net_arch": [8], "share_features_extractor": True}).learn(ENOUGH)
    assert model.critic_optimizer.steps > 0


class SharedTrunk(nn.Module):
    """One body for both heads, as the custom networks of upstream's documentation may have."""

    latent_dim_pi = latent_dim_vf = 8

    def __init__(self, features):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 8), nn.Tanh())

    def forward(self, features):
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features):
        return self.body(features)

    def forward_critic(self, features):
        return self.body(features)


class TrunkPolicy(PPO.policy_aliases["MlpPolicy"]):
    def _build_mlp_extractor(self):
        self.mlp_extractor = SharedTrunk(self.features_dim)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_a_shared_trunk_is_refused(algorithm):
    with pytest.raises(ValueError, match=r"the critic shares 2 parameters with the policy, 'mlp_extractor.body"):
        make(algorithm, policy=TrunkPolicy, policy_kwargs={})


@pytest.mark.parametrize("algorithm", ALL)
def test_different_networks_for_policy_and_value(algorithm):
    critic = "vf" if algorithm in ON_POLICY else "qf"
    arch = [6, 5] if algorithm is DQN else {"pi": [4], critic: [6, 5]}
    model = make(algorithm, policy_kwargs={"net_arch": arch}).learn(ENOUGH)
    assert [5] in [list(p.shape) for p in model.critic_optimizer.observation.parameters.values()]
    usable(model)


@pytest.mark.parametrize("algorithm", ALL)
def test_a_value_that_is_linear(algorithm):
    usable(make(algorithm, policy_kwargs={"net_arch": []}).learn(ENOUGH))


class Small(BaseFeaturesExtractor):
    """Of a dict with a picture and a vector: both, flat and squeezed."""

    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=8 + observation_space["vec"].shape[0])
        self.picture = SmallCNN(observation_space["img"])

    def forward(self, observations):
        return torch.cat([self.picture(observations["img"]), observations["vec"]], dim=1)


def dicts(algorithm):
    return SimpleMultiObsEnv(random_start=True, discrete_actions=algorithm not in CONTINUOUS)


@pytest.mark.parametrize("environments", [1, 2])
@pytest.mark.parametrize("algorithm", ALL)
def test_dicts(algorithm, environments):
    env = make_vec_env(lambda: dicts(algorithm), n_envs=environments)
    policy_kwargs = {"net_arch": [8], "features_extractor_class": Small}
    model = make(
        algorithm, env, "MultiInputPolicy", policy_kwargs=policy_kwargs, critic_kwargs={"covariance": "diagonal"}
    ).learn(ENOUGH)
    assert model.critic_optimizer.steps > 0
    observation = model.env.reset()
    chosen, _ = model.predict(observation)
    assert len(chosen) == environments
    value = model.predict_value(*value_arguments(model, observation, environments))
    assert value.stddev.shape == (environments,)
    single = {key: part[0] for key, part in observation.items()}
    assert model.predict_value(*value_arguments(model, single, 1)).mean.shape == (1,)


@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_hindsight(algorithm):
    env = BitFlippingEnv(n_bits=4, continuous=algorithm in CONTINUOUS)
    model = make(algorithm, env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer).learn(ENOUGH)
    assert model.critic_optimizer.steps > 0


class Normed(BaseFeaturesExtractor):
    """With a batch norm: in training mode one sample's features depend on the others."""

    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=4)
        self.layers = nn.Sequential(nn.Linear(observation_space.shape[0], 4), nn.BatchNorm1d(4), nn.Tanh())

    def forward(self, observations):
        return self.layers(observations)


@pytest.mark.parametrize("algorithm", ALL)
def test_batch_norm(algorithm):
    model = make(algorithm, policy_kwargs={"net_arch": [8], "features_extractor_class": Normed})
    usable(model.learn(ENOUGH))
    extractor = {**dict.fromkeys(CONTINUOUS, "critic.features_extractor"), DQN: "q_net.features_extractor"}
    norm = model.policy.get_submodule(extractor.get(algorithm, "vf_features_extractor")).layers[1]
    assert norm.num_batches_tracked > 0
    assert norm.running_mean.abs().max() > 0


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_pixels_that_are_scaled_already(algorithm):
    pixels = spaces.Box(0.0, 1.0, (1, 36, 36), np.float32)
    env = OneSpace(pixels, spaces.Discrete(3))
    usable(make(algorithm, env, "CnnPolicy", policy_kwargs={**SMALL_CNN, "normalize_images": False}).learn(ENOUGH))
