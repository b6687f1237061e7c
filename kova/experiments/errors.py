"""The error that users see as one line, without a traceback."""

from __future__ import annotations

from collections.abc import Sequence

#: Characters of a message, beside the paths in it.
LIMIT = 300
#: Characters of a word that are repeated to the user who typed it.
LONGEST_WORD = 80
#: Characters of a path that count as part of it.
LONGEST_PATH = 255


class UsageError(ValueError):
    """What the user asked for cannot be done; the message says what to do."""


def one_line(error: BaseException) -> str:
    """Return the message of an error, or its kind if it has none, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def brief(message: str, words: Sequence[str]) -> str:
    """Return a message that can be read at a glance.

    Long words of the user's are cut. What is still too long is cut in the middle: a message begins with what was wrong
    and ends with what to do.

    Args:
        message: One line.
        words: Of the user's command; paths among them may add to the length.
    """
    for word in words:
        for part in (word, *word.split("=", 1)):
            if len(part) > LONGEST_WORD and "/" not in part:
                message = message.replace(part, f"{part[:LONGEST_WORD]}…")
    paths = sum(min(len(word), LONGEST_PATH) * message.count(word) for word in set(words) if "/" in word)
    limit = LIMIT + min(paths, 2 * LONGEST_PATH)
    if len(message) <= limit:
        return message
    end = limit // 3
    return f"{message[: limit - end - 3]} … {message[-end:]}"
