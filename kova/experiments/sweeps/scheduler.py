"""Brings every run of a sweep to its end, even if processes die in between."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.sweeps import worker
from kova.experiments.sweeps.engines import Engine, ExitStatus
from kova.experiments.sweeps.grid import PlannedRun

State = Literal["waiting", "running", "finished", "failed"]

#: Seconds before a run that another process is training is tried again: the first pause, doubled up to the longest.
BUSY_PAUSE = (2.0, 60.0)


@dataclass
class Job:
    """A run and how far it has come.

    Attributes:
        run: What to do.
        path: Where.
        state: How it is doing.
        failures: In a row, without a new checkpoint in between.
        kept: It was finished before this call.
        message: Why it failed, or what it waits for.
    """

    run: PlannedRun
    path: Path
    state: State = "waiting"
    failures: int = 0
    kept: bool = False
    message: str = ""
    _reached: str = field(default="", repr=False)
    _pause: float = field(default=0.0, repr=False)
    _not_before: float = field(default=0.0, repr=False)

    @property
    def ready(self) -> bool:
        """Whether it can start now."""
        return self.state == "waiting" and time.monotonic() >= self._not_before

    def frames(self) -> int:
        """Return how many frames it has trained on, according to its log."""
        if self.state == "finished":
            return self.run.config.steps
        try:
            rows = read_rows(self.path / "progress.csv") if self.state == "running" or self._reached else []
            return int(float(rows[-1][STEP])) if rows else 0
        except (OSError, ValueError, KeyError, csv.Error):
            return 0

    def progressed(self) -> bool:
        """Return whether there is a newer checkpoint than at the last call."""
        latest = RunDirectory(self.path).latest_checkpoint()
        reached = "" if latest is None else latest.name
        newer = reached > self._reached
        self._reached = max(reached, self._reached)
        return newer

    def hold_back(self) -> None:
        """Wait a while for the other process that is training it."""
        first, longest = BUSY_PAUSE
        self._pause = min(max(first, 2 * self._pause), longest)
        self._not_before = time.monotonic() + self._pause
        self.state, self.message = "waiting", "another process is training it"


class Scheduler:
    """Hands runs to an engine until each is finished or has failed too often.

    A run that dies is begun again from its last checkpoint. Only failures without a new checkpoint in between count
    against the limit: a machine that kills a process every hour does not end a run of a day.

    Args:
        runs: All runs of a sweep.
        folder: Where their directories are.
        engine: What executes them.
        command: What the user typed.
        attempts: How often a run may fail in a row.
    """

    def __init__(
        self, runs: Sequence[PlannedRun], folder: Path, engine: Engine, command: str, attempts: int = 3
    ) -> None:
        self.jobs = [Job(run, folder / run.name) for run in runs]
        self._engine, self._command, self._attempts = engine, command, attempts
        for job in self.jobs:
            job.progressed()
            if RunDirectory(job.path).is_finished():
                job.state, job.kept = "finished", True

    def run(self, watch: Callable[[Sequence[Job]], None] = lambda jobs: None) -> None:
        """Bring all runs to an end; ``watch`` is called about four times a second.

        Whatever ends this call ends the processes it started.
        """
        try:
            while any(job.state in ("waiting", "running") for job in self.jobs):
                for job in self.jobs:
                    if job.ready and self._running() < self._engine.slots:
                        self._start(job)
                watch(self.jobs)
                outcomes = {outcome.run: outcome for outcome in self._engine.ended(timeout=0.25)}
                for job in self.jobs:
                    if job.path in outcomes:
                        self._take(job, outcomes[job.path])
            watch(self.jobs)
        finally:
            self._engine.stop()

    def _running(self) -> int:
        return sum(job.state == "running" for job in self.jobs)

    def _start(self, job: Job) -> None:
        directory = RunDirectory(job.path)
        try:
            if directory.is_busy():
                job.hold_back()
                return
            if not directory.config_file.is_file():
                directory.create(job.run.config)
            self._engine.start(job.path, self._command)
            job.state, job.message = "running", ""
        except UsageError:
            job.state, job.message = (
                "failed",
                "its directory is there without a config.yaml; delete it and call again",
            )
        except OSError as error:
            self._count_failure(job, one_line(error))

    def _take(self, job: Job, outcome: ExitStatus) -> None:
        """Update a job with the way its execution ended."""
        # By its exit code or its status file: on a network's disk one may arrive before the other.
        if outcome.code == worker.FINISHED or RunDirectory(job.path).is_finished():
            job.state, job.message = "finished", ""
        elif outcome.code == worker.BUSY:
            job.hold_back()
        elif outcome.code == worker.REFUSED:
            job.state, job.message = "failed", outcome.message
        else:
            self._count_failure(job, outcome.message)

    def _count_failure(self, job: Job, message: str) -> None:
        job.failures = 0 if job.progressed() else job.failures + 1
        job.state = "failed" if job.failures >= self._attempts else "waiting"
        job.message = message
