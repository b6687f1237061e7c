"""The figure of ``kova bench streams``: Adam at its best rate, the filter's default, and its best setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kova.experiments.files import replacing

STYLE: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
#: (label, marker, colour, how the arm's name begins); the best of all that begin so is drawn.
GROUPS = (
    ("Adam, 1 pass, best of 4 rates", "s", "#E69F00", "Adam × 1,"),
    ("Adam, 10 passes, best of 4 rates", "D", "#D55E00", "Adam × 10,"),
    ("KOVA, 1 pass, best setting in hindsight", "|", "#56B4E9", "KOVA"),
    ("KOVA, 1 pass, the default", "o", "#0072B2", "KOVA, the default"),
)


def best(results: Sequence[Mapping[str, Any]], beginning: str) -> float | None:
    """Return the largest explained variance of the arms whose names begin so."""
    found = [r["explained"] for r in results if r["arm"].startswith(beginning) and r["explained"] is not None]
    return max(found, default=None)


def save_figure(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Draw a row per stream and kind of labels."""
    rows = list(dict.fromkeys((result["labels"], result["stream"]) for result in results))
    rows.sort(key=lambda row: ("PPO", "A2C", "Q").index(row[0]))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 1.3 + 0.3 * len(rows)), layout="constrained")
        axis = figure.subplots()
        for label, marker, colour, beginning in GROUPS:
            points = [
                (value, height)
                for height, row in enumerate(rows)
                if (value := best([r for r in results if (r["labels"], r["stream"]) == row], beginning)) is not None
            ]
            axis.scatter(
                [max(value, -0.1) for value, _ in points],
                [height for _, height in points],
                s=160 if marker == "|" else 36,
                marker=marker,
                color=colour,
                label=label,
                zorder=3 if marker == "o" else 2,
            )
        axis.set_yticks(range(len(rows)), [f"{labels} labels, {stream}" for labels, stream in rows])
        axis.invert_yaxis()
        axis.axvline(0.0, color="0.8", lw=1, zorder=0)
        axis.grid(axis="y", color="0.93")
        axis.set(xlabel="explained variance of the Monte-Carlo returns, before learning from them", xlim=(-0.12, 1.0))
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
        with replacing(path) as draft:
            figure.savefig(draft, dpi=150)
