"""Replicas: draws of the error of θ, carried along by the filter's own gains."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from cases import (
    EVOLUTION_IDS,
    EVOLUTIONS,
    batch,
    linear,
    mask,
    mlp,
    paper_filter,
    relative,
    same_bits,
    snapshot,
)
from reference import Algorithm1, relaxation
from torch import Tensor, nn

import kova
from kova.experiments.problems import PROBLEMS
from kova.replicas import Replicas
from kova.targets import gae_targets, replica_targets

STRUCTURES = ["full", "layer", "neuron", "block:7", "diagonal", "last_layer", "low_rank:8"]


def errors(optimizer: kova.KOVA) -> Tensor:
    return optimizer.state_dict()["replicas"]


def labels(y: Tensor, count: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return y[:, None] + scale * torch.randn(len(y), count, generator=generator, dtype=y.dtype)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_weights_and_covariance_do_not_depend_on_them(structure):
    plain, replicated = (paper_filter(mlp(), covariance=structure, replicas=count) for count in (0, 5))
    for seed in range(4):
        u, y = batch(seed=seed)
        plain.step(u, y)
        replicated.step(u, y, replica_targets=labels(y, 5, seed) if seed % 2 else None)
    assert same_bits(snapshot(plain), snapshot(replicated))
    assert "replicas" not in plain.state_dict()
    assert errors(replicated).shape == (5, replicated.covariance.dim)


@pytest.mark.parametrize("structure", ["full", "layer", "neuron", "diagonal"])
def test_they_follow_the_literal_error_recursion(structure):
    optimizer = paper_filter(
        mlp(), covariance=structure, evolution=kova.PriorRelaxation(0.05), noise=kova.ConstantNoise(0.5), replicas=3,
        dtype=torch.float64, step_size=0.7,
    )  # fmt: skip
    literal, keep = Algorithm1(mlp(), relaxation(0.05)), mask(mlp(), structure)
    E = optimizer._replicas.begun(optimizer.covariance).errors
    for seed in range(5):
        u, y = batch(seed=seed)
        J = literal.jacobian(u)
        before = optimizer.replica_values(u)
        optimizer.step(u, y, replica_targets=labels(y, 3, seed))
        torch.testing.assert_close(before, literal.h(literal.theta, u)[:, None] + J @ E.T, rtol=1e-9, atol=1e-9)
        P = keep * literal.rule(literal.P, J, 1.0)
        K = P @ J.T @ torch.linalg.inv(J @ P @ J.T + 0.5 * torch.eye(len(y), dtype=torch.float64))
        E = E + 0.7 * (labels(y, 3, seed) - y[:, None] - J @ E.T).T @ K.T
        literal.step(u, y, 0.5 * torch.eye(len(y), dtype=torch.float64), 0.7)
        literal.P = keep * literal.P
    assert relative(errors(optimizer), E) < 1e-9


@pytest.mark.parametrize(("evolution", "_"), EVOLUTIONS, ids=EVOLUTION_IDS)
def test_every_evolution_model_carries_them(evolution, _):
    optimizer = paper_filter(
        mlp(), evolution=evolution, covariance="full" if evolution.keeps_memory else "auto", replicas=4
    )
    for seed in range(30):
        optimizer.step(*batch(seed=seed))
    value = optimizer.predict(batch(seed=99)[0], calibrated=True)
    assert torch.isfinite(value.stddev).all()
    assert (value.stddev > 0).all()


@pytest.mark.parametrize("structure", [*STRUCTURES, "memoryless"])
def test_they_move_by_the_gain_that_moves_the_weights(structure):
    """In units of the labels and with a prior by fan-in: labels twice as far off move a replica twice as far."""
    memory = {"evolution": kova.Memoryless(0.1)} if structure == "memoryless" else {"covariance": structure}
    optimizer = kova.KOVA(mlp(), dtype=torch.float64, replicas=2, **memory)
    for seed in range(3):
        optimizer.step(*batch(seed=seed))
    optimizer._replicas = Replicas(2, torch.zeros_like(errors(optimizer)))
    u, y = batch(seed=5)
    names = list(optimizer.observation.parameters)
    before = {name: optimizer.observation.parameters[name].detach().clone() for name in names}
    off = y - optimizer.predict(u).mean
    optimizer.step(u, y, replica_targets=torch.stack([y + off, y + 2.0 * off], dim=1))
    moved = torch.cat([(optimizer.observation.parameters[name] - before[name]).detach().flatten() for name in names])
    assert float(moved.norm()) > 0.0
    torch.testing.assert_close(errors(optimizer), torch.stack([moved, 2.0 * moved]), rtol=1e-6, atol=1e-10)


def test_their_covariance_is_the_posterior_if_labels_scatter_as_the_noise_says():
    optimizer = paper_filter(linear(), covariance="full", evolution=kova.Static(), noise=kova.ConstantNoise(0.5),
                             replicas=20_000, dtype=torch.float64)  # fmt: skip
    for seed in range(3):
        u, y = batch(seed=seed)
        optimizer.step(u, y, replica_targets=labels(y, 20_000, seed, math.sqrt(0.5)))
    E = errors(optimizer)
    assert relative(E.T @ E / len(E), optimizer.covariance.dense()) < 0.03
    u, _ = batch(seed=9)
    told, believed = optimizer.predict(u, calibrated=True), optimizer.predict(u)
    torch.testing.assert_close(told.stddev, believed.stddev, rtol=0.03, atol=0.0)
    assert torch.equal(told.mean, believed.mean)


def test_independent_labels_give_the_sandwich_of_a_regression():
    """Where labels scatter unequally, P does not know it, and White's covariance does."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    scatter = 0.1 + 2.0 * u[:, 0].abs()
    y = u[:, 1] + scatter * torch.randn(4000, generator=generator, dtype=torch.float64)
    critic = nn.Linear(3, 1, bias=False).double()
    optimizer = paper_filter(critic, covariance="full", evolution=kova.Static(), noise=kova.ConstantNoise(1.0),
                             replicas=2000, dtype=torch.float64)  # fmt: skip
    for piece in torch.arange(4000).split(100):
        optimizer.step(u[piece], y[piece])
    bread = torch.linalg.inv(u.T @ u)
    sandwich = bread @ (u.T * scatter.square()) @ u @ bread
    E = errors(optimizer)
    found = E.T @ E / len(E)
    assert relative(found, sandwich) < 0.15
    # The first weight is the uncertain one, and P takes all three to be alike.
    assert float(found[0, 0] / optimizer.covariance.dense()[0, 0]) > 2.0 * float(
        found[1, 1] / optimizer.covariance.dense()[1, 1]
    )


@pytest.mark.parametrize("piece", [1, 7])
def test_pieces_carry_them_as_the_whole_batch_does(piece):
    whole, pieced = (
        paper_filter(mlp(), covariance="full", noise=kova.ConstantNoise(0.5), replicas=4, dtype=torch.float64)
        for _ in range(2)
    )
    pieced._piece = piece
    for seed in range(3):
        u, y = batch(20, seed=seed)
        for optimizer in (whole, pieced):
            optimizer.step(u, y, replica_targets=labels(y, 4, seed) if seed else None)
    assert relative(errors(pieced), errors(whole)) < 1e-9


def test_a_restored_filter_draws_the_same_noise():
    first = paper_filter(mlp(), covariance="neuron", replicas=4)
    for seed in range(3):
        first.step(*batch(seed=seed))
    other = paper_filter(copy.deepcopy(first.observation.module), covariance="neuron", replicas=4)
    other.load_state_dict(copy.deepcopy(first.state_dict()))
    for optimizer in (first, other):
        optimizer.step(*batch(seed=7))
    assert torch.equal(errors(first), errors(other))
    assert torch.equal(first.replica_noise(5), other.replica_noise(5))


def test_a_filter_that_was_saved_without_begins_with_draws_of_its_posterior():
    plain = paper_filter(linear(), covariance="full", noise=kova.ConstantNoise(0.1))
    for seed in range(5):
        plain.step(*batch(seed=seed))
    other = paper_filter(copy.deepcopy(plain.observation.module), covariance="full", noise=kova.ConstantNoise(0.1),
                         replicas=3000)  # fmt: skip
    other.load_state_dict(plain.state_dict())
    u, _ = batch(seed=8)
    told = other.replica_values(u).std(1)
    torch.testing.assert_close(told.double(), plain.predict(u).stddev.double(), rtol=0.1, atol=0.0)


def test_bad_calls_name_the_argument_and_change_nothing():
    u, y = batch()
    plain, optimizer = paper_filter(mlp()), paper_filter(mlp(), replicas=4)
    optimizer.step(u, y)
    before, drawn = snapshot(optimizer), errors(optimizer)
    with pytest.raises(ValueError, match="without replicas"):
        plain.step(u, y, replica_targets=labels(y, 4))
    with pytest.raises(ValueError, match="no replicas"):
        plain.replica_values(u)
    for wrong in (labels(y, 3), labels(y, 4)[:2], labels(y, 4).long()):
        with pytest.raises(ValueError, match=r"replica_targets must be \(8, 4\)"):
            optimizer.step(u, y, replica_targets=wrong)
    with pytest.raises(ValueError, match="replica_targets has 32 non-finite"):
        optimizer.step(u, y, replica_targets=labels(y, 4) * math.nan)
    with pytest.raises(TypeError, match="replica_targets must be a torch"):
        optimizer.step(u, y, replica_targets=[1.0])
    with pytest.raises(ValueError, match="replicas must be >= 1"):
        paper_filter(mlp(), replicas=-1)
    assert same_bits(before, snapshot(optimizer))
    assert torch.equal(errors(optimizer), drawn)
    with pytest.raises(ValueError, match=r"replicas are \(4, 56\), expected a tensor of \(5, 56\)"):
        paper_filter(mlp(), replicas=5).load_state_dict(optimizer.state_dict())


def trajectory(envs: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    ends = torch.rand(6, envs, generator=generator) < 0.3
    return {
        "rewards": draw(6, envs), "values": draw(6, envs), "next_values": draw(6, envs),
        "replica_values": draw(6, envs, 3), "replica_next_values": draw(6, envs, 3), "noise": draw(6, envs, 3),
        "terminated": ends, "truncated": ~ends & (torch.rand(6, envs, generator=generator) < 0.2),
    }  # fmt: skip


def test_labels_of_replicas_are_returns_of_their_worlds():
    given = trajectory()
    found = replica_targets(**given, gamma=0.9, gae_lambda=0.8)
    ends = given["terminated"] | given["truncated"]
    alive = (~given["terminated"]).double()
    td = given["rewards"] + 0.9 * alive * given["next_values"] - given["values"]
    own = given["rewards"][..., None] + given["noise"] * td[..., None]
    own = own + 0.9 * alive[..., None] * given["replica_next_values"] - given["replica_values"]
    for env in range(2):
        for start in range(6):
            total, weight = given["replica_values"][start, env].clone(), 1.0
            for step in range(start, 6):
                total += weight * own[step, env]
                weight *= 0.72
                if ends[step, env]:
                    break
            torch.testing.assert_close(found[start, env], total)


def test_replicas_that_are_the_critic_have_its_labels():
    given = trajectory()
    values = {name: given[name][..., None].expand(6, 2, 3) for name in ("values", "next_values")}
    found = replica_targets(
        **{**given, "replica_values": values["values"], "replica_next_values": values["next_values"]}
        | {"noise": torch.zeros(6, 2, 3)}, gamma=0.9, gae_lambda=0.8,
    )  # fmt: skip
    critic = {name: given[name] for name in ("rewards", "values", "next_values", "terminated", "truncated")}
    torch.testing.assert_close(found[..., 1], gae_targets(**critic, gamma=0.9, gae_lambda=0.8))


@pytest.mark.parametrize("name", ["replica_values", "replica_next_values", "noise"])
def test_labels_of_replicas_check_their_shapes(name):
    given = trajectory()
    with pytest.raises(ValueError, match=r"must be \(6, 2, m\)"):
        replica_targets(**{**given, name: given[name][:, :1]}, gamma=0.9, gae_lambda=0.8)


def test_bands_hold_where_labels_of_an_episode_share_their_rewards():
    """Monte-Carlo returns of the random walk: P holds half of the exact values in its 95 % band."""
    problem, held = PROBLEMS["random walk"](), []
    for seed in range(8):
        critic = nn.Linear(problem.dimension, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(critic.weight)
        optimizer = kova.KOVA(critic, covariance="full", prior_variance=100.0, evolution=kova.Static(),
                              noise=kova.ConstantNoise(1.0), dtype=torch.float64, replicas=32)  # fmt: skip
        rng = np.random.default_rng(seed)
        for _ in range(16):
            episode = problem.episode(rng)
            with torch.no_grad():
                values, following = critic(episode.inputs).squeeze(1), critic(episode.next_inputs).squeeze(1)
            shared = episode.rewards, values, following
            flags = episode.terminated, episode.truncated
            y = gae_targets(*shared, *flags, gamma=1.0, gae_lambda=1.0)
            own = optimizer.replica_values(episode.inputs), optimizer.replica_values(episode.next_inputs)
            noise = optimizer.replica_noise(len(episode))
            optimizer.step(
                episode.inputs, y,
                replica_targets=replica_targets(*shared, *own, noise, *flags, gamma=1.0, gae_lambda=1.0),
            )  # fmt: skip
        truth = problem.evaluation
        for calibrated in (False, True):
            value = optimizer.predict(problem.features(truth.states), calibrated=calibrated)
            held.append(float(((value.mean - truth.values).abs() < 1.96 * value.stddev).double().mean()))
    believed, told = held[::2], held[1::2]
    assert sum(told) / 8 > 0.9
    assert sum(believed) / 8 < 0.75
