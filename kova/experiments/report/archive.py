"""Packs finished runs into one small file: what a report needs of them, and what a sweep needs to go on after them.

Unpacked, it is a directory like the one it was made of, without checkpoints and TensorBoard events: ``kova report``
shows the same curves and statistics, and ``kova sweep`` takes its runs for finished and trains the others.
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
from kova.experiments.report.comparison import POINTS
from kova.experiments.report.results import METRICS, CollectedRuns
from kova.experiments.runs.logs import STEP, read_rows
from kova.experiments.runs.run_directory import MADE_BY

#: Of a run, as they are.
KEPT = ("config.yaml", "status.json", MADE_BY, "monitor.csv")
#: Rows that are left of a longer progress.csv: those that a curve of the report shows, and as many between them.
ROWS = 2 * POINTS


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
    # Also those that cannot be compared: a sweep would train them again.
    for run in sorted((run for run in results.runs if run.state == "finished"), key=lambda run: run.path):
        inside = run.path.relative_to(folder).as_posix()
        for name in KEPT:
            if (run.path / name).is_file():
                yield f"{inside}/{name}", (run.path / name).read_bytes()
        rows = read_rows(run.path / "progress.csv")
        yield f"{inside}/progress.csv", thinned(rows, max(run.config.steps, run.frames)).encode()


def thinned(rows: Sequence[dict[str, str]], end: int) -> str:
    """Return what a report draws, as CSV: all rows, or of many the last by each of ``ROWS`` frames up to ``end``."""
    tags = [tag for choices in METRICS.values() for tag, _ in choices if any(tag in row for row in rows)]
    kept = [row for row in rows if STEP in row and any(tag in row for tag in tags)]
    if len(kept) > ROWS:
        frames = np.array([float(row[STEP]) for row in kept])
        places = np.searchsorted(frames, np.linspace(end / ROWS, end, ROWS), side="right") - 1
        kept = [kept[place] for place in dict.fromkeys(places[places >= 0].tolist())]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([STEP, *tags])
    writer.writerows([row[STEP], *(row.get(tag, "") for tag in tags)] for row in kept)
    return text.getvalue()
