"""Bringing every run of a sweep to its end, whatever happens to the processes in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kova.experiments import worker
from kova.experiments.engines import Engine, Outcome
from kova.experiments.logs import STEP, read_rows
from kova.experiments.run_directory import RunDirectory
from kova.experiments.sweep import PlannedRun

State = Literal["waiting", "running", "finished", "failed"]


@dataclass
class Task:
    """A run and how far it has come.

    Attributes:
        run: What to do.
        path: Where.
        state: How it is doing.
        failures: In a row, without a new checkpoint in between.
        kept: It was finished before this call.
        message: Why it failed.
    """

    run: PlannedRun
    path: Path
    state: State = "waiting"
    failures: int = 0
    kept: bool = False
    message: str = ""
    _reached: str = field(default="", repr=False)

    def frames(self) -> int:
        """Return how many frames it has trained on, as far as its log says."""
        if self.state == "finished":
            return self.run.config.steps
        rows = read_rows(self.path / "progress.csv") if self.state == "running" or self._reached else []
        return int(float(rows[-1][STEP])) if rows else 0

    def progressed(self) -> bool:
        """Say whether there is a newer checkpoint than at the last call."""
        latest = RunDirectory(self.path).latest_checkpoint()
        reached = "" if latest is None else latest.name
        newer, self._reached = reached > self._reached, reached
        return newer


class Scheduler:
    """Hands runs to an engine until each is finished or has failed too often.

    A run that dies is begun again from its last checkpoint. Only failures without a new checkpoint in between count
    against the limit: a machine that kills a process every hour does not end a run of a day.

    Args:
        runs: All runs of a sweep.
        folder: Where their directories are.
        engine: What executes them.
        attempts: How often a run may fail in a row.
    """

    def __init__(self, runs: Sequence[PlannedRun], folder: Path, engine: Engine, attempts: int = 3) -> None:
        self.tasks = [Task(run, folder / run.name) for run in runs]
        self._engine, self._attempts = engine, attempts
        for task in self.tasks:
            task.progressed()
            if is_finished(task.path):
                task.state, task.kept = "finished", True

    def run(self, watch: Callable[[Sequence[Task]], None] = lambda tasks: None) -> None:
        """Bring all runs to an end; ``watch`` is called about four times a second.

        Whatever ends this call ends the processes it started.
        """
        waiting = deque(task for task in self.tasks if task.state == "waiting")
        running: dict[Path, Task] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._engine.slots:
                    task = waiting.popleft()
                    self._start(task)
                    running[task.path] = task
                watch(self.tasks)
                for outcome in self._engine.ended(timeout=0.25):
                    task = running.pop(outcome.run)
                    self._take(task, outcome)
                    if task.state == "waiting":
                        waiting.append(task)
            watch(self.tasks)
        finally:
            self._engine.stop()

    def _start(self, task: Task) -> None:
        directory = RunDirectory(task.path)
        if not directory.config_file.is_file():
            directory.create(task.run.config)
        self._engine.start(task.path)
        task.state = "running"

    def _take(self, task: Task, outcome: Outcome) -> None:
        """Note how an execution ended. What counts is what it left on disk."""
        if is_finished(task.path):
            task.state, task.message = "finished", ""
            return
        if outcome.code == worker.BUSY:
            task.state, task.message = "waiting", "another process is training it"
            return
        task.failures = 1 if task.progressed() else task.failures + 1
        hopeless = outcome.code == worker.REFUSED or task.failures >= self._attempts
        task.state = "failed" if hopeless else "waiting"
        task.message = outcome.message


def is_finished(path: Path) -> bool:
    """Say whether the run of a directory is complete."""
    try:
        return RunDirectory(path).status().get("state") == "finished"
    except (OSError, ValueError):
        return False
