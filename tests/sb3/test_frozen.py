"""Frozen parameters stay as they are, and every other parameter of the value is trained, wherever it is."""

import copy

import pytest
import torch
from sb3_cases import ALL, CONTINUOUS, DQN, ENOUGH, ON_POLICY, PPO, TRPO, make, same
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

import kova

pytestmark = pytest.mark.filterwarnings("ignore:the output layer of the critic is frozen")

SET_ANEW = "frozen or freed after its optimizer was made"


class Tokened(BaseFeaturesExtractor):
    """A frozen backbone, a head, and parameters of its own directly on the module, one of them unused."""

    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=4)
        self.token = nn.Parameter(torch.zeros(4))
        self.unused = nn.Parameter(torch.zeros(3))
        self.backbone = nn.Sequential(nn.Linear(observation_space.shape[0], 4), nn.Tanh()).requires_grad_(False)
        self.head = nn.Linear(4, 4)

    def forward(self, observations):
        return torch.tanh(self.head(self.backbone(observations) + self.token))


class Spare(BaseFeaturesExtractor):
    """Parameters directly on the module, one of them unused."""

    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=observation_space.shape[0])
        self.token = nn.Parameter(torch.zeros(self.features_dim))
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, observations):
        return torch.tanh(observations + self.token)


class Biased(BaseFeaturesExtractor):
    """A layer whose weight is frozen and whose bias is free."""

    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=4)
        self.layer = nn.Linear(observation_space.shape[0], 4)
        self.layer.weight.requires_grad_(False)

    def forward(self, observations):
        return torch.tanh(self.layer(observations))


class Tied(BaseFeaturesExtractor):
    """Two layers with one weight and a bias each."""

    def __init__(self, observation_space):
        size = observation_space.shape[0]
        super().__init__(observation_space, features_dim=size)
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)
        self.second.weight = self.first.weight

    def forward(self, observations):
        return self.second(torch.tanh(self.first(observations)))


class Shifted(ActorCriticPolicy):
    """A policy with a parameter of the value directly on it."""

    def _build(self, lr_schedule):
        self.shift = nn.Parameter(torch.zeros(1))
        super()._build(lr_schedule)

    def predict_values(self, obs):
        return super().predict_values(obs) + self.shift


VALUE_NET = ["mlp_extractor_value_net.0.weight", "mlp_extractor_value_net.0.bias", "value_net.weight", "value_net.bias"]
OWN = {
    Spare: ["vf_features_extractor.token"],
    Tokened: ["vf_features_extractor.token", "vf_features_extractor_head.weight", "vf_features_extractor_head.bias"],
    Biased: ["vf_features_extractor_layer.bias"],
    Tied: [
        "vf_features_extractor.first.weight",
        "vf_features_extractor.first.bias",
        "vf_features_extractor.second.bias",
    ],
}


#: sb3-contrib's TRPO cannot have frozen parameters outside the value's own networks.
CASES = [(a, e) for a in ON_POLICY for e in OWN if a is not TRPO or e in (Spare, Tied)]
FREEZABLE = [algorithm for algorithm in ON_POLICY if algorithm is not TRPO]


def optimised(model):
    return list(model.critic_optimizer.observation.parameters)


def extracted(algorithm, extractor, **kwargs):
    return make(algorithm, policy_kwargs={"net_arch": [8], "features_extractor_class": extractor}, **kwargs)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_names_are_those_of_010(algorithm):
    assert optimised(make(algorithm)) == VALUE_NET


@pytest.mark.parametrize("covariance", ["full", "layer", "neuron", "diagonal", "block:7"])
@pytest.mark.parametrize(("algorithm", "extractor"), CASES)
def test_exactly_the_values_own_parameters_are_trained(algorithm, extractor, covariance):
    model = extracted(algorithm, extractor, critic_kwargs={"covariance": covariance})
    assert optimised(model) == OWN[extractor] + VALUE_NET
    before = copy.deepcopy(model.policy.vf_features_extractor.state_dict())
    model.learn(ENOUGH)
    after = model.policy.vf_features_extractor.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    trained = {name for name, p in model.policy.vf_features_extractor.named_parameters(remove_duplicate=False)}
    assert moved == {name for name in trained if not name.startswith(("backbone", "unused", "layer.weight"))}


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_a_parameter_of_the_policy_itself(algorithm):
    model = make(algorithm, policy=Shifted)
    assert optimised(model) == ["shift", *VALUE_NET]
    model.learn(ENOUGH)
    assert model.policy.shift != 0


@pytest.mark.parametrize("extractor", OWN)
def test_a_parameter_that_stands_alone_has_autograds_derivative(extractor):
    model = extracted(PPO, extractor)
    observation = model.critic_optimizer.observation
    inputs = torch.randn(5, 4)
    rows = observation.linearise(inputs, 5, torch.float32).transposed().T
    for value, row in zip(model.policy.predict_values(inputs).flatten(), rows, strict=True):
        expected = torch.autograd.grad(value, list(observation.parameters.values()), retain_graph=True)
        torch.testing.assert_close(row, torch.cat([part.flatten() for part in expected]))


@pytest.mark.parametrize(("algorithm", "extractor"), CASES)
def test_such_models_are_saved_and_loaded(algorithm, extractor, tmp_path):
    model = extracted(algorithm, extractor).learn(ENOUGH)
    model.save(tmp_path / "model")
    assert same(algorithm.load(tmp_path / "model").get_parameters(), model.get_parameters())


def a_layer(model):
    """Return a layer of the critic."""
    if isinstance(model, CONTINUOUS):
        return model.critic.qf0[0]
    return model.q_net.q_net[0] if isinstance(model, DQN) else model.policy.value_net


def the_critic(model):
    if isinstance(model, CONTINUOUS):
        return model.critic
    return model.q_net if isinstance(model, DQN) else model.value_function


@pytest.mark.parametrize("critic", ["kova", "adam"])
@pytest.mark.parametrize("algorithm", ALL)
def test_a_layer_that_is_frozen_later_stays_as_it_is(algorithm, critic):
    model = make(algorithm, critic=critic)
    layer = a_layer(model).requires_grad_(False)
    before, whole = copy.deepcopy(layer.state_dict()), copy.deepcopy(the_critic(model).state_dict())
    if critic == "kova" or algorithm in ON_POLICY:
        with pytest.warns(UserWarning, match=SET_ANEW):
            model.learn(ENOUGH)
    else:
        model.learn(ENOUGH)
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert same(layer.state_dict(), before)
    assert not same(the_critic(model).state_dict(), whole)
    # Once is enough.
    model.learn(ENOUGH)


@pytest.mark.parametrize("algorithm", FREEZABLE)
def test_freezing_the_actor_leaves_the_filter_alone(algorithm):
    model = make(algorithm).learn(ENOUGH)
    kalman, steps = model.critic_optimizer, model.critic_optimizer.steps
    model.policy.mlp_extractor.policy_net.requires_grad_(False)
    model.learn(ENOUGH)
    assert model.critic_optimizer is kalman
    assert kalman.steps > steps


@pytest.mark.parametrize("algorithm", FREEZABLE)
def test_a_layer_that_is_freed_later_is_trained(algorithm):
    model = extracted(algorithm, Biased).learn(ENOUGH)
    layer = model.policy.vf_features_extractor.layer
    before = layer.weight.detach().clone()
    layer.weight.requires_grad_(True)
    with pytest.warns(UserWarning, match=SET_ANEW):
        model.learn(ENOUGH)
    assert not torch.equal(layer.weight, before)
    optimised = {id(p) for group in model.policy.optimizer.param_groups for p in group["params"]}
    assert id(layer.weight) not in optimised


def test_the_value_of_a_frozen_critic_can_be_asked_for():
    model = make(PPO).learn(ENOUGH)
    model.policy.value_net.requires_grad_(False)
    with pytest.warns(UserWarning, match=SET_ANEW):
        value = model.predict_value(model.observation_space.sample())
    assert value.stddev > 0


@pytest.mark.parametrize("algorithm", ALL)
def test_a_filter_over_a_partly_frozen_critic_is_restored(algorithm, tmp_path):
    model, again = make(algorithm), make(algorithm, seed=3)
    for one in (model, again):
        a_layer(one).requires_grad_(False)
    with pytest.warns(UserWarning, match=SET_ANEW):
        model.learn(ENOUGH).save(tmp_path / "model")
    with pytest.raises(ValueError, match="belongs to a critic with"):
        algorithm.load(tmp_path / "model")
    with pytest.warns(UserWarning, match=SET_ANEW):
        again.set_parameters(tmp_path / "model")
    assert same(again.get_parameters(), model.get_parameters())


@pytest.mark.filterwarnings("default:the output layer of the critic is frozen")
@pytest.mark.filterwarnings("ignore:parameters of the critic were frozen")
def test_a_frozen_output_layer_leaves_the_units_to_the_labels():
    model = make(PPO)
    model.policy.value_net.requires_grad_(False)
    with pytest.warns(UserWarning, match="output layer of the critic is frozen") as seen:
        model.learn(ENOUGH)
    assert sum("output layer of the critic is frozen" in str(warning.message) for warning in seen) == 1
    assert model.critic_optimizer.units == kova.RawUnits()
