"""Arguments, wrappers and processes of an environment: stored with the run, and used wherever it trains or plays."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from killed_runs import PPO, assert_same, wait_for
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.errors import UsageError
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import read_rows
from kova.experiments.runs.model import load
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Training

TINY = [
    "--steps",
    "128",
    "--set",
    "algorithm.n_steps=64",
    "--set",
    "algorithm.n_epochs=1",
    "--set",
    "policy.net_arch=[8]",
]
SHORT = "gymnasium.wrappers.TimeLimit(max_episode_steps=7)"


def kova(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_arguments_of_the_environment_are_kept_for_training_and_playing(tmp_path: Path):
    run = tmp_path / "run"
    kova(
        "train",
        "ppo",
        "Pendulum-v1",
        *TINY,
        "--env-kwargs",
        "g=2.5",
        "--env-kwargs",
        "max_episode_steps=20",
        "--run-dir",
        str(run),
    )
    assert yaml.safe_load((run / "config.yaml").read_text())["env_kwargs"] == {"g": 2.5, "max_episode_steps": 20}
    assert {row["l"] for row in read_rows(run / "monitor.csv")} == {"20"}
    assert "2 episodes of 20 frames" in kova("eval", str(run), "--episodes", "2")
    directory = RunDirectory(run)
    resumed = Training(directory.config(), directory, "kova")
    _, drawn = load(directory.config().single(), directory.latest_checkpoint(), "rgb_array")
    for env in (resumed.env, drawn):
        assert env.get_attr("g") == [2.5]
        env.close()
    result = CliRunner().invoke(app, ["train", "--resume", "--run-dir", str(run), "--env-kwargs", "g=9.8"])
    assert result.exit_code == 2
    assert "was started with env_kwargs" in result.stderr


def test_wrappers_are_kept_for_training_and_playing(tmp_path: Path):
    run = tmp_path / "run"
    clip = "gymnasium.wrappers.ClipReward(0, 0.5)"
    kova("train", "ppo", "CartPole-v1", *TINY, "--wrapper", SHORT, "--wrapper", clip, "--run-dir", str(run))
    assert yaml.safe_load((run / "config.yaml").read_text())["wrappers"] == [SHORT, clip]
    rows = read_rows(run / "monitor.csv")
    # CartPole takes longer to fall than seven frames; what is reported is what is learnt from.
    assert {(float(row["r"]), int(row["l"])) for row in rows} == {(3.5, 7)}
    assert "return 3.5 ± 0.0 (95 % interval), 2 episodes of 7 frames" in kova("eval", str(run), "--episodes", "2")


def test_the_first_wrapper_is_the_innermost_and_needs_no_brackets():
    names = ["gymnasium.wrappers.ClipReward(0, 1)", "gymnasium.wrappers.FlattenObservation"]
    env = environments.make(RunConfig("ppo", "CartPole-v1", wrappers=names)).envs[0]
    assert [type(env.env).__name__, type(env.env.env).__name__] == ["FlattenObservation", "ClipReward"]


@pytest.mark.parametrize("vec", ["dummy", "subproc"])
def test_all_arguments_that_an_environment_does_not_take_are_named(vec: str):
    config = RunConfig("ppo", "Pendulum-v1", vec=vec, env_kwargs={"gg": 1, "g": 9.0, "wind": 2})
    with pytest.raises(UsageError, match="'Pendulum-v1' does not take gg, wind; did you mean 'g'") as error:
        environments.make(config)
    assert "9.0" not in str(error.value)


def test_a_misspelt_argument_of_a_base_class_is_corrected():
    with pytest.raises(UsageError, match="does not take frame_skp; did you mean 'frame_skip'"):
        environments.make(RunConfig("ppo", "Hopper-v5", env_kwargs={"frame_skp": 2}))


def in_processes(*words: str) -> list[str]:
    return [*PPO, "--set", "n_envs=2", "--set", "algorithm.n_steps=32", *words]


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("dummy") / "run"
    kova("train", *in_processes("--run-dir", str(run)))
    return run


def test_processes_give_the_same_run(in_one_process: Path, tmp_path: Path):
    before = set(multiprocessing.active_children())
    kova("train", *in_processes("--vec", "subproc", "--run-dir", str(tmp_path / "run")))
    assert set(multiprocessing.active_children()) == before
    assert RunDirectory(tmp_path / "run").config().vec == "subproc"
    assert_same(tmp_path / "run", in_one_process)


def test_ctrl_c_ends_all_processes_and_the_run_goes_on(in_one_process: Path, tmp_path: Path):
    run, out = tmp_path / "run", tmp_path / "out"
    words = in_processes("--vec", "subproc", "--run-dir", str(run), "--set", "checkpoint_every=128", "--steps", "512")
    with out.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "kova", "train", *words],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            # A terminal sends Ctrl-C to all processes of the command.
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        process.is_alive = lambda: process.poll() is None
        wait_for(run / "status.json", process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130, out.read_text()
    assert "Traceback" not in out.read_text()
    assert re.search(r"stopped at frame \d+ of 512", out.read_text())
    for _ in range(600):
        if not in_group(process.pid):
            break
        time.sleep(0.05)
    assert in_group(process.pid) == []
    kova("train", "--resume", "--run-dir", str(run))
    assert_same(run, in_one_process)


def in_group(group: int) -> list[str]:
    """Return the processes of a group that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, owner = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(owner) == group and state != "Z":
            found.append(folder.name)
    return found


class Stubborn:
    """A maker of environments whose process dies in a step."""

    def __call__(self):
        import gymnasium

        env = gymnasium.make("CartPole-v1")
        if multiprocessing.parent_process() is not None:
            env.step = lambda action: os._exit(1)
        return env


def test_a_process_that_dies_is_one_error_and_the_rest_is_closed():
    from kova.experiments.runs.vectors import Processes

    env = Processes([Stubborn(), Stubborn()])
    env.reset()
    with pytest.raises(RuntimeError, match="the process of an environment ended; --vec dummy shows its error"):
        env.step([0, 0])
    env.close()
    assert not any(process.is_alive() for process in env.processes)


@pytest.mark.parametrize("env", ["Hopper-v4", "Hopper-v5"])
def test_mujoco_says_nothing_and_leaves_nothing_behind(env: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A warning would be an error here.
    kova("train", "ppo", env, *TINY, "--run-dir", "run")
    kova("eval", "run", "--episodes", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
