"""Theorem 1, Corollary 1 and Theorem 2, measured."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cases import EVOLUTIONS, batch, mlp, paper_filter, theta
from reference import Algorithm1

import kova
from kova.objectives import ekf_loss, kl_decomposition, mle_loss


def test_theorem_1_the_step_is_a_stationary_point_of_the_linearised_objective():
    variance = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    critic = mlp()
    optimizer = paper_filter(critic, evolution=kova.FadingMemory(0.1), dtype=torch.float64)
    literal = Algorithm1(mlp(), EVOLUTIONS[0][1])
    for step in range(5):
        optimizer.step(*batch(6, seed=step))
    u, y = batch(6, seed=9)
    literal.theta = before = theta(critic)
    J = literal.jacobian(u)
    predicted = optimizer.covariance.dense() / 0.9
    innovation = y - literal.h(before, u)
    optimizer.step(u, y, noise=variance)
    displacement = (theta(critic) - before).requires_grad_()
    loss = ekf_loss(innovation - J @ displacement, variance, displacement, predicted)
    (slope,) = torch.autograd.grad(loss, displacement)
    start = torch.zeros_like(displacement).requires_grad_()
    (initial,) = torch.autograd.grad(ekf_loss(innovation - J @ start, variance, start, predicted), start)
    assert float(slope.norm()) < 1e-10 * float(initial.norm())
    for seed in range(10):
        nudge = 1e-3 * torch.randn(len(before), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        moved = displacement.detach() + nudge
        assert ekf_loss(innovation - J @ moved, variance, moved, predicted) > loss


def test_corollary_1_without_uncertainty_the_two_objectives_agree():
    innovation = torch.randn(16, dtype=torch.float64)
    still, certain = torch.zeros(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    torch.testing.assert_close(ekf_loss(innovation, 16.0, still, certain), mle_loss(innovation))
    assert ekf_loss(innovation, 16.0, still + 0.1, certain) == math.inf


def test_theorem_2_the_residual_of_the_kl_form_falls_as_the_cube_of_the_displacement():
    literal = Algorithm1(mlp(hidden=3), EVOLUTIONS[0][1])
    predicted = literal.theta
    seen, _ = batch(200, seed=1)
    u, y = batch(6, seed=2)
    sigma = 6.0
    # P_{t|t-1}⁻¹ = t F̂, the Fisher information of the 200 observations behind it (on the span they determine).
    J = literal.jacobian(seen)
    direction = J.T @ torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    direction /= direction.norm()
    P = torch.linalg.inv(J.T @ J / sigma)
    residuals, scales = [], [0.2, 0.1, 0.05, 0.025]
    for scale in scales:
        displacement = scale * direction
        here = predicted + displacement
        innovation = y - literal.h(here, u)
        change = literal.h(here, seen) - literal.h(predicted, seen)
        kl = kl_decomposition(innovation, sigma, change, sigma)
        residuals.append(float((ekf_loss(innovation, sigma, displacement, P) - kl.total).abs()))
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(residuals)]
    assert slopes[-1] == pytest.approx(3.0, abs=0.15)
    assert all(slope > 2.5 for slope in slopes)


def test_the_fit_is_the_negative_log_likelihood():
    innovation = torch.randn(4, dtype=torch.float64)
    root = torch.randn(4, 4, dtype=torch.float64)
    noise = root @ root.T + torch.eye(4, dtype=torch.float64)
    found = kl_decomposition(innovation, noise, torch.zeros(3, dtype=torch.float64), 1.0)
    gaussian = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.float64), noise)
    torch.testing.assert_close(found.fit, -gaussian.log_prob(innovation))
    torch.testing.assert_close(found.total, 0.5 * innovation @ torch.linalg.solve(noise, innovation))


def test_the_trust_region_counts_each_observation():
    change = torch.tensor([1.0, 2.0, 3.0])
    found = kl_decomposition(torch.ones(2), 1.0, change, torch.tensor([1.0, 2.0, 4.0]), observations=30)
    assert float(found.trust_region) == pytest.approx(30 / 3 * (0.5 + 4 / 4 + 9 / 8))


def test_noise_may_be_scalar_vector_or_matrix_and_covariance_a_kova_one():
    innovation, step = torch.randn(4), torch.randn(56)
    covariance = paper_filter(mlp(), dtype=torch.float32).covariance
    losses = [
        ekf_loss(innovation, noise, step, covariance)
        for noise in (2.0, torch.full((4,), 2.0), 2.0 * torch.eye(4), torch.tensor(2.0))
    ]
    for loss in losses:
        torch.testing.assert_close(loss, innovation.square().sum() / 4 + step.square().sum() / 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mle_loss(torch.zeros(0)), "innovation"),
        (lambda: mle_loss(torch.zeros(2, 2)), "innovation"),
        (lambda: ekf_loss(torch.ones(2), -1.0, torch.zeros(3), torch.eye(3)), "noise"),
        (lambda: ekf_loss(torch.ones(2), torch.ones(3), torch.zeros(3), torch.eye(3)), "noise"),
        (lambda: ekf_loss(torch.ones(2), torch.eye(3), torch.zeros(3), torch.eye(3)), "noise"),
        (lambda: ekf_loss(torch.ones(2), -torch.eye(2), torch.zeros(3), torch.eye(3)), "noise"),
        (lambda: ekf_loss(torch.ones(2), 1.0, torch.zeros(3), torch.eye(4)), "covariance"),
        (lambda: ekf_loss(torch.ones(2), 1.0, torch.full((3,), math.nan), torch.eye(3)), "displacement"),
        (lambda: kl_decomposition(torch.ones(2), 1.0, torch.ones(3), 0.0), "value_noise"),
        (lambda: kl_decomposition(torch.ones(2), 1.0, torch.ones(3), 1.0, observations=0), "observations"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
