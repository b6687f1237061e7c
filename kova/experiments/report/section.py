"""A part of the page, and what its metrics are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plotly import graph_objects as go

from kova.experiments.report.comparison import RETURN

TITLES = {
    RETURN: "return",
    "entropy": "policy entropy",
    "policy_loss": "policy loss",
    "explained_variance": "explained variance of the critic",
}


@dataclass(frozen=True)
class Table:
    """Cells; ``text`` lets long ones wrap."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: bool = False


@dataclass(frozen=True, eq=False)
class Section:
    """A part of the page."""

    id: str
    title: str
    note: str
    figures: Sequence[go.Figure] = ()
    table: Table | None = None
    code: str = ""
    charts: list[dict[str, str]] = field(default_factory=list)
