"""``kova sweep``: from the name of a sweep to its finished runs."""

from __future__ import annotations

import itertools
import os
import shlex
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import track
from rich.table import Table

from kova.experiments.errors import UsageError, one_line
from kova.experiments.files import check_folder, write_whole
from kova.experiments.runs import environments
from kova.experiments.runs.model import build
from kova.experiments.runs.run_directory import RUNS
from kova.experiments.sweeps import taken
from kova.experiments.sweeps.engines import Engine
from kova.experiments.sweeps.engines.process import LOG
from kova.experiments.sweeps.estimate import RunCost, estimate
from kova.experiments.sweeps.grid import MANIFEST, PlannedRun, Sweep, resume_command
from kova.experiments.sweeps.scheduler import Job, Scheduler
from kova.memory import human

T = TypeVar("T")


def run(
    sweep: Sweep,
    out: Path,
    engine: Callable[[], Engine],
    attempts: int,
    console: Console,
    typed: str,
    words: Sequence[str] = (),
    source: Path | None = None,
) -> None:
    """Bring every run of the sweep to its end.

    Args:
        sweep: What to do.
        out: Where.
        engine: Makes the engine, once everything else has been checked.
        attempts: How often a run may fail in a row.
        console: Where to say what happens.
        typed: The user's command, for every run's record of how it was made.
        words: Options of the command that the next call needs too.
        source: The directory of another sweep, whose finished runs are taken where the configuration is the same.

    Raises:
        UsageError: The sweep is wrong, a directory cannot be read or written, or another call is using it.
        SystemExit: Runs failed (1), or the user stopped it (130); the same command continues.
    """
    check_folder(out / RUNS, "--out")
    runs = _checked(sweep, _places(out, source), console)
    workers = engine()
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"another kova sweep is working in {out}; wait for it, or choose another --out") from None
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {one_line(error)}; choose another --out") from None
    with lock:
        command = resume_command(_write_manifest(sweep, out), words)
        if source is not None:
            count = taken.take_finished(runs, source, out)
            what = "finished run" if count == 1 else "finished runs"
            console.print(f"{count} {what} taken from {source}", highlight=False, soft_wrap=True)
        scheduler = Scheduler(runs, out / RUNS, workers, typed, attempts)
        try:
            with _Display(console, scheduler.jobs) as display:
                scheduler.run(display.update)
        except KeyboardInterrupt:
            console.print(f"stopped; finished runs are kept. Continue:\n  {command}", highlight=False, soft_wrap=True)
            raise SystemExit(130) from None
    _conclude(scheduler.jobs, out, console)


def dry_run(sweep: Sweep, out: Path, jobs: int, console: Console, source: Path | None = None) -> None:
    """Print what there is to do, how long it takes and how much memory.

    Raises:
        UsageError: The sweep is wrong, a directory cannot be read, or a run cannot be built.
    """
    check_folder(out / RUNS, "--out")
    places = _places(out, source)
    runs = _checked(sweep, places, console)
    finished = {run.key for run in runs if taken.is_finished(run, *places)}
    kinds = {_kind(run): run for run in runs}
    costs = {kind: estimate(run.config) for kind, run in _shown(list(kinds.items()), "measuring", console)}
    table = Table(box=None, header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("arm")
    for column in ("frames", "left", "per run", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for kind, first in kinds.items():
        own = [run for run in runs if _kind(run) == kind]
        left = sum(run.key not in finished for run in own)
        cost, config = costs[kind], first.config
        cells = (f"{config.steps:,}", f"{left} of {len(own)}", _duration(cost.seconds), human(cost.bytes))
        table.add_row(f"{config.algo} {config.env}", first.arm, *cells)
    console.print(table, highlight=False)
    waiting = [costs[_kind(run)] for run in runs if run.key not in finished]
    console.print(_total(waiting, len(runs), jobs), highlight=False, soft_wrap=True)


def _places(out: Path, source: Path | None) -> list[Path]:
    """Return where finished runs may be."""
    if source is None:
        return [out]
    taken.check_source(source)
    return [out, source]


def _checked(sweep: Sweep, places: Sequence[Path], console: Console) -> list[PlannedRun]:
    """Return the runs, after building one of each kind: what cannot be built should show before hours of training."""
    runs = sweep.runs()
    kinds = {_kind(run): run for run in runs if not taken.is_finished(run, *places)}
    for run in _shown(list(kinds.values()), "checking", console):
        env = environments.normalized(environments.make(run.config), run.config)
        try:
            with warnings.catch_warnings():
                # They will be in the log of the run.
                warnings.simplefilter("ignore")
                build(run.config, env)
        except UsageError as error:
            # Memory may be free later, or on another machine.
            if not isinstance(error.__cause__, MemoryError):
                raise UsageError(f"arm {run.arm!r}: {error}") from None
        finally:
            env.close()
    return runs


def _shown(items: Sequence[T], word: str, console: Console) -> Iterable[T]:
    """Return the items with a bar that leaves nothing behind; without a terminal it would leave an empty line."""
    return track(items, word, console=console, transient=True, disable=not console.is_terminal)


def _write_manifest(sweep: Sweep, out: Path) -> Path:
    """Write the definition of the sweep, beside those of earlier sweeps in the same directory, and return its path."""
    text = sweep.to_yaml()
    for number in itertools.count(1):
        path = out / (f"{MANIFEST}.yaml" if number == 1 else f"{MANIFEST}-{number}.yaml")
        if not path.exists():
            write_whole(path, text)
            return path
        if path.read_text() == text:
            return path
    raise AssertionError


def _total(waiting: Sequence[RunCost], count: int, jobs: int) -> str:
    work, longest = sum(cost.seconds for cost in waiting), max((cost.seconds for cost in waiting), default=0.0)
    # More processes than cores share the cores, but each needs its memory.
    seconds = max(work / min(jobs, os.cpu_count() or 1), longest)
    memory = sum(sorted((cost.bytes for cost in waiting), reverse=True)[:jobs])
    return (
        f"{count} runs, {count - len(waiting)} finished; about {_duration(seconds)} "
        f"with --jobs {jobs} and {human(memory)} of memory, as this machine is now"
    )


def _kind(run: PlannedRun) -> tuple[str, str, str]:
    return run.config.algo, run.config.env, run.arm


@dataclass
class _Display:
    """A live table on a terminal; elsewhere a line for every run that ends."""

    console: Console
    jobs: Sequence[Job]
    _ended: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._before = {job.path: job.frames() for job in self.jobs}
        self._ended = {job.path.name: job.state for job in self.jobs if job.kept}
        self._live = Live(console=self.console, refresh_per_second=2, transient=True)

    def __enter__(self) -> _Display:
        kept = len(self._ended)
        self.console.print(f"{len(self.jobs)} runs, {kept} of them finished before", highlight=False)
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, jobs: Sequence[Job]) -> None:
        """Show the state of the runs."""
        for job in jobs:
            news = f"{job.state}: {job.message}" if job.message else job.state
            silent = job.state in ("waiting", "running") and not job.message
            if not silent and self._ended.get(job.path.name) != news:
                self._ended[job.path.name] = news
                note = f": {job.message}" if job.message else ""
                self.console.print(f"{job.state}  {_label(job)}{note}", highlight=False, soft_wrap=True)
        if self.console.is_terminal:
            self._live.update(self._drawn())

    def _drawn(self) -> RenderableType:
        frames = {job.path: job.frames() for job in self.jobs}
        table = Table(box=None, header_style="bold")
        table.add_column("task")
        for column in ("waiting", "running", "done", "failed", "frames"):
            table.add_column(column, justify="right")
        groups: dict[str, list[Job]] = {}
        for job in self.jobs:
            groups.setdefault(f"{job.run.config.algo} {job.run.config.env}", []).append(job)
        for name, own in groups.items():
            states = Counter(job.state for job in own)
            share = sum(frames[job.path] for job in own) / sum(job.run.config.steps for job in own)
            counts = [str(states[state]) for state in ("waiting", "running", "finished", "failed")]
            table.add_row(name, *counts, f"{share:.0%}")
        lines = [
            f"  {_label(job)}: {frames[job.path]:,} of {job.run.config.steps:,} frames"
            for job in self.jobs
            if job.state == "running"
        ]
        return Group(table, *lines, f"left: {self._left(frames)}")

    def _left(self, frames: dict[Path, int]) -> str:
        done = sum(frames.values()) - sum(self._before.values())
        going = sum(job.run.config.steps - frames[job.path] for job in self.jobs if job.state in ("waiting", "running"))
        elapsed = time.monotonic() - self._start
        return _duration(going * elapsed / done) if done > 0 else "not known yet"


def _conclude(jobs: Sequence[Job], out: Path, console: Console) -> None:
    failed = [job for job in jobs if job.state == "failed"]
    states = Counter("kept" if job.kept else job.state for job in jobs)
    console.print(
        f"{states['finished']} finished, {states['kept']} kept from before, {len(failed)} failed; "
        f"see: kova report {shlex.quote(str(out))}",
        highlight=False,
        soft_wrap=True,
    )
    if failed:
        first = failed[0]
        console.print(f"the first failure's log: {first.path / LOG}", highlight=False, soft_wrap=True)
        raise SystemExit(1)


def _label(job: Job) -> str:
    config = job.run.config
    return f"{config.algo} {config.env} {job.run.arm} seed {config.seed}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
