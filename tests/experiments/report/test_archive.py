"""Packed runs: the same report after unpacking, and a sweep that goes on after them."""

from __future__ import annotations

import csv
import tarfile
from pathlib import Path

import numpy as np
import pytest
from test_report import report, write_run
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.report.archive import ROWS, thinned
from kova.experiments.report.statistics import sampled
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


def test_of_long_logs_the_rows_are_kept_that_a_curve_shows():
    rng = np.random.default_rng(0)
    tag = "train/explained_variance"
    rows = [{STEP: str(40 * number), tag: repr(float(rng.normal()))} for number in range(1, 1501)]
    kept = list(csv.DictReader(thinned(rows, 60_000).splitlines()))
    assert len(kept) == ROWS
    grid = np.linspace(600, 60_000, 100)
    before, after = (
        sampled(np.array([float(row[STEP]) for row in own]), np.array([float(row[tag]) for row in own]), grid)
        for own in (rows, kept)
    )
    np.testing.assert_array_equal(after, before)


def test_rows_without_a_frame_or_anything_to_draw_are_left_out():
    rows = [{"time/fps": "3"}, {STEP: "5", "time/fps": "3"}, {STEP: "7", "train/entropy": "0.5"}]
    assert thinned(rows, 10) == f"{STEP},train/entropy\n7,0.5\n"
    assert thinned([], 10) == f"{STEP}\n"


def test_a_finished_run_that_cannot_be_compared_is_packed_too(tmp_path):
    folder = swept(tmp_path / "sweep")
    first = next(iter((folder / "runs").iterdir()))
    (first / "monitor.csv").write_text('#{"t_start": 0}\nr,l,t,step\n')
    report(folder, "--pack", str(tmp_path / "runs.tar.xz"))
    assert (unpacked(tmp_path / "runs.tar.xz", tmp_path / "copy") / "runs" / first.name / "status.json").exists()


@pytest.mark.parametrize("words", [["eval"], ["train", "--resume", "--run-dir"]])
def test_an_unpacked_run_is_not_trained_again(tmp_path, words):
    report(swept(tmp_path / "sweep"), "--pack", str(tmp_path / "runs.tar.xz"))
    run = next(iter((unpacked(tmp_path / "runs.tar.xz", tmp_path / "copy") / "runs").iterdir()))
    before = (run / "monitor.csv").read_bytes()
    done = CliRunner().invoke(app, [*words, str(run)])
    assert done.exit_code == 2
    assert "is finished and has no checkpoint" in done.output
    assert (run / "monitor.csv").read_bytes() == before


def test_a_pack_that_cannot_be_written_is_refused(tmp_path):
    folder = swept(tmp_path / "sweep")
    done = CliRunner().invoke(app, ["report", str(folder), "-o", str(tmp_path / "r.html"), "--pack", str(folder)])
    assert done.exit_code == 2
    assert "choose another --pack" in done.output
    assert not (tmp_path / "r.html").exists()
