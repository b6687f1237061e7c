"""Finished runs of another sweep: the same configuration has the same name everywhere, so it need not be run again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from kova.experiments.errors import UsageError, one_line
from kova.experiments.files import is_folder
from kova.experiments.runs.run_directory import RUNS, RunDirectory
from kova.experiments.sweeps.grid import PlannedRun


def check_source(source: Path) -> None:
    """Check that runs can be taken from a directory.

    Raises:
        UsageError: It is not that of a sweep.
    """
    if not is_folder(source / RUNS):
        raise UsageError(f"--from: {source} has no folder {RUNS}/; name the directory of a sweep")


def is_finished(run: PlannedRun, *folders: Path) -> bool:
    """Return whether the first of the sweep directories that has the run has it to its end: what is begun goes on."""
    paths = (folder / RUNS / run.name for folder in folders)
    return next((RunDirectory(path).is_finished() for path in paths if path.exists()), False)


def take_finished(runs: Sequence[PlannedRun], source: Path, out: Path) -> int:
    """Copy the runs that are finished in another sweep's directory and not begun in this one.

    Args:
        runs: What is wanted.
        source: The other directory.
        out: This one; a copy appears in it whole or not at all.

    Returns:
        How many were copied.

    Raises:
        UsageError: A run cannot be copied.
    """
    wanted = [run for run in runs if not (out / RUNS / run.name).exists() and is_finished(run, source)]
    for run in wanted:
        target = out / RUNS / run.name
        draft = target.with_name(f".{run.name}.{os.getpid()}")
        try:
            shutil.copytree(source / RUNS / run.name, draft, ignore=shutil.ignore_patterns(".lock"))
            draft.rename(target)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise UsageError(f"--from: {run.name} cannot be copied: {one_line(error)}") from None
    return len(wanted)
