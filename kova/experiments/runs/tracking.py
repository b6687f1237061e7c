"""Services that get the logs of a run too: Weights & Biases and MLflow.

A run remembers in ``tracking.json`` as what it is tracked and up to which frame. A resumed run continues the same one,
and what it repeats since its last checkpoint is not sent a second time.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from stable_baselines3.common.logger import KVWriter

from kova.experiments.errors import UsageError, one_line
from kova.experiments.files import write_whole
from kova.experiments.runs.logs import STEP, numbers
from kova.installation import pip_install

FILE = "tracking.json"
#: The project, or experiment, of runs whose user names none.
PROJECT = "kova"
#: Seconds between two messages: off-policy there is a row for every episode.
EVERY = 2.0

Row = Mapping[str, float]


class Tracker(KVWriter):
    """Sends every row of the logs to a service.

    Args:
        folder: The run's directory.
        name: What the run is called there.
        content: Its configuration.

    Raises:
        UsageError: The service does not answer, or does not know the run any more.
    """

    #: Package that it needs, and the extra of this one that installs it.
    package: ClassVar[str]
    #: What to do when the service does not answer.
    advice: ClassVar[str]

    def __init__(self, folder: Path, name: str, content: Mapping[str, Any]) -> None:
        self._file = folder / FILE
        self._memory = self._remembered()
        # Not what this process sends: there may be two rows of one frame.
        self._sent_before = int(self._memory.get("until", -1))
        self._rows: list[tuple[int, Row]] = []
        self._sent = time.monotonic()
        try:
            self._open(folder, name, content)
        except Exception as error:
            # A service may refuse in any way.
            raise UsageError(
                f"--track {self.package}: {one_line(error).rstrip('.')}; {self.advice}, and give the command again"
            ) from error

    @classmethod
    def check(cls) -> None:
        """Check that the package is there.

        Raises:
            UsageError: It is not.
        """
        found = find_spec(cls.package)
        # W&B leaves a folder of its name behind, which Python takes for a package without content.
        if found is None or found.origin is None:
            raise UsageError(
                f"{cls.package} is missing; --track {cls.package} needs: {pip_install('experiments', cls.package)}"
            )

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Add a row, unless it was sent before the run was stopped."""
        if step <= self._sent_before:
            return
        self._rows.append((step, numbers(key_values, key_excluded)))
        if time.monotonic() - self._sent > EVERY:
            self.flush()

    def flush(self) -> None:
        """Send what has gathered; what the service does not take waits for the next time."""
        if self._rows and self._answers(lambda: self._send(self._rows)):
            self._remember(until=self._rows[-1][0])
            self._rows = []
        self._sent = time.monotonic()

    def end(self, state: str) -> None:
        """Say how the run ended: finished, interrupted or failed; a service that is gone by then changes nothing."""
        self.flush()
        self._answers(lambda: self._close(state))

    def _answers(self, ask: Callable[[], None]) -> bool:
        """Return whether the service did what it was asked.

        Hours of training must not end because a log does not answer, and an error of the log would hide that of the
        run, or Ctrl-C.
        """
        try:
            ask()
        except Exception as error:
            warnings.warn(
                f"--track {self.package}: {one_line(error)}; the run's own files have the rows that it did not get",
                stacklevel=2,
            )
            return False
        return True

    def close(self) -> None:
        """Do nothing: a logger cannot say how the run ended."""

    def _open(self, folder: Path, name: str, content: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _send(self, rows: Sequence[tuple[int, Row]]) -> None:
        raise NotImplementedError

    def _close(self, state: str) -> None:
        raise NotImplementedError

    def _remembered(self) -> dict[str, Any]:
        if not self._file.is_file():
            return {}
        try:
            content: dict[str, Any] = dict(json.loads(self._file.read_text()))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{self._file} is damaged: {one_line(error)}; delete it to be tracked as a new run"
            ) from None
        return content

    def _remember(self, **facts: Any) -> None:
        self._memory |= facts
        write_whole(self._file, json.dumps(self._memory, indent=2))


class Wandb(Tracker):
    """Weights & Biases: ``WANDB_MODE``, ``WANDB_PROJECT`` and its other variables hold."""

    package = "wandb"
    advice = "log in (wandb login), or set WANDB_MODE=offline"

    def _open(self, folder: Path, name: str, content: Mapping[str, Any]) -> None:
        import wandb

        if "id" not in self._memory:
            self._remember(id=uuid.uuid4().hex[:8])
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=self._memory["id"],
            resume="allow",
            dir=str(folder),
            # Frames of an extended run are more than they were.
            allow_val_change=True,
            config=dict(content),
            # It would put itself between the progress bar and the screen.
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("*", step_metric=STEP)

    def _send(self, rows: Sequence[tuple[int, Row]]) -> None:
        for step, row in rows:
            self._run.log({**row, STEP: step})

    def _close(self, state: str) -> None:
        self._run.finish(exit_code={"finished": 0, "interrupted": 255}.get(state, 1))


class MLflow(Tracker):
    """MLflow: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` hold."""

    package = "mlflow"
    advice = "see to the server that MLFLOW_TRACKING_URI names"

    def _open(self, folder: Path, name: str, content: Mapping[str, Any]) -> None:
        import mlflow
        from mlflow.entities import Param

        # A resumed run may be in another directory, where the default is another file.
        uri = self._memory.get("uri") or mlflow.get_tracking_uri()
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        if "id" in self._memory:
            self._client.update_run(self._memory["id"], status="RUNNING")
            # Parameters cannot be changed, and a run may be extended.
            self._client.set_tag(self._memory["id"], "steps", str(content["steps"]))
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        run = self._client.create_run(number, run_name=name).info.run_id
        self._client.log_batch(run, params=[Param(key, str(value)) for key, value in _flat(content).items()])
        self._remember(id=run, uri=uri)

    def _send(self, rows: Sequence[tuple[int, Row]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(key, value, now, step) for step, row in rows for key, value in row.items() if math.isfinite(value)
        ]
        # MLflow takes a thousand at a time.
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._memory["id"], metrics=metrics[start : start + 1000])

    def _close(self, state: str) -> None:
        status = {"finished": "FINISHED", "interrupted": "KILLED"}.get(state, "FAILED")
        self._client.set_terminated(self._memory["id"], status)


class Untracked(KVWriter):
    """Sends nothing anywhere."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def end(self, state: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


#: By the names that ``--track`` takes.
TRACKERS: Mapping[str, type[Tracker]] = {"wandb": Wandb, "mlflow": MLflow}


def check(track: str | None) -> None:
    """Check that a run can be tracked.

    Raises:
        UsageError: The package is missing.
    """
    if track is not None:
        TRACKERS[track].check()


def begin(track: str | None, folder: Path, content: Mapping[str, Any]) -> Tracker | Untracked:
    """Return what sends the rows of a run's logs.

    Raises:
        UsageError: The service does not answer, or does not know the run any more.
    """
    return Untracked() if track is None else TRACKERS[track](folder, folder.name, content)


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return {section.name: value}."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return flat
