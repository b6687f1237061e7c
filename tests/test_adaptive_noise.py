"""Noise that knows more: the models against the quantities they stand for."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from cases import paper_filter
from torch import nn

import kova
from kova.noise import Batch

WIDTH = 5


def linear(noise: kova.Noise, **kwargs) -> kova.KOVA:
    critic = nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(critic.weight)
    return paper_filter(critic, evolution=kova.Static(), noise=noise, dtype=torch.float64, **kwargs)


def data(samples: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, WIDTH, dtype=torch.float64, generator=generator)
    truth = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
    labels = inputs @ truth + noise * torch.randn(samples, dtype=torch.float64, generator=generator)
    return inputs, labels, truth


@pytest.mark.parametrize("initial", [0.01, 1.0, 100.0])
def test_innovation_noise_finds_the_variance_of_the_labels(initial):
    inputs, labels, _ = data(6_000, 0.7)
    optimizer = linear(kova.InnovationNoise(initial=initial, floor=1e-6))
    for batch in torch.arange(6_000).split(20):
        optimizer.step(inputs[batch], labels[batch])
    assert optimizer.state_dict()["noise_memory"]["variance"] == pytest.approx(0.49, rel=0.15)


def test_innovation_noise_weighs_a_batch_by_what_came_before_it():
    inputs, labels, _ = data(40, 0.7)
    first, second = linear(kova.InnovationNoise(initial=2.0)), linear(kova.ConstantNoise(2.0))
    first.step(inputs[:20], labels[:20])
    second.step(inputs[:20], labels[:20])
    assert torch.equal(first.observation.module.weight, second.observation.module.weight)


def test_the_memory_is_part_of_the_checkpoint_and_of_the_transaction():
    inputs, labels, _ = data(60, 0.7)
    optimizer = linear(kova.InnovationNoise())
    optimizer.step(inputs[:20], labels[:20])
    before = optimizer.state_dict()["noise_memory"]
    with pytest.raises(ValueError, match="targets"):
        optimizer.step(inputs[20:40], torch.full((20,), math.nan, dtype=torch.float64))
    optimizer.step(inputs[20:40], labels[20:40], noise=1.0)
    assert optimizer.state_dict()["noise_memory"] == before != {}
    other = copy.deepcopy(optimizer)
    third = linear(kova.InnovationNoise())
    third.observation.module.load_state_dict(optimizer.observation.module.state_dict())
    third.load_state_dict(optimizer.state_dict())
    for each in (optimizer, other, third):
        each.step(inputs[40:], labels[40:])
    assert torch.equal(optimizer.observation.module.weight, other.observation.module.weight)
    assert torch.equal(optimizer.observation.module.weight, third.observation.module.weight)


def test_inverse_variance_adds_the_discounted_variance_of_the_bootstrap():
    inputs, labels, _ = data(8, 0.1)
    spread = torch.linspace(0.0, 3.0, 8, dtype=torch.float64)
    named, given = linear(kova.InverseVariance(0.5, gamma=0.9)), linear(kova.ConstantNoise(1.0))
    named.step(inputs, labels, next_variance=spread)
    given.step(inputs, labels, noise=0.5 + 0.81 * spread)
    assert torch.equal(named.observation.module.weight, given.observation.module.weight)
    with pytest.raises(ValueError, match="next_variance"):
        named.step(inputs, labels)
    with pytest.raises(ValueError, match=r"next_variance must be >= 0, 1 of 8"):
        named.step(inputs, labels, next_variance=spread - 0.1)
    with pytest.raises(ValueError, match="next_variance has 3 entries"):
        named.step(inputs, labels, next_variance=spread[:3])


@pytest.mark.parametrize("inner", [kova.BatchSize(), kova.ConstantNoise(0.3)])
def test_robust_with_infinite_threshold_is_the_model_itself(inner):
    inputs, labels, _ = data(20, 0.5)
    plain, infinite, huge = linear(inner), linear(kova.Robust(inner, math.inf)), linear(kova.Robust(inner, 1e9))
    for each in (plain, infinite, huge):
        each.step(inputs, labels)
    assert torch.equal(plain.observation.module.weight, infinite.observation.module.weight)
    torch.testing.assert_close(plain.observation.module.weight, huge.observation.module.weight, rtol=1e-12, atol=0.0)


def test_robust_is_the_inverse_multiquadric_weight():
    innovation = torch.tensor([0.0, 1.0, -10.0])
    weighted = kova.Robust(kova.ConstantNoise(2.0), c=1.5).covariance(Batch(innovation))
    w_squared = 1.0 / (1.0 + innovation.square() / (2.0 * 1.5**2))
    torch.testing.assert_close(weighted, 2.0 / w_squared)

    class Correlated(kova.Noise):
        def covariance(self, batch):
            return torch.tensor([[2.0, 0.5, 0.0], [0.5, 2.0, 0.5], [0.0, 0.5, 2.0]])

    matrix = kova.Robust(Correlated(), c=1.5).covariance(Batch(innovation))
    torch.testing.assert_close(matrix.diagonal(), 2.0 / w_squared)
    torch.testing.assert_close(matrix[0, 1], 0.5 / w_squared[:2].prod().sqrt())


def test_one_percent_of_outliers_hardly_moves_a_robust_filter():
    ratios = {"robust": [], "plain": []}
    for seed in range(5):
        inputs, labels, truth = data(4_000, 1.0, seed)
        outliers = torch.rand(4_000, generator=torch.Generator().manual_seed(seed)) < 0.01
        dirty = torch.where(outliers, 50.0 * labels, labels)
        for name, noise in (("plain", kova.ConstantNoise(1.0)), ("robust", kova.Robust(kova.ConstantNoise(1.0), 2.0))):
            errors = []
            for targets in (labels, dirty):
                optimizer = linear(noise, prior_variance=10.0)
                for batch in torch.arange(4_000).split(20):
                    optimizer.step(inputs[batch], targets[batch])
                errors.append((optimizer.observation.module.weight[0] - truth).norm().item())
            ratios[name].append((errors[1], errors[0]))
    grown = {
        name: sum(dirty for dirty, _ in pairs) / sum(clean for _, clean in pairs) for name, pairs in ratios.items()
    }
    assert grown["robust"] < 1.3
    assert grown["plain"] > 2.0 * grown["robust"]


def test_robust_keeps_outliers_out_of_the_estimated_noise():
    inputs, labels, _ = data(6_000, 0.7)
    labels[::50] += 500.0
    optimizer = linear(kova.Robust(kova.InnovationNoise(initial=1.0), c=2.0))
    for batch in torch.arange(6_000).split(20):
        optimizer.step(inputs[batch], labels[batch])
    assert optimizer.state_dict()["noise_memory"]["variance"] < 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kova.InnovationNoise(initial=0.0), "initial"),
        (lambda: kova.InnovationNoise(rate=2.0), "rate"),
        (lambda: kova.InverseVariance(-1.0), "variance"),
        (lambda: kova.InverseVariance(1.0, gamma=1.5), "gamma"),
        (lambda: kova.Robust(kova.BatchSize(), c=0.0), "c must"),
        (lambda: kova.Robust(kova.BatchSize(), c=math.nan), "c must"),
    ],
)
def test_a_value_out_of_range_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_robust_wraps_a_model():
    with pytest.raises(TypeError, match="model"):
        kova.Robust(3.0)
    assert repr(kova.Robust(kova.BatchSize())) == "Robust(model=BatchSize(scale=1.0), c=3.0)"
