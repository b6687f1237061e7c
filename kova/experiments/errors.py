"""The error that users see as one line, without a traceback."""

from __future__ import annotations


class UsageError(ValueError):
    """What the user asked for cannot be done; the message says what to do."""


def one_line(error: BaseException) -> str:
    """Return the message of an error, or its kind if it has none, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
