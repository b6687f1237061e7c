"""The help of every command, as it is printed, in the place of a comment of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from kova.cli import app

MARK = "<!-- the help of every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help texts where the page has the mark."""
    return markdown.replace(MARK, "\n".join(_sections())) if MARK in markdown else markdown


def _sections() -> Iterator[str]:
    for words in _commands(typer.main.get_command(app), ()):
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="kova", env={"COLUMNS": "88"})
        name = " ".join(("kova", *words))
        yield f"## {name}\n\n```text\n{shown.output.strip()}\n```\n"


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*words, name))
