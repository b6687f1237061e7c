"""Evolution and noise models: small immutable values, and a user's own in a few lines."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch
from cases import batch, mlp, paper_filter, relative, theta
from reference import Algorithm1

import kova

VALUES = [
    kova.Static(),
    kova.FadingMemory(0.1),
    kova.FadingMemory(eta=0.1, max_variance=3.0),
    kova.PriorRelaxation(0.01),
    kova.DirectionalForgetting(0.1),
    kova.RandomWalk(1e-3),
    kova.Memoryless(0.1),
    kova.BatchSize(),
    kova.MaxRatio(2.0, orientation="code"),
    kova.ConstantNoise(0.5),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_model_is_an_immutable_value(value):
    assert value == copy.deepcopy(value) == pickle.loads(pickle.dumps(value))
    assert hash(value) == hash(copy.deepcopy(value))
    assert eval(repr(value), vars(kova)) == value
    rebuilt = type(value)(**dataclasses.asdict(value))
    assert rebuilt == value
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, 0.5)


def test_the_same_model_can_serve_two_optimizers():
    evolution = kova.FadingMemory(0.1)
    first, second = (paper_filter(mlp(), evolution=evolution) for _ in range(2))
    first.step(*batch())
    assert torch.equal(second.covariance.diagonal(), torch.ones(56))


@dataclasses.dataclass(frozen=True)
class Seasons(kova.Evolution):
    """An own evolution model: a little drift everywhere and a little pull to the prior."""

    drift: float
    pull: float

    def predict(self, P):
        return P.shifted(self.drift).blended(self.pull)


@dataclasses.dataclass(frozen=True)
class Huber(kova.Noise):
    """An own noise model: beyond the threshold a sample pulls with constant force."""

    threshold: float

    def covariance(self, batch):
        return (batch.innovation.abs() / self.threshold).clamp(min=1.0)


@dataclasses.dataclass(frozen=True)
class Correlated(kova.Noise):
    """An own noise model with a full matrix: neighbours in the batch share half of their noise."""

    def covariance(self, batch):
        place = torch.arange(batch.size, dtype=batch.innovation.dtype)
        return 0.5 ** (place[:, None] - place[None, :]).abs()


def test_an_own_evolution_model():
    critic = mlp()
    optimizer = paper_filter(critic, evolution=Seasons(0.01, 0.1), dtype=torch.float64)

    def rule(P, J, p0):
        return 0.9 * (P + 0.01 * torch.eye(len(P), dtype=P.dtype)) + 0.1 * torch.eye(len(P), dtype=P.dtype)

    literal = Algorithm1(mlp(), rule)
    for step in range(20):
        u, y = batch(6, seed=step)
        optimizer.step(u, y)
        literal.step(u, y, 6 * torch.eye(6, dtype=torch.float64), 1.0)
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-10
    assert relative(theta(critic), literal.theta) < 1e-10


@pytest.mark.parametrize("model", [Huber(0.5), Correlated()], ids=repr)
def test_an_own_noise_model(model):
    critic = mlp()
    optimizer = paper_filter(critic, evolution=kova.Static(), noise=model, dtype=torch.float64)
    literal = Algorithm1(mlp(), lambda P, J, p0: P)
    for step in range(10):
        u, y = batch(6, seed=step)
        delta = y - literal.h(literal.theta, u)
        noise = model.covariance(kova.noise.Batch(delta))
        literal.step(u, y, noise if noise.dim() == 2 else torch.diag(noise), 1.0)
        optimizer.step(u, y)
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-9
    assert relative(theta(critic), literal.theta) < 1e-9


def test_max_ratio_as_printed_and_as_coded():
    ratio = torch.tensor([0.5, 1.0, 2.0, 0.0])
    sample = kova.noise.Batch(torch.zeros(4), ratio)
    printed = kova.MaxRatio(eps=1e-3).covariance(sample)
    coded = kova.MaxRatio(eps=1e-3, orientation="code").covariance(sample)
    torch.testing.assert_close(printed, 4 * torch.tensor([1 / 0.501, 1.0, 1.0, 1000.0]))
    torch.testing.assert_close(coded, 4 * torch.tensor([1.0, 1.0, 1 / 0.501, 1.0]))


def test_a_noise_model_says_what_it_needs():
    assert kova.BatchSize().needs == kova.InnovationNoise().needs == Huber(1.0).needs == frozenset()
    assert kova.MaxRatio().needs == kova.Robust(kova.MaxRatio()).needs == {"ratio"}
    assert kova.InverseVariance().needs == kova.Robust(kova.InverseVariance()).needs == {"next_variance"}


@pytest.mark.parametrize("model", [kova.MaxRatio(), kova.InverseVariance()], ids=repr)
def test_what_a_model_needs_is_what_its_step_asks_for(model):
    (need,) = model.needs
    optimizer = paper_filter(mlp(), noise=model)
    with pytest.raises(ValueError, match=f"{type(model).__name__} needs {need}"):
        optimizer.step(*batch(6))
    optimizer.step(*batch(6), **{need: torch.ones(6)})
    assert optimizer.steps == 1


def test_batch_size_keeps_the_weight_of_a_batch():
    assert kova.BatchSize(2.0).covariance(kova.noise.Batch(torch.zeros(7))) == 14.0
