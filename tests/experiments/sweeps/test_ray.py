"""The Ray engine on a real cluster of two nodes: the local engine's results, also when a node is lost."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import time
from pathlib import Path

import pytest
import small_sweeps
from killed_runs import assert_same
from test_sweep import assert_same_sweep

from kova.experiments.files import write_whole
from kova.experiments.runs.logs import read_rows
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.sweeps.engines import LocalEngine
from kova.experiments.sweeps.grid import Sweep
from kova.experiments.sweeps.scheduler import Scheduler

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Sweep:
    return Sweep.from_file(small_sweeps.write(tmp_path_factory.mktemp("ray") / "tiny.yaml", seeds=2))


@pytest.fixture(scope="module")
def local(sweep, tmp_path_factory) -> Path:
    """The sweep on the local engine."""
    out = tmp_path_factory.mktemp("local")
    schedule(sweep, out, LocalEngine(2)).run()
    return out


@pytest.fixture(scope="module", autouse=True)
def importable():
    """Let Ray's workers find the test modules that their pickles name."""
    here = Path(__file__).parent
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent), before])
    yield
    os.environ["PYTHONPATH"] = before


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8})
    yield found
    ray.shutdown()
    found.shutdown()
    # Ray leaves sockets to the collector; now, while their warnings are ignored, and not in somebody else's test.
    gc.collect()


def schedule(sweep: Sweep, out: Path, engine) -> Scheduler:
    (out / "runs").mkdir(parents=True, exist_ok=True)
    write_whole(out / "sweep.yaml", sweep.to_yaml())
    return Scheduler(sweep.runs(), out / "runs", engine, "kova sweep")


def has_checkpoint(run: Path) -> bool:
    return small_sweeps.state(run) == "running" and any((run / "checkpoints").glob("[0-9]*"))


@pytest.mark.parametrize(
    "fetch",
    [pytest.param(False, id="shared disk"), pytest.param(True, id="files sent back", marks=pytest.mark.slow)],
)
def test_a_cluster_that_loses_a_node_gives_the_local_results(fetch, cluster, sweep, local, tmp_path):
    from kova.experiments.sweeps.engines.ray import RayEngine

    node = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    cluster.wait_for_nodes()
    scheduler = schedule(sweep, tmp_path, RayEngine(cluster.address, fetch=fetch))
    begun, killed = time.monotonic(), []

    def in_the_middle() -> bool:
        # What is trained elsewhere does not show here; to import alone takes some seconds.
        return time.monotonic() - begun > 4.0 if fetch else any(map(has_checkpoint, small_sweeps.runs(tmp_path)))

    def lose_the_node(jobs) -> None:
        if not killed and sum(job.state == "running" for job in jobs) == 2 and in_the_middle():
            cluster.remove_node(node, allow_graceful=False)
            killed.append(node)

    scheduler.run(lose_the_node)
    assert killed, "the sweep was over before a node could be lost"
    assert [job.state for job in scheduler.jobs] == ["finished"] * 4
    assert_same_sweep(tmp_path, local)


def test_a_driver_killed_while_files_come_back_has_no_less_than_before(local, tmp_path, monkeypatch):
    from kova.experiments.sweeps.engines import ray as engine

    packed = engine._packed(small_sweeps.runs(local)[0])
    for moves in itertools.count():
        run = tmp_path / f"run-{moves}"
        shutil.copytree(small_sweeps.runs(local)[0], run)
        # As it was when it was sent out: older checkpoints, the beginning of a log, and not finished.
        for path, older in zip(sorted((run / "checkpoints").iterdir()), ("0000000128", "0000000256"), strict=True):
            path.rename(path.with_name(older))
        (run / "monitor.csv").write_text("".join((run / "monitor.csv").read_text().splitlines(keepends=True)[:3]))
        (run / "status.json").write_text('{"state": "running"}')
        left = iter(range(moves))

        def killed_before_the_last(path: Path, target: Path, left=left) -> Path:
            if next(left, None) is None:
                raise KeyboardInterrupt
            path.rename(target)
            return target

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed_before_the_last)
            try:
                engine._unpack(packed, run)
                whole = True
            except KeyboardInterrupt:
                whole = False
        latest = RunDirectory(run).latest_checkpoint()
        assert latest is not None
        assert latest.name >= "0000000256"
        # Logs lead up to every checkpoint; the status comes last.
        assert latest.name == "0000000256" or read_rows(run / "monitor.csv") == read_rows(
            small_sweeps.runs(local)[0] / "monitor.csv"
        )
        assert RunDirectory(run).is_finished() <= (latest.name == "0000000512")
        engine._unpack(packed, run)
        assert_same(run, small_sweeps.runs(local)[0])
        assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["0000000384", "0000000512"]
        if whole:
            break
    assert moves > 5


def test_a_cluster_that_is_not_there_is_one_line(tmp_path):
    output = small_sweeps.finish(
        "quick", "--engine", "ray", "--address", "127.0.0.1:1", "--out", tmp_path / "out", code=2
    )
    assert "cannot be reached" in output
    assert not (tmp_path / "out").exists()
