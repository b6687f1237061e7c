"""How values and returns are put into words: in which units, and with how many digits."""

from __future__ import annotations

import math

#: Every number a person is shown is in these.
UNITS = "in the environment's reward units"


def decimals(error: float) -> int:
    """Return how many decimals show two significant digits of an error; rewards may be of any size."""
    if not 0.0 < error < math.inf:
        return 2
    return min(max(1 - math.floor(math.log10(error)), 0), 9)


def with_error(value: float, error: float) -> str:
    """Return a value and its error, both as precise as the error allows."""
    # An error that a float32 could not tell from none is rounding, and no reason for nine decimals.
    digits = decimals(error if error > 1e-6 * abs(value) else 0.0)
    return f"{value:.{digits}f} ± {error:.{digits}f}"
