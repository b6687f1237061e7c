"""The benchmark of return bands: what it counts, and that the task really changes."""

from __future__ import annotations

import json
import math

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from kova.experiments.benchmarks import returns
from kova.experiments.errors import UsageError


def test_a_share_is_of_the_returns_that_became_known_in_a_stretch():
    band = returns.WatchedBand()
    for frame, scores in ((10, [0.0, 5.0]), (30, [0.5])):
        band.frame = frame
        band.observe(scores, [-1.0] * len(scores), [1.0] * len(scores))
    band.observe([3.0], [-math.inf], [math.inf])
    band.observe([], [], [])
    assert band.share(0, 20) == 0.5
    assert band.share(20, 40) == 1.0
    assert band.share(40, 60) is None
    assert len(band.judged) == 3
    assert len(band) == 4


def test_half_way_the_task_pays_or_weighs_otherwise():
    env = returns.Tripled(gym.make("CartPole-v1"))
    env.reset(seed=0)
    assert env.step(0)[1] == 1.0
    returns.CHANGES["rewards"](env)
    assert env.step(0)[1] == 3.0
    hopper = gym.make("Hopper-v5")
    before = hopper.unwrapped.model.opt.gravity.copy()
    returns.CHANGES["gravity"](hopper)
    assert hopper.unwrapped.model.opt.gravity == pytest.approx(1.5 * before)


def test_an_agent_is_trained_once_and_changed_in_the_middle(tmp_path, monkeypatch):
    monkeypatch.setattr(returns, "AGENTS", (("a2c", "CartPole-v1", 6000, "rewards"),))
    monkeypatch.setattr(returns, "STRETCH", 2000)
    told = []
    monkeypatch.setitem(returns.CHANGES, "rewards", lambda env: told.append(returns._triple(env)))
    console = Console(record=True, width=120)
    for _ in range(2):
        returns.run(tmp_path, [], 1, console, "kova bench returns")
    (result,) = json.loads((tmp_path / "returns.json").read_text())["results"]
    assert len(told) == 8
    assert len(result["stretches"]) == 3
    assert result["judged"] > 100
    assert 0.3 < result["inside"] < 1.0
    assert np.isfinite(result["stretches"][2])
    with pytest.raises(UsageError, match="algorithm 'ppi' is unknown"):
        returns.run(tmp_path, ["ppi"], 1, console, "")
