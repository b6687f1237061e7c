"""Forgetting by evidence: the model that explains the labels best makes the step."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from cases import batch, mlp, relative, same_bits, snapshot, theta
from torch import nn
from torch.distributions import MultivariateNormal

import kova
from kova.conditioning import innovation_log_likelihood
from kova.evolution import Evidence
from kova.observation_noise import ObservationNoise

FIXED = [kova.PriorRelaxation(eta) for eta in (1e-4, 1e-3, 1e-2, 1e-1)]
WIDTH = 12
#: A linear target that jumps here, and the batches after which it must have been learned again.
JUMP, UPDATES = 150, 300


def errors(evolution: kova.Evolution, *, jumps: bool, seed: int) -> torch.Tensor:
    """Return the relative squared error before every update."""
    generator = torch.Generator().manual_seed(seed)
    truths = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64)
    critic = nn.Linear(WIDTH, 1).double()
    optimizer = kova.KOVA(critic, evolution=evolution, covariance="full", dtype=torch.float64)
    found = []
    for update in range(UPDATES):
        truth = truths[int(jumps and update >= JUMP)]
        with torch.no_grad():
            wrong = (critic.weight.squeeze(0) - truth).square().sum() + critic.bias.square().sum()
        found.append(float(wrong / truth.square().sum()))
        inputs = torch.randn(32, WIDTH, generator=generator, dtype=torch.float64)
        noise = torch.randn(32, generator=generator, dtype=torch.float64) * truths.std() * math.sqrt(0.1 * WIDTH)
        optimizer.step(inputs, inputs @ truth + noise)
    return torch.tensor(found)


def over_seeds(evolution: kova.Evolution, *, jumps: bool) -> torch.Tensor:
    return torch.stack([errors(evolution, jumps=jumps, seed=seed) for seed in range(3)]).mean(0)


def test_a_jump_is_followed_as_fast_as_by_the_best_fixed_forgetting():
    after = slice(JUMP + 1, UPDATES)
    fixed = [float(over_seeds(evolution, jumps=True)[after].mean()) for evolution in FIXED]
    found = float(over_seeds(kova.EvidenceForgetting(), jumps=True)[after].mean())
    assert max(fixed) > 2.0 * min(fixed), "the choice must matter"
    assert found <= min(fixed)


def test_where_nothing_moves_almost_nothing_is_lost():
    late = slice(100, UPDATES)
    fixed = [float(over_seeds(evolution, jumps=False)[late].mean()) for evolution in FIXED]
    found = float(over_seeds(kova.EvidenceForgetting(), jumps=False)[late].mean())
    assert max(fixed) > 2.0 * min(fixed)
    # 2 % of what is left to explain.
    assert found <= min(fixed) + 0.02 * (1.0 - min(fixed))
    assert found <= 1.02 * min(fixed)


def test_the_posterior_follows_bayes_rule_with_switching():
    model = kova.EvidenceForgetting((kova.Static(), kova.PriorRelaxation(0.1)), switching=0.2, labels=3)
    likelihoods = {kova.Static(): -1.0, kova.PriorRelaxation(0.1): -4.0}
    chosen, memory = model.adapted(Evidence(6, likelihoods.__getitem__, {"0": 0.3, "1": 0.7}))
    # Six labels count as three.
    weights = [(0.8 * 0.3 + 0.1) * math.exp(-0.5), (0.8 * 0.7 + 0.1) * math.exp(-2.0)]
    assert memory["0"] == pytest.approx(weights[0] / sum(weights))
    assert memory["0"] + memory["1"] == pytest.approx(1.0)
    assert chosen == kova.Static()


def test_the_likelihood_is_that_of_the_scaled_innovations():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    delta = torch.randn(5, generator=generator, dtype=torch.float64)
    P_n, other = ObservationNoise.of(0.7, delta), ObservationNoise.of(1.3, delta)
    gram = root @ root.T

    def exact(noise: float) -> float:
        S = 2.5 * (gram + noise * torch.eye(5, dtype=torch.float64))
        return float(MultivariateNormal(torch.zeros(5, dtype=torch.float64), S).log_prob(delta))

    found = [innovation_log_likelihood(gram, delta, noise, 2.5) for noise in (P_n, other)]
    assert found[0] - found[1] == pytest.approx(exact(0.7) - exact(1.3), rel=1e-10)
    assert innovation_log_likelihood(-gram, delta, P_n, 2.5) == -math.inf


@pytest.mark.parametrize("structure", ["full", "layer", "neuron", "block:20", "diagonal", "last_layer", "low_rank:20"])
def test_the_step_is_that_of_the_chosen_model(structure):
    candidates = (kova.PriorRelaxation(0.3), kova.FadingMemory(0.2))
    chosen, fixed = [], []
    for number, evolution in enumerate(candidates):
        # Equal likelihoods are decided by what was believed before.
        model = kova.EvidenceForgetting(candidates, switching=1e-12, labels=1e-12)
        for settings, into in ((model, chosen), (evolution, fixed)):
            models = {"evolution": settings, "noise": kova.ConstantNoise(0.1)}
            optimizer = kova.KOVA(mlp(), covariance=structure, **models, dtype=torch.float64)
            optimizer._memories = type(optimizer._memories)(evolution={str(number): 1.0 - 1e-9, str(1 - number): 1e-9})
            for step in range(12):
                optimizer.step(*batch(seed=step))
            into.append((theta(optimizer.observation.module), optimizer.covariance.dense()))
    for ours, theirs in zip(chosen, fixed, strict=True):
        assert relative(ours[0], theirs[0]) < 1e-10
        assert relative(ours[1], theirs[1]) < 1e-10
    assert relative(fixed[0][0], fixed[1][0]) > 1e-6


def test_a_snapshot_continues_bit_for_bit_and_a_failed_step_changes_nothing():
    optimizer = kova.KOVA(mlp(), evolution=kova.EvidenceForgetting(), dtype=torch.float64)
    for step in range(10):
        optimizer.step(*batch(seed=step))
    other = kova.KOVA(
        copy.deepcopy(optimizer.observation.module), evolution=kova.EvidenceForgetting(), dtype=torch.float64
    )
    other.load_state_dict(optimizer.state_dict())
    assert optimizer.state_dict()["evolution_memory"] == other.state_dict()["evolution_memory"] != {}
    u, y = batch(seed=99)
    with pytest.raises(ValueError, match="targets"):
        other.step(u, y * math.nan)
    for one in (optimizer, other):
        one.step(u, y)
    assert same_bits(snapshot(optimizer), snapshot(other))
    assert optimizer.state_dict()["evolution_memory"] == other.state_dict()["evolution_memory"]


def test_a_batch_in_pieces_is_judged_by_its_first_piece():
    critic = mlp()
    optimizer = kova.KOVA(critic, covariance="full", evolution=kova.EvidenceForgetting(), dtype=torch.float64)
    optimizer._piece = 8
    # All return to the prior alike from the prior itself.
    for seed in range(3):
        optimizer.step(*batch(30, seed=seed))
    memory = optimizer.state_dict()["evolution_memory"]
    assert sum(memory.values()) == pytest.approx(1.0)
    assert len(set(memory.values())) > 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: kova.EvidenceForgetting((kova.Static(),)), "candidates must be two or more"),
        (lambda: kova.EvidenceForgetting((kova.Static(), 0.1)), "candidates must be two or more"),
        (lambda: kova.EvidenceForgetting((kova.Static(), kova.Memoryless(0.1))), "must keep a memory"),
        (lambda: kova.EvidenceForgetting(switching=1.0), r"switching must be in \(0, 1\)"),
        (lambda: kova.EvidenceForgetting(switching=0.0), "switching"),
        (lambda: kova.EvidenceForgetting(labels=0.0), "labels"),
    ],
)
def test_wrong_arguments(make, says):
    with pytest.raises(ValueError, match=says):
        make()
