"""``kova tune`` as a user types it: killed, called again, and its preset trained."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml
from killed_runs import CONTEXT, command, wait_for
from optuna.trial import TrialState
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.tuning.ranges import Real
from kova.experiments.tuning.study import JOURNAL, NAME, TuningStudy
from kova.experiments.tuning.trials import TrialRunner
from kova.installation import pip_install

runner = CliRunner()

TINY = [
    *("a2c", "CartPole-v1", "--steps", "512", "--trials", "2", "--trial-seeds", "1", "--verdict-seeds", "1"),
    *("--set", "checkpoint_every=128", "--set", "policy.net_arch=[8]", "--set", "n_envs=2"),
]


def start(out: Path, *words: str):
    """Start ``kova tune`` with its output in a file."""
    arguments = ["tune", *TINY, "--out", str(out), *words]
    process = CONTEXT.Process(target=command, args=(arguments, out.with_suffix(".txt"), None, False))
    process.start()
    return process


def finish(out: Path, *words: str, code: int = 0) -> str:
    process = start(out, *words)
    process.join(300)
    said = out.with_suffix(".txt").read_text()
    assert process.exitcode == code, said
    return said


def trials(out: Path) -> list:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(out / JOURNAL)))
    return optuna.load_study(study_name=NAME, storage=storage).trials


def outcome(out: Path) -> list:
    return [(trial.number, trial.params, trial.state, trial.values, trial.intermediate_values) for trial in trials(out)]


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> tuple[Path, str, dict[str, int]]:
    """A search that was killed in the middle of its second trial and then called again; when the first had ended."""
    out = tmp_path_factory.mktemp("tune") / "search"
    process = start(out, "--jobs", "1")
    checkpoints = out / "trials" / "0001" / "seed100" / "checkpoints"
    wait_for(checkpoints, process)
    while not any(checkpoints.glob("[0-9]*")):
        assert process.is_alive()
        time.sleep(0.005)
    process.kill()
    process.join()
    assert [trial.state for trial in trials(out)] == [TrialState.COMPLETE, TrialState.RUNNING]
    first = {path.name: path.stat().st_mtime_ns for path in (out / "trials" / "0000" / "seed100").glob("*.csv")}
    return out, finish(out, "--jobs", "1"), first


def test_a_killed_search_goes_on_where_it_was(searched):
    out, said, first = searched
    assert [trial.state for trial in trials(out)] == [TrialState.COMPLETE] * 2
    assert "2 trials, 1 of them from before" in said
    # What was complete was not run again, and what was not went on from its checkpoint.
    now = {path.name: path.stat().st_mtime_ns for path in (out / "trials" / "0000" / "seed100").glob("*.csv")}
    assert now == first
    for number in range(2):
        run = RunDirectory(out / "trials" / f"{number:04d}" / "seed100")
        assert run.is_finished()
        assert run.config().seed == 100
        # Nothing goes on from them.
        assert not run.checkpoints.exists()
    assert RunDirectory(out / "trials" / "0000" / "seed100").config().algorithm == {}


def test_the_verdict_is_on_seeds_that_no_trial_has_seen(searched):
    out, said, _ = searched
    manifest = yaml.safe_load((out / "verdict" / "sweep.yaml").read_text())
    assert manifest["seeds"] == [101]
    finished = [path for path in (out / "verdict" / "runs").iterdir() if RunDirectory(path).is_finished()]
    best = max(trials(out), key=lambda trial: trial.values[0]).number
    assert len(finished) == (2 if best else 1)
    # One seed never tells.
    assert ("There is no verdict" if best else "Tuning found nothing better") in said
    page = out.parent / "report.html"
    result = runner.invoke(app, ["report", str(out / "verdict"), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert "default" in page.read_text()


def test_the_preset_trains_and_says_what_came_of_it(searched, tmp_path):
    out, _, _ = searched
    preset = out / "preset.yaml"
    assert "# Made by: kova tune a2c CartPole-v1" in preset.read_text()
    best = max(trials(out), key=lambda trial: trial.values[0])
    tuned = RunDirectory(out / "trials" / f"{best.number:04d}" / "seed100").config()
    words = ["train", "a2c", "CartPole-v1", "--preset", str(preset), "--seed", "100", "--run-dir", str(tmp_path / "r")]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    config = RunDirectory(tmp_path / "r").config()
    assert config.changed(preset="default") == tuned
    # The same run as the trial's, to the last episode.
    episodes = [
        [line.split(",")[0] for line in (run / "monitor.csv").read_text().splitlines()[1:]]
        for run in (tmp_path / "r", out / "trials" / f"{best.number:04d}" / "seed100")
    ]
    assert episodes[0] == episodes[1]


def test_a_failed_trial_is_not_the_end(tmp_path):
    base = RunConfig.from_preset("a2c", "CartPole-v1").with_values({"steps": 256, "n_envs": 2, "policy.net_arch": [8]})
    study = TuningStudy(tmp_path, base, [Real(0.9, 1.0).around("algorithm.gae_lambda", 1.0)], [100])
    # A log that is damaged fails the trial that is about to be run.
    broken = RunDirectory(tmp_path / "trials" / "0000" / "seed100")
    broken.path.parent.mkdir(parents=True)
    broken.create(base)
    (broken.path / "monitor.csv").write_text("r,l,t,step\n")
    (broken.path / "progress.csv").write_text("time/total_timesteps\nwords\n")
    ended = []
    TrialRunner(study, tmp_path / "trials", 2, "kova tune", ended.append).run(2)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert "progress.csv is damaged" in study.trials[0].user_attrs["why"]
    assert sorted(trial.number for trial in ended) == [0, 1]
    assert study.best.number == 1
    # There are as many as were asked for.
    TrialRunner(study, tmp_path / "trials", 2, "kova tune").run(2)
    assert len(study.trials) == 2


@pytest.mark.slow
def test_a_killed_search_finds_what_one_left_alone_finds(searched, tmp_path):
    finish(tmp_path / "alone", "--jobs", "1")
    assert outcome(tmp_path / "alone") == outcome(searched[0])


@pytest.mark.slow
def test_ctrl_c_leaves_what_the_next_call_takes_up(tmp_path):
    out = tmp_path / "search"
    process = start(out)
    wait_for(out / "trials" / "0000" / "seed100" / "status.json", process)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130, out.with_suffix(".txt").read_text()
    assert "stopped; the same command continues" in out.with_suffix(".txt").read_text()
    finish(out)
    assert [trial.state for trial in trials(out)] == [TrialState.COMPLETE] * 2
    assert json.loads((out / "trials" / "0000" / "seed100" / "status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a2x", "CartPole-v1"], "did you mean 'a2c'?"),
        (["a2c", "CartPol-v1"], "CartPole"),
        (["ddpg", "CartPole-v1"], "use one of"),
        (["a2c", "CartPole-v1", "--critic", "sgd"], "the critic must be one of kova, adam, upstream"),
        (["a2c", "CartPole-v1", "--seed", "3"], "'--seed'"),
        (["a2c", "CartPole-v1", "--trials", "0"], "'--trials'"),
        (["a2c", "CartPole-v1", "--set", "seed=3"], "give the first by --seed"),
        (["a2c", "CartPole-v1", "--set", "algorithm.gama=3"], "did you mean 'algorithm.gamma'?"),
        (["a2c", "CartPole-v1", "--out", "file"], "choose another --out"),
        (["a2c", "CartPole-v1", "--preset", "gone.yaml"], "gone.yaml cannot be read"),
    ],
)
def test_a_wrong_call_is_one_line_and_leaves_nothing(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["tune", *words])
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_optuna_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = runner.invoke(app, ["tune", "a2c", "CartPole-v1"])
    assert result.exit_code == 2
    assert result.stderr == f"kova: optuna is missing; kova tune needs: {pip_install('experiments', 'tune')}\n"
