"""Numbers as people read them: a column has one precision."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kova.experiments.report.statistics import Interval


def decimals(numbers: Iterable[float]) -> int:
    """Return how many decimals numbers of a column have: none once one of them has three digits before the point."""
    largest = max((abs(number) for number in numbers if np.isfinite(number)), default=0.0)
    return 0 if largest >= 100 else 1 if largest >= 10 else 2 if largest >= 0.1 else 4


def in_words(interval: Interval, places: int = 2) -> str:
    """Return an estimate and, if it has one, its interval."""
    ends = "" if np.isnan(interval.low) else f" ({interval.low:,.{places}f} to {interval.high:,.{places}f})"
    return f"{interval.estimate:,.{places}f}{ends}"


def listed(words: list[str]) -> str:
    """Return words as a sentence has them: a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
