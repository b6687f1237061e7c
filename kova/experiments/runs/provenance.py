"""What made a data file: the command, the versions, the machine and the date."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import kova
from kova.experiments.files import write_whole

#: Packages whose versions can change a result.
PACKAGES = ("torch", "numpy", "stable-baselines3", "sb3-contrib", "gymnasium", "mujoco")


def provenance(command: str) -> dict[str, str | int]:
    """Return the facts that a reader needs to make the file again."""
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        **_versions(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
    }


def _versions() -> dict[str, str]:
    # Not what is installed: an editable installation keeps the number with which it was made.
    found = {"kova-rl": kova.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def add_maker(path: Path, facts: dict[str, Any]) -> None:
    """Add a maker to a file, unless the last one is the same: a resumed run may have several."""
    try:
        makers = read_makers(path)
    except ValueError:
        # A damaged file must not keep a run from continuing.
        makers = []
    if not makers or environment_of(makers[-1]) != environment_of(facts):
        write_whole(path, json.dumps([*makers, facts], indent=2))


def read_makers(path: Path) -> list[dict[str, Any]]:
    """Return the makers of a file, in order; runs of older versions have one or none.

    Raises:
        ValueError: It is damaged.
    """
    if not path.is_file():
        return []
    content = json.loads(path.read_text())
    makers = content if isinstance(content, list) else [content]
    if not all(isinstance(maker, dict) for maker in makers):
        raise ValueError(f"{path.name} is not a list of mappings")
    return makers


def environment_of(maker: dict[str, Any]) -> dict[str, Any]:
    """Return versions and machine, without command and date, which differ between runs."""
    return {name: value for name, value in maker.items() if name not in ("command", "date")}
