"""A step happens wholly or not at all, and float32 gets a second chance in float64."""

from __future__ import annotations

import signal

import pytest
import torch
from cases import REMEMBERING, batch, mlp, paper_filter, relative, same_bits, snapshot, theta
from torch import nn

import kova

TWINS = torch.tensor([[0.3, -0.2, 0.5]]).expand(4, 3).contiguous()
LABELS = torch.tensor([1.0, 1.1, 0.9, 1.0])


def twin_optimizer(prior: float, noise: float, evolution: kova.Evolution, dtype: torch.dtype) -> kova.KOVA:
    """Four equal samples make J P Jᵀ of rank one; only the noise keeps S regular."""
    torch.manual_seed(0)
    critic = nn.Linear(3, 1).to(dtype)
    return paper_filter(critic, prior_variance=prior, evolution=evolution, noise=kova.ConstantNoise(noise), dtype=dtype)


@pytest.mark.parametrize("evolution", [kova.Static(), kova.Memoryless(0.0)], ids=repr)
def test_a_factorisation_that_fails_in_float32_is_retried_in_float64(evolution):
    # 2^27 swallows the noise in float32 and leaves the product P Jᵀ exact.
    narrow = twin_optimizer(2.0**27, 1e-3, evolution, torch.float32)
    wide = twin_optimizer(2.0**27, 1e-3, evolution, torch.float64)
    S = 2.0**27 * (TWINS @ TWINS.T + 1) + 1e-3 * torch.eye(4)
    assert int(torch.linalg.cholesky_ex(S).info) > 0, "float32 would do: the test proves nothing"
    wide.observation.module.load_state_dict(narrow.observation.module.state_dict())
    narrow.step(TWINS, LABELS)
    wide.step(TWINS.double(), LABELS.double())
    u = TWINS[:1]
    assert relative(narrow.predict(u).mean, wide.predict(u.double()).mean) < 1e-4
    assert narrow.steps == 1


@pytest.mark.parametrize("evolution", [kova.Static(), kova.Memoryless(0.0)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_below_the_resolution_of_the_prior_inflates_it(evolution, dtype):
    optimizer = twin_optimizer(2.0**60, 1e-12, evolution, dtype)
    report = optimizer.step(TWINS.to(dtype), LABELS.to(dtype))
    assert 0.0 < float(report.inflation) < 1e-5 * 2.0**60
    # Nothing was known, so the four equal samples are met.
    assert float(optimizer.predict(TWINS[:1].to(dtype)).mean) == pytest.approx(float(LABELS.mean()), rel=1e-4)
    assert float(optimizer.step(TWINS.to(dtype), LABELS.to(dtype), noise=1e20).inflation) == 0.0


@pytest.mark.parametrize("evolution", REMEMBERING, ids=repr)
def test_failures_between_steps_leave_no_trace(evolution):
    calm, troubled = (paper_filter(mlp(), evolution=evolution, dtype=torch.float64) for _ in range(2))
    u, y = batch(24)
    wrong = [
        {"inputs": u * torch.nan, "targets": y},
        {"inputs": u, "targets": y * torch.inf},
        {"inputs": u, "targets": y, "noise": torch.zeros(24, dtype=torch.float64)},
        {"inputs": u, "targets": y[:3]},
    ]
    for step in range(30):
        calm.step(*batch(24, seed=step))
        with pytest.raises(ValueError, match=r"non-finite|noise must be > 0|targets has 3 entries"):
            troubled.step(**wrong[step % len(wrong)])
        troubled.step(*batch(24, seed=step))
    assert same_bits(snapshot(calm), snapshot(troubled))


def test_an_error_late_in_the_step_changes_nothing():
    class Late(kova.Evolution):
        """Fails after everything else has been checked."""

        def predict(self, P):
            if P.max_variance() < 0.999:
                raise RuntimeError("late")
            return P

    critic = nn.Linear(3, 1).double()
    optimizer = paper_filter(critic, evolution=Late(), noise=kova.ConstantNoise(0.1), dtype=torch.float64)
    u, y = batch(24)
    optimizer.step(u, y)
    before = snapshot(optimizer)
    with pytest.raises(RuntimeError, match="late"):
        optimizer.step(u, y)
    assert same_bits(before, snapshot(optimizer))


@pytest.mark.parametrize("factor", [-0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["scaled", "shifted", "inflated_along_batch"])
def test_a_prediction_that_is_no_covariance_is_refused(method, factor):
    class Wrong(kova.Evolution):
        started = False

        def predict(self, P):
            return getattr(P, method)(factor if self.started else 1.0)

    evolution = Wrong()
    optimizer = paper_filter(mlp(), evolution=evolution, dtype=torch.float64)
    before = snapshot(optimizer)
    evolution.started = True
    with pytest.raises(ValueError, match=r"factor|variance|weight"):
        optimizer.step(*batch())
    assert same_bits(before, snapshot(optimizer))


def test_an_evolution_may_compute_with_tensors():
    class Tensors(kova.Evolution):
        def predict(self, P):
            return P.scaled(torch.tensor(1.1)).shifted(torch.tensor(0.01))

    optimizer = paper_filter(mlp(), evolution=Tensors(), dtype=torch.float64)
    optimizer.step(*batch(8))
    state = optimizer.state_dict()["covariance"]["parts"][0]
    assert isinstance(state["scale"], float)


def test_an_own_noise_model_cannot_touch_the_innovation():
    class Rude(kova.Noise):
        def covariance(self, batch):
            batch.innovation.abs_()
            return 1.0

    u, y = batch()
    rude, polite = paper_filter(mlp(), noise=Rude()), paper_filter(mlp(), noise=kova.ConstantNoise(1.0))
    assert torch.equal(rude.step(u, y).innovation, polite.step(u, y).innovation)


@pytest.mark.parametrize(
    ("network", "covariance", "size"), [(torch.float32, torch.float64, 1e42), (torch.float16, torch.float32, 1e7)]
)
def test_parameters_that_would_overflow_their_dtype_change_nothing(network, covariance, size):
    critic = mlp(dtype=network)
    optimizer = paper_filter(critic, dtype=covariance)
    before = snapshot(optimizer)
    u, y = batch()
    with pytest.raises(kova.NumericalError, match="parameters are not finite"):
        optimizer.step(u.to(network), size * y)
    assert same_bits(before, snapshot(optimizer))


def test_a_batch_without_information_is_a_step_like_any_other():
    optimizer = paper_filter(nn.Linear(3, 1, bias=False), evolution=kova.DirectionalForgetting(0.1))
    report = optimizer.step(torch.zeros(4, 3), torch.ones(4))
    assert float(report.information_gain) == 0.0
    torch.testing.assert_close(optimizer.covariance.diagonal(), torch.ones(3))


def test_an_update_that_overflows_changes_nothing():
    critic = nn.Linear(3, 1)
    optimizer = paper_filter(critic, prior_variance=1e30, noise=kova.ConstantNoise(1e30), evolution=kova.Static())
    before, weights = snapshot(optimizer), theta(critic)
    with pytest.raises((kova.NumericalError, ValueError)):
        optimizer.step(torch.full((2, 3), 1e12), torch.tensor([1e30, -1e30]))
    assert same_bits(before, snapshot(optimizer))
    assert torch.equal(weights, theta(critic))


@pytest.mark.parametrize("structure", [{}, {"units": kova.RawUnits()}, {"evolution": kova.Memoryless(0.1)}], ids=repr)
@pytest.mark.parametrize("steps", [0, 3])
def test_filters_that_step_together_step_all_or_none(structure, steps):
    def together(first, second, u, y, others):
        first.step(u, y, together_with=lambda: second.step(u, others))

    joined, apart = ([kova.KOVA(mlp(seed=seed), **structure) for seed in (0, 1)] for _ in range(2))
    for step in range(steps):
        u, y = batch(24, seed=step)
        together(*joined, u, y, y)
        for optimizer in apart:
            optimizer.step(u, y)
    assert all(same_bits(snapshot(one), snapshot(other)) for one, other in zip(joined, apart, strict=True))
    before = [snapshot(optimizer) for optimizer in joined]
    u, y = batch(24, seed=9)
    with pytest.raises(ValueError, match="targets has 24 non-finite"):
        together(*joined, u, y, y * torch.nan)
    assert all(same_bits(snapshot(one), then) for one, then in zip(joined, before, strict=True))
    # The error is forgotten with the call.
    joined[0].step(u, y)
    assert [optimizer.steps for optimizer in joined] == [steps + 1, steps]


def test_ctrl_c_during_the_second_of_two_steps_waits_for_both():
    class Interrupted(kova.Noise):
        def covariance(self, batch):
            signal.raise_signal(signal.SIGINT)
            return 1.0

    first, second = paper_filter(mlp()), paper_filter(mlp(seed=1), noise=Interrupted())
    u, y = batch()
    with pytest.raises(KeyboardInterrupt):
        first.step(u, y, together_with=lambda: second.step(u, y))
    assert first.steps == second.steps == 1
