"""Writing files: a file is replaced whole or not at all, and what cannot be written is refused before work begins."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kova.experiments.errors import UsageError, one_line

#: Matches the drafts that a killed process leaves behind; 0.1.0 put ``.tmp`` after the suffix.
DRAFTS = ".*.tmp*"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft to write; it replaces the file when the block ends and is removed when the block fails.

    A reader sees the old content or the new, and a kill leaves one of them. The draft has the suffix of the file.
    """
    draft = _draft(path)
    try:
        yield draft
        sync(draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Replace the content of a text file."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Ask the system to put a file on disk; not every file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_folder(path: Path) -> bool:
    """Return whether a folder exists; it does not if no folder can have that name."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def check_file(path: Path, option: str) -> None:
    """Check that a file can be written, and leave nothing behind.

    Args:
        path: The file; its folders may be missing.
        option: What the user gave it by.

    Raises:
        UsageError: It is no regular file, or its folder cannot be written or made.
    """
    with _refusing(path, option):
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
        if path.exists() and not path.is_file():
            raise OSError("it is not a regular file")
        _try(path.parent, path.name, _draft(path).name)


def check_folder(path: Path, option: str, *files: str) -> None:
    """Check that files can be written into a folder, which may be missing, and leave nothing behind.

    Raises:
        UsageError: It is not a folder, cannot be made, or one of the files cannot be written.
    """
    with _refusing(path, option):
        # Longer names, as those of drafts and of files below, must fit as well.
        _try(path, f".{path.name}.{2**22}", "x" * 200)
    for name in files:
        check_file(path / name, option)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.stem}.tmp{path.suffix}")


@contextmanager
def _refusing(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        # ValueError: a null character.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise UsageError(f"{path} cannot be written: {reason}; choose another {option}") from None


def _try(folder: Path, *names: str) -> None:
    """Raise what the system would raise if a folder and files in it were made."""
    there = folder
    while not there.exists():
        names = (*names, there.name)
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is not a directory")
    # Permission bits are not enough: the file system may be read-only or virtual.
    with tempfile.TemporaryFile(dir=there):
        pass
    for name in names:
        # Raises if a name, or the whole path, is too long.
        with contextlib.suppress(FileNotFoundError):
            (there / name).lstat()
        with contextlib.suppress(FileNotFoundError):
            (folder / name).lstat()
