"""The kova command as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments import step_arms, step_benchmark

runner = CliRunner()


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["bench", "step", "--help"]])
def test_help_shows_an_example(arguments):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    assert "Example: kova" in result.output


@pytest.mark.parametrize("arguments", [["bench", "step", "--repeats", "0"], ["bench", "leap"], ["fly"]])
def test_a_wrong_call_exits_with_2_and_no_traceback(arguments):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_bench_step_writes_table_data_and_picture(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(step_benchmark, "CRITICS", ((3, 4, 4), (3, 8, 8)))
    monkeypatch.setattr(step_benchmark, "BATCHES", (8, 16))
    monkeypatch.setattr(step_benchmark, "LARGE", ((3, 9, 9), 8, ("memoryless", "Adam")))
    shapes = ((3, 4, 4), (3, 6, 6))
    monkeypatch.setattr(
        step_benchmark, "GROWTH", {arm: (shapes, model) for arm, (_, model) in step_benchmark.GROWTH.items()}
    )
    monkeypatch.setattr(step_benchmark, "sgemm_rate", lambda: 1e11)
    monkeypatch.setattr(step_benchmark, "peak_memory", lambda arm, shape, size: 10**6)
    result = runner.invoke(app, ["bench", "step", "--repeats", "2", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "step.json").read_text())
    assert len(numbers["timings"]) == 2 * 2 * len(step_arms.ARMS) + 2
    assert all(0 < t["low"] <= t["median"] <= t["high"] for t in numbers["timings"])
    assert {fit["arm"] for fit in numbers["growth"]} == {"full", "neuron", "memoryless"}
    assert numbers["made_by"]["command"] == "kova bench step --repeats 2"
    assert (tmp_path / "step.png").stat().st_size > 10_000
    assert "literal Algorithm 1" in result.output


def test_memory_is_measured_in_a_process_of_its_own():
    # P of 3,000 weights is 18 MB by halves; literal Algorithm 1 holds several squares of 36 MB.
    full = step_benchmark.peak_memory("full", (17, 45, 45), 16)
    literal = step_benchmark.peak_memory("literal Algorithm 1", (17, 45, 45), 16)
    assert 10e6 < full < 70e6
    assert literal > 1.5 * full


def test_the_benchmarks_critics_have_the_sizes_they_are_known_by():
    assert [step_benchmark.parameters(shape) for shape in step_benchmark.CRITICS] == [1665, 5377, 11393]
    module = step_arms.critic(17, 64, 64)
    assert sum(p.numel() for p in module.parameters()) == 5377
