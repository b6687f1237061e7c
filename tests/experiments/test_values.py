"""The value benchmark: the arms learn, the scores mean what they say, the files are there."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from kova.experiments.benchmarks import values as values_benchmark
from kova.experiments.benchmarks.value_methods import METHODS


def test_the_benchmark_writes_table_data_and_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(values_benchmark, "GRID", (200, 1000))
    console = Console(record=True, width=160)
    outcomes = values_benchmark.run(tmp_path, 1, console, ["random walk"])
    assert {item.arm for item in outcomes} == set(METHODS)
    record = json.loads((tmp_path / "values.json").read_text())
    assert record["command"] == "kova bench values --seeds 1"
    assert len(record["outcomes"]) == len(METHODS)
    for name in ("values_error.png", "values_reliability.png", "values_chain.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    text = console.export_text()
    assert all(arm in text for arm in ("KOVA", "LSTD(1)", "XKTD"))
    by_arm = {item.arm: item for item in outcomes}
    assert by_arm["KOVA"].errors[-1] < 0.7
    assert by_arm["KOVA"].coverage is not None
    assert by_arm["LSTD(1)"].coverage is None
    assert by_arm["KOVA"].errors[-1] == pytest.approx(by_arm["LSTD(1)"].errors[-1], abs=0.02)
