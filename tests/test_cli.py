"""The kova command as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kova
from kova.cli import app
from kova.experiments.benchmarks import step as step_benchmark
from kova.experiments.benchmarks import step_arms
from kova.experiments.sweeps.grid import shipped_sweeps

runner = CliRunner()


COMMANDS = [
    [],
    ["train"],
    ["eval"],
    ["sweep"],
    ["report"],
    ["tune"],
    ["export"],
    ["fetch"],
    ["bench"],
    ["bench", "step"],
    ["bench", "train"],
    ["bench", "values"],
    ["bench", "deep-sea"],
    ["bench", "streams"],
    ["bench", "scale"],
    ["bench", "gradients"],
    ["bench", "policy"],
    ["bench", "ranking"],
    ["bench", "returns"],
    ["demo"],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_that_fit_80_columns(command):
    result = runner.invoke(app, [*command, "--help"], env={"COLUMNS": "80"}, prog_name="kova")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(len(line) for line in lines) <= 80
    start = next(index for index, line in enumerate(lines) if line.strip() in ("Example:", "Examples:"))
    examples = [line.strip() for line in lines[start + 1 :] if line.strip()]
    assert examples
    assert all(example.startswith(" ".join(["kova", *command])) for example in examples)


def test_the_version_is_the_packages():
    result = runner.invoke(app, ["--version"], prog_name="kova")
    assert (result.exit_code, result.output) == (0, f"kova-rl {kova.__version__}\n")


def test_the_help_of_sweep_names_every_sweep_that_comes_with_kova():
    lines = runner.invoke(app, ["sweep", "--help"], prog_name="kova").output.splitlines()
    assert {line.split()[0] for line in lines if line.strip()} >= set(shipped_sweeps())


def test_python_m_kova_is_the_command():
    done = subprocess.run([sys.executable, "-m", "kova", "fly"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "kova: no such command 'fly'; see: kova --help\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bench", "step", "--repeats", "0"], "'--repeats'"),
        (["bench", "leap"], "no such command 'leap'; see: kova bench --help"),
        (["fly"], "no such command 'fly'; see: kova --help"),
    ],
)
def test_a_wrong_call_exits_with_2_and_one_line(arguments, says):
    result = runner.invoke(app, arguments, prog_name="kova")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_a_failed_command_exits_with_1_and_one_line(monkeypatch):
    def fail(*_):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(step_benchmark, "run", fail)
    result = runner.invoke(app, ["bench", "step"])
    assert result.exit_code == 1
    assert result.stderr == "kova: failed: RuntimeError: two lines\n"


def test_ctrl_c_exits_with_130(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(step_benchmark, "run", interrupt)
    assert runner.invoke(app, ["bench", "step"]).exit_code == 130


@pytest.fixture
def small_steps(monkeypatch):
    """The step benchmark on critics that take no time."""
    monkeypatch.setattr(step_benchmark, "CRITICS", ((3, 4, 4), (3, 8, 8)))
    monkeypatch.setattr(step_benchmark, "BATCHES", (8, 16))
    monkeypatch.setattr(step_benchmark, "LARGE", ((3, 9, 9), 8, ("memoryless", "Adam")))
    shapes = ((3, 4, 4), (3, 6, 6))
    monkeypatch.setattr(
        step_benchmark, "GROWTH", {arm: (shapes, model) for arm, (_, model) in step_benchmark.GROWTH.items()}
    )
    monkeypatch.setattr(step_benchmark, "sgemm_rate", lambda: 1e11)
    monkeypatch.setattr(step_benchmark, "peak_memory", lambda arm, shape, size: 10**6)


def test_bench_step_writes_table_data_and_picture(small_steps, tmp_path: Path):
    result = runner.invoke(app, ["bench", "step", "--repeats", "2", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "step.json").read_text())
    times, growth, memory = (
        [result for result in record["results"] if result["measure"] == measure]
        for measure in ("time", "growth", "memory")
    )
    assert len(times) == 2 * 2 * len(step_arms.ARMS) + 2
    assert all(0 < time["low"] <= time["median"] <= time["high"] for time in times)
    assert {fit["arm"] for fit in growth} == {"full", "neuron", "memoryless"}
    assert {(found["arm"], found["d"]) for found in memory} == {
        (arm, step_benchmark.parameters(shape)) for arm in step_arms.ARMS for shape in step_benchmark.CRITICS
    }
    assert record["benchmark"] == "step"
    assert record["settings"]["repeats"] == 2
    assert record["made_by"]["command"] == f"kova bench step --repeats 2 --out {tmp_path}"
    assert (tmp_path / "step.png").stat().st_size > 10_000
    assert "literal Algorithm 1" in result.output


@pytest.mark.parametrize("stop", ["measure", "growth", "peak_memory"])
def test_bench_step_keeps_and_shows_what_it_has_when_it_is_stopped(stop, small_steps, monkeypatch, tmp_path: Path):
    whole, calls = getattr(step_benchmark, stop), []

    def stopped_at_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(step_benchmark, stop, stopped_at_the_second)
    result = runner.invoke(app, ["bench", "step", "--repeats", "1", "--out", str(tmp_path)])
    assert result.exit_code == 130
    results = json.loads((tmp_path / "step.json").read_text())["results"]
    timed = [found for found in results if found["measure"] == "time"]
    assert len(timed) == (len(step_arms.ARMS) if stop == "measure" else 4 * len(step_arms.ARMS) + 2)
    assert sum(found["measure"] == "growth" for found in results) == {"measure": 0, "growth": 1, "peak_memory": 3}[stop]
    assert sum(found["measure"] == "memory" for found in results) == (stop == "peak_memory")
    for found in results:
        assert found["arm"] in result.output
    assert f"step.json has the {len(results)} results so far" in result.output.replace("\n", "")


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
