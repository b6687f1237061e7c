"""Runs the trials of a study as processes of this machine, prunes those that fall behind, and goes on after a stop."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from optuna.trial import FrozenTrial, Trial

from kova.experiments.evaluation.curves import training_returns
from kova.experiments.report import statistics
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.sweeps import worker
from kova.experiments.sweeps.engines import ExitStatus, LocalEngine
from kova.experiments.tuning.study import POINTS, TuningStudy

#: Seconds between two looks at the logs of the runs.
PAUSE = 1.0


def score(run: Path) -> float:
    """Return the mean of the last 100 training episodes, as reports have it; NaN if none ended."""
    return float(statistics.curve(*training_returns(run), np.array([math.inf]))[0])


@dataclass
class ActiveTrial:
    """A trial that is being run.

    Attributes:
        trial: Of the study.
        runs: Its directories, one for every seed.
        steps: Frames of a run.
        reported: Points at which its score was reported.
    """

    trial: Trial
    runs: list[Path]
    steps: int
    reported: set[int] = field(default_factory=set)

    @property
    def current(self) -> Path | None:
        """The run to execute now, None if all are finished."""
        return next((run for run in self.runs if not RunDirectory(run).is_finished()), None)

    def falls_behind(self) -> bool:
        """Report the score at every point that was passed since the last call, and return whether to prune."""
        # Of points that a stopped search reported, and could no longer judge.
        if self.reported and self.trial.should_prune():
            return True
        before: list[float] = []
        for place, run in enumerate(self.runs):
            for part, value in self._passed(run).items():
                point = place * POINTS + part
                if point not in self.reported:
                    self.reported.add(point)
                    self.trial.report(float(np.mean([*before, value])), point)
                    if self.trial.should_prune():
                        return True
            if not RunDirectory(run).is_finished():
                return False
            before.append(score(run))
        return False

    def _passed(self, run: Path) -> dict[int, float]:
        """Return the score at each point of a run but its end, as far as they are known."""
        frames, returns = training_returns(run)
        parts = np.arange(1, POINTS)
        points = self.steps * parts / POINTS
        # Once a later episode has ended all earlier ones are in the file: a score does not depend on when this looks.
        last = math.inf if RunDirectory(run).is_finished() else frames[-1] if len(frames) else 0.0
        scores = statistics.curve(frames, returns, points)
        known = (points < last) & np.isfinite(scores)
        return dict(zip(parts[known].tolist(), scores[known].tolist(), strict=True))


class TrialRunner:
    """Brings trials of a study to their ends.

    Args:
        study: What to try.
        folder: Where the runs go, a folder for every trial.
        jobs: Trials at a time.
        command: What the user typed.
        watch: Is called with every trial that ends.
    """

    def __init__(
        self,
        study: TuningStudy,
        folder: Path,
        jobs: int,
        command: str,
        watch: Callable[[FrozenTrial], None] = lambda ended: None,
    ) -> None:
        self._study, self._folder, self._command, self._watch = study, folder, command, watch
        self._engine = LocalEngine(jobs)
        self._active: list[ActiveTrial] = []

    def run(self, count: int) -> None:
        """Run trials until there are ``count``: complete, pruned and failed ones, those of earlier calls among them.

        Whatever ends this call ends the processes it started; trials that are not over then go on with the next call.
        """
        waiting = self._study.unfinished
        looked = time.monotonic()
        try:
            while True:
                while len(self._active) < self._engine.slots and (waiting or len(self._study.trials) < count):
                    self._begin(waiting.pop(0) if waiting else self._study.ask())
                if not self._active:
                    return
                for outcome in self._engine.ended(timeout=0.25):
                    self._take(next(one for one in self._active if outcome.run in one.runs), outcome)
                if time.monotonic() > looked + PAUSE:
                    looked = time.monotonic()
                    for active in [one for one in self._active if one.falls_behind()]:
                        self._end(active)
        finally:
            self._engine.stop()

    def _begin(self, trial: Trial) -> None:
        folder = self._folder / f"{trial.number:04d}"
        runs = [folder / f"seed{seed}" for seed in self._study.seeds]
        active = ActiveTrial(trial, runs, self._study.base.steps, set(self._study.reported(trial)))
        self._active.append(active)
        self._go_on(active)

    def _go_on(self, active: ActiveTrial) -> None:
        """Start the next run of a trial, or end the trial."""
        if active.falls_behind():
            self._end(active)
            return
        run = active.current
        if run is None:
            value = float(np.mean([score(run) for run in active.runs]))
            self._end(active, *((None, "no episode ended") if math.isnan(value) else (value,)))
            return
        directory = RunDirectory(run)
        if not directory.config_file.is_file():
            run.parent.mkdir(parents=True, exist_ok=True)
            directory.create(self._study.config(active.trial, self._study.seeds[active.runs.index(run)]))
        self._engine.start(run, self._command)

    def _take(self, active: ActiveTrial, outcome: ExitStatus) -> None:
        """Go on after a process ended; one that found its run busy met that of a driver that was just killed."""
        if outcome.code in (worker.FINISHED, worker.BUSY):
            self._go_on(active)
        else:
            self._end(active, why=outcome.message)

    def _end(self, active: ActiveTrial, value: float | None = None, why: str = "") -> None:
        for run in active.runs:
            self._engine.cancel(run)
        self._active.remove(active)
        ended = self._study.tell(active.trial, value, why=why)
        # A hundred trials' replay buffers would fill a disk, and nothing goes on from them.
        for run in active.runs:
            shutil.rmtree(RunDirectory(run).checkpoints, ignore_errors=True)
        self._watch(ended)
