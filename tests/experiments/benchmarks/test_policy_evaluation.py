import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from kova.cli import app
from kova.experiments.benchmarks import policy_evaluation
from kova.experiments.problems import pendulum


def run(out: Path, seed: int = 0) -> dict:
    words = ["bench", "policy", "--seed", str(seed), "--samples", "576", "--out", str(out)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "policy_evaluation.png" in result.output
    record = json.loads((out / "policy_evaluation.json").read_text())
    assert record.pop("made_by")["command"] == f"kova {' '.join(words)}"
    return record


def test_demo_writes_finite_and_repeatable_numbers(tmp_path: Path) -> None:
    generator_before = torch.get_rng_state()
    record = run(tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), generator_before)
    assert (tmp_path / "first" / "policy_evaluation.png").stat().st_size > 10_000

    assert record["settings"]["samples_seen"] == [512, 576]
    kova, *adam = record["results"]
    assert kova["arm"] == "KOVA"
    assert len(adam) == 2 * len(policy_evaluation.RATES)
    for arm in record["results"]:
        assert len(arm["explained_variance"]) == 2
        assert all(math.isfinite(score) and score <= 1.0 for score in arm["explained_variance"])
    assert 0.0 <= kova["return_band_coverage"] <= 1.0
    assert kova["mean_nis"] > 0.0

    assert run(tmp_path / "second") == record


def test_the_shown_arms_are_the_default_rate_and_the_best() -> None:
    once, often = (
        [policy_evaluation.LearningCurve(f"{kind}{rate}", [rate]) for rate in (0.1, 0.3, 0.2)] for kind in "ab"
    )
    results = policy_evaluation.EvaluationResults([1], policy_evaluation.LearningCurve("KOVA", [0.4]), once, often)
    assert [arm.name for arm in results.arms] == ["KOVA", "a0.1 (default)", "a0.3 (best rate)", "b0.3 (best rate)"]
    assert "KOVA had passed it at 1" in policy_evaluation.verdict(results)


def test_discounted_returns_by_hand() -> None:
    returns = pendulum.discounted_returns(torch.tensor([1.0, 2.0, 4.0]), gamma=0.5)
    assert returns.tolist() == [1.0 + 0.5 * 2.0 + 0.25 * 4.0, 2.0 + 0.5 * 4.0, 4.0]


def test_episode_keeps_only_complete_returns() -> None:
    dropped = pendulum.EPISODE_STEPS - len(pendulum.episode(seed=0).returns)
    assert pendulum.GAMMA**dropped <= pendulum.MISSING_FUTURE < pendulum.GAMMA ** (dropped - 1)


def test_streams_are_independent_and_repeatable() -> None:
    first, again, other = (next(pendulum.episodes(3, stream)).observations for stream in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("seed", range(5))
def test_controller_swings_up(seed: int) -> None:
    observations, _ = pendulum.roll_out(seed)
    assert float(observations[-100:, 0].mean()) > 0.9
