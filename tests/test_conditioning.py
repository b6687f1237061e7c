"""A filter is never stuck: raw observations, labels without noise and float32 do not end it."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from cases import paper_filter, same_bits, snapshot
from torch import nn
from torch.nn.utils import parameters_to_vector

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
    optimizer = paper_filter(module, covariance=structure, evolution=evolution, noise=noise)
    explained, _ = fitted(module, optimizer, scale, steps)
    assert explained > wanted
    assert optimizer.steps == steps


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("evolution", EVOLUTIONS, ids=repr)
def test_one_large_row_or_column_silences_nothing_else(evolution, structure):
    torch.manual_seed(0)
    weights, critics = torch.randn(8), [nn.Linear(8, 1) for _ in range(2)]
    rows = paper_filter(critics[0], covariance=structure, evolution=evolution, noise=kova.ConstantNoise(1e-4))
    columns = paper_filter(critics[1], covariance=structure, evolution=evolution)
    for _ in range(60):
        x = torch.randn(64, 8)
        large = x.clone()
        large[0] *= 100.0
        rows.step(large, large @ weights + 0.1 * torch.randn(64))
        wide = x.clone()
        wide[:, 3] *= 1e6
        columns.step(wide, x @ weights)
    with torch.no_grad():
        for critic, inputs in zip(critics, (x, wide), strict=True):
            error = x @ weights - critic(inputs).squeeze(1)
            assert float(error.var() / (x @ weights).var()) < 0.01
    assert rows.dtype == columns.dtype == torch.float64
    assert "in torch.float64" in repr(rows)


def test_a_filter_that_went_on_in_float64_is_saved_and_restored():
    torch.manual_seed(0)
    critic = nn.Linear(8, 1)
    optimizer = paper_filter(critic, covariance="full")
    covariance, x = optimizer.covariance, torch.randn(64, 8)
    optimizer.step(1e5 * x, x[:, 0])
    assert optimizer.covariance is covariance
    assert optimizer.dtype == torch.float64
    other = paper_filter(copy.deepcopy(critic), covariance="full")
    other.load_state_dict(optimizer.state_dict())
    assert other.dtype == torch.float64
    for one in (optimizer, other):
        one.step(1e5 * x, x[:, 0])
    assert same_bits(snapshot(optimizer), snapshot(other))


def test_a_filter_that_went_on_in_float64_goes_back_to_an_earlier_snapshot():
    torch.manual_seed(0)
    critic = nn.Linear(8, 1)
    optimizer, x = paper_filter(critic, covariance="full"), torch.randn(64, 8)
    optimizer.step(x, x[:, 0])
    before, state = snapshot(optimizer), optimizer.state_dict()
    weights = copy.deepcopy(critic.state_dict())
    optimizer.step(1e5 * x, x[:, 0])
    assert optimizer.dtype == torch.float64
    optimizer.load_state_dict(state)
    critic.load_state_dict(weights)
    assert optimizer.dtype == torch.float32
    assert same_bits(before, snapshot(optimizer))


def test_an_instance_keeps_its_precision():
    critic = nn.Linear(8, 1)
    layout = kova.covariance.Layout.of(critic)
    optimizer = paper_filter(critic, covariance=kova.covariance.Full(layout, dtype=torch.float64))
    assert "widened" not in optimizer.state_dict()
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.dtype == torch.float64


def test_where_float64_does_not_fit_the_covariance_is_inflated():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(8, 60), nn.ReLU(), nn.Linear(60, 1))
    narrow = paper_filter(critic, covariance="full", memory_budget=2_000_000)
    x = torch.randn(64, 8)
    inflations = [float(narrow.step(1e4 * x, x[:, 0]).inflation) for _ in range(20)]
    assert narrow.dtype == torch.float32
    assert max(inflations) > 0.0


def test_a_covariance_of_one_number_is_never_inflated():
    moved = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(dtype)
        optimizer = paper_filter(critic, evolution=kova.Memoryless(0.1), dtype=dtype)
        before = parameters_to_vector(critic.parameters()).detach().clone()
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
        report = optimizer.step(1e3 * x, x[:, 0], noise=1e-2)
        assert float(report.inflation) == 0.0
        moved.append((parameters_to_vector(critic.parameters()).detach() - before).double())
    narrow, wide = moved
    assert float((narrow - wide).norm()) < 1e-3 * float(wide.norm())


def test_an_indefinite_covariance_is_brought_back():
    optimizer = paper_filter(nn.Linear(8, 1), covariance="neuron", dtype=torch.float64)
    state = optimizer.state_dict()
    blocks = state["covariance"]["parts"][0]["blocks"]
    blocks[:] = torch.diag(torch.full((9,), 1e-7, dtype=torch.float64))
    blocks[0, 0, 0] = -1e-3
    optimizer.load_state_dict(state)
    x = torch.randn(64, 8)
    reports = [optimizer.step(100.0 * x, x[:, 0], noise=1e-4) for _ in range(20)]
    assert float(reports[0].inflation) > 0.0
    assert float(torch.linalg.eigvalsh(optimizer.covariance.dense())[0]) > -1e-9
    assert float(reports[-1].loss) < 0.01 * float(reports[0].loss)


def test_an_ordinary_filter_is_never_inflated():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = paper_filter(critic)
    explained, inflation = fitted(critic, optimizer, 1.0, 100)
    assert explained > 0.97
    assert inflation == 0.0
    assert optimizer.dtype == torch.float32


@pytest.mark.slow
def test_a_thousand_random_filters_are_never_stuck():
    generator = random.Random(0)
    for seed in range(1_000):
        torch.manual_seed(seed)
        critic = generator.choice([linear, relu])()
        scale, variance = 10.0 ** generator.uniform(-2, 6), 10.0 ** generator.uniform(-6, 3)
        evolution, structure = generator.choice(EVOLUTIONS), generator.choice(STRUCTURES)
        noise = generator.choice([kova.ConstantNoise(variance), kova.BatchSize(variance)])
        optimizer = paper_filter(critic, covariance=structure, evolution=evolution, noise=noise)
        for _ in range(20):
            x = torch.randn(32, 8)
            report = optimizer.step(scale * x, x[:, 0])
        assert optimizer.steps == 20
        assert torch.isfinite(report.loss), (seed, scale, variance, evolution, structure, noise)
