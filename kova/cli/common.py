"""What all commands use: help texts, ranges of options, the screen, and the words that were typed."""

from __future__ import annotations

import shlex

import typer
from rich.console import Console

#: The largest that numpy and Gymnasium take.
MAX_SEED = 2**32 - 1
SEED = typer.Option(min=0, max=MAX_SEED, help="Of everything random.")
#: A larger number of repetitions is taken for a typing error; a sweep has its own limit.
MAX_SEEDS = 10_000


def typed(context: typer.Context) -> str:
    """Return the command as the user typed it, for the files that it makes."""
    return shlex.join(["kova", *context.obj])


def make_console() -> Console:
    """Return the screen; a name in square brackets is a name and no markup."""
    return Console(markup=False)


def lines_of(title: str, *lines: str) -> str:
    """Return lines that typer does not wrap."""
    return "\b\n" + "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


def examples(*lines: str) -> str:
    """Return the examples of a command's help."""
    return lines_of(f"Example{'s' * (len(lines) > 1)}", *lines)
