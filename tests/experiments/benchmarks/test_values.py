"""The value benchmark: the arms learn, the scores mean what they say, the files are there."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from rich.console import Console

from kova.experiments.benchmarks import values as values_benchmark
from kova.experiments.benchmarks.value_methods import METHODS, prior_variance
from kova.experiments.problems import PROBLEMS


def test_the_benchmark_writes_table_data_and_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(values_benchmark, "GRID", (200, 1000))
    console = Console(record=True, width=160)
    outcomes = values_benchmark.run(tmp_path, 1, console, "kova bench values --seeds 1", ["random walk"])
    assert {item.arm for item in outcomes} == set(METHODS)
    record = json.loads((tmp_path / "values.json").read_text())
    assert record["made_by"]["command"] == "kova bench values --seeds 1"
    assert record["settings"]["grid"] == [200, 1000]
    assert len(record["results"]) == len(METHODS)
    for name in ("values_error.png", "values_reliability.png", "values_chain.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    text = console.export_text()
    assert all(arm in text for arm in ("KOVA", "LSTD(1)", "XKTD"))
    by_arm = {item.arm: item for item in outcomes}
    assert by_arm["KOVA"].errors[-1] < 0.7
    assert by_arm["KOVA"].coverage is not None
    assert by_arm["LSTD(1)"].coverage is None
    assert by_arm["KOVA"].errors[-1] == pytest.approx(by_arm["LSTD(1)"].errors[-1], abs=0.02)


def test_the_benchmark_keeps_and_shows_what_it_has_when_it_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(values_benchmark, "GRID", (50, 100))
    measure, done = values_benchmark.best, []

    def stopped_at_the_third(*arguments):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.extend(measure(*arguments))
        return done[-2:]

    monkeypatch.setattr(values_benchmark, "best", stopped_at_the_third)
    console = Console(record=True, width=160)
    with pytest.raises(KeyboardInterrupt):
        values_benchmark.run(tmp_path, 2, console, "kova bench values", ["random walk"])
    results = json.loads((tmp_path / "values.json").read_text())["results"]
    assert [(result["arm"], result["seed"]) for result in results] == [(score.arm, score.seed) for score in done]
    text = console.export_text()
    for arm, seeds in ((done[0].arm, done[:2]), (done[2].arm, done[2:4])):
        row = next(line for line in text.splitlines() if line.split("random walk")[-1].strip().startswith(f"{arm}  "))
        assert row.split()[-2:] == [f"{score.errors[-1]:.2f}" for score in seeds]
    assert "has the 4 results so far" in text
    monkeypatch.setattr(values_benchmark, "best", measure)
    values_benchmark.run(tmp_path, 2, console, "kova bench values", ["random walk"])
    resumed = json.loads((tmp_path / "values.json").read_text())["results"]
    assert resumed[:4] == results
    assert len(resumed) == 2 * len(METHODS)


def test_methods_run_side_by_side_give_what_they_give_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(values_benchmark, "METHODS", {arm: METHODS[arm] for arm in ("GPTD", "LSTD(0)")})
    found = {}
    for jobs in (1, 2):
        console = Console(record=True, width=160)
        scores = values_benchmark.run(tmp_path / str(jobs), 2, console, "kova bench values", ["boyan chain"], jobs=jobs)
        found[jobs] = {(score.arm, score.seed): (score.choice, score.errors) for score in scores}
    assert found[1] == found[2]
    assert len(found[1]) == 4


def test_a_method_has_one_setting_for_a_problem_that_with_the_least_median_error(monkeypatch):
    errors = {0.1: [1.0, 1.0, 9.0], 1.0: [0.1, 2.0, 2.0], 10.0: [math.inf, math.inf, 0.0]}

    def measured(name, problem, label, method, choice, seed, trajectories):
        nothing = {field.name: None for field in dataclasses.fields(values_benchmark.MethodScore)}
        known = {"arm": label, "seed": seed, "choice": choice, "errors": [errors[choice][seed]]}
        return values_benchmark.MethodScore(**{**nothing, **known})

    monkeypatch.setattr(values_benchmark, "_measure", measured)
    method = dataclasses.replace(METHODS["KOVA"], choices=tuple(errors))
    found = values_benchmark.best("walk", None, "KOVA", method, [[], [], []])
    assert [(score.seed, score.choice) for score in found] == [(0, 0.1), (1, 0.1), (2, 0.1)]


def test_the_prior_is_as_wide_as_the_weights_to_a_power_of_ten():
    variances = {name: prior_variance(problem()) for name, problem in PROBLEMS.items()}
    assert variances["random walk"] == 1.0
    assert variances["lqr"] == 1000.0
    assert variances["baird star"] == 1.0
    # Bumps that overlap: weights that are large and cancel would ask for 1e6.
    assert variances["puddle world"] == 1e4
