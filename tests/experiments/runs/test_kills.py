"""A run that is killed, or stopped by Ctrl-C, at any moment goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import killed_runs
import pytest
from killed_runs import DQN, PPO, assert_same, assert_whole, finish, start, wait_for
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.runs.run_directory import RunDirectory

RESUME = ["--resume", "--run-dir"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    # The order of additions, hence every bit, depends on the number of threads.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    if before is None:
        del os.environ["OMP_NUM_THREADS"]


class Uninterrupted:
    """A run that was left alone, and how long it took."""

    def __init__(self, arguments: list[str], path: Path) -> None:
        self.arguments, self.path, self.out = arguments, path, path.with_suffix(".out")
        process = start([*arguments, "--run-dir", str(path)], self.out)
        wait_for(path / "config.yaml", process)
        begin = time.perf_counter()
        wait_for(path / "curves.png", process)
        self.training_seconds = time.perf_counter() - begin
        process.join(60)
        assert process.exitcode == 0, self.out.read_text()


@pytest.fixture(scope="module")
def ppo(tmp_path_factory) -> Uninterrupted:
    return Uninterrupted(PPO, tmp_path_factory.mktemp("ppo") / "whole")


@pytest.fixture(scope="module")
def dqn(tmp_path_factory) -> Uninterrupted:
    return Uninterrupted(DQN, tmp_path_factory.mktemp("dqn") / "whole")


def stop_once(whole: Uninterrupted, run: Path, moment: float, number: signal.Signals) -> int:
    """Send a signal to a run ``moment`` seconds after its directory appeared; return the exit code."""
    process = start([*whole.arguments, "--run-dir", str(run)], run.with_suffix(".out"))
    wait_for(run / "config.yaml", process)
    time.sleep(moment)
    if process.is_alive():
        os.kill(process.pid or 0, number)
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def stop_and_resume(
    whole: Uninterrupted, folder: Path, times: int, seed: int, number: signal.Signals = signal.SIGKILL
) -> None:
    code = {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[number]
    choose, done = random.Random(seed), 0
    while done < times:
        run = folder / f"stopped{done}"
        if stop_once(whole, run, choose.uniform(0.0, whole.training_seconds), number) == code:
            assert_whole(run)
            finish([*RESUME, str(run)], run.with_suffix(".out"))
            assert_same(run, whole.path)
            done += 1
        else:
            # It was faster than the signal.
            shutil.rmtree(run)


@pytest.mark.slow
def test_two_kills_of_ppo_change_nothing(ppo: Uninterrupted, tmp_path: Path):
    stop_and_resume(ppo, tmp_path, times=2, seed=1)


def test_a_kill_of_dqn_changes_nothing(dqn: Uninterrupted, tmp_path: Path):
    stop_and_resume(dqn, tmp_path, times=1, seed=2)


@pytest.mark.parametrize(("algorithm", "seed"), [("ppo", 4), pytest.param("dqn", 5, marks=pytest.mark.slow)])
def test_ctrl_c_changes_nothing(algorithm: str, seed: int, request, tmp_path: Path):
    stop_and_resume(request.getfixturevalue(algorithm), tmp_path, times=2, seed=seed, number=signal.SIGINT)


def test_two_processes_do_not_train_in_one_directory(ppo: Uninterrupted, tmp_path: Path):
    shutil.copytree(ppo.path, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    with RunDirectory(tmp_path / "run").locked():
        result = CliRunner().invoke(app, ["train", *RESUME, str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "is being trained by another process" in result.stderr
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_twenty_stops_change_nothing(algorithm: str, number: signal.Signals, request, tmp_path: Path):
    stop_and_resume(request.getfixturevalue(algorithm), tmp_path, times=20, seed=3, number=number)


# The kills that time would hardly ever hit: just before and just after something is moved into its place. The first
# move is that of the new directory.
@pytest.mark.parametrize(("move", "after"), [(1, True), (6, False)])
def test_a_kill_at_a_move_changes_nothing(ppo: Uninterrupted, move: int, after: bool, tmp_path: Path):
    check_kill_at_move(ppo, move, after, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("move", range(2, 26))
def test_a_kill_at_every_move_changes_nothing(ppo: Uninterrupted, move: int, after: bool, tmp_path: Path):
    check_kill_at_move(ppo, move, after, tmp_path)


def check_kill_at_move(whole: Uninterrupted, move: int, after: bool, folder: Path) -> None:
    run = folder / "run"
    process = start([*whole.arguments, "--run-dir", str(run)], folder / "out", move, after)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert_whole(run)
    finish([*RESUME, str(run)], folder / "out")
    assert_same(run, whole.path)


def test_a_run_killed_again_and_again_ends_the_same(ppo: Uninterrupted, tmp_path: Path):
    run = tmp_path / "run"
    arguments = [*ppo.arguments, "--run-dir", str(run)]
    for move in (10, 8):
        process = start(arguments, tmp_path / "out", move)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert_whole(run)
        arguments = [*RESUME, str(run)]
    finish(arguments, tmp_path / "out")
    assert_same(run, ppo.path)


@pytest.mark.parametrize("every", [64, 100_000], ids=["after a checkpoint", "before the first"])
def test_ctrl_c_says_where_the_run_stopped_and_where_it_continues(every: int, tmp_path: Path):
    run, out = tmp_path / "run", tmp_path / "out"
    arguments = [*PPO, "--steps", "100000", "--set", f"checkpoint_every={every}", "--run-dir", str(run)]
    stopped = [interrupt(arguments, run, out), interrupt([*RESUME, str(run)], run, out)]
    for frame, checkpoint in stopped:
        assert checkpoint % every == 0
        assert checkpoint <= frame
    if every == 64:
        assert 0 < stopped[0][1] < stopped[1][1]
    else:
        assert stopped[0][1] == stopped[1][1] == 0


def interrupt(arguments: list[str], run: Path, out: Path) -> tuple[int, int]:
    """Press Ctrl-C once a run has trained on; return the frames at which it says it stopped and continues."""
    status = run / "status.json"
    before = json.loads(status.read_text())["step"] if status.exists() else 0
    out.unlink(missing_ok=True)
    process = start(arguments, out)
    # A signal that comes while Python starts is lost; and the log of a stopped run is there from the start.
    wait_for(status, process)
    while json.loads(status.read_text())["pid"] != process.pid:
        time.sleep(0.01)
    wait_for_frame(run, before + 200)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    text = out.read_text()
    assert f"kova train --resume --run-dir {run}" in text
    assert "Traceback" not in text
    found = re.search(r"stopped at frame ([\d,]+) of 100,000; .* resume continues at frame ([\d,]+):\n", text)
    assert found, text
    frame, checkpoint = (int(number.replace(",", "")) for number in found.groups())
    written = json.loads(status.read_text())
    assert (written["state"], written["step"]) == ("interrupted", checkpoint)
    kept = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    assert kept[-1:] == ([checkpoint] if checkpoint else [])
    return frame, checkpoint


def wait_for_frame(run: Path, frame: int) -> None:
    for _ in range(4000):
        rows = killed_runs._rows(run / "monitor.csv") if (run / "monitor.csv").exists() else []
        if rows and int(rows[-1]["step"]) >= frame:
            return
        time.sleep(0.01)
    raise AssertionError(f"{run} did not come to frame {frame}")
