"""Error bars against known answers: drawn from the prior, mis-scaled, with outliers."""

from __future__ import annotations

import copy

import pytest
import scipy.stats
import torch
from cases import paper_filter
from torch import nn

import kova
from kova import posterior
from kova.calibration import Calibration

WIDTH = 6


def world(seed: int, noise: float, samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, labels and exact values of a linear value whose weights are drawn from N(0, I)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, WIDTH, dtype=torch.float64, generator=generator)
    truth = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
    values = inputs @ truth
    labels = values + noise * torch.randn(samples, dtype=torch.float64, generator=generator)
    return inputs, labels, values


def linear(**kwargs) -> kova.KOVA:
    critic = nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(critic.weight)
    return paper_filter(critic, evolution=kova.Static(), dtype=torch.float64, **kwargs)


def test_ten_thousand_draws_from_the_prior_are_covered_at_every_level():
    # One filter serves all draws: for a linear critic P does not depend on the labels, and θ is linear in them.
    generator = torch.Generator().manual_seed(0)
    count, samples = 10_000, 12
    inputs = torch.randn(samples, WIDTH, dtype=torch.float64, generator=generator)
    probe = torch.randn(1, WIDTH, dtype=torch.float64, generator=generator)
    columns = []
    for index in range(samples):
        optimizer = linear(noise=kova.ConstantNoise(0.5))
        optimizer.step(inputs, torch.eye(samples, dtype=torch.float64)[index])
        columns.append(optimizer.predict(probe).mean)
    spread = optimizer.predict(probe).stddev
    truths = torch.randn(count, WIDTH, dtype=torch.float64, generator=generator)
    noise = 0.5**0.5 * torch.randn(count, samples, dtype=torch.float64, generator=generator)
    labels = truths @ inputs.T + noise
    belief = torch.distributions.Normal(labels @ torch.cat(columns), spread.expand(count))
    values = (truths @ probe.T).squeeze(1)

    found = posterior.coverage(belief, values, (0.5, 0.8, 0.95))
    torch.testing.assert_close(found, torch.tensor([0.5, 0.8, 0.95], dtype=torch.float64), atol=0.015, rtol=0.0)
    assert scipy.stats.kstest(posterior.pit(belief, values).numpy(), "uniform").pvalue > 0.01


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_calibration_undoes_a_wrong_scale_and_leaves_the_weights_alone(factor):
    noise = 0.5
    hits, plain_hits = [], []
    for seed in range(5):
        inputs, labels, _ = world(seed, noise, 2_000)
        optimizer = linear(noise=kova.ConstantNoise(factor * noise**2), prior_variance=factor)
        for batch in torch.arange(1_000).split(10):
            optimizer.step(inputs[batch], labels[batch])
        weights = copy.deepcopy(optimizer.observation.module.weight)
        belief = optimizer.predict(inputs[1_000:], factor * noise**2, calibrated=True)
        plain = optimizer.predict(inputs[1_000:], factor * noise**2)
        hits.append(posterior.coverage(belief, labels[1_000:], (0.95,)).item())
        plain_hits.append(posterior.coverage(plain, labels[1_000:], (0.95,)).item())
        assert torch.equal(weights, optimizer.observation.module.weight)
    assert 0.90 <= sum(hits) / 5 <= 0.99
    if factor != 1.0:
        assert not 0.90 <= sum(plain_hits) / 5 <= 0.99


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_calibration_undoes_a_wrong_noise_alone(factor):
    noise = 0.5
    hits = []
    for seed in range(5):
        inputs, labels, _ = world(seed, noise, 3_000)
        optimizer = linear(noise=kova.ConstantNoise(factor * noise**2))
        for batch in torch.arange(2_000).split(10):
            optimizer.step(inputs[batch], labels[batch])
        belief = optimizer.predict(inputs[2_000:], factor * noise**2, calibrated=True)
        hits.append(posterior.coverage(belief, labels[2_000:], (0.95,)).item())
    assert 0.90 <= sum(hits) / 5 <= 0.99


def test_a_filter_is_the_same_with_and_without_anyone_looking():
    inputs, labels, _ = world(0, 0.5, 100)
    watched, alone = linear(), linear()
    for batch in torch.arange(100).split(10):
        watched.step(inputs[batch], labels[batch])
        watched.predict(inputs, calibrated=True)
        alone.step(inputs[batch], labels[batch])
    assert torch.equal(watched.observation.module.weight, alone.observation.module.weight)
    assert torch.equal(watched.covariance.dense(), alone.covariance.dense())


def test_a_network_with_batch_size_noise_covers_after_calibration():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = paper_filter(critic)
    inputs = 2 * torch.rand(6_000, 2) - 1
    labels = torch.sin(3 * inputs[:, 0]) * inputs[:, 1] + 0.1 * torch.randn(6_000)
    for batch in torch.arange(5_000).split(50):
        optimizer.step(inputs[batch], labels[batch])
    size = 50.0
    plain = posterior.coverage(optimizer.predict(inputs[5_000:], size), labels[5_000:], (0.95,)).item()
    calibrated = optimizer.predict(inputs[5_000:], size, calibrated=True)
    assert plain == 1.0
    assert 0.90 <= posterior.coverage(calibrated, labels[5_000:], (0.95,)).item() <= 0.99


def test_the_estimate_is_unbiased_and_ignores_outliers():
    generator = torch.Generator().manual_seed(0)
    clean, dirty = Calibration(), Calibration()
    for _ in range(2_000):
        standardised = 2.0 * torch.randn(100, generator=generator)
        clean = clean.updated(standardised)
        standardised[0] *= 1_000.0
        dirty = dirty.updated(standardised)
    assert clean.scale == pytest.approx(4.0, rel=0.1)
    assert dirty.scale == pytest.approx(4.0, rel=0.2)


def test_labels_met_exactly_do_not_end_it():
    calibration = Calibration()
    for _ in range(100):
        calibration = calibration.updated(torch.zeros(4))
    assert calibration.scale > 0.0
    for _ in range(1_000):
        calibration = calibration.updated(torch.randn(4))
    assert 0.3 < calibration.scale < 3.0


def test_a_checkpoint_carries_the_scale_and_an_old_one_starts_at_one():
    inputs, labels, _ = world(0, 0.5, 50)
    optimizer = linear()
    optimizer.step(inputs, labels)
    state = optimizer.state_dict()
    other = linear()
    other.load_state_dict(state)
    assert other.calibration.scale == optimizer.calibration.scale != 1.0
    del state["calibration"], state["noise_memory"]
    fresh = linear()
    fresh.load_state_dict(state)
    assert fresh.calibration.scale == 1.0


@pytest.mark.parametrize("state", [None, {}, {"scale": -1.0, "batches": 1}, {"scale": 1.0, "batches": "x"}])
def test_a_damaged_scale_is_refused(state):
    optimizer = linear()
    with pytest.raises(ValueError, match="calibration"):
        optimizer.load_state_dict({**optimizer.state_dict(), "calibration": state})
