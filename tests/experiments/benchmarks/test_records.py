"""One format for the data of every benchmark: what the repository keeps has it too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.benchmarks.scale import chances
from kova.experiments.errors import UsageError

ROOT = Path(__file__).parents[3]
KEPT = [*(ROOT / "benchmarks" / "results").glob("*.json"), *(ROOT / "docs").glob("*/*.json")]
#: Numbers taken from runs by hand.
NOT_A_BENCHMARK = "halfcheetah_full.json"


@pytest.mark.parametrize("path", [path for path in KEPT if path.name != NOT_A_BENCHMARK], ids=lambda path: path.name)
def test_the_data_of_the_repository_has_the_format(path: Path):
    content = json.loads(path.read_text())
    assert list(content) == ["made_by", "benchmark", "settings", "results"]
    assert {"command", "date", "kova-rl", "torch"} <= content["made_by"].keys()
    assert read_results(path, content["benchmark"]) == content["results"]
    assert all("arm" in result for result in content["results"])


def test_every_result_is_written_at_once(tmp_path: Path):
    path = tmp_path / "new" / "step.json"
    record = Record(path, "step", "kova bench step", {"repeats": 2})
    assert not path.parent.exists()
    for number in range(3):
        record.add({"arm": "a", "number": number})
        assert [result["number"] for result in read_results(path, "step")] == list(range(number + 1))
    assert [item.name for item in path.parent.iterdir()] == ["step.json"]
    with pytest.raises(UsageError, match="not a record of kova bench train"):
        read_results(path, "train")


def test_ctrl_c_says_where_the_results_are(tmp_path: Path):
    console = Console(record=True, width=200)
    record = Record(tmp_path / "step.json", "step", "kova bench step", {})
    record.add({"arm": "a"}, {"arm": "b"})
    with pytest.raises(KeyboardInterrupt), record.kept(console):
        raise KeyboardInterrupt
    assert f"stopped; {record.path} has the 2 results so far" in console.export_text()


def test_the_chances_that_bench_scale_prints_are_of_cells_with_one_task_and_scale():
    def cell(arm: str, scale: float, *returns: float) -> list[dict]:
        place = {"algorithm": "a2c", "environment": "CartPole-v1", "arm": arm, "scale": scale}
        return [{**place, "seed": seed, "return": value} for seed, value in enumerate(returns)]

    results = [*cell("KOVA", 1.0, 5.0, 5.0), *cell("upstream", 1.0, 1.0, 1.0)]
    # At another scale the filter loses: counted against upstream there, not against what upstream earns elsewhere.
    results += [*cell("KOVA", 100.0, 2.0, 2.0), *cell("upstream", 100.0, 3.0, 1.0)]
    assert chances(results)[0] == "a2c: P(KOVA earns more than upstream) = 0.75"
