"""Packed runs: the same report after unpacking, and a sweep that goes on after them."""

from __future__ import annotations

import csv
import tarfile
from pathlib import Path

import pytest
from test_report import report, write_run
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.report.archive import ROWS, thinned
from kova.experiments.runs.logs import STEP
from kova.experiments.sweeps.grid import Sweep

CARTPOLE = Sweep("small", ["ppo"], ["CartPole-v1"], {"Adam": {"critic": "adam"}, "KOVA": {}}, 2, set={"steps": 1000})


def swept(folder: Path, *, left_out: int = 0) -> Path:
    folder.mkdir()
    (folder / "sweep.yaml").write_text(CARTPOLE.to_yaml())
    runs = CARTPOLE.runs()
    for number, run in enumerate(runs):
        path = write_run(folder, run, state="finished" if number >= left_out else "failed", level=number)
        (path / "checkpoints" / "model.zip").write_bytes(b"large")
    return folder


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_a_report_of_unpacked_runs_has_the_same_curves(tmp_path):
    folder = swept(tmp_path / "sweep")
    report(folder, "--pack", str(tmp_path / "runs.tar.xz"), "--data", str(tmp_path / "before.csv"))
    copy = unpacked(tmp_path / "runs.tar.xz", tmp_path / "copy")
    report(copy, "--pack", str(tmp_path / "again.tar.xz"), "--data", str(tmp_path / "after.csv"))
    assert (tmp_path / "after.csv").read_text() == (tmp_path / "before.csv").read_text()
    assert (tmp_path / "again.tar.xz").read_bytes() == (tmp_path / "runs.tar.xz").read_bytes()
    assert not list(copy.rglob("model.zip"))


def test_a_sweep_takes_unpacked_runs_for_finished_and_those_that_failed_not(tmp_path):
    report(swept(tmp_path / "sweep", left_out=1), "--pack", str(tmp_path / "runs.tar.xz"))
    copy = unpacked(tmp_path / "runs.tar.xz", tmp_path / "copy")
    done = CliRunner().invoke(app, ["sweep", str(copy / "sweep.yaml"), "--out", str(copy), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "4 runs, 3 finished" in done.output


def test_long_logs_are_thinned_to_means():
    rows = [{STEP: str(10 * number), "train/explained_variance": str(number % 2)} for number in range(1, 1001)]
    kept = list(csv.DictReader(thinned(rows).splitlines()))
    assert len(kept) == ROWS
    assert kept[-1][STEP] == "10000"
    assert [float(row["train/explained_variance"]) for row in kept[:2]] == pytest.approx([0.6, 0.4])
    assert thinned([]) == f"{STEP}\n"


def test_a_pack_that_cannot_be_written_is_refused(tmp_path):
    folder = swept(tmp_path / "sweep")
    done = CliRunner().invoke(app, ["report", str(folder), "-o", str(tmp_path / "r.html"), "--pack", str(folder)])
    assert done.exit_code == 2
    assert "choose another --pack" in done.output
    assert not (tmp_path / "r.html").exists()
