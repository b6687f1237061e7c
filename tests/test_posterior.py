"""Beliefs about values: the two parts of the spread, and scores against closed forms."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from cases import paper_filter
from torch import nn
from torch.distributions import Normal

from kova import posterior

STANDARD = Normal(torch.zeros(20_000, dtype=torch.float64), torch.ones(20_000, dtype=torch.float64))


def draws(scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_the_parts_of_the_variance_are_kept_apart():
    critic = nn.Linear(3, 1)
    optimizer = paper_filter(critic, prior_variance=2.0)
    inputs = torch.randn(5, 3)
    found = optimizer.predictive(inputs, observation_noise=0.5)
    expected = 2.0 * (inputs.square().sum(1) + 1.0)
    torch.testing.assert_close(found.epistemic, expected)
    torch.testing.assert_close(found.observation, torch.full((5,), 0.5))
    torch.testing.assert_close(found.value.variance, expected)
    torch.testing.assert_close(found.label.variance, expected + 0.5)
    torch.testing.assert_close(optimizer.predict(inputs, 0.5).variance, found.label.variance)
    torch.testing.assert_close(optimizer.predict(inputs).variance, found.value.variance)


def test_nll_is_the_log_density():
    belief = Normal(torch.tensor([1.0]), torch.tensor([2.0]))
    expected = 0.5 * math.log(2 * math.pi * 4.0) + 0.5 * (3.0 - 1.0) ** 2 / 4.0
    assert posterior.nll(belief, torch.tensor([3.0])).item() == pytest.approx(expected, rel=1e-6)


def test_crps_is_the_integral_of_the_squared_difference_of_distribution_functions():
    belief = Normal(torch.tensor([0.3], dtype=torch.float64), torch.tensor([1.7], dtype=torch.float64))
    outcome = 2.1
    grid = torch.linspace(-30.0, 30.0, 2_000_001, dtype=torch.float64)
    step = (grid >= outcome).double()
    integral = torch.trapezoid((belief.cdf(grid) - step).square(), grid)
    found = posterior.crps(belief, torch.tensor([outcome], dtype=torch.float64))
    assert found.item() == pytest.approx(integral.item(), abs=1e-4)


def test_a_calibrated_belief_covers_at_its_levels_and_has_a_uniform_pit():
    found = posterior.coverage(STANDARD, draws(), (0.5, 0.8, 0.95))
    torch.testing.assert_close(found, torch.tensor([0.5, 0.8, 0.95], dtype=torch.float64), atol=0.015, rtol=0.0)
    transformed = posterior.pit(STANDARD, draws())
    assert scipy.stats.kstest(transformed.numpy(), "uniform").pvalue > 0.01
    histogram = posterior.pit_histogram(STANDARD, draws(), bins=5)
    torch.testing.assert_close(histogram, torch.full((5,), 0.2), atol=0.02, rtol=0.0)
    assert posterior.sharpness(STANDARD).item() == 1.0


def test_overconfidence_shows_in_every_score():
    wide = draws(3.0)
    assert posterior.coverage(STANDARD, wide, (0.95,)).item() < 0.6
    assert posterior.nll(STANDARD, wide) > posterior.nll(Normal(STANDARD.mean, 3.0), wide)
    assert posterior.crps(STANDARD, wide) > posterior.crps(Normal(STANDARD.mean, 3.0 * STANDARD.stddev), wide)
    assert posterior.pit_histogram(STANDARD, wide, bins=10)[0] > 0.2


@pytest.mark.parametrize("levels", [(0.0,), (1.0,), (0.5, 95.0)])
def test_a_level_that_is_none_is_refused(levels):
    with pytest.raises(ValueError, match="levels"):
        posterior.coverage(STANDARD, draws(), levels)


def test_an_outcome_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="outcome"):
        posterior.nll(STANDARD, torch.zeros(3))
