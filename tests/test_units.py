"""Units: labels c·y + b give values c·V + b, and nothing else changes."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from cases import batch, mlp, paper_filter, relative, same_bits, snapshot, theta
from reference import Algorithm1
from torch import nn

import kova
from kova.covariance.scales import Scales

STRUCTURES = ["full", "layer", "neuron", "block:20", "diagonal", "last_layer", "low_rank:20"]
EVOLUTIONS = [
    kova.Static(),
    kova.FadingMemory(0.05),
    kova.PriorRelaxation(0.02),
    kova.DirectionalForgetting(0.05),
    kova.RandomWalk(0.001),
    kova.Memoryless(0.1),
]
PRIORS = [kova.Isotropic(), kova.FanIn(2.0), kova.ByName({"0.weight": 0.3, "4.bias": 5.0})]


def learned(structure, evolution, c=1.0, b=0.0, steps=200, dtype=torch.float64, noise=None, prior=None):
    critic = mlp(dtype=dtype)
    optimizer = kova.KOVA(
        critic,
        covariance=structure if evolution.keeps_memory else "auto",
        evolution=evolution,
        noise=noise or kova.BatchSize(),
        prior=prior or kova.FanIn(),
        units=kova.LabelUnits(memory=20),
        dtype=dtype,
    )
    for step in range(steps):
        u, y = batch(12, seed=step, dtype=dtype)
        # The labels grow, so that the units have to follow.
        optimizer.step(u, c * (1.0 + 0.02 * step) * y + b)
    return optimizer


@pytest.mark.parametrize("evolution", EVOLUTIONS, ids=repr)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_labels_in_other_units_give_the_same_values_in_those_units(structure, evolution):
    if structure != "full" and not evolution.keeps_memory:
        pytest.skip("no structure")
    u, _ = batch(30, seed=999)
    plain = learned(structure, evolution).predict(u)
    assert float(plain.mean.std()) > 0.1
    for c, b in ((1e-4, 0.0), (1e4, 0.0), (3.0, 1000.0), (1e-4, -5.0)):
        scaled = learned(structure, evolution, c, b).predict(u)
        # Near a large offset the labels themselves have lost these digits.
        lost = 1e-15 * abs(b) / c
        assert relative((scaled.mean - b) / c, plain.mean) < 1e-8 + 1e3 * lost
        assert relative(scaled.stddev / c, plain.stddev) < 1e-8 + 1e3 * lost


@pytest.mark.parametrize("evolution", EVOLUTIONS, ids=repr)
def test_so_does_float32(evolution):
    u, _ = batch(30, seed=999, dtype=torch.float32)
    plain = learned("full", evolution, steps=60, dtype=torch.float32).predict(u)
    for c in (1e-4, 1e4):
        scaled = learned("full", evolution, c, steps=60, dtype=torch.float32).predict(u)
        assert relative(scaled.mean / c, plain.mean) < 1e-3
        assert relative(scaled.stddev / c, plain.stddev) < 1e-3


@pytest.mark.parametrize(
    "noise", [kova.InnovationNoise(), kova.Robust(kova.ConstantNoise(0.5)), kova.BatchSize(0.1)], ids=repr
)
def test_noise_models_speak_of_labels_of_unit_deviation(noise):
    u, _ = batch(30, seed=999)
    plain = learned("full", kova.FadingMemory(0.05), noise=noise).predict(u)
    scaled = learned("full", kova.FadingMemory(0.05), 1e4, noise=noise).predict(u)
    assert relative(scaled.mean / 1e4, plain.mean) < 1e-8


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_with_units_it_is_literal_algorithm_1_with_their_prior_and_noise(prior):
    u, y = batch(16)
    y = 50.0 + 7.0 * y
    critic = mlp()
    optimizer = kova.KOVA(
        critic,
        covariance="full",
        evolution=kova.Static(),
        prior=prior,
        noise=kova.BatchSize(),
        units=kova.LabelUnits(tolerance=1e6),
        dtype=torch.float64,
    )
    s, mean = float(y.std(correction=0)), float(y.mean())
    start = mlp()
    with torch.no_grad():
        start[4].weight.mul_(s)
        start[4].bias.mul_(s).add_(mean)
    literal = Algorithm1(start, lambda P, J, p0: P)
    variances = prior.variances(kova.covariance.Layout.of(critic))
    scales = {name: variances[name] * (s**2 if name.startswith("4.") else 1.0) for name, _ in critic.named_parameters()}
    diagonal = [torch.full((p.numel(),), scales[name], dtype=p.dtype) for name, p in critic.named_parameters()]
    literal.P = torch.diag(torch.cat(diagonal))
    for step in range(20):
        u, y = batch(16, seed=step)
        y = 50.0 + 7.0 * y
        optimizer.step(u, y)
        literal.step(u, y, 16 * s**2 * torch.eye(16, dtype=torch.float64), 1.0)
    assert relative(theta(critic), literal.theta) < 1e-8
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-8


@pytest.mark.parametrize("structure", [name for name in STRUCTURES if not name.startswith("low")])
def test_a_change_of_units_moves_neither_weights_nor_covariance(structure):
    optimizer = learned(structure, kova.FadingMemory(0.05), steps=30)
    P, draws = optimizer.covariance.dense(), theta(optimizer.observation.module)
    scales = optimizer.covariance.scales
    optimizer.covariance.rescale(scales.times([7.0 if count == 5 else 0.5 for count in scales.counts]))()
    assert relative(optimizer.covariance.dense(), P) < 1e-12
    assert relative(optimizer.covariance.diagonal(), P.diagonal()) < 1e-12
    assert torch.equal(theta(optimizer.observation.module), draws)


def test_the_value_is_the_critic_itself():
    optimizer = learned("full", kova.FadingMemory(0.05), 1000.0, 1e6)
    u, _ = batch(30, seed=999)
    assert torch.equal(optimizer.observation.module(u).squeeze(1).detach(), optimizer.predict(u).mean)
    assert float(optimizer.predict(u).mean.mean()) == pytest.approx(1e6, rel=0.1)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_first_step_that_fails_changes_nothing(structure):
    class Failing(kova.Noise):
        def covariance(self, batch):
            raise RuntimeError("not now")

    critic = mlp()
    optimizer = kova.KOVA(critic, covariance=structure, noise=Failing(), units=kova.LabelUnits(), dtype=torch.float64)
    before, weights, state = snapshot(optimizer), theta(critic), optimizer.state_dict()["units"]
    with pytest.raises(RuntimeError, match="not now"):
        optimizer.step(*batch())
    assert same_bits(before, snapshot(optimizer))
    assert torch.equal(weights, theta(critic))
    assert optimizer.state_dict()["units"] == state


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_snapshot_continues_bit_for_bit(structure):
    optimizer = learned(structure, kova.PriorRelaxation(0.02), 100.0, 7.0, steps=30)
    critic = copy.deepcopy(optimizer.observation.module)
    other = kova.KOVA(
        critic,
        covariance=structure,
        evolution=kova.PriorRelaxation(0.02),
        noise=kova.BatchSize(),
        prior=kova.FanIn(),
        units=kova.LabelUnits(memory=20),
        dtype=torch.float64,
    )
    other.load_state_dict(optimizer.state_dict())
    for step in range(30):
        for one in (optimizer, other):
            u, y = batch(12, seed=step)
            one.step(u, 100.0 * (1.0 + step) * y)
    assert same_bits(snapshot(optimizer), snapshot(other))


def test_a_filter_that_was_saved_without_units_goes_on_without():
    saved = paper_filter(mlp(), dtype=torch.float64)
    saved.step(*batch())
    fresh = kova.KOVA(mlp(), dtype=torch.float64)
    fresh.observation.module.load_state_dict(saved.observation.module.state_dict())
    with pytest.warns(UserWarning, match="without units"):
        fresh.load_state_dict(saved.state_dict())
    for one in (saved, fresh):
        one.step(*batch(seed=3))
    assert same_bits(snapshot(saved), snapshot(fresh))


def test_a_critic_without_an_output_layer_is_told_what_to_do():
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Softplus()).double()
    optimizer = kova.KOVA(critic, units=kova.LabelUnits(), dtype=torch.float64)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"no output layer .* units=kova\.RawUnits\(\)"):
        optimizer.step(*batch())
    assert same_bits(before, snapshot(optimizer))


def test_an_output_per_action_is_an_output_layer():
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    def chosen(module, inputs):
        states, actions = inputs
        return module(states).gather(1, actions)

    optimizer = kova.KOVA(critic, chosen, units=kova.LabelUnits(), dtype=torch.float64)
    for step in range(100):
        u, _ = batch(32, seed=step)
        actions = (u[:, :1] > 0).long()
        optimizer.step((u, actions), 1e5 + 1e4 * (u[:, 1] + actions.squeeze(1)))
    value = optimizer.predict((u, actions)).mean
    assert float((value - (1e5 + 1e4 * (u[:, 1] + actions.squeeze(1)))).abs().mean()) < 2e3


def test_an_advantage_has_a_scale_and_no_mean():
    """Its average over actions is taken out inside h, so that a number added to the bias adds nothing."""
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    def advantage(module, inputs):
        scores = module(inputs)
        return scores[:, 0] - scores.mean(1)

    found = []
    for c in (1.0, 1e5):
        optimizer = kova.KOVA(copy.deepcopy(critic), advantage, dtype=torch.float64)
        for step in range(20):
            u, y = batch(32, seed=step)
            optimizer.step(u, c * y)
        assert optimizer.state_dict()["units"]["mean"] == 0.0
        found.append(optimizer.predict(u).mean / c)
    assert relative(found[1], found[0]) < 1e-8


def test_an_output_layer_without_a_bias_has_a_scale_only():
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1, bias=False)).double()
    optimizer = kova.KOVA(critic, units=kova.LabelUnits(), dtype=torch.float64)
    u, y = batch(30)
    optimizer.step(u, 1e3 * y)
    state = optimizer.state_dict()["units"]
    assert state["mean"] == 0.0
    assert state["scale"] == pytest.approx(float((1e3 * y).square().mean().sqrt()))


@pytest.mark.parametrize("first", [[1.0], [1.0, 1.0], [0.0, 1.0]], ids=str)
def test_equal_labels_tell_their_size_and_no_more(first):
    """A reward of 1 a step gives equal first labels; a task may pay nothing for a long time."""
    found = []
    for c in (1e-3, 1.0, 1e6):
        critic = mlp()
        optimizer = kova.KOVA(critic, covariance="full", dtype=torch.float64)
        for step, value in enumerate(first):
            u, _ = batch(12, seed=step)
            optimizer.step(u, torch.full((12,), c * value, dtype=torch.float64))
            assert not optimizer._assumptions.state.known
        for step in range(20):
            u, y = batch(12, seed=50 + step)
            optimizer.step(u, c * (1.0 + y))
        assert optimizer._assumptions.state.known
        found.append(optimizer.predict(u).mean / c)
    for other in found[1:]:
        assert relative(other, found[0]) < 1e-6
    y = 1.0 + batch(12, seed=69)[1]
    assert float((found[0] - y).square().mean()) < 0.7 * float(y.var())


def test_outliers_move_the_units_slowly():
    optimizer = learned("diagonal", kova.FadingMemory(0.05), steps=20)
    before = optimizer.state_dict()["units"]["scale"]
    u, y = batch(12)
    y[0] = 1e9
    optimizer.step(u, y)
    assert optimizer.state_dict()["units"]["scale"] < 2.0 * before


def test_under_the_fan_in_prior_a_value_varies_as_much_at_every_width():
    u = torch.randn(50, 17, generator=torch.Generator().manual_seed(0))
    spreads = {}
    for prior in (kova.FanIn(), kova.Isotropic()):
        found = []
        for width in (16, 64, 256):
            torch.manual_seed(0)
            critic = nn.Sequential(
                nn.Linear(17, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
            )
            optimizer = kova.KOVA(critic, covariance="diagonal", prior=prior)
            found.append(float(optimizer.predict(u).variance.mean()))
        spreads[type(prior).__name__] = max(found) / min(found)
    assert spreads["FanIn"] < 2.0
    assert spreads["Isotropic"] > 5.0


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: kova.Isotropic(0.0), ValueError, "variance must be finite and > 0"),
        (lambda: kova.FanIn(math.nan), ValueError, "variance"),
        (lambda: kova.ByName({"0.weight": -1.0}), ValueError, r"named\['0.weight'\]"),
        (lambda: kova.ByName([1.0]), TypeError, "mapping"),
        (lambda: kova.ByName({}, others=1.0), TypeError, "others"),
        (lambda: kova.KOVA(mlp(), prior=kova.ByName({"0.weigth": 1.0})), ValueError, "did you mean '0.weight'"),
        (lambda: kova.KOVA(mlp(), prior=1.0), TypeError, "prior must be a kova.Prior"),
        (lambda: kova.KOVA(mlp(), prior_variance=1.0, prior=kova.FanIn()), ValueError, "give one of them"),
        (lambda: kova.KOVA(mlp(), units=True), TypeError, "units must be a kova.Units"),
        (lambda: kova.LabelUnits(memory=0), ValueError, "memory"),
        (lambda: kova.LabelUnits(tolerance=0.0), ValueError, "tolerance"),
    ],
)
def test_wrong_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_scales_of_a_prior():
    layout = kova.covariance.Layout.of(nn.Linear(4, 1))
    scales = Scales.of_prior(layout, kova.FanIn(4.0).variances(layout), prior_variance=1.0)
    assert scales.values == (1.0, 2.0)
