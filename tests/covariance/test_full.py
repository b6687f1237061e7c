"""Deferral, panels and scaling are bookkeeping: the numbers are those of the plain filter."""

from __future__ import annotations

import math

import pytest
import torch
from cases import EVOLUTIONS, REMEMBERING, batch, mlp, paper_filter, relative, theta
from reference import Algorithm1

import kova
from kova.covariance import Full, Layout
from kova.covariance.storage import dense as dense_part
from kova.covariance.storage import symmetric

RULES = dict(EVOLUTIONS)


@pytest.mark.parametrize("deferred", [1, 24, 40, 10_000])
@pytest.mark.parametrize("evolution", REMEMBERING, ids=repr)
def test_the_depth_of_deferral_does_not_change_the_numbers(monkeypatch, evolution, deferred):
    monkeypatch.setattr(dense_part, "DEFERRED_ROWS", deferred)
    monkeypatch.setattr(symmetric, "PANEL_ROWS", 13)
    critic = mlp()
    optimizer = paper_filter(critic, evolution=evolution, dtype=torch.float64)
    literal = Algorithm1(mlp(), RULES[evolution])
    for step in range(25):
        u, y = batch(12, seed=step)
        optimizer.step(u, y)
        literal.step(u, y, 12 * torch.eye(12, dtype=torch.float64), 1.0)
    assert relative(theta(critic), literal.theta) < 1e-10
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-10
    assert relative(optimizer.covariance.diagonal(), literal.P.diagonal()) < 1e-10
    u, _ = batch(5, seed=99)
    J = literal.jacobian(u)
    torch.testing.assert_close(optimizer.predict(u).variance, (J @ literal.P * J).sum(1), rtol=1e-8, atol=1e-12)


def test_batches_larger_than_the_buffer_and_of_changing_size():
    critic = mlp()
    optimizer = paper_filter(critic, evolution=kova.FadingMemory(0.05), dtype=torch.float64)
    literal = Algorithm1(mlp(), RULES[kova.Static()])
    for step, size in enumerate([3, 300, 1, 128, 127, 2, 700, 5]):
        u, y = batch(size, seed=step)
        optimizer.step(u, y)
        literal.P = literal.P / 0.95
        literal.step(u, y, size * torch.eye(size, dtype=torch.float64), 1.0)
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-9
    assert relative(theta(critic), literal.theta) < 1e-9


@pytest.mark.parametrize("eta", [0.5, 0.9, 0.999, 0.999_999])
def test_extreme_forgetting_neither_overflows_nor_underflows(eta):
    # 256 deferred single-sample steps at η = 0.5 would scale B by 2^256.
    for evolution in (kova.PriorRelaxation(eta), kova.FadingMemory(eta), kova.DirectionalForgetting(eta)):
        optimizer = paper_filter(mlp(dtype=torch.float32), evolution=evolution)
        for step in range(300):
            optimizer.step(*batch(1, seed=step, dtype=torch.float32))
        P = optimizer.covariance.dense()
        assert torch.isfinite(P).all()
        assert float(P.diagonal().max()) <= 10.01
        assert float(torch.linalg.eigvalsh(P.double())[0]) > -1e-4


def test_an_evolution_may_forget_everything_at_once():
    class Restart(kova.Evolution):
        def predict(self, P):
            return P.scaled(0.0).shifted(2.0)

    optimizer = paper_filter(mlp(), evolution=Restart(), dtype=torch.float64)
    for step in range(40):
        optimizer.step(*batch(12, seed=step))
    literal = Algorithm1(mlp(), lambda P, J, p0: 2.0 * torch.eye(len(P), dtype=P.dtype))
    for step in range(40):
        u, y = batch(12, seed=step)
        literal.step(u, y, 12 * torch.eye(12, dtype=torch.float64), 1.0)
    assert relative(optimizer.covariance.dense(), literal.P) < 1e-10


def test_the_guard_holds_every_variance():
    for evolution in (kova.FadingMemory(0.2, max_variance=3.0), kova.DirectionalForgetting(0.2, max_variance=3.0)):
        optimizer = paper_filter(mlp(), evolution=evolution, noise=kova.ConstantNoise(100.0), dtype=torch.float64)
        largest = 0.0
        for step in range(80):
            optimizer.step(*batch(6, seed=step))
            largest = max(largest, float(optimizer.covariance.diagonal().max()))
        assert 2.0 < largest <= 3.0 + 1e-9


def test_directional_forgetting_takes_the_step_of_fading_memory():
    runs = []
    for evolution in (kova.DirectionalForgetting(0.3), kova.FadingMemory(0.3, max_variance=math.inf)):
        critic = mlp()
        optimizer = paper_filter(critic, evolution=evolution, dtype=torch.float64)
        optimizer.step(*batch(6))
        runs.append(theta(critic))
    assert relative(*runs) < 1e-9


def test_equal_samples_can_be_forgotten_along():
    # J A is singular for two equal samples.
    optimizer = paper_filter(mlp(), evolution=kova.DirectionalForgetting(0.1), dtype=torch.float64)
    u, y = batch(1)
    for _ in range(20):
        optimizer.step(u.expand(8, -1), y.expand(8))
    assert torch.isfinite(optimizer.covariance.dense()).all()


def test_inflating_twice_along_a_batch_is_refused():
    class Twice(kova.Evolution):
        def predict(self, P):
            return P.inflated_along_batch(0.1).inflated_along_batch(0.1)

    optimizer = paper_filter(mlp(), evolution=Twice())
    with pytest.raises(RuntimeError, match="once"):
        optimizer.step(*batch())


def test_memory_is_what_was_promised():
    optimizer = paper_filter(mlp(hidden=40), covariance="full")
    promised = 4 * Full.cost(Layout.of(mlp(hidden=40))).numbers
    assert abs(optimizer.covariance.nbytes - promised) <= 4 * dense_part.DEFERRED_ROWS


def test_a_structure_may_be_given_as_an_instance():
    critic = mlp()
    covariance = Full(Layout.of(critic), prior_variance=2.0, dtype=torch.float64)
    optimizer = paper_filter(critic, covariance=covariance)
    assert optimizer.covariance is covariance
    assert optimizer.dtype == torch.float64
    optimizer.step(*batch())
    assert float(covariance.trace()) < 2.0 * 56 / 0.99
