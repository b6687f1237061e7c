"""Labels that overlap: the covariance by its definition, the filter by differences of labels, the scatter it learns."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import batch, mlp, paper_filter, relative, same_bits, snapshot, theta
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import kova
from kova.overlap import overlap

WIDTH = 4
PLACES = ("trajectory", "remaining")


def by_definition(lengths: list[int], decay: float) -> Tensor:
    """Return A Aᵀ for y - V = A ε, trajectory by trajectory."""
    blocks = []
    for length in lengths:
        apart = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        powers = torch.tensor(decay, dtype=torch.float64) ** apart.clamp(min=0)
        weights = torch.where(apart >= 0, powers, 0.0)
        blocks.append(weights @ weights.T)
    return torch.block_diag(*blocks)


def placed(lengths: list[int]) -> tuple[Tensor, Tensor]:
    trajectory = torch.cat([torch.full((length,), float(number)) for number, length in enumerate(lengths)])
    remaining = torch.cat([torch.arange(length, 0, -1) for length in lengths])
    return trajectory.double(), remaining.double()


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    decay=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.05, 0.999)),
    seed=st.integers(0, 1000),
)
def test_the_covariance_is_that_of_the_definition_whatever_the_order_and_whoever_is_left_out(lengths, decay, seed):
    trajectory, remaining = placed(lengths)
    chosen = torch.randperm(len(remaining), generator=torch.Generator().manual_seed(seed))[: 1 + len(remaining) // 2]
    found = overlap(trajectory[chosen], remaining[chosen], decay)
    torch.testing.assert_close(found, by_definition(lengths, decay)[chosen][:, chosen], rtol=1e-10, atol=1e-12)


def linear(noise: kova.Noise, **changes) -> kova.KOVA:
    critic = nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(critic.weight)
    return paper_filter(critic, evolution=kova.Static(), noise=noise, dtype=torch.float64, **changes)


def trajectories(lengths: list[int], decay: float, scatter: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs that follow each other closely, labels whose noise overlaps, and the weights."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    inputs, noises = [], []
    for length in lengths:
        moves = 0.4 * torch.randn(length, WIDTH, generator=generator, dtype=torch.float64)
        inputs.append(torch.randn(WIDTH, generator=generator, dtype=torch.float64) + moves.cumsum(0))
        noise, following = torch.zeros(length, dtype=torch.float64), 0.0
        for step in reversed(range(length)):
            drawn = scatter * float(torch.randn(1, generator=generator))
            noise[step] = following = drawn + decay * following
        noises.append(noise)
    u = torch.cat(inputs)
    return u, u @ truth + torch.cat(noises), truth


@pytest.mark.parametrize("decay", [0.0, 0.7, 0.94, 1.0])
def test_the_step_is_that_of_differences_of_labels_with_independent_noise(decay):
    lengths = [7, 1, 12]
    u, y, _ = trajectories(lengths, decay, 0.5)
    trajectory, remaining = placed(lengths)
    optimizer = linear(kova.Overlapping(decay, kova.ConstantNoise(0.25)))
    optimizer.step(u, y, trajectory=trajectory, remaining=remaining)
    D = torch.eye(len(y), dtype=torch.float64)
    for row in range(len(y) - 1):
        if trajectory[row] == trajectory[row + 1]:
            D[row, row + 1] = -decay
    whitened = linear(kova.ConstantNoise(0.25))
    whitened.step(D @ u, D @ y)
    assert relative(theta(optimizer.observation.module), theta(whitened.observation.module)) < 1e-10
    assert relative(optimizer.covariance.dense(), whitened.covariance.dense()) < 1e-10


@pytest.mark.parametrize("structure", ["full", "neuron", "diagonal", "low_rank:16"])
def test_the_step_is_that_of_the_same_matrix_given_by_hand(structure):
    u, y = batch(12)
    trajectory, remaining = placed([5, 7])
    first = paper_filter(mlp(), covariance=structure, dtype=torch.float64)
    second = copy.deepcopy(first)
    first.noise = kova.Overlapping(0.9, kova.ConstantNoise(0.3))
    first.step(u, y, trajectory=trajectory, remaining=remaining)
    second.step(u, y, noise=0.3 * overlap(trajectory, remaining, 0.9))
    assert relative(theta(first.observation.module), theta(second.observation.module)) < 1e-12
    assert relative(first.covariance.dense(), second.covariance.dense()) < 1e-12


@pytest.mark.parametrize("initial", [0.01, 10.0])
def test_the_scatter_of_one_step_is_learned(initial):
    model = kova.InnovationNoise(initial=initial, floor=1e-6)
    optimizer = linear(kova.Overlapping(0.9, model))
    trajectory, remaining = placed([30])
    for seed in range(60):
        u, y, truth = trajectories([30], 0.9, 0.6, seed)
        # Every call draws other weights; the trajectories shall have the same.
        y = y - u @ truth + u[:, 0]
        optimizer.step(u, y, trajectory=trajectory, remaining=remaining)
    assert optimizer.state_dict()["noise_memory"]["variance"] == pytest.approx(0.36, rel=0.2)


def coverage(noise: kova.Noise, decay: float, *, tell: bool) -> float:
    """Return how many weights of 60 problems are inside their 95 % band."""
    inside = []
    for seed in range(60):
        u, y, truth = trajectories([40] * 8, decay, 0.5, seed)
        optimizer = linear(noise, prior_variance=100.0)
        for piece in range(8):
            own = slice(40 * piece, 40 * piece + 40)
            places = dict(zip(PLACES, placed([40]), strict=True)) if tell else {}
            optimizer.step(u[own], y[own], **places)
        found = theta(optimizer.observation.module)
        inside.append((found - truth).abs() < 1.96 * optimizer.covariance.diagonal().sqrt())
    return float(torch.stack(inside).double().mean())


def test_bands_hold_where_independent_labels_of_the_same_scatter_are_too_sure():
    decay, variance = 0.94, 0.25
    marginal = variance / (1.0 - decay**2)
    assert 0.90 < coverage(kova.Overlapping(decay, kova.ConstantNoise(variance)), decay, tell=True) < 0.99
    assert coverage(kova.ConstantNoise(marginal), decay, tell=False) < 0.75


def test_units_of_the_labels_change_nothing():
    lengths = [9, 11]
    u, y, _ = trajectories(lengths, 0.9, 0.5)
    places = dict(zip(PLACES, placed(lengths), strict=True))
    found = []
    for factor in (1.0, 1e3):
        optimizer = kova.KOVA(mlp(inputs=WIDTH), noise=kova.Overlapping(0.9), dtype=torch.float64)
        for _ in range(4):
            optimizer.step(u, factor * y, **places)
        found.append(optimizer.predict(u).mean / factor)
    assert relative(found[1], found[0]) < 1e-8


def test_a_large_batch_is_taken_whole():
    u, y = batch(40)
    trajectory, remaining = placed([40])
    optimizer = paper_filter(mlp(), noise=kova.Overlapping(0.9), evolution=kova.Static(), dtype=torch.float64)
    other = copy.deepcopy(optimizer)
    optimizer._piece = 8
    for one in (optimizer, other):
        one.step(u, y, trajectory=trajectory, remaining=remaining)
    assert same_bits(snapshot(optimizer), snapshot(other))


def test_whole_numbers_may_say_where_a_label_is():
    found = []
    for kind in (torch.int64, torch.float32):
        optimizer = paper_filter(mlp(), noise=kova.Overlapping(0.9), dtype=torch.float64)
        optimizer.step(*batch(12), **{name: x.to(kind) for name, x in zip(PLACES, placed([5, 7]), strict=True)})
        found.append(theta(optimizer.observation.module))
    assert torch.equal(*found)


def test_robust_weights_a_correlated_noise():
    u, y = batch(12)
    trajectory, remaining = placed([12])
    y = y.clone()
    y[5] += 1e4
    moved = []
    for noise in (kova.Overlapping(0.9), kova.Robust(kova.Overlapping(0.9), 3.0)):
        optimizer = paper_filter(mlp(), noise=noise, dtype=torch.float64)
        before = theta(optimizer.observation.module).clone()
        optimizer.step(u, y, trajectory=trajectory, remaining=remaining)
        moved.append(float((theta(optimizer.observation.module) - before).norm()))
    assert moved[1] < 0.05 * moved[0]


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({}, "Overlapping needs trajectory and remaining"),
        ({"trajectory": torch.zeros(8)}, "Overlapping needs trajectory and remaining"),
        ({"trajectory": torch.zeros(8), "remaining": torch.zeros(8)}, "remaining must be at least 1"),
        ({"trajectory": torch.zeros(7), "remaining": torch.ones(8)}, "trajectory has 7 entries for a batch of 8"),
        ({"trajectory": torch.zeros(8), "remaining": torch.ones(8)}, "two labels have the same"),
    ],
)
def test_wrong_places_are_refused_and_nothing_changes(places, said):
    optimizer = paper_filter(mlp(), noise=kova.Overlapping(0.9), dtype=torch.float64)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=said):
        optimizer.step(*batch(8), **places)
    assert same_bits(before, snapshot(optimizer))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: kova.Overlapping(1.1), ValueError, r"decay must be in \[0, 1\]"),
        (lambda: kova.Overlapping(0.9, 3.0), TypeError, "model must be a kova.Noise"),
        (lambda: kova.Overlapping(0.9, kova.MaxRatio()), ValueError, "one variance for all"),
        (lambda: kova.Overlapping(0.9, kova.Overlapping(0.9)), ValueError, "one variance for all"),
    ],
)
def test_wrong_arguments_are_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()
