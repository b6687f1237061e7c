"""``kova report``: from a directory of runs to a page, figures and a table."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
from rich.console import Console

from kova.experiments.errors import UsageError, one_line
from kova.experiments.report import paper_figures, render
from kova.experiments.report.comparison import RETURN, Comparison
from kova.experiments.report.results import METRICS, collect
from kova.experiments.runs.run_directory import write_whole


def run(folder: Path, out: Path, figures: Path | None, data: Path | None, console: Console) -> None:
    """Write the page and, if they are asked for, the figures and the table.

    Args:
        folder: Where the runs are.
        out: The page.
        figures: Directory for PNG and SVG.
        data: CSV of every curve.
        console: Where to say what was done.

    Raises:
        UsageError: There is no such directory, or the page cannot be written.
    """
    with console.status("reading the runs"):
        results = collect(folder)
        comparison = Comparison(results.finished)
    options = {"-o": out, "--figures": figures, "--data": data}
    words = [str(word) for option, path in options.items() if path is not None for word in (option, path)]
    command = shlex.join(["kova", "report", str(folder), *words])
    names = dict.fromkeys(sweep.name for sweep in results.sweeps.values())
    title = f"kova: {', '.join(names) or folder.resolve().name}"
    with console.status("drawing"):
        page = render(results, title, command)
        _write(out, page, "-o")
        written = [out]
        if data is not None:
            _write(data, curves_table(comparison).to_csv(index=False), "--data")
            written.append(data)
        if figures is not None:
            try:
                written += paper_figures.save(comparison, figures)
            except OSError as error:
                raise UsageError(f"{figures} cannot be written: {one_line(error)}; choose another --figures") from None
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)
    for one in results.damaged:
        console.print(f"damaged: {one.path}: {one.reason}", highlight=False, soft_wrap=True)


def _write(path: Path, text: str, option: str) -> None:
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {one_line(error)}; choose another {option}") from None


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
