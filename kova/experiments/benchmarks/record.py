"""The JSON file of a benchmark: one format for all of them.

    {"made_by": {"command": …, "date": …, versions …}, "benchmark": name, "settings": {…}, "results": [{…}, …]}

``settings`` is what was asked for and holds for all results; every result is a flat mapping.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from kova.experiments.errors import UsageError, one_line
from kova.experiments.files import write_whole
from kova.experiments.runs.provenance import provenance

Result = Mapping[str, Any]


class Record:
    """A record that is written after every result, so that a benchmark that is stopped keeps what it has.

    Args:
        path: The file. Its folder is made with the first result.
        benchmark: The name after ``kova bench``.
        command: What the user typed.
        settings: What holds for all results.
        results: Those that are known already.
    """

    def __init__(
        self, path: Path, benchmark: str, command: str, settings: Result, results: Iterable[Result] = ()
    ) -> None:
        self.path = path
        self._head = {"made_by": provenance(command), "benchmark": benchmark, "settings": dict(settings)}
        self.results = list(results)

    @contextmanager
    def kept(self, console: Console) -> Iterator[None]:
        """Say where the results are when Ctrl-C ends the block."""
        try:
            yield
        except KeyboardInterrupt:
            if self.results:
                words = f"stopped; {self.path} has the {len(self.results)} results so far"
                console.print(words, highlight=False, soft_wrap=True)
            raise

    def add(self, *results: Result) -> None:
        """Take results and write the file."""
        self.results += results
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {**self._head, "results": self.results}
        write_whole(self.path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_results(path: Path, benchmark: str) -> list[dict[str, Any]]:
    """Return the results of a record, none if there is no file.

    Raises:
        UsageError: It is another file.
    """
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error)}; move it away, or choose another --out") from None
    results = content.get("results") if isinstance(content, dict) and content.get("benchmark") == benchmark else None
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise UsageError(f"{path} is not a record of kova bench {benchmark}; move it away, or choose another --out")
    return results


def same_settings(path: Path, settings: Result) -> bool:
    """Return whether there is a record that can be read, made with the same settings."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("settings") == settings
