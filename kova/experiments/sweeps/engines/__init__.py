"""Where the runs of a sweep are executed: processes of this machine, or the machines of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from kova.experiments.errors import UsageError
from kova.experiments.runs.expressions import suggestion
from kova.experiments.sweeps.engines.base import Engine, ExitStatus
from kova.experiments.sweeps.engines.local import LocalEngine
from kova.installation import pip_install

__all__ = ["ENGINES", "Engine", "ExitStatus", "LocalEngine", "check", "make", "slots"]


def slots(jobs: int | None) -> int:
    """Return how many runs this machine executes at a time: as asked, or one for each core."""
    return jobs or os.cpu_count() or 1


def _local(jobs: int | None, address: str | None, fetch: bool) -> Engine:
    return LocalEngine(slots(jobs))


def _ray(jobs: int | None, address: str | None, fetch: bool) -> Engine:
    try:
        from kova.experiments.sweeps.engines.ray import RayEngine
    except ModuleNotFoundError:
        raise UsageError(f"ray is missing; --engine ray needs: {pip_install('experiments', 'ray')}") from None
    return RayEngine(address=address, slots=jobs, fetch=fetch)


#: By the name that ``--engine`` takes.
ENGINES: Mapping[str, Callable[[int | None, str | None, bool], Engine]] = {"local": _local, "ray": _ray}


def check(name: str, *, address: str | None = None, fetch: bool = False) -> None:
    """Check the arguments of :func:`make`.

    Raises:
        UsageError: There is no such engine, or it does not take the other arguments.
    """
    if name not in ENGINES:
        raise UsageError(f"engine {name!r} is unknown{suggestion(name, ENGINES)}")
    if name == "local" and (address is not None or fetch):
        raise UsageError("--address and --fetch are for a cluster; add --engine ray, or leave them out")


def make(name: str, *, jobs: int | None = None, address: str | None = None, fetch: bool = False) -> Engine:
    """Return an engine.

    Args:
        name: One of :data:`ENGINES`.
        jobs: Runs at a time.
        address: Of a Ray cluster.
        fetch: Whether a cluster's nodes have no disk in common with this machine.

    Raises:
        UsageError: There is no such engine, it is not installed or cannot be reached, or it refuses the arguments.
    """
    check(name, address=address, fetch=fetch)
    return ENGINES[name](jobs, address, fetch)
