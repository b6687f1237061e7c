"""Runs as processes of this machine, one thread each: no dependency, and a run that dies does not affect the others."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from kova.experiments.sweeps.engines.base import ExitStatus
from kova.experiments.sweeps.engines.process import exit_message, spawn


class LocalEngine:
    """Processes.

    Args:
        slots: How many at a time.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, run: Path, command: str) -> None:
        """Start a process for the run."""
        self._running[run] = spawn(run, command)

    def ended(self, timeout: float) -> list[ExitStatus]:
        """Wait for processes to end."""
        until = time.monotonic() + timeout
        while True:
            over = {run: process for run, process in self._running.items() if process.poll() is not None}
            if over or time.monotonic() >= until:
                break
            time.sleep(0.05)
        for run, process in over.items():
            # Reaps it and closes the pipe.
            process.communicate()
            del self._running[run]
        return [
            ExitStatus(run, process.returncode, exit_message(run, process.returncode)) for run, process in over.items()
        ]

    def cancel(self, run: Path) -> None:
        """Kill the process of a run, if it has one; it will not be among those that ended."""
        process = self._running.pop(run, None)
        if process is not None:
            process.kill()
            process.communicate()

    def stop(self) -> None:
        """Kill the processes."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.communicate()
        self._running.clear()
