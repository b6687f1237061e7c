"""Sweeps small enough to run in a test, in processes of their own as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

TINY: dict[str, Any] = {
    "algorithms": ["ppo"],
    "environments": ["CartPole-v1"],
    "seeds": 1,
    "set": {
        "steps": 512,
        "checkpoint_every": 128,
        "algorithm.n_steps": 64,
        "algorithm.n_epochs": 2,
        "policy.net_arch": [16],
    },
    "arms": {"Adam": {"critic": "adam"}, "KOVA": {}},
}


def write(path: Path, **changes: Any) -> Path:
    """Write a tiny sweep with some parts replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**TINY, **changes}, sort_keys=False))
    return path


def start(*words: str | Path) -> subprocess.Popen[str]:
    """Start ``kova sweep``."""
    command = [sys.executable, "-m", "kova", "sweep", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        # A shell that runs the tests in the background makes its children deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(*words: str | Path, code: int = 0) -> str:
    """Run ``kova sweep`` to its end and return what it said."""
    process = start(*words)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def runs(out: Path) -> list[Path]:
    """Return the directories of the runs."""
    return sorted((out / "runs").glob("[!.]*"))


def state(run: Path) -> str:
    """Return what a run's status says."""
    try:
        content: dict[str, str] = json.loads((run / "status.json").read_text())
    except FileNotFoundError:
        return ""
    return content["state"]


def training_pid(out: Path) -> int:
    """Wait for a run that is training and has a checkpoint, and return its process."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for run in runs(out):
            if state(run) == "running" and any((run / "checkpoints").glob("[0-9]*")):
                return int(json.loads((run / "status.json").read_text())["pid"])
        time.sleep(0.005)
    raise AssertionError("no run began to train")


def status_of_the_next(out: Path, before: int) -> dict[str, Any]:
    """Wait for another process to take up a run, and return what it first says."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for run in runs(out):
            if state(run):
                content: dict[str, Any] = json.loads((run / "status.json").read_text())
                if content["pid"] != before:
                    return content
        time.sleep(0.002)
    raise AssertionError("no other process took up the run")


def fingerprint(out: Path) -> dict[str, int]:
    """Return when every finished run was last written to."""
    return {
        run.name: max(file.stat().st_mtime_ns for file in run.rglob("*") if file.name != ".lock")
        for run in runs(out)
        if state(run) == "finished"
    }
