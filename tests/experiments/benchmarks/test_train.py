"""``kova bench train``: whole runs in turns, and the file that keeps the algorithms apart."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.benchmarks.train import ARMS
from kova.experiments.sweeps.grid import Sweep

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
    assert "--algorithm must be one of ppo, a2c, paper-ppo, paper-trpo, got 'dqn'" in result.stderr


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
def test_the_arms_of_figure_3_are_those_of_its_sweep(algorithm):
    runs = Sweep.find(f"paper-fig3-{algorithm}").runs()
    planned = [run.config for run in runs if run.config.env == "Swimmer-v4" and run.config.seed == 0]
    timed = [arm.config("Swimmer-v4", 1_000_000).changed(seed=0) for arm in ARMS[f"paper-{algorithm}"].values()][-3:]
    for own, sweeps in zip(timed, planned, strict=True):
        assert own.algorithm == sweeps.algorithm
        assert own.policy == sweeps.policy
        assert own.n_envs == sweeps.n_envs
        # η does not change what a step costs.
        assert {**own.critic, "evolution": ""} == {**sweeps.critic, "evolution": ""}
