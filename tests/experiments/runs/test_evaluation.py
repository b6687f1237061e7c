"""Evaluation while a run trains: true numbers, the best model, an end in time, and training that does not notice."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import killed_runs
import numpy as np
import pytest
import torch
from killed_runs import PPO, assert_same, finish, start
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.save_util import load_from_zip_file
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.errors import UsageError
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.evaluation import Evaluation, Evaluations, seed_of, untouched_randomness
from kova.experiments.runs.logs import read_rows
from kova.experiments.runs.model import load
from kova.experiments.runs.run_directory import RunDirectory
from kova.experiments.runs.training import Training

SMALL = {"steps": 512, "checkpoint_every": 256, "policy.net_arch": [16]}
KINDS = {
    "ppo": {"algorithm.n_steps": 64, "algorithm.n_epochs": 2, "critic.covariance": "full"},
    "dqn": {"algorithm.learning_starts": 64, "algorithm.batch_size": 16, "normalize_observations": True},
}
EVALUATED = {"eval_every": 100, "eval_episodes": 3}
runner = CliRunner()


def trained(path: Path, algo: str, **settings) -> RunDirectory:
    config = RunConfig.from_preset(algo, "CartPole-v1").with_values({**SMALL, **KINDS[algo], **settings})
    directory = RunDirectory(path)
    directory.create(config)
    Training(config, directory, "kova train").run()
    return directory


def parameters(folder: Path):
    return load_from_zip_file(folder / "model.zip")[1]


@pytest.fixture(scope="module", params=KINDS)
def algo(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def evaluated(algo: str, tmp_path_factory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp(algo) / "run", algo, **EVALUATED)


def test_training_does_not_notice(algo: str, evaluated: RunDirectory, tmp_path: Path):
    alone = trained(tmp_path / "run", algo)
    killed_runs._assert_equal(*(parameters(each.latest_checkpoint()) for each in (alone, evaluated)))
    assert killed_runs._rows(alone.path / "monitor.csv") == killed_runs._rows(evaluated.path / "monitor.csv")
    tables = [killed_runs._rows(each.path / "progress.csv") for each in (alone, evaluated)]
    plain = [
        {key: value for key, value in row.items() if not key.startswith("eval/")}
        for row in tables[1]
        if not row["eval/mean_reward"]
    ]
    assert plain == tables[0]
    assert not alone.best.exists()
    assert not alone.evaluations_file.exists()


def test_the_table_has_what_the_model_earns(algo: str, evaluated: RunDirectory):
    made = [Evaluation.of_row(row) for row in read_rows(evaluated.evaluations_file)]
    # Between rollouts: PPO's are 64 frames long, DQN's 4.
    assert [each.step for each in made] == {"ppo": [128, 256, 320, 448, 512], "dqn": [100, 200, 300, 400, 500]}[algo]
    best = max(made, key=lambda each: each.mean)
    config = evaluated.config()
    model, env = load(config.single(), evaluated.best)
    assert model.num_timesteps == best.step
    if (evaluated.best / "normalization.pkl").exists():
        env.training = False
    env.seed(seed_of(config.seed))
    returns, lengths = evaluate_policy(model, env, 3, return_episode_rewards=True)
    assert tuple(returns) == best.returns
    assert np.mean(lengths) == best.length
    logged = [row for row in read_rows(evaluated.path / "progress.csv") if "eval/mean_reward" in row]
    assert [float(row["eval/mean_reward"]) for row in logged] == [each.mean for each in made]
    tags = killed_runs._events(evaluated.path)
    assert tags["eval/mean_reward"] == [each.step for each in made]


def test_the_best_is_played(evaluated: RunDirectory):
    made = [Evaluation.of_row(row) for row in read_rows(evaluated.evaluations_file)]
    best = max(made, key=lambda each: each.mean)
    result = runner.invoke(app, ["eval", str(evaluated.path), "--best", "--episodes", "1"])
    assert f"frame {best.step}: return" in result.output
    last = runner.invoke(app, ["eval", str(evaluated.path), "--episodes", "1"])
    assert "frame 512: return" in last.output


def test_random_numbers_are_left_alone(evaluated: RunDirectory):
    model, _ = load(evaluated.config().single(), evaluated.best)

    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002  # as upstream does

    model.set_random_seed(3)
    expected = draw()
    model.set_random_seed(3)
    with untouched_randomness(model):
        draw()
    assert draw() == expected


WORDS = [*PPO, "--eval-every", "100", "--eval-episodes", "2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    finish([*WORDS, "--run-dir", str(run)], run.with_suffix(".out"))
    return run


# Just before and just after the table, the best model, or what it replaces comes into its place.
@pytest.mark.parametrize(("move", "after"), [(6, True), (8, False), (14, True)])
def test_a_kill_changes_nothing(whole: Path, move: int, after: bool, tmp_path: Path):
    run, out = tmp_path / "run", tmp_path / "out"
    process = start([*WORDS, "--run-dir", str(run)], out, move, after)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    finish(["--resume", "--run-dir", str(run)], out)
    assert_same(run, whole)
    assert (run / "evaluations.csv").read_text() == (whole / "evaluations.csv").read_text()
    killed_runs._assert_equal(parameters(run / "best"), parameters(whole / "best"))


def test_a_kill_between_old_and_new_best_keeps_the_old(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    for content in "12":
        with directory.new_best() as folder:
            (folder / "model.zip").write_text(content)
        assert [path.name for path in tmp_path.iterdir()] == ["best"]
    directory.best.rename(tmp_path / ".old-best")
    directory.discard_drafts()
    assert (directory.best / "model.zip").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def made(tmp_path: Path, means: list[float], **settings) -> Evaluations:
    config = RunConfig("ppo", "CartPole-v1", eval_every=1, **settings)
    found = Evaluations(tmp_path / "evaluations.csv", config)
    for step, mean in enumerate(means, 1):
        found.add(Evaluation(step, (mean - 1.0, mean + 1.0), 3.0))
    return found


@pytest.mark.parametrize(
    ("means", "settings", "says"),
    [
        ([1, 2, 3], {}, None),
        ([], {"patience": 1, "stop_at": 0.0}, None),
        ([1, 2], {"stop_at": 3.0}, None),
        ([1, 3], {"stop_at": 3.0}, "the mean evaluation return, 3.0, reached 3"),
        ([1, 5, 4, 3], {"patience": 3}, None),
        ([1, 5, 4, 5, 3], {"patience": 3}, "3 evaluations were no better than 5.0 at frame 2"),
        ([1, 5, 4, 6, 3], {"patience": 3}, None),
        ([float("nan"), 1], {"patience": 1}, None),
        ([1, float("nan")], {"patience": 1}, "1 evaluation was no better than 1.0 at frame 1"),
    ],
)
def test_when_it_is_enough(means, settings, says, tmp_path: Path):
    assert made(tmp_path, means, **settings).verdict == says
    # A resumed run comes to the same verdict.
    assert made(tmp_path, [], **settings).verdict == says


def test_later_evaluations_are_repeated(tmp_path: Path):
    made(tmp_path, [1.0, 5.0, 2.0])
    kept = Evaluations(tmp_path / "evaluations.csv", RunConfig("ppo", "CartPole-v1"), until=1)
    assert (kept.last_step, kept.best.mean) == (1, 1.0)


@pytest.mark.parametrize("content", ["step,mean\n1,2\n", "step,mean,std,length,returns\nx,1,1,1,1\n"])
def test_a_damaged_table_is_refused(content: str, tmp_path: Path):
    (tmp_path / "evaluations.csv").write_text(content)
    with pytest.raises(UsageError, match=r"damaged.*delete it to continue without its rows"):
        made(tmp_path, [])


def test_a_run_that_is_good_enough_is_finished(tmp_path: Path):
    run = tmp_path / "run"
    words = [*WORDS, "--stop-at", "1", "--run-dir", str(run)]
    result = runner.invoke(app, ["train", *words])
    assert result.exit_code == 0, result.output
    assert "128 of 512" in result.output
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 128)
    assert "reached 1" in status["stopped_early"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["0000000128"]
    before = (run / "evaluations.csv").read_text()
    assert runner.invoke(app, ["train", "--resume", "--run-dir", str(run)]).exit_code == 0
    assert (run / "evaluations.csv").read_text() == before
    assert json.loads((run / "status.json").read_text())["stopped_early"] == status["stopped_early"]
    more = runner.invoke(app, ["train", "--resume", "--run-dir", str(run), "--steps", "1024"])
    assert more.exit_code == 2
    assert "ended early because the mean evaluation return" in more.stderr
