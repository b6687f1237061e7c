"""What made a data file: the command, the versions, the machine and the date."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

import torch


def provenance(command: str) -> dict[str, str | int]:
    """Return the facts that a reader needs to make the file again."""
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "kova-rl": version("kova-rl"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
    }
