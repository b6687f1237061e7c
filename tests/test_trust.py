"""Steps that are checked: after them the loss, before them the scatter."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from cases import batch, linear, mlp, paper_filter, relative, same_bits, snapshot, theta
from torch import nn

import kova
from kova.trust import Outcome, trusted


def outcome(ratio: float, nis: float = 1.0, noise: float = 1.0) -> Outcome:
    return Outcome(ratio, nis, noise)


def test_a_good_step_follows_the_innovations_and_a_bad_one_is_tried_with_more_noise():
    judge = kova.GainRatio(factor=4.0, floor=0.1)
    good, memory = judge.judge(outcome(0.9, nis=0.5), 1.0)
    assert good
    assert 0.5 < judge.inflation(memory) < 1.0
    good, memory = judge.judge(outcome(0.9, nis=50.0), 1.0)
    assert good
    assert 1.0 < judge.inflation(memory) < 2.0
    for bad in (0.1, -3.0, math.nan, -math.inf):
        good, memory = judge.judge(outcome(bad), 1.5)
        assert not good
        assert judge.inflation(memory) == 6.0


def test_the_noise_stays_above_its_floor():
    judge, inflation = kova.GainRatio(floor=0.1), 1.0
    for _ in range(1000):
        _, memory = judge.judge(outcome(1.0, nis=1e-9, noise=20.0), inflation)
        inflation = judge.inflation(memory)
    assert inflation * 20.0 == pytest.approx(0.1)


def test_a_step_is_tried_until_it_is_good_and_not_more_often_than_said():
    asked = []

    def attempt(inflation: float) -> tuple[str, Outcome]:
        asked.append(inflation)
        return f"step {len(asked)}", outcome(1.0 if inflation >= 16.0 else 0.0)

    step, _ = trusted(kova.GainRatio(factor=4.0, tries=5), {}, attempt)
    assert (step, asked) == ("step 3", [1.0, 4.0, 16.0])
    asked.clear()
    step, memory = trusted(kova.GainRatio(factor=2.0, tries=2), {}, attempt)
    assert (step, asked, memory) == ("step 2", [1.0, 2.0], {"inflation": 4.0})


def test_the_gain_ratio_of_a_linear_critic_is_one():
    seen = []

    class Spy(kova.GainRatio):
        def judge(self, found, inflation):
            seen.append(found)
            return super().judge(found, inflation)

    optimizer = kova.KOVA(linear(), trust=Spy(), noise=kova.ConstantNoise(0.1), dtype=torch.float64)
    for step in range(5):
        optimizer.step(*batch(seed=step))
    assert [found.gain_ratio for found in seen] == pytest.approx([1.0] * 5)
    assert all(found.noise == pytest.approx(0.1) for found in seen)


def test_the_gain_ratio_is_the_one_of_the_formula():
    seen = []

    class Spy(kova.GainRatio):
        def judge(self, found, inflation):
            seen.append(found)
            return True, {}

    critic = mlp()
    u, y = batch(12)
    optimizer = paper_filter(critic, trust=Spy(), noise=kova.ConstantNoise(0.5), dtype=torch.float64)
    with torch.no_grad():
        before = y - critic(u).squeeze(1)
    J = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(v, critic.parameters(), retain_graph=True)])
                     for v in critic(u).squeeze(1)])  # fmt: skip
    old = theta(critic)
    optimizer.step(u, y)
    with torch.no_grad():
        after = y - critic(u).squeeze(1)
    left = before - J @ (theta(critic) - old)
    expected = (before.square().sum() - after.square().sum()) / (before.square().sum() - left.square().sum())
    assert seen[0].gain_ratio == pytest.approx(float(expected), rel=1e-8)
    assert seen[0].noise == pytest.approx(0.5)


def bending() -> nn.Sequential:
    """A critic whose linearisation promises far too much: steep units, small noise."""
    torch.manual_seed(1)
    critic = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    with torch.no_grad():
        critic[0].weight.mul_(8.0)
    return critic


def test_where_the_critic_bends_the_loss_falls_all_the_same():
    u, y = batch(64)
    losses = {}
    for trust in (kova.Unchecked(), kova.GainRatio()):
        critic = bending()
        optimizer = paper_filter(critic, trust=trust, noise=kova.ConstantNoise(1e-3), prior_variance=10.0)
        before = float((y - critic(u).squeeze(1)).square().mean().detach())
        optimizer.step(u, y)
        losses[type(trust)] = float((y - critic(u).squeeze(1)).square().mean().detach()) / before
    assert losses[kova.Unchecked] > 1.0, "the unchecked step must overshoot, or nothing is tested"
    assert losses[kova.GainRatio] < 1.0


def test_a_noise_of_its_own_is_taken_as_it_is():
    ours, theirs = (kova.KOVA(mlp(), trust=trust) for trust in (kova.GainRatio(), kova.Unchecked()))
    for one in (ours, theirs):
        one.step(*batch(dtype=torch.float64), noise=0.3)
    assert torch.equal(theta(ours.observation.module), theta(theirs.observation.module))
    assert ours.state_dict()["trust_memory"] == {}


def test_what_was_learned_is_saved_and_a_failed_step_changes_nothing():
    optimizer = kova.KOVA(mlp(), trust=kova.GainRatio(), dtype=torch.float64)
    for step in range(10):
        optimizer.step(*batch(seed=step))
    other = kova.KOVA(copy.deepcopy(optimizer.observation.module), trust=kova.GainRatio(), dtype=torch.float64)
    other.load_state_dict(optimizer.state_dict())
    u, y = batch(seed=50)
    with pytest.raises(ValueError, match="targets"):
        other.step(u, y * math.nan)
    for one in (optimizer, other):
        one.step(u, y)
    assert same_bits(snapshot(optimizer), snapshot(other))
    assert optimizer.state_dict()["trust_memory"] == other.state_dict()["trust_memory"] != {}


def test_labels_in_other_units_are_checked_alike():
    u, _ = batch(30, seed=999)
    found = []
    for c in (1.0, 1e4):
        optimizer = kova.KOVA(mlp(), trust=kova.GainRatio(), dtype=torch.float64)
        for step in range(40):
            inputs, labels = batch(12, seed=step)
            optimizer.step(inputs, c * labels)
        found.append(optimizer.predict(u).mean / c)
    assert relative(found[1], found[0]) < 1e-8


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: kova.GainRatio(low=1.0), ValueError, r"low must be in \(0, 1\)"),
        (lambda: kova.GainRatio(low=0.0), ValueError, "low"),
        (lambda: kova.GainRatio(factor=1.0), ValueError, "factor must be > 1"),
        (lambda: kova.GainRatio(tries=0), ValueError, "tries"),
        (lambda: kova.GainRatio(floor=-1.0), ValueError, "floor"),
        (lambda: kova.KOVA(mlp(), trust=True), TypeError, "trust must be a kova.Trust"),
    ],
)
def test_wrong_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()
