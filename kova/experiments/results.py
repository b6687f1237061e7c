"""What the runs below a directory left behind, damaged ones set apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kova.experiments.config import RunConfig, WrongCall, one_line
from kova.experiments.logs import STEP, read_rows
from kova.experiments.run_directory import RunDirectory
from kova.experiments.sweep import PlannedRun, Sweep
from kova.experiments.sweep_command import MANIFEST

Array = npt.NDArray[np.float64]

#: {what the paper plots: (tag of a log, factor)}, the first tag that is there; upstream's names have other signs.
METRICS = {
    "entropy": (("train/entropy", 1.0), ("train/entropy_loss", -1.0)),
    "policy_loss": (("train/policy_loss", 1.0), ("train/policy_gradient_loss", 1.0), ("train/policy_objective", -1.0)),
    "explained_variance": (("train/explained_variance", 1.0),),
}
#: Any of these makes a directory look like a run.
SIGNS = ("config.yaml", "status.json", "progress.csv", "monitor.csv", "checkpoints")


@dataclass(frozen=True, eq=False)
class Series:
    """Numbers by frame."""

    frames: Array
    values: Array


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run.

    Attributes:
        path: Its directory.
        arm: What the sweep calls its critic, or a description of it.
        config: Its settings.
        state: "finished", or what status.json says, or "not begun"; "stopped" if it says running and no process is.
        error: Why it failed, if it did.
        returns: Of its training episodes.
        metrics: {name in METRICS: what was logged}.
        seconds: Wall-clock of training.
    """

    path: Path
    arm: str
    config: RunConfig
    state: str
    error: str
    returns: Series
    metrics: dict[str, Series]
    seconds: float

    @property
    def task(self) -> str:
        """Algorithm and environment."""
        return f"{self.config.algo.upper()} {self.config.env}"


@dataclass(frozen=True)
class Damaged:
    """A directory that looks like a run and cannot be read."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Results:
    """All runs below a directory.

    Attributes:
        runs: Those that can be read.
        damaged: The others.
        sweeps: The sweeps they belong to.
    """

    runs: Sequence[RunResult]
    damaged: Sequence[Damaged]
    sweeps: Sequence[Sweep]

    @property
    def finished(self) -> list[RunResult]:
        """Runs that can be compared."""
        return [run for run in self.runs if run.state == "finished"]


def collect(folder: Path) -> Results:
    """Read every run below a directory.

    Raises:
        WrongCall: There is no such directory.
    """
    if not folder.is_dir():
        raise WrongCall(f"{folder} is not a directory; name the one that kova sweep or kova train made")
    sweeps, damaged = [], []
    for manifest in sorted(folder.rglob(MANIFEST)):
        try:
            sweeps.append(Sweep.from_file(manifest))
        except WrongCall as error:
            damaged.append(Damaged(manifest, one_line(error)))
    arms = {run.name: run.arm for sweep in sweeps for run in _planned(sweep)}
    runs = []
    for path in _run_directories(folder):
        try:
            runs.append(_read(path, arms))
        except (WrongCall, OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(Damaged(path, one_line(error)))
    return Results(runs, damaged, sweeps)


def _planned(sweep: Sweep) -> list[PlannedRun]:
    """Return the runs of a sweep; one that this version cannot expand names no arms and hides no runs."""
    try:
        return sweep.runs()
    except WrongCall:
        return []


def _run_directories(folder: Path) -> list[Path]:
    found = {sign.parent for name in SIGNS for sign in folder.rglob(name)}
    hidden = [path for path in found if any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return sorted(found.difference(hidden))


def _read(path: Path, arms: dict[str, str]) -> RunResult:
    directory = RunDirectory(path)
    config = directory.config()
    status = directory.status()
    rows = read_rows(path / "progress.csv")
    episodes = read_rows(path / "monitor.csv")
    state = str(status.get("state", "not begun"))
    if state == "running" and not directory.is_busy():
        state = "stopped"
    if state == "finished" and not rows:
        raise WrongCall("it says that it is finished and has no progress.csv")
    return RunResult(
        path,
        arms.get(path.name) or describe(config),
        config,
        state,
        str(status.get("error", "")),
        Series(_column(episodes, "step"), _column(episodes, "r")),
        {name: _metric(rows, tags) for name, tags in METRICS.items()},
        float(episodes[-1]["t"]) if episodes else 0.0,
    )


def _metric(rows: Sequence[dict[str, str]], tags: Sequence[tuple[str, float]]) -> Series:
    for tag, factor in tags:
        own = [row for row in rows if tag in row]
        if own:
            return Series(_column(own, STEP), factor * _column(own, tag))
    return Series(np.zeros(0), np.zeros(0))


def _column(rows: Sequence[dict[str, str]], name: str) -> Array:
    values = np.array([float(row[name]) for row in rows])
    if name in (STEP, "step") and np.any(np.diff(values) < 0):
        raise ValueError(f"{name} goes backwards")
    return values


def describe(config: RunConfig) -> str:
    """Return a name for the critic of a run that no sweep names."""
    critic = dict(config.critic)
    optimizer = critic.pop("optimizer")
    settings = ", ".join(f"{name}={value}" for name, value in critic.items())
    return f"{optimizer} ({settings})" if settings else str(optimizer)
