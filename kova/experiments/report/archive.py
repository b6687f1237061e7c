"""Packs finished runs into one small file: what a report needs of them, and what a sweep needs to go on after them.

Unpacked, it is a directory like the one it was made of, without checkpoints and TensorBoard events: ``kova report``
shows the same page, and ``kova sweep`` takes its runs for finished and trains the others.
"""

from __future__ import annotations

import csv
import io
import lzma
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kova.experiments.files import replacing
from kova.experiments.report.results import METRICS, CollectedRuns
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.run_directory import MADE_BY

#: Of a run, as they are.
KEPT = ("config.yaml", "status.json", MADE_BY, "monitor.csv")
#: Rows that are left of a longer progress.csv, each the mean of those it stands for.
ROWS = 200


def pack(results: CollectedRuns, folder: Path, path: Path) -> Path:
    """Write the finished runs and the sweeps below a folder to a ``.tar.xz``; equal runs give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as draft,
        lzma.open(draft, "wb", preset=9) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        for name, content in _contents(results, folder):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def _contents(results: CollectedRuns, folder: Path) -> Iterator[tuple[str, bytes]]:
    for manifest in sorted(results.sweeps):
        yield manifest.relative_to(folder).as_posix(), manifest.read_bytes()
    for run in sorted(run.path for run in results.finished):
        inside = run.relative_to(folder).as_posix()
        for name in KEPT:
            if (run / name).is_file():
                yield f"{inside}/{name}", (run / name).read_bytes()
        yield f"{inside}/progress.csv", thinned(read_rows(run / "progress.csv")).encode()


def thinned(rows: Sequence[dict[str, str]]) -> str:
    """Return at most ``ROWS`` rows of what a report draws, as CSV."""
    tags = [tag for choices in METRICS.values() for tag, _ in choices if any(tag in row for row in rows)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([STEP, *tags])
    for piece in np.array_split(np.arange(len(rows)), min(ROWS, len(rows))) if rows else []:
        own = [rows[index] for index in piece]
        means = [_mean([row[tag] for row in own if tag in row]) for tag in tags]
        writer.writerow([own[-1][STEP], *means])
    return text.getvalue()


def _mean(values: Sequence[str]) -> str:
    return f"{np.mean([float(value) for value in values]):.5g}" if values else ""
