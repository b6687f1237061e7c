"""Reads the runs below a directory; damaged ones are listed separately."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kova.experiments.errors import UsageError, one_line
from kova.experiments.files import is_folder
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.provenance import read_makers
from kova.experiments.runs.run_directory import MADE_BY, RUNS, RunDirectory
from kova.experiments.sweeps.grid import MANIFEST, NOT_IDENTIFYING, OF_THE_ENVIRONMENT, PlannedRun, Sweep, canonical

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
        task: Algorithm and environment, and how many frames where runs differ in that: they are not repetitions. The
            algorithm is the sweep's, even if the arm has another.
        arm: What the sweep calls its critic, or a description of it.
        config: Its settings.
        state: "finished", or what status.json says, or "not begun"; "stopped" if it says running and no process is.
        error: Why it failed, if it did.
        frames: How many it was trained on.
        returns: Of its training episodes.
        metrics: {name in METRICS: what was logged}.
        seconds: Wall-clock of training.
        made_by: Versions and machines, several if it was resumed elsewhere.
    """

    path: Path
    task: str
    arm: str
    config: RunConfig
    state: str
    error: str
    frames: int
    returns: Series
    metrics: dict[str, Series]
    seconds: float
    made_by: Sequence[dict[str, Any]]

    @property
    def flaw(self) -> str:
        """Why it cannot be compared, empty if it can."""
        if self.state != "finished":
            return self.error or "not finished"
        if not len(self.returns.values):
            return "no episode ended"
        return "" if np.isfinite(self.returns.values).all() else "a return is not finite"


@dataclass(frozen=True)
class Damaged:
    """A directory that looks like a run and cannot be used."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class CollectedRuns:
    """All runs below a directory.

    Attributes:
        runs: Those that can be read.
        damaged: The others, and copies of one that is there.
        sweeps: {manifest: sweep}, by directory and in the order they were run there.
        waiting: Runs of those sweeps that have no directory yet.
    """

    runs: Sequence[RunResult]
    damaged: Sequence[Damaged]
    sweeps: Mapping[Path, Sweep]
    waiting: Sequence[PlannedRun]

    @property
    def finished(self) -> list[RunResult]:
        """Runs that can be compared."""
        return [run for run in self.runs if not run.flaw]


def collect(folder: Path) -> CollectedRuns:
    """Read every run below a directory.

    Raises:
        UsageError: There is no such directory.
    """
    if not is_folder(folder):
        raise UsageError(f"{folder} is not a directory; name the one that kova sweep or kova train made")
    sweeps: dict[Path, Sweep] = {}
    damaged: list[Damaged] = []
    for manifest in _manifests(folder):
        try:
            sweeps[manifest] = Sweep.from_file(manifest)
        except UsageError as error:
            damaged.append(Damaged(manifest, one_line(error)))
    planned: dict[str, PlannedRun] = {}
    for one in (run for sweep in sweeps.values() for run in _planned(sweep)):
        planned.setdefault(one.key, one)
    found: dict[str, RunResult] = {}
    paths = _run_directories(folder)
    for path in paths:
        try:
            run, key = _read(path, planned)
        except Exception as error:
            # A damaged file may raise any error; the other runs can still be read.
            damaged.append(Damaged(path, one_line(error)))
            continue
        other = found.get(key)
        if other is None or (other.state != "finished" and run.state == "finished"):
            found[key] = run
        if other is not None:
            copy = other if found[key] is run else run
            damaged.append(Damaged(copy.path, f"the same run as {found[key].path}, and counted once"))
    runs = _distinguished(_in_order(list(found.values()), list(planned.values())))
    # A damaged directory has no key, but its name is that of a planned run.
    there = {path.name for path in paths}
    waiting = [run for key, run in planned.items() if key not in found and run.name not in there]
    return CollectedRuns(runs, damaged, sweeps, waiting)


def _in_order(runs: list[RunResult], planned: list[PlannedRun]) -> list[RunResult]:
    """Return the runs with tasks and arms in the order of their sweeps; others come last, in their own order."""
    tasks = list(dict.fromkeys(run.task for run in planned))
    arms = list(dict.fromkeys(run.arm for run in planned))

    def place(name: str, known: list[str]) -> int:
        return known.index(name) if name in known else len(known)

    return sorted(runs, key=lambda run: (place(run.task, tasks), place(run.arm, arms)))


def _distinguished(runs: list[RunResult]) -> list[RunResult]:
    """Return the runs, renamed where runs of one name are not repetitions of each other.

    A task gets a name for each number of frames it was run with, and an arm one for each set of settings.
    """
    lengths: dict[str, set[int]] = {}
    for run in runs:
        lengths.setdefault(run.task, set()).add(run.config.steps)
    runs = [
        replace(run, task=f"{run.task}, {run.config.steps:,} frames") if len(lengths[run.task]) > 1 else run
        for run in runs
    ]
    owned = [settings(run.config) for run in runs]
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for run, own in zip(runs, owned, strict=True):
        # Most runs differ in nothing but the seed.
        groups.setdefault((run.task, run.arm), {})[repr(own)] = own
    renamed = []
    for run, own in zip(runs, owned, strict=True):
        suffix = differences(own, groups[run.task, run.arm].values())
        renamed.append(replace(run, arm=f"{run.arm} ({suffix})") if suffix else run)
    return renamed


#: Settings that training does not notice: runs that differ in them alone are of one arm.
UNNOTICED = ("vec", "eval_every", "eval_episodes")


def settings(config: RunConfig) -> dict[str, Any]:
    """Return every setting that training notices but the seed, {section.name: value}."""
    flat: dict[str, Any] = {}
    for name, value in config.content().items():
        if isinstance(value, dict):
            plain = name in OF_THE_ENVIRONMENT
            flat |= {f"{name}.{key}": item if plain else canonical(item) for key, item in value.items()}
        elif name not in ("seed", *NOT_IDENTIFYING, *UNNOTICED):
            flat[name] = value
    return flat


def differences(own: Mapping[str, Any], kinds: Collection[Mapping[str, Any]]) -> str:
    """Return, as text, the settings of ``own`` that are not the same in all ``kinds``."""
    differing = [key for key in own if len({repr(kind.get(key)) for kind in kinds}) > 1]
    return ", ".join(f"{key}={own[key]}" for key in differing)


def _manifests(folder: Path) -> list[Path]:
    """Return the files that :mod:`kova.experiments.commands.sweep` wrote, by directory, first ones first."""
    found = {}
    for path in folder.rglob(f"{MANIFEST}*.yaml"):
        match = re.fullmatch(rf"{MANIFEST}(?:-(\d+))?\.yaml", path.name)
        if match and (path.parent / RUNS).is_dir() and not _is_hidden(path, folder):
            found[path.parent, int(match[1] or 1)] = path
    return [found[place] for place in sorted(found)]


def _planned(sweep: Sweep) -> list[PlannedRun]:
    """Return the runs of a sweep, none if this version cannot expand it: its runs are then reported by themselves."""
    try:
        return sweep.runs()
    except UsageError:
        return []


def _run_directories(folder: Path) -> list[Path]:
    found = {sign.parent for name in SIGNS for sign in folder.rglob(name)}
    return sorted(path for path in found if not _is_hidden(path, folder))


def _is_hidden(path: Path, folder: Path) -> bool:
    # W&B keeps a config.yaml of its own below a tracked run.
    return any(part.startswith(".") or part == "wandb" for part in path.relative_to(folder).parts)


def _read(path: Path, planned: dict[str, PlannedRun]) -> tuple[RunResult, str]:
    """Return the run of a directory and its key."""
    directory = RunDirectory(path)
    config = directory.config()
    status = directory.status()
    rows = read_rows(path / "progress.csv")
    episodes = read_rows(path / "monitor.csv")
    state = str(status.get("state", "not begun"))
    if state == "running" and not directory.is_busy():
        state = "stopped"
    for name in ("progress.csv", "monitor.csv"):
        if state == "finished" and not (path / name).is_file():
            raise UsageError(f"it says that it is finished and has no {name}; delete it and call kova sweep again")
    key = PlannedRun("", config).key
    run = RunResult(
        path,
        planned[key].task if key in planned else f"{config.algo.upper()} {config.env}",
        planned[key].arm if key in planned else describe(config),
        config,
        state,
        str(status.get("error", "")),
        int(status.get("step", 0)),
        Series(_column(episodes, "step"), _column(episodes, "r")),
        {name: _metric(rows, tags) for name, tags in METRICS.items()},
        float(episodes[-1]["t"]) if episodes else 0.0,
        read_makers(path / MADE_BY),
    )
    return run, key


def _metric(rows: Sequence[dict[str, str]], tags: Sequence[tuple[str, float]]) -> Series:
    for tag, factor in tags:
        own = [row for row in rows if tag in row]
        if own:
            return Series(_column(own, STEP), factor * _column(own, tag))
    return Series(np.zeros(0), np.zeros(0))


def _column(rows: Sequence[dict[str, str]], name: str) -> Array:
    if any(row.get(name) is None for row in rows):
        raise ValueError(f"a line of its log has no {name}: it was cut short")
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
