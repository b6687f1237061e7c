"""The logs of a run: progress.csv, monitor.csv and TensorBoard events, consistent with the last checkpoint."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat
from torch.utils.tensorboard.writer import SummaryWriter

from kova.experiments.errors import UsageError, one_line
from kova.experiments.files import write_whole

STEP = "time/total_timesteps"

Row = Mapping[str, Any]


class ProgressCSV(KVWriter):
    """``progress.csv``: a row for every dump of the logger, the whole file replaced when it has grown by a hundredth.

    Args:
        path: The file; rows of an earlier part of the run are kept.
        until: Rows after this frame are dropped: the run is about to do them again.
    """

    def __init__(self, path: Path, until: int) -> None:
        self._path = path
        self._rows: list[Row] = rows_until(path, STEP, until)
        self._written = 0

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Add a row."""
        self._rows.append({**numbers(key_values, key_excluded), STEP: step})
        # Off-policy there is a row for every episode: to write all of them every time would be quadratic.
        if len(self._rows) > self._written + self._written // 100:
            self.flush()

    def flush(self) -> None:
        """Write the file."""
        columns = sorted({key for row in self._rows for key in row})
        write_whole(self._path, as_csv(columns, self._rows))
        self._written = len(self._rows)

    def close(self) -> None:
        """Write what is left."""
        if len(self._rows) > self._written:
            self.flush()


class Events(TensorBoardOutputFormat):
    """TensorBoard events; upstream's cannot continue those of a resumed run.

    Args:
        folder: Where the files go.
        until: Events after this frame, of an earlier part of the run, are not shown.
    """

    def __init__(self, folder: Path, until: int) -> None:
        self.writer = SummaryWriter(str(folder), purge_step=until + 1)
        self._is_closed = False


class MonitorCSV(BaseCallback):
    """``monitor.csv`` in Stable-Baselines3's format, plus the frame at which each training episode ended.

    Args:
        path: The file; episodes of an earlier part of the run are kept.
        env: Id of the environment.
        until: Episodes after this frame are dropped.
    """

    def __init__(self, path: Path, env: str, until: int) -> None:
        super().__init__()
        self._path, self._env = path, env
        self._rows: list[Row] = rows_until(path, "step", until)
        # A resumed run's clock continues from the last episode that is kept.
        self._start = time.time() - (float(self._rows[-1]["t"]) if self._rows else 0.0)
        self._written = 0

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                episode = info["episode"]
                elapsed = round(time.time() - self._start, 6)
                self._rows.append({"r": episode["r"], "l": episode["l"], "t": elapsed, "step": self.num_timesteps})
        return True

    def _on_rollout_end(self) -> None:
        # Off-policy a rollout is a few frames: to write all episodes every time would be quadratic.
        if len(self._rows) > self._written + self._written // 100:
            self.flush()

    def flush(self) -> None:
        """Write the file."""
        header = "#" + json.dumps({"t_start": self._start, "env_id": self._env}) + "\n"
        write_whole(self._path, header + as_csv(["r", "l", "t", "step"], self._rows))
        self._written = len(self._rows)


def make_logger(folder: Path, until: int, *others: KVWriter) -> tuple[Logger, ProgressCSV]:
    """Return the logger of a run, continuing after frame ``until``, and its table to flush; others get the rows too."""
    progress = ProgressCSV(folder / "progress.csv", until)
    return Logger(str(folder), [progress, Events(folder / "tensorboard", until), *others]), progress


def numbers(key_values: Mapping[str, Any], key_excluded: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    """Return the numbers of a dump of the logger that belong in a table."""
    row = {key: value for key, value in key_values.items() if "csv" not in (key_excluded.get(key) or ())}
    return {key: float(value) for key, value in row.items() if isinstance(value, int | float | np.number)}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without its comment line; none if it is not there."""
    if not path.is_file():
        return []
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [{key: value for key, value in row.items() if value} for row in csv.DictReader(lines)]


def rows_until(path: Path, column: str, until: float) -> list[Row]:
    """Return the rows of an earlier part of a run, up to a frame.

    Raises:
        UsageError: The file is damaged.
    """
    try:
        return [row for row in read_rows(path) if int(float(row[column])) <= until]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise UsageError(
            f"{path} is damaged: {type(error).__name__}: {one_line(error)}; delete it to continue without its rows"
        ) from None


def as_csv(columns: list[str], rows: Iterable[Row]) -> str:
    """Return a table with a line of names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
