"""The ranking benchmark: its scores on made-up returns, and a small agent from end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from kova.experiments.benchmarks import ranking
from kova.experiments.errors import UsageError


def made_up(scatter: float) -> dict[str, float]:
    rng = np.random.default_rng(0)
    sigma = rng.uniform(0.1, 2.0, 400)
    values = sigma * rng.standard_normal(400)
    returns = scatter * rng.standard_normal((400, 40))
    return ranking.scores(values, sigma, np.ones(400) + 1e-9 * rng.random(400), returns)


def test_scatter_hides_errors_from_everybody_and_the_bound_says_so():
    clear, hidden = made_up(0.01), made_up(20.0)
    assert clear["best_with_returns"] > 0.99
    assert 0.4 < clear["replicas_with_returns"] < 0.8
    assert clear["replicas_with_errors"] == pytest.approx(clear["replicas_with_returns"], abs=0.01)
    assert abs(clear["P_with_returns"]) < 0.15
    assert abs(hidden["best_with_returns"]) < 0.1
    assert abs(hidden["replicas_with_returns"]) < 0.1
    assert hidden["scatter"] == pytest.approx(20.0, rel=0.05)
    assert clear["error"] == pytest.approx(1.2, rel=0.15)


def test_an_agent_is_judged_once(tmp_path, monkeypatch):
    for name, value in (("STATES", 6), ("FUTURES", 4), ("DRAWN_FROM", 100)):
        monkeypatch.setattr(ranking, name, value)
    console = Console(record=True, width=160)
    for _ in range(2):
        ranking.run(tmp_path, ["a2c"], ["CartPole-v1"], 1, 400, console, "kova bench ranking")
    results = json.loads((tmp_path / "ranking.json").read_text())["results"]
    assert len(results) == 1
    assert all(np.isfinite(results[0][name]) for name in ("error", "scatter", "replicas_with_errors"))
    assert console.export_text().count("CartPole-v1") == 1


def test_algorithms_without_a_value_of_states_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--algo must be a2c, ppo or trpo.*'dqn'"):
        ranking.run(tmp_path, ["dqn"], ["CartPole-v1"], 1, 400, Console(), "")
