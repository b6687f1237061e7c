"""``kova bench train``: whole runs in turns, and the file that keeps the algorithms apart."""

from __future__ import annotations

import json
import math

from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.benchmarks.train import ARMS

runner = CliRunner()


def test_each_algorithm_has_its_arms_and_keeps_the_others_results(tmp_path):
    common = ["--env", "Pendulum-v1", "--steps", "2048", "--repeats", "1", "--out", str(tmp_path)]
    for algorithm in ("ppo", "a2c", "a2c"):
        result = runner.invoke(app, ["bench", "train", "--algorithm", algorithm, *common])
        assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "train.json").read_text())["results"]
    assert [(r["algorithm"], r["arm"]) for r in found] == [(a, arm) for a in ("ppo", "a2c") for arm in ARMS[a]]
    assert all(result["seconds"] > 0.0 and result["env"] == "Pendulum-v1" for result in found)
    # 2,048 is not a number of whole rollouts of 40, and PPO has one rollout, whose fit counts too.
    assert [result["frames"] for result in found] == [2048, 2048, 2080, 2080, 2080, 2080, 2048]
    assert all(math.isfinite(result["explained_variance"]) for result in found)


def test_an_algorithm_without_arms_is_named(tmp_path):
    result = runner.invoke(app, ["bench", "train", "--algorithm", "dqn", "--out", str(tmp_path)])
    assert result.exit_code != 0
    assert "--algorithm must be one of ppo, a2c, got 'dqn'" in result.stderr
