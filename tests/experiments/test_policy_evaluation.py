import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from kova.experiments.benchmarks import policy_evaluation
from kova.experiments.problems import pendulum


def run(out: Path, seed: int = 0) -> dict:
    policy_evaluation.main(["--out", str(out), "--seed", str(seed), "--samples", "576"])
    numbers = json.loads((out / "policy_evaluation.json").read_text())
    assert numbers.pop("made_by")["command"].endswith(f"--seed {seed} --samples 576")
    return numbers


def test_demo_writes_finite_and_repeatable_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator_before = torch.get_rng_state()
    results = run(tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), generator_before)
    assert "policy_evaluation.png" in capsys.readouterr().out
    assert (tmp_path / "first" / "policy_evaluation.png").stat().st_size > 10_000

    assert results["samples_seen"] == [512, 576]
    assert [arm["name"].split(" ")[0].rstrip(",") for arm in results["arms"]] == ["KOVA", "Adam", "Adam", "Adam"]
    for arm in results["arms"] + results["adam_grid"]:
        assert len(arm["explained_variance"]) == 2
        assert all(math.isfinite(score) and score <= 1.0 for score in arm["explained_variance"])
    assert 0.0 <= results["return_band_coverage"] <= 1.0
    assert results["mean_nis"] > 0.0

    assert run(tmp_path / "second") == results


@pytest.mark.parametrize("arguments", [["--samples", "100"], ["--seed", "-1"]])
def test_arguments_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        policy_evaluation.main(arguments)


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
