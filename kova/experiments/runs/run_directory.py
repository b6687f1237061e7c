"""The directory of a run. Every file in it is complete: it was written to another name and then moved into place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kova.experiments.errors import UsageError
from kova.experiments.files import DRAFTS, check_folder, is_folder, sync, write_whole
from kova.experiments.runs.config import RunConfig

KEPT_CHECKPOINTS = 2
#: The file with versions and machine.
MADE_BY = "made_by.json"
#: The folder of the model that was evaluated best.
BEST = "best"
#: The folder of a sweep's directory that has its runs.
RUNS = "runs"


class Busy(UsageError):
    """Another process is training in the directory."""


class RunDirectory:
    """Where a run leaves its files.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config_file(self) -> Path:
        """The configuration."""
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, one subfolder each, named by the frame."""
        return self.path / "checkpoints"

    @property
    def evaluations_file(self) -> Path:
        """The table of the evaluations."""
        return self.path / "evaluations.csv"

    @property
    def best(self) -> Path:
        """The folder of the model that was evaluated best."""
        return self.path / BEST

    def check_free(self) -> None:
        """Refuse to write over what is there.

        Raises:
            UsageError: It is there already, or cannot be made.
        """
        check_folder(self.path, "--run-dir")
        if self.config_file.is_file():
            raise UsageError(f"{self.path} exists; continue it with --resume, or choose another --run-dir")
        if self.path.exists():
            raise UsageError(f"{self.path} exists and is not a run; choose another --run-dir")

    def create(self, config: RunConfig) -> None:
        """Make the directory with its configuration.

        Raises:
            UsageError: It is there already, or cannot be made.
        """
        self.check_free()
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            (draft / "checkpoints").mkdir(parents=True)
            (draft / "config.yaml").write_text(config.to_yaml())
            draft.rename(self.path)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise UsageError(f"{self.path} cannot be made: {error.strerror}; choose another --run-dir") from error

    @contextmanager
    def created(self, config: RunConfig) -> Iterator[None]:
        """Make the directory and keep other processes from training here; a run that is refused leaves none behind.

        Raises:
            UsageError: It is there already, or cannot be made.
        """
        self.create(config)
        try:
            with self.locked():
                yield
        except UsageError:
            if self.latest_checkpoint() is None:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here; the system releases the lock even if this one is killed.

        Raises:
            Busy: Another process has it.
        """
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise Busy(f"{self.path} is being trained by another process; wait for it, or stop it") from None
        try:
            yield
        finally:
            lock.release()

    def is_busy(self) -> bool:
        """Return whether some process is training here now, without leaving files."""
        if not (self.path / ".lock").exists():
            return False
        try:
            with self.locked():
                return False
        except Busy:
            return True
        except OSError:
            # No process can train in a folder that cannot be written.
            return False

    def config(self) -> RunConfig:
        """Read the configuration.

        Raises:
            UsageError: This is not the directory of a run.
        """
        if not self.config_file.is_file():
            raise UsageError(
                f"{self.path} is not a run: it has no config.yaml; name the directory that kova train made"
            )
        return RunConfig.from_yaml(self.config_file)

    def extend(self, config: RunConfig, step: int) -> None:
        """Make a finished run an unfinished one of more frames."""
        # First: a kill between the two leaves a run that finishes again as it was.
        self.write_status("interrupted", step=step, steps=config.steps)
        write_whole(self.config_file, config.to_yaml())

    def write_status(self, state: str, **details: Any) -> None:
        """Write the state to ``status.json``: running, finished, interrupted or failed."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_whole(
            self.path / "status.json",
            json.dumps({"state": state, "updated": now, "pid": os.getpid(), **details}, indent=2),
        )

    def status(self) -> dict[str, Any]:
        """Return the content of ``status.json``, empty if there is none yet.

        Raises:
            ValueError: It is damaged.
        """
        try:
            content = json.loads((self.path / "status.json").read_text())
        except FileNotFoundError:
            return {}
        if not isinstance(content, dict):
            raise ValueError(f"status.json is {content!r}, not a mapping")
        return content

    def is_finished(self) -> bool:
        """Return whether the run is complete; with a status that cannot be read it is not."""
        try:
            return self.status().get("state") == "finished"
        except (OSError, ValueError):
            return False

    def check_not_packed(self) -> None:
        """Refuse to go on with a run of which only the results were kept; it would be trained again from the start.

        Raises:
            UsageError: It is finished, and its checkpoints are gone.
        """
        if self.is_finished() and self.latest_checkpoint() is None:
            raise UsageError(
                f"{self.path} is finished and has no checkpoint, as runs packed by kova report --pack; its results "
                "can be reported, and a new run in another --run-dir would repeat it"
            )

    @contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """Yield a folder to fill; it becomes the checkpoint of that frame when the block ends without an error."""
        draft = self.checkpoints / f".draft-{step}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        for file in draft.iterdir():
            sync(file)
        final = self.checkpoints / f"{step:010d}"
        if final.exists():
            shutil.rmtree(draft)
        else:
            draft.rename(final)
            sync(self.checkpoints)
        self.prune()

    @contextmanager
    def new_best(self) -> Iterator[Path]:
        """Yield a folder to fill; it takes the place of the best model when the block ends without an error."""
        draft, old = self.path / f".draft-{BEST}", self._old_best
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        yield draft
        for file in draft.iterdir():
            sync(file)
        if self.best.exists():
            self.best.rename(old)
        draft.rename(self.best)
        sync(self.path)
        shutil.rmtree(old, ignore_errors=True)

    @property
    def _old_best(self) -> Path:
        return self.path / f".old-{BEST}"

    def latest_checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint."""
        found = self._complete()
        return found[-1] if found else None

    def trained(self) -> tuple[RunConfig, Path]:
        """Return the configuration and the newest checkpoint of a run that has one.

        Raises:
            UsageError: There is no such run, or it has no checkpoint.
        """
        if not is_folder(self.path):
            raise UsageError(
                f"{self.path} is not a directory; name that of a run, as in runs/ppo-HalfCheetah-v5-kova-seed0"
            )
        config, checkpoint = self.config(), self.latest_checkpoint()
        self.check_not_packed()
        if checkpoint is None:
            raise UsageError(
                f"{self.path} has no checkpoint yet; let it train on: kova train --resume --run-dir {self.path}"
            )
        return config, checkpoint

    def discard_drafts(self) -> None:
        """Remove what a killed process was writing, and put back what it was about to replace."""
        if self._old_best.exists() and not self.best.exists():
            self._old_best.rename(self.best)
        for leftover in [
            *self.path.glob(f".draft-{BEST}"),
            *self.path.glob(f".old-{BEST}"),
            *self.checkpoints.glob(".draft-*"),
            *self.checkpoints.glob(".old-*"),
            *self.path.glob(DRAFTS),
        ]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def prune(self) -> None:
        """Remove all but the newest checkpoints."""
        for old in self._complete()[:-KEPT_CHECKPOINTS]:
            # Renamed first: a kill in the middle of the removal must not leave half a checkpoint under its name.
            removed = old.with_name(f".old-{old.name}")
            old.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    def _complete(self) -> list[Path]:
        return sorted(path for path in self.checkpoints.glob("[0-9]*") if path.is_dir())
