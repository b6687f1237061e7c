"""``kova report``: from a directory of runs to a page, figures and a table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from rich.console import Console

from kova.experiments.errors import UsageError
from kova.experiments.files import check_file, check_folder, write_whole
from kova.experiments.report import interval_figure, paper_figures, render
from kova.experiments.report.answer import sentences
from kova.experiments.report.archive import pack
from kova.experiments.report.comparison import RETURN, Comparison
from kova.experiments.report.page import lead
from kova.experiments.report.results import METRICS, collect

#: Each has ``paths`` and ``save``.
FIGURES = (interval_figure, paper_figures)


def run(
    folder: Path,
    out: Path,
    figures: Path | None,
    data: Path | None,
    archive: Path | None,
    against: str | None,
    console: Console,
    command: str,
) -> None:
    """Write the page and, if they are asked for, the figures, the table and the runs themselves.

    Args:
        folder: Where the runs are.
        out: The page.
        figures: Directory for PNG and SVG.
        data: CSV of every curve.
        archive: The finished runs, packed.
        against: The arm that others are compared with.
        console: Where to say what was done.
        command: What the user typed.

    Raises:
        UsageError: There is no such directory or arm, or a file cannot be written; nothing was.
    """
    check_file(out, "-o")
    for option, path in (("--data", data), ("--pack", archive)):
        if path is not None:
            check_file(path, option)
    _check_apart({"-o": out, "--data": data, "--pack": archive, "--figures": figures})
    with console.status("reading the runs"):
        results = collect(folder)
        comparison = Comparison(results.finished, against)
    if figures is not None:
        pictures = [path for kind in FIGURES for path in kind.paths(comparison, figures)]
        check_folder(figures, "--figures", *(path.name for path in pictures))
    names = dict.fromkeys(sweep.name for sweep in results.sweeps.values())
    title = f"kova: {', '.join(names) or folder.resolve().name}"
    with console.status("drawing"):
        written = [_write(out, render(results, comparison, title, command))]
        if data is not None:
            written.append(_write(data, curves_table(comparison).to_csv(index=False)))
        if figures is not None:
            written += [path for kind in FIGURES for path in kind.save(comparison, figures)]
        if archive is not None:
            written.append(pack(results, folder, archive))
    for sentence in [lead(results, comparison), *sentences(comparison)]:
        console.print(sentence, highlight=False, soft_wrap=True)
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)
    for one in results.damaged:
        console.print(f"damaged: {one.path}: {one.reason}", highlight=False, soft_wrap=True)


def _check_apart(targets: Mapping[str, Path | None]) -> None:
    """Refuse a file that would be in the way of another one; the folder of figures may hold the files."""
    places = {option: path.resolve() for option, path in targets.items() if path is not None}
    for first, second in itertools.permutations(places, 2):
        inside = places[first] in places[second].parents and first != "--figures"
        if places[first] == places[second] or inside:
            raise UsageError(f"{first} is in the way of {second}: {targets[second]}; choose another {second}")


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path


def curves_table(comparison: Comparison) -> pd.DataFrame:
    """Return every curve of every run in long form."""
    columns = ["task", "arm", "seed", "frame", RETURN, *METRICS]
    rows = []
    for task in comparison.tasks:
        for arm, curves in task.arms.items():
            for index, seed in enumerate(curves.seeds):
                for place, frame in enumerate(task.grid):
                    values = {metric: f"{found[index, place]:.6g}" for metric, found in curves.curves.items()}
                    rows.append({"task": task.name, "arm": arm, "seed": seed, "frame": round(frame), **values})
    return pd.DataFrame(rows, columns=columns)
