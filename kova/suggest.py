"""The end of an error about an unknown name: the nearest known name, or all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" where a known name is close, or else "; there are a, b, c"."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
