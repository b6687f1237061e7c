"""A number and its deviation, 1,213 ± 584, stay on one line."""

from __future__ import annotations

import re

NO_BREAK = "\N{NO-BREAK SPACE}"


def on_page_content(html: str, **_: object) -> str:
    """Let no line end on either side of a ±."""
    return re.sub(r"(?<=\d) ± (?=\d)", f"{NO_BREAK}±{NO_BREAK}", html)
