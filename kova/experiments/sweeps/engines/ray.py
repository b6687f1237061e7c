"""Runs as tasks of a Ray cluster, one CPU each.

Where the nodes share a disk with this machine, a task works in the run's directory as a local process does, and a run
whose node is lost continues elsewhere from its last checkpoint. Where they do not, a task is sent the run's files and
sends them back when it ends; a run whose node is lost continues from the files that this machine has.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import socket
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.sweeps import worker
from kova.experiments.sweeps.engines.base import ExitStatus
from kova.experiments.sweeps.engines.process import exit_message, spawn


@ray.remote(num_cpus=1, max_retries=0)
def _in_place(run: str, command: str) -> tuple[int, str]:
    """Execute the run of a shared directory."""
    path = Path(run)
    if not path.is_dir():
        return worker.REFUSED, f"a node does not see {run}; put --out on a disk that all share, or add --fetch"
    return _execute(path, command)


@ray.remote(num_cpus=1, max_retries=0)
def _elsewhere(name: str, packed: bytes, command: str) -> tuple[int, str, bytes]:
    """Execute a run on the disk of the node, from the files that the driver sent, and return its files."""
    with tempfile.TemporaryDirectory(prefix="kova-") as folder:
        path = Path(folder) / name
        _extract(packed, path)
        code, words = _execute(path, command)
        return code, words, _packed(path)


def _execute(run: Path, command: str) -> tuple[int, str]:
    """Execute in a process of its own: Ray reuses its workers, and this one sets the number of threads."""
    process = spawn(run, command)
    process.wait()
    process.communicate()
    return process.returncode, exit_message(run, process.returncode)


def _packed(run: Path) -> bytes:
    """Return the files of a run."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(run, arcname=".", filter=lambda item: None if item.name.endswith(".lock") else item)
    return packed.getvalue()


def _extract(packed: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        # Python before 3.11.4 has no filters; the archive was made by this module.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(folder)


class RayEngine:
    """Tasks of a cluster.

    Args:
        address: Of the cluster; ``None`` starts one on this machine for the time of the sweep.
        slots: Runs at a time; by default as many as the cluster has CPUs.
        fetch: The nodes do not share this machine's disk.

    Raises:
        UsageError: The cluster cannot be reached.
    """

    def __init__(self, address: str | None = None, slots: int | None = None, *, fetch: bool = False) -> None:
        _check_address(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"the Ray cluster at {address!r} cannot be reached: {one_line(error)}; "
                "leave --address out to start one on this machine"
            ) from None
        self._slots, self._fetch = slots, fetch
        self._running: dict[Any, Path] = {}

    @property
    def slots(self) -> int:
        """As many as were asked for, or as there are CPUs now: a cluster may grow."""
        return self._slots or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, run: Path, command: str) -> None:
        """Hand the run to the cluster."""
        path = run.resolve()
        if self._fetch:
            handle: Any = _elsewhere.remote(path.name, _packed(path), command)
        else:
            handle = _in_place.remote(str(path), command)
        self._running[handle] = run

    def ended(self, timeout: float) -> list[ExitStatus]:
        """Wait for tasks to end."""
        if not self._running:
            time.sleep(timeout)
            return []
        handles, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [self._outcome(handle, self._running.pop(handle)) for handle in handles]

    def _outcome(self, handle: Any, run: Path) -> ExitStatus:
        try:
            code, words, *files = ray.get(handle)
            if files:
                _unpack(files[0], run)
        except (RayError, OSError, tarfile.TarError) as error:
            # Ray puts the traceback first and what was wrong last.
            lines = str(getattr(error, "cause", None) or error).strip().splitlines()
            return ExitStatus(run, worker.FAILED, lines[-1] if lines else type(error).__name__)
        return ExitStatus(run, code, words)

    def stop(self) -> None:
        """Cancel the tasks and leave the cluster."""
        for handle in self._running:
            with contextlib.suppress(RayError):
                ray.cancel(handle, force=True)
        self._running.clear()
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Try to connect: Ray itself tries for minutes before it reports a failure."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdigit() or "://" in str(address):
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise UsageError(
            f"the Ray cluster at {address!r} cannot be reached: {one_line(error)}; "
            "leave --address out to start one on this machine"
        ) from None


def _unpack(packed: bytes, run: Path) -> None:
    """Put the files of a run in place, its status last: until then it does not count as finished."""
    # The task began with the checkpoints that are here, so the files it returns are not older.
    draft = run.with_name(f".{run.name}.fetched")
    shutil.rmtree(draft, ignore_errors=True)
    _extract(packed, draft)
    # Logs before checkpoints: a run resumed from a checkpoint does not log earlier frames again.
    for item in sorted(draft.iterdir(), key=lambda item: (item.name == "status.json", item.name == "checkpoints")):
        _put(item, run / item.name)
    RunDirectory(run).prune()
    shutil.rmtree(draft)


def _put(item: Path, target: Path) -> None:
    """Move a file or folder to a place; folders are merged, so that nothing is missing if this is interrupted."""
    if not (item.is_dir() and target.is_dir()):
        item.replace(target)
        return
    for part in item.iterdir():
        _put(part, target / part.name)
