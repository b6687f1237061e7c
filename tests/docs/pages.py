"""The pages of the site and the README, and the blocks of code in them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

#: A fenced block, indented if it is part of a list, after a comment that says why it is not run.
BLOCK = re.compile(
    r"^(?: *<!-- not run: (?P<reason>.*?) -->\n+)?(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"<!-- not run: ")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: As the fence says.
        text: The code, without the indentation of a list.
        line: Of its first line in the page, from 1.
        reason: Why it is not run; none if it is.
    """

    language: str
    text: str
    line: int
    reason: str | None


def name(page: Path) -> str:
    """Return the path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> Iterator[Block]:
    """Return the blocks of a page in these languages, in order."""
    for found in BLOCK.finditer(text):
        if found["language"] in languages:
            line = text[: found.start("body")].count("\n") + 1
            yield Block(found["language"], textwrap.dedent(found["body"]), line, found["reason"])
