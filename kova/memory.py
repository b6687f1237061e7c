"""How much memory is free, so that a covariance that does not fit is refused before it is allocated."""

from __future__ import annotations

import os
from pathlib import Path

import torch

#: Part of the free memory that a covariance may take unless the caller sets a budget; the agent needs the rest.
DEFAULT_SHARE = 0.8


def available_bytes(device: torch.device) -> int:
    """Return the bytes a covariance may take on ``device`` by default."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(DEFAULT_SHARE * free)
    return int(DEFAULT_SHARE * min(_free_on_machine(), _free_in_cgroup()))


def ran_out(error: BaseException) -> bool:
    """Say whether an error means that no memory was left; for the CPU torch has no type of its own."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def human(size: int) -> str:
    """Return a size with its unit, e.g. ``67.6 GB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000.0:
            return f"{value:.3g} {unit}"
        value /= 1000.0
    return f"{value:,.3g} TB" if value < 1000.0 else f"{value:,.0f} TB"


def _free_on_machine() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # The system does not say: assume a laptop.
    return 8 * 10**9


def _free_in_cgroup() -> int:
    """Return what a container's limit leaves, or a very large number where there is none."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        return int(limit.read_text()) - int(used.read_text())
    except (OSError, ValueError):
        return 2**62
