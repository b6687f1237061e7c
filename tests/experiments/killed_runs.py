"""Runs of ``kova train`` in processes of their own that are killed or stopped by Ctrl-C, and what they leave behind."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import pickle
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from stable_baselines3.common.save_util import load_from_zip_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Processes are forked from a server that has imported everything: seconds less for each.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("kova.experiments.commands.train", "kova.cli"),
        # Imported on first use by torch's optimizers, matplotlib and Gymnasium.
        *("torch._dynamo", "matplotlib.backends.backend_agg", "gymnasium.envs.classic_control.cartpole"),
    ]
)

PPO = [
    *("ppo", "CartPole-v1", "--steps", "512", "--set", "checkpoint_every=128", "--set", "policy.net_arch=[16]"),
    *("--set", "algorithm.n_steps=64", "--set", "algorithm.n_epochs=2"),
]
DQN = [
    *("dqn", "CartPole-v1", "--steps", "384", "--set", "checkpoint_every=128"),
    *("--set", "algorithm.learning_starts=64", "--set", "algorithm.batch_size=16"),
    *("--set", "normalize_observations=true", "--set", "policy.net_arch=[16]", "--set", "algorithm.n_steps=3"),
]

#: Calls by which a file or a checkpoint comes into its place.
MOVES = ("rename", "replace", "rmdir")


def command(arguments: list[str], out: Path, die_at: int | None, die_after: bool) -> None:
    """Be the kova command; die at a move of a file, if asked to."""
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    torch.set_num_threads(1)
    # A shell that runs the tests in the background makes its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if die_at is not None:
        _die(die_at, die_after)
    from kova.cli import app

    app(arguments)


def _die(at: int, after: bool) -> None:
    left = [at]

    def lethal(upstream: Any) -> Any:
        def move(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = upstream(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return move

    for name in MOVES:
        setattr(os, name, lethal(getattr(os, name)))


def start(arguments: list[str], out: Path, die_at: int | None = None, die_after: bool = False) -> BaseProcess:
    """Start ``kova train`` with its output in a file."""
    process = CONTEXT.Process(target=command, args=(["train", *arguments], out, die_at, die_after))
    process.start()
    return process


def finish(arguments: list[str], out: Path) -> None:
    """Run ``kova train`` to its end."""
    process = start(arguments, out)
    process.join(120)
    assert process.exitcode == 0, out.read_text()


def wait_for(path: Path, process: BaseProcess) -> None:
    """Wait until a file is there."""
    while not path.exists():
        assert process.is_alive(), "the process ended before it made " + str(path)
        time.sleep(0.005)


def assert_whole(run: Path) -> None:
    """Everything that a run has written can be read."""
    content = yaml.safe_load((run / "config.yaml").read_text())
    assert content["env"] == "CartPole-v1"
    if (run / "status.json").exists():
        assert json.loads((run / "status.json").read_text())["state"] in ("running", "interrupted", "finished")
    for name in ("progress.csv", "monitor.csv"):
        if (run / name).exists():
            text = (run / name).read_text()
            assert text.endswith("\n")
            rows = list(csv.reader(line for line in text.splitlines() if not line.startswith("#")))
            assert {len(row) for row in rows} == {len(rows[0])}
    for checkpoint in (run / "checkpoints").glob("[0-9]*"):
        load_from_zip_file(checkpoint / "model.zip")
        for pickled in checkpoint.glob("*.pkl"):
            pickle.loads(pickled.read_bytes())


def assert_same(run: Path, other: Path) -> None:
    """Two runs ended with the same parameters, filter, normalisation, replay buffer and logs, bit for bit."""
    ends = [sorted((path / "checkpoints").glob("[0-9]*"))[-1] for path in (run, other)]
    assert ends[0].name == ends[1].name
    assert sorted(file.name for file in ends[0].iterdir()) == sorted(file.name for file in ends[1].iterdir())
    parameters = [load_from_zip_file(end / "model.zip")[1] for end in ends]
    _assert_equal(*parameters)
    for name in ("normalization.pkl", "replay.pkl"):
        if (ends[0] / name).exists():
            _assert_equal(*(pickle.loads((end / name).read_bytes()).__dict__ for end in ends))
    for name in ("progress.csv", "monitor.csv"):
        _assert_equal(_rows(run / name), _rows(other / name))
    assert _events(run) == _events(other)
    assert {path.name for path in run.glob("**/.*")} <= {".lock"}


def _events(run: Path) -> dict[str, list[int]]:
    """Return the frames that TensorBoard shows for every tag."""
    shown = EventAccumulator(str(run / "tensorboard")).Reload()
    return {tag: [event.step for event in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}


def _rows(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    clocks = ("t", "time/fps", "time/time_elapsed")
    return [{key: value for key, value in row.items() if key not in clocks} for row in csv.DictReader(lines)]


def _assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            _assert_equal(left, right)
    elif hasattr(one, "__dict__") and not callable(one):
        _assert_equal(one.__dict__, other.__dict__)
    elif isinstance(one, int | float | str | None):
        assert one == other or one != one
