"""A filter is never stuck: raw observations, labels without noise and float32 do not end it."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import kova

EVOLUTIONS = [
    kova.Static(),
    kova.FadingMemory(0.01),
    kova.PriorRelaxation(0.01),
    kova.DirectionalForgetting(0.01),
    kova.RandomWalk(1e-4),
]
STRUCTURES = ["full", "layer", "neuron", "block:100", "diagonal", "low_rank:16"]


def linear() -> nn.Module:
    return nn.Linear(8, 1)


def relu() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


def fitted(critic: nn.Module, optimizer: kova.KOVA, scale: float, steps: int) -> tuple[float, float]:
    """Fit labels in [-3, 3] from inputs of a scale; return explained variance at the end and the largest inflation."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(8, generator=generator)
    inflations, unexplained = [], []
    for _ in range(steps):
        x = torch.randn(64, 8, generator=generator)
        y = torch.tanh(x @ weights) + 0.5 * x[:, 0] + 0.1 * torch.randn(64, generator=generator)
        with torch.no_grad():
            unexplained.append(float((y - critic(scale * x).squeeze(1)).var() / y.var()))
        inflations.append(float(optimizer.step(scale * x, y).inflation))
    return 1.0 - sum(unexplained[-10:]) / 10, max(inflations)


@pytest.mark.parametrize("evolution", EVOLUTIONS, ids=repr)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    ("critic", "scale", "noise", "steps", "wanted"),
    [
        (linear, 30.0, kova.ConstantNoise(0.01), 40, 0.88),
        (linear, 1e5, kova.ConstantNoise(0.01), 40, 0.88),
        (linear, 1e5, kova.BatchSize(), 40, 0.88),
        (relu, 1e3, kova.BatchSize(), 60, 0.6),
    ],
    ids=["linear 30", "linear 1e5", "linear 1e5, batch-size", "relu 1e3"],
)
def test_raw_observations_simply_work(critic, scale, noise, steps, wanted, structure, evolution):
    torch.manual_seed(0)
    module = critic()
    optimizer = kova.KOVA(module, covariance=structure, evolution=evolution, noise=noise)
    explained, _ = fitted(module, optimizer, scale, steps)
    assert explained > wanted
    assert optimizer.steps == steps


def test_an_ordinary_filter_is_never_inflated():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    explained, inflation = fitted(critic, kova.KOVA(critic), 1.0, 100)
    assert explained > 0.97
    assert inflation == 0.0


@pytest.mark.slow
def test_a_thousand_random_filters_are_never_stuck():
    generator = random.Random(0)
    for seed in range(1_000):
        torch.manual_seed(seed)
        critic = generator.choice([linear, relu])()
        scale, variance = 10.0 ** generator.uniform(-2, 6), 10.0 ** generator.uniform(-6, 3)
        evolution, structure = generator.choice(EVOLUTIONS), generator.choice(STRUCTURES)
        noise = generator.choice([kova.ConstantNoise(variance), kova.BatchSize(variance)])
        optimizer = kova.KOVA(critic, covariance=structure, evolution=evolution, noise=noise)
        for _ in range(20):
            x = torch.randn(32, 8)
            report = optimizer.step(scale * x, x[:, 0])
        assert optimizer.steps == 20
        assert torch.isfinite(report.loss), (seed, scale, variance, evolution, structure, noise)
