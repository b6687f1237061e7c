"""One run of a sweep in a process of its own: ``python -m kova.experiments.sweeps.worker RUN COMMAND``.

It trains what the directory's ``config.yaml`` says, from its last checkpoint. It ends when the driver ends, which it
notices because its standard input is a pipe that then closes.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch

from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs.run_directory import Busy, RunDirectory
from kova.experiments.runs.training import Training

#: Exit codes.
FINISHED, FAILED, REFUSED, BUSY = 0, 1, 2, 75


def execute(path: Path, command: str) -> int:
    """Train the run in a directory to its end.

    Args:
        path: The directory.
        command: What the user typed to start the sweep.

    Returns:
        FINISHED; FAILED, when another attempt may succeed; REFUSED, when its settings cannot work; BUSY, when another
        process is training it.
    """
    torch.set_num_threads(1)
    directory = RunDirectory(path)
    try:
        with directory.locked():
            return _train(directory, command)
    except Busy:
        return BUSY


def _train(directory: RunDirectory, command: str) -> int:
    if directory.is_finished():
        return FINISHED
    directory.discard_drafts()
    try:
        Training(directory.config(), directory, command).run()
    except UsageError as error:
        directory.write_status("failed", error=one_line(error))
        sys.stderr.write(f"{one_line(error)}\n")
        # A full disk or too little memory may be temporary, and a run with a checkpoint has worked before.
        temporary = isinstance(error.__cause__, OSError | MemoryError) or directory.latest_checkpoint() is not None
        return FAILED if temporary else REFUSED
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {one_line(error)}\n")
        return FAILED
    return FINISHED


def _end_with_the_driver() -> None:
    # Not sys.stdin: a thread waiting in its buffer makes the interpreter crash on its way out.
    os.read(0, 1)
    os._exit(FAILED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    sys.exit(execute(Path(sys.argv[1]), sys.argv[2]))
