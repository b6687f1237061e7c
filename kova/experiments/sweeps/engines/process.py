"""The process that executes one run, for any engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Its output goes to this file in the directory of the run.
LOG = "log.txt"
#: Several runs with two threads each on two cores are slower than with one.
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def spawn(run: Path, command: str) -> subprocess.Popen[bytes]:
    """Start :mod:`kova.experiments.sweeps.worker` on the run of a directory; the user typed ``command``."""
    with (run / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "kova.experiments.sweeps.worker", str(run), command],
            # A pipe whose other end closes when this process ends, however it ends.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **THREADS},
            # Ctrl-C must reach the driver alone.
            start_new_session=True,
        )


def exit_message(run: Path, code: int) -> str:
    """Return one line about how the process ended."""
    if code < 0:
        return f"killed by signal {-code}"
    try:
        lines = (run / LOG).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return lines[-1].strip() if lines else f"exit code {code}"
