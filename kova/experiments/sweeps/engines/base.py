"""What the scheduler asks of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class ExitStatus:
    """How the execution of a run ended.

    Attributes:
        run: Its directory.
        code: An exit code of :mod:`kova.experiments.sweeps.worker`, or another if the process was killed.
        message: For the user, if it was not finished.
    """

    run: Path
    code: int
    message: str = ""


class Engine(Protocol):
    """Executes runs, some at a time."""

    @property
    def slots(self) -> int:
        """How many at a time."""

    def start(self, run: Path, command: str) -> None:
        """Begin to execute the run of a directory; ``command`` is what the user typed."""

    def ended(self, timeout: float) -> list[ExitStatus]:
        """Wait for up to ``timeout`` seconds, and return what ended since the last call."""

    def stop(self) -> None:
        """End everything that was started, at once; what was trained since the last checkpoints is lost."""
