"""Errors of the ``kova`` command in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from kova.experiments.errors import UsageError, brief, one_line
from kova.installation import pip_install

#: What typer raises when the words of a command do not fit; which module it lives in depends on typer's version.
WrongWords: type[Any] = typer.BadParameter.__mro__[1].__mro__[1]


class OneLineErrors(TyperGroup):
    """A command whose errors are one line: exit code 2 for a wrong call, 1 for a run that failed."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run the command that ``args``, or else the process's arguments, name."""
        words = list(sys.argv[1:] if args is None else args)
        # Commands find in ``obj`` what was typed.
        extra = {"obj": words, **extra}
        if not standalone_mode:
            return super().main(words, standalone_mode=False, **extra)
        try:
            _check_words(words)
            code = super().main(words, standalone_mode=False, **extra)
        except WrongWords as error:
            _fail(brief(_explained(error), words), 2)
        except UsageError as error:
            _fail(brief(one_line(error), words), 2)
        except ModuleNotFoundError as error:
            _fail(f"{error.name} is missing; this command needs: {pip_install('experiments')}", 2)
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as error:
            _fail(brief(f"failed: {type(error).__name__}: {one_line(error)}", words), 1)
        raise SystemExit(code if isinstance(code, int) else 0)


def _check_words(words: Sequence[str]) -> None:
    """Refuse what no argument of any command can be: an empty variable of a shell, or bytes that are not text."""
    for place, word in enumerate(words):
        if not word.strip():
            before = f" after {words[place - 1]}" if place else ""
            raise UsageError(f"an argument is empty{before}; give it a value, or leave it out")
        if not word.isprintable():
            raise UsageError(f"the argument {word!r} has characters that cannot be printed; leave them out")


def _explained(error: Any) -> str:
    """Return what was wrong with the words of a command and where they are explained; no words ask for help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        raise SystemExit(error.exit_code)
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "kova"
    return f"{message[:1].lower()}{message[1:]}; see: {command} --help"


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"kova: {message}\n")
    raise SystemExit(code)
