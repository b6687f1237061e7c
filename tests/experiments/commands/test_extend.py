"""A finished run that is given more frames."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.runs import replay
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Training
from kova.experiments.sweeps.grid import PlannedRun

runner = CliRunner()
PPO = ["ppo", "CartPole-v1", "--steps", "128", "--set", "algorithm.n_steps=64", "--set", "policy.net_arch=[8]"]
DQN = ["dqn", "CartPole-v1", "--steps", "128", "--set", "algorithm.learning_starts=16", "--set", "policy.net_arch=[8]"]


def train(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, ["train", *words])
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("ppo") / "run"
    train(*PPO, "--run-dir", str(run))
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_schedules_are_those_of_the_longer_run(run: Path):
    train("--resume", "--run-dir", str(run), "--steps", "512")
    directory = RunDirectory(run)
    assert directory.config().steps == 512
    assert (directory.status()["state"], directory.status()["step"]) == ("finished", 512)
    assert [int(row["step"]) for row in read_rows(run / "monitor.csv")][-1] > 128
    rates = {
        int(float(row[STEP])): float(row["train/learning_rate"])
        for row in read_rows(run / "progress.csv")
        if "train/learning_rate" in row
    }
    # The preset's rate falls linearly from 3e-4 to 0 at the last frame. A row has the update before it, here at 256 of
    # 512 frames; the last row of a part has the last update.
    assert rates == pytest.approx({128: 0.0, 320: 1.5e-4, 512: 0.0})


def test_it_can_be_extended_again_and_stopped_between(run: Path):
    directory = RunDirectory(run)
    longer = directory.config().changed(steps=256)
    directory.extend(longer, 128)
    assert not directory.is_finished()
    # As after a kill: the frames need not be given again, and may be.
    train("--resume", "--run-dir", str(run), "--steps", "256")
    train("--resume", "--run-dir", str(run), "--steps", "320")
    assert directory.status()["step"] == 320


@pytest.mark.parametrize("steps", ["128", "64"])
def test_frames_that_are_not_more_are_refused(run: Path, steps: str):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    error = train("--resume", "--run-dir", str(run), "--steps", steps, code=2)
    assert f"has 128 frames, and --steps {steps} is not more" in error
    assert {path: path.read_bytes() for path in before} == before


def test_a_finished_run_says_so_and_frames_are_those_that_were_trained(run: Path):
    said = train("--resume", "--run-dir", str(run))
    assert "is finished; to train it on, give --steps a number above 128" in said
    assert re.search(r"frames +128\b(?!:)", said)
    # Rollouts are whole.
    assert "192: whole rollouts, after the 150 asked for" in train("--resume", "--run-dir", str(run), "--steps", "150")


def test_a_run_that_is_not_finished_is_finished_first(run: Path):
    RunDirectory(run).write_status("interrupted", step=128, steps=128)
    error = train("--resume", "--run-dir", str(run), "--steps", "256", code=2)
    assert "is not finished; resume it without --steps" in error


def test_a_run_of_a_sweep_keeps_its_frames(run: Path):
    named = run.rename(run.with_name(PlannedRun("", RunDirectory(run).config()).name))
    error = train("--resume", "--run-dir", str(named), "--steps", "256", code=2)
    assert "is a run of a sweep" in error
    assert json.loads((named / "status.json").read_text())["state"] == "finished"


def test_a_replay_buffer_grows_with_its_run(tmp_path: Path):
    run = tmp_path / "run"
    train(*DQN, "--run-dir", str(run))
    directory = RunDirectory(run)
    old = Training(directory.config(), directory, "kova").model.replay_buffer
    assert (old.buffer_size, old.full) == (128, True)
    train("--resume", "--run-dir", str(run), "--steps", "192")
    new = Training(directory.config(), directory, "kova").model.replay_buffer
    assert (new.buffer_size, new.size()) == (192, 192)
    np.testing.assert_array_equal(new.observations[:128], old.observations)


def test_what_a_full_buffer_holds_stays_in_order():
    space = spaces.Box(-1.0, 1.0, (1,))
    buffer = ReplayBuffer(8, space, space, "cpu", n_envs=2)
    for frame in range(6):
        now = np.full((2, 1), frame / 10)
        buffer.add(now, now + 0.1, now, np.full(2, frame), np.zeros(2), [{}, {"TimeLimit.truncated": True}])
    replay.grow(buffer, 7)
    assert buffer.buffer_size == 4
    replay.grow(buffer, 20)
    assert (buffer.buffer_size, buffer.pos, buffer.full, buffer.size()) == (10, 4, False, 4)
    assert buffer.rewards[:4, 0].tolist() == [2.0, 3.0, 4.0, 5.0]
    np.testing.assert_allclose(buffer.next_observations[:4, 0, 0], [0.3, 0.4, 0.5, 0.6], rtol=1e-6)
    np.testing.assert_array_equal(buffer.timeouts[:4], [[0.0, 1.0]] * 4)


def test_a_run_as_configured_is_the_default():
    assert RunConfig("ppo", "CartPole-v1").content().keys() <= {
        *("algo", "env", "preset", "steps", "seed", "n_envs", "normalize_observations", "normalize_rewards"),
        *("time_limit_bootstrap", "checkpoint_every", "algorithm", "policy", "critic"),
    }
