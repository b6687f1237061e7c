"""Every wrong call is answered by one line that says what to do, exit code 2, and nothing on the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.runs.provenance import read_makers

runner = CliRunner()
TINY = ["--steps", "32", "--set", "algorithm.n_steps=32", "--set", "algorithm.batch_size=32"]


def sets(*assignments: str, algo: str = "ppo", env: str = "CartPole-v1") -> list[str]:
    return ["train", algo, env, *(word for assignment in assignments for word in ("--set", assignment))]


def assert_one_line(code: int, output: str, errors: str, says: tuple[str, ...], arguments: Sequence[str] = ()) -> None:
    assert code == 2, errors or output
    # "kova: ", the message, and the paths in it.
    assert len(errors) <= 310 + sum(min(2 * len(word), 512) for word in arguments if "/" in word), errors
    assert errors.startswith("kova: ")
    assert errors.count("\n") == 1
    assert "Traceback" not in errors + output
    for words in says:
        assert words in errors, errors


LONG, HUGE = "x" * 1000, str(10**30)
WRONG = {
    "an unknown command": (["fly"], "no such command 'fly'", "kova --help"),
    "an unknown option": (["train", "--foo"], "--foo", "kova train --help"),
    "an option without its value": (["train", "ppo", "CartPole-v1", "--seed"], "--seed"),
    "an option that is no number": (["train", "ppo", "CartPole-v1", "--steps", "abc"], "--steps", "--help"),
    "no algorithm": (["train"], "kova train ppo HalfCheetah-v5"),
    "no environment": (["train", "ppo"], "kova train ppo HalfCheetah-v5"),
    "too many words": (["train", "ppo", "CartPole-v1", "more"], "more"),
    "an unknown algorithm": (["train", "pppo", "CartPole-v1"], "'pppo'", "did you mean 'ppo'?"),
    "an algorithm like no other": (["train", "sarsa", "CartPole-v1"], "a2c, ddpg, dqn, ppo, sac, td3, trpo"),
    "an unknown environment": (["train", "ppo", "HalfCheeta-v5"], "did you mean 'HalfCheetah-v5'?"),
    "an environment like no other": (["train", "ppo", "Xyzzy-v0"], "'Xyzzy-v0'", "check its name"),
    "an environment of no package": (["train", "ppo", "nopackage:Thing-v0"], "nopackage", "cannot be made"),
    "dqn with continuous actions": (
        ["train", "dqn", "Pendulum-v1"],
        "dqn takes Discrete actions and Pendulum-v1 has Box; use one of a2c, ddpg, ppo, sac, td3, trpo",
    ),
    "ddpg with a choice of actions": (
        ["train", "ddpg", "CartPole-v1"],
        "ddpg takes Box actions and CartPole-v1 has Discrete; use one of a2c, dqn, ppo, trpo",
    ),
    "a delay of nothing": (
        sets("algorithm.policy_delay=0", algo="td3", env="Pendulum-v1"),
        "algorithm.policy_delay must be an integer >= 1, got 0",
    ),
    "an entropy that is no number": (
        sets("algorithm.ent_coef=auto_x", algo="sac", env="Pendulum-v1"),
        "algorithm.ent_coef must be a number >= 0, auto, or auto_0.1 to begin with, got 'auto_x'",
    ),
    "an entropy that only sac adapts": (sets("algorithm.ent_coef=auto"), "algorithm.ent_coef must be a number, got"),
    "an unknown critic": (["train", "ppo", "CartPole-v1", "--critic", "foo"], "kova, adam, upstream", "'foo'"),
    "an unknown preset": (["train", "ppo", "CartPole-v1", "--preset", "papr"], "did you mean 'paper'?"),
    "the paper's dqn": (["train", "dqn", "CartPole-v1", "--preset", "paper"], "it has ppo, trpo"),
    "the paper's CartPole": (["train", "ppo", "CartPole-v1", "--preset", "paper"], "HalfCheetah-v4"),
    "no frames": (["train", "ppo", "CartPole-v1", "--steps", "0"], "steps must be an integer >= 1, got 0"),
    "a negative seed": (["train", "ppo", "CartPole-v1", "--seed", "-1"], "seed must be", "-1"),
    "a seed too large": (["train", "ppo", "CartPole-v1", "--seed", str(2**32)], "seed must be"),
    "no =": (sets("foo"), "'foo' is not key=value"),
    "no key": (sets("=3"), "is not key=value"),
    "an unknown key": (sets("algorithm.n_stps=64"), "did you mean 'algorithm.n_steps'?"),
    "a key without its section": (sets("n_steps=64"), "did you mean 'algorithm.n_steps'?"),
    "a key of another algorithm": (sets("algorithm.tau=0.1"), "setting 'algorithm.tau' is unknown"),
    "a setting that the run decides": (sets("algorithm.policy=CnnPolicy"), "setting 'algorithm.policy' is unknown"),
    "a word for a number": (sets("algorithm.n_steps=abc"), "algorithm.n_steps must be an integer >= 1, got 'abc'"),
    "half a step": (sets("algorithm.n_steps=64.5"), "algorithm.n_steps must be an integer >= 1, got 64.5"),
    "a discount of 7": (sets("algorithm.gamma=7"), "algorithm.gamma must be a number from 0 to 1, got 7"),
    "a discount of nan": (sets("algorithm.gamma=nan"), "algorithm.gamma must be a number from 0 to 1"),
    "a negative rate": (sets("algorithm.learning_rate=-1e-3"), "algorithm.learning_rate must be a number > 0"),
    "a rate that begins below 0": (sets("algorithm.learning_rate=linear(-1)"), "linear(-1)"),
    "a rate of words": (sets("algorithm.learning_rate=linear(fast)"), "'fast' is not a number"),
    "a flag that is a number": (sets("algorithm.use_sde=3"), "algorithm.use_sde must be true or false, got 3"),
    "a minibatch of 1": (sets("algorithm.batch_size=1"), "batch_size"),
    "an unknown device": (sets("algorithm.device=toaster"), "toaster"),
    "unreadable text": (sets("algorithm.gamma=[1"), "algorithm.gamma='[1' cannot be read"),
    "no copies": (sets("n_envs=0"), "n_envs must be an integer >= 1, got 0"),
    "no distance of checkpoints": (sets("checkpoint_every=0"), "checkpoint_every must be an integer >= 1"),
    "a flag that is a word": (sets("normalize_rewards=maybe"), "normalize_rewards must be true or false"),
    "an unknown layer": (sets("policy.activation_fn=Tanhh"), "policy.activation_fn must be one of Tanh, ReLU"),
    "layers of no width": (sets("policy.net_arch=[0]"), "policy.net_arch must be widths, as in [64, 64]"),
    "a setting of another section": (
        ["train", "dqn", "CartPole-v1", "--set", "critic.batch_size=3"],
        "'critic.batch_size' is unknown; did you mean 'algorithm.batch_size'?",
    ),
    "a typo in a model": (sets("critic.evolution=FadingMemry(0.1)"), "did you mean 'FadingMemory'?"),
    "a model out of range": (sets("critic.evolution=FadingMemory(2)"), "critic.evolution", "[0, 1)", "2"),
    "a model without brackets": (sets("critic.evolution=FadingMemory"), "as in FadingMemory(0.01)"),
    "a model with too much": (sets("critic.evolution=FadingMemory(0.1, 0.2, 0.3)"), "FadingMemory(0.1, 0.2, 0.3)"),
    "a model of the other kind": (sets("critic.evolution=BatchSize()"), "critic.evolution must be a model of P_v"),
    "negative noise": (sets("critic.noise=ConstantNoise(-1)"), "critic.noise", "-1"),
    "negative noise of actions": (
        sets("algorithm.action_noise=-0.1", algo="ddpg", env="Pendulum-v1"),
        "algorithm.action_noise must be the noise's standard deviation, a number >= 0",
    ),
    "a ratio where there is none": (
        sets("critic.noise=MaxRatio()", algo="dqn"),
        "critic.noise=MaxRatio(",
        "needs ratio, which DQN cannot give",
    ),
    "a ratio inside, where there is none": (sets("critic.noise=Robust(MaxRatio())", algo="dqn"), "needs ratio"),
    "a variance where there is none": (
        sets("critic.noise=InverseVariance()"),
        "needs next_variance, which PPO cannot give; use a model without it, such as BatchSize()",
    ),
    "a step too long": (sets("critic.step_size=1.5"), "critic.step_size must be a number > 0 and <= 1, got 1.5"),
    "a negative variance": (sets("critic.prior_variance=-1"), "prior_variance", "-1"),
    "a typo in a structure": (sets("critic.covariance=nueron"), "'nueron'", "neuron"),
    "a covariance too large": (sets("critic.covariance=full", "critic.memory_budget=1000"), "critic.covariance"),
    "code for a value": (sets("critic.evolution=__import__('os').system('true')"), "cannot be read"),
    "code in a value": (sets("critic.evolution=FadingMemory(open('x'))"), "is not a number or a string"),
    "stars in a value": (sets("critic.evolution=FadingMemory(**{'eta': 0.1})"), "cannot be read"),
    "an object of YAML": (sets("algorithm.gamma=!!python/name:os.system"), "cannot be read"),
    "the filter's setting for Adam": (
        [*sets("critic.step_size=0.5"), "--critic", "adam"],
        "critic.step_size is a setting of the Kalman critic",
    ),
    "an argument of the environment without =": (
        ["train", "ppo", "Hopper-v5", "--env-kwargs", "frame_skip:2"],
        "'frame_skip:2' is not key=value, as in forward_reward_weight=2.0",
    ),
    "an argument that the environment does not take": (
        ["train", "ppo", "Hopper-v5", "--env-kwargs", "forward_reward_wight=2", "--env-kwargs", "xyzzy=1"],
        "'Hopper-v5' does not take forward_reward_wight, xyzzy; did you mean 'forward_reward_weight'?",
    ),
    "an argument that the run decides": (
        ["train", "ppo", "Hopper-v5", "--env-kwargs", "render_mode=human"],
        "'render_mode', which the run decides itself; use kova eval --video",
    ),
    "an argument as a setting": (
        sets("env_kwargs.frame_skip=2"),
        "write --env-kwargs frame_skip=VALUE",
    ),
    "arguments that are a list": (sets("env_kwargs=[1]"), "env_kwargs must be a mapping of arguments, got [1]"),
    "an argument that is a date": (sets("env_kwargs={a: 2020-01-02}"), "env_kwargs.a must be a number, a text"),
    "a wrapper of no package": (
        ["train", "ppo", "CartPole-v1", "--wrapper", "nopackage.Thing"],
        "wrapper 'nopackage.Thing' cannot be imported: No module named 'nopackage'; install its package",
    ),
    "a misspelt wrapper": (
        ["train", "ppo", "CartPole-v1", "--wrapper", "gymnasium.wrappers.TimeLimt(3)"],
        "gymnasium.wrappers has no TimeLimt; did you mean 'TimeLimit'?",
    ),
    "a wrapper without its module": (["train", "ppo", "CartPole-v1", "--wrapper", "TimeLimit(3)"], "has no module"),
    "a wrapper that is none": (
        ["train", "ppo", "CartPole-v1", "--wrapper", "os.system('true')"],
        "'os.system' is not a gymnasium.Wrapper",
    ),
    "a wrapper with wrong arguments": (
        ["train", "ppo", "CartPole-v1", "--wrapper", "gymnasium.wrappers.TimeLimit(steps=3)"],
        "gymnasium.wrappers.TimeLimit(steps=3) cannot be made",
        "'steps'",
    ),
    "code for a wrapper": (
        ["train", "ppo", "CartPole-v1", "--wrapper", "a.b(open('x'))"],
        "is not a number or a string",
    ),
    "half a wrapper": (["train", "ppo", "CartPole-v1", "--wrapper", "a.b("], "'a.b(' cannot be read; write it like"),
    "a call of a call": (["train", "ppo", "CartPole-v1", "--wrapper", "a.b()()"], "cannot be read; write it like"),
    "wrappers that are no list": (sets("wrappers=gymnasium.wrappers.ClipAction"), "wrappers must be a list"),
    "an unknown vector": (["train", "ppo", "CartPole-v1", "--vec", "threads"], "vec must be one of dummy, subproc"),
    "no frames between evaluations": (
        ["train", "ppo", "CartPole-v1", "--eval-every", "0"],
        "eval_every must be an integer >= 1, got 0",
    ),
    "an evaluation that never comes": (
        ["train", "ppo", "CartPole-v1", "--eval-every", "100001"],
        "--eval-every 100001 is more than the 100000 frames of the run",
    ),
    "evaluations of nothing": (
        ["train", "ppo", "CartPole-v1", "--eval-every", "100", "--eval-episodes", "0"],
        "eval_episodes must be an integer >= 1",
    ),
    "an end without evaluations": (
        ["train", "ppo", "CartPole-v1", "--stop-at", "100"],
        "--stop-at",
        "add --eval-every",
    ),
    "patience without evaluations": (["train", "ppo", "CartPole-v1", "--patience", "3"], "add --eval-every N"),
    "no patience": (["train", "ppo", "CartPole-v1", "--eval-every", "9", "--patience", "0"], "patience must be"),
    "an end that is no number": (
        ["train", "ppo", "CartPole-v1", "--eval-every", "9", "--stop-at", "nan"],
        "stop_at must be a number, got nan",
    ),
    "an unknown service": (["train", "ppo", "CartPole-v1", "--track", "comet"], "track must be one of wandb, mlflow"),
    "eta of the critic": (
        sets("critic.eta=0.001"),
        "it belongs to the evolution model: --set 'critic.evolution=PriorRelaxation(0.001)'",
    ),
    "eta of nothing": (sets("eta=0.001"), "critic.evolution=PriorRelaxation"),
    "a rate of the critic": (sets("critic.lr=0.1"), "a Kalman critic has no learning rate"),
    "a rate by its short name": (sets("algorithm.lr=0.1"), "algorithm.learning_rate"),
    "the variance of the noise": (sets("critic.variance=0.1"), "critic.noise=ConstantNoise(0.05)"),
    "alpha": (sets("critic.alpha=0.1"), "critic.step_size"),
    "passes by upstream's name": (sets("critic.n_epochs=3"), "critic.epochs"),
    "frames by upstream's name": (sets("total_timesteps=3"), "--steps N"),
    "the zoo's normalisation": (sets("normalize=true"), "normalize_observations=true and normalize_rewards=true"),
    "to resume nothing": (["train", "--resume"], "say which run to resume"),
    "to resume what is not there": (["train", "--resume", "--run-dir", "gone"], "gone does not exist", "--resume out"),
    "to play what is not there": (["eval", "gone"], "gone is not a directory"),
    "a device that is not there": (sets("algorithm.device=cuda:9"), "algorithm.device=cuda:9", "this machine", "cpu"),
    "a device without numbers": (sets("algorithm.device=meta"), "algorithm.device=meta is not a device"),
    "a key like no other": (sets("xyzzy=3"), "setting 'xyzzy' is unknown; the closest are"),
    "a key too long to repeat": (sets(f"{LONG}=3"), "setting 'xxx", "…", "the closest are"),
    "a model too long to repeat": (sets(f"critic.evolution=Fading({LONG})"), "critic.evolution", "…"),
    "an algorithm too long to repeat": (
        ["train", LONG, "CartPole-v1"],
        "algorithm 'xxx",
        "a2c, ddpg, dqn, ppo, sac, td3, trpo",
    ),
    "an environment too long to repeat": (
        ["train", "ppo", LONG, "--run-dir", "new"],
        "environment 'xxx",
        "check its name",
    ),
    "a number too long to repeat": (["train", "ppo", "CartPole-v1", "--steps", LONG], "--steps", "kova train --help"),
    "a critic too long to repeat": (["train", "ppo", "CartPole-v1", "--critic", LONG], "kova, adam, upstream"),
    "an argument given twice": (sets("critic.evolution=FadingMemory(eta=0.1, eta=0.2)"), "gives an argument twice"),
    "frames without end": (["train", "ppo", "CartPole-v1", "--steps", HUGE], "steps must be at most"),
    "copies without end": (sets("n_envs=1000000000"), "n_envs must be at most 10,000"),
    "checkpoints that never come": (sets(f"checkpoint_every={HUGE}"), "checkpoint_every must be at most"),
    "epochs without end": (sets(f"critic.epochs={HUGE}"), "critic.epochs must be at most"),
    "a window without end": (
        sets(f"algorithm.stats_window_size={HUGE}"),
        "algorithm.stats_window_size must be at most",
    ),
    "a factor without end": (sets(f"algorithm.sub_sampling_factor={HUGE}", algo="trpo"), "must be at most"),
    "a seed of more than 64 bits": (["train", "ppo", "CartPole-v1", "--seed", HUGE], "seed must be"),
    "an empty algorithm": (["train", "", "CartPole-v1"], "an argument is empty after train"),
    "an empty value": (["train", "ppo", "CartPole-v1", "--set", ""], "an argument is empty after --set"),
    "a null character": (["train", "ppo", "CartPole-v1", "--run-dir", "a\0b"], "'a\\x00b'", "cannot be printed"),
    "a line break": (["train", "ppo", "Cart\nPole-v1"], "cannot be printed"),
    "bytes that are no text": (["train", "ppo", "CartPole-v1", "--run-dir", "a\udcffb"], "cannot be printed"),
    "a run's name too long": (["train", "ppo", "CartPole-v1", "--run-dir", LONG], "too long", "another --run-dir"),
    "a name with no room for a draft": (
        ["train", "ppo", "CartPole-v1", "--run-dir", "x" * 250],
        "too long",
        "another --run-dir",
    ),
    "a name too long below a new folder": (
        ["train", "ppo", "CartPole-v1", "--run-dir", f"new/{LONG}"],
        "too long",
        "another --run-dir",
    ),
    "a path too long": (["train", "ppo", "CartPole-v1", "--run-dir", "new/" * 1200], "too long", "another --run-dir"),
    "a run where none can be": (
        ["train", "ppo", "CartPole-v1", "--run-dir", "/proc/run"],
        "/proc/run cannot be written",
    ),
    "to resume what no name can be": (["train", "--resume", "--run-dir", LONG], "does not exist"),
    "to play what no name can be": (["eval", LONG], "is not a directory"),
    "to report on what no name can be": (["report", LONG], "is not a directory"),
    "a seed of episodes below 0": (["eval", "gone", "--seed", "-1"], "--seed"),
    "a seed of episodes of more than 64 bits": (["eval", "gone", "--seed", HUGE], "--seed"),
    "a sweep too long to repeat": (["sweep", LONG], "is neither a file nor one that comes with kova"),
    "seeds without end": (["sweep", "quick", "--seeds", HUGE], "seeds must be a number from 1 to 10,000"),
    "a sweep where none can be": (["sweep", "quick", "--out", "/proc/s"], "/proc/s/runs cannot be written"),
    "a dry run where no sweep can be": (["sweep", "quick", "--dry-run", "--out", LONG], "too long"),
    "a GPU for a sweep": (["sweep", "quick", "--set", "algorithm.device=cuda:9"], "algorithm.device=cuda:9"),
    "no samples to learn from": (["bench", "policy", "--samples", "100"], "--samples must be at least 512"),
    "an unknown environment to time": (["bench", "train", "--env", "Nope-v0"], "'Nope-v0' is unknown"),
    "an environment that PPO does not take": (["bench", "train", "--env", "Blackjack-v1"], "ppo on Blackjack-v1"),
    "timing without end": (["bench", "train", "--steps", HUGE], "steps must be at most"),
    "an unknown stream": (["bench", "streams", "--stream", "Hoper-v4"], "did you mean 'Hopper-v4'?"),
    "an algorithm without rollouts": (["bench", "scale", "--algo", "dqn"], "--algo must be one of a2c, ppo"),
    "an unknown arm": (["bench", "deep-sea", "--arm", "UCB KOVA"], "did you mean 'UCB, KOVA'?"),
    "no depth": (["bench", "deep-sea", "--depth", "0"], "--depth"),
    "a demo of nothing": (["demo", "--env", "Nope-v0"], "'Nope-v0' is unknown"),
    "a demo where none can be": (["demo", "--out", "/proc/demo"], "/proc/demo cannot be written"),
    "to play nothing": (["eval"], "missing argument", "kova eval --help"),
    "no episodes": (["eval", "gone", "--episodes", "0"], "--episodes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_one_line_and_leaves_nothing(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, *says = WRONG[name]
    result = runner.invoke(app, arguments, prog_name="kova")
    assert_one_line(result.exit_code, result.stdout, result.stderr, tuple(says), arguments)
    assert list(tmp_path.iterdir()) == []


BENCHMARKS = {
    "step": "step.png",
    "train": "train.json",
    "values": "values_chain.png",
    "deep-sea": "deep_sea.json",
    "streams": "streams.json",
    "scale": "scale.json",
    "policy": "policy_evaluation.png",
}


@pytest.mark.parametrize("out", ["file", "file/new", "/proc/new", "pipe", LONG, "taken"])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_that_cannot_write_does_not_begin(name: str, out: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    # A folder where the benchmark writes a file.
    (tmp_path / "taken" / BENCHMARKS[name]).mkdir(parents=True)
    assert_refused(tmp_path, ["bench", name, "--out", out], "cannot be written", "choose another --out")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A small finished run with two checkpoints."""
    run = tmp_path_factory.mktemp("finished") / "run"
    arguments = ["--steps", "64", "--set", "checkpoint_every=32", "--run-dir", str(run)]
    result = runner.invoke(app, ["train", "ppo", "CartPole-v1", *TINY, *arguments])
    assert result.exit_code == 0, result.output
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def files(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*") if path.name != ".lock"
    }


def assert_refused(folder: Path, arguments: list[str], *says: str) -> None:
    before = files(folder)
    result = runner.invoke(app, arguments, prog_name="kova")
    assert_one_line(result.exit_code, result.stdout, result.stderr, says, arguments)
    assert files(folder) == before


def test_a_run_is_not_written_over(run: Path, tmp_path: Path):
    again = ["train", "ppo", "CartPole-v1", *TINY, "--run-dir", str(run)]
    assert_refused(tmp_path, again, "exists", "--resume", "another --run-dir")


def test_a_folder_is_not_written_over(tmp_path: Path):
    arguments = ["train", "ppo", "CartPole-v1", *TINY, "--run-dir", str(tmp_path)]
    assert_refused(tmp_path, arguments, "exists and is not a run", "another --run-dir")


def test_a_file_where_a_folder_should_be(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    arguments = ["train", "ppo", "CartPole-v1", *TINY, "--run-dir", str(tmp_path / "file" / "run")]
    assert_refused(tmp_path, arguments, "cannot be written", "another --run-dir")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (["--seed", "1"], "started with seed = 0, not 1"),
        (["--steps", "32"], "has 64 frames, and --steps 32 is not more"),
        (["--steps", "64"], "has 64 frames, and --steps 64 is not more"),
        (["--vec", "subproc"], "started with vec = dummy, not subproc"),
        (["--track", "wandb"], "started with track = none, not wandb"),
        (["--eval-every", "32"], "started with eval_every = none, not 32"),
        (["--wrapper", "a.B"], "started with wrappers = none, not ['a.B']"),
        (["--critic", "adam"], "started with the critic kova, not adam"),
        (["--set", "algorithm.gamma=0.5"], "started with other settings"),
        (["--set", "algorithm.gama=0.5"], "did you mean 'algorithm.gamma'?"),
    ],
)
def test_a_resumed_run_keeps_its_settings(run: Path, tmp_path: Path, changed: list[str], says: str):
    assert_refused(tmp_path, ["train", "--resume", "--run-dir", str(run), *changed], says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("algo: [", "cannot be read"),
        ("just words", "must have algo, env, each with its value; it has none of them; repair it, or start a new run"),
        ("algo: ppo\nenv: CartPole-v1\nstpes: 3\n", "did you mean 'steps'?"),
        ("algo: ppo\n", "has no env; it must have algo, env"),
        ("algo: ppo\nenv: 2020-13-45\n", "cannot be read: month must be in 1..12"),
        ("algo: ppo\nalgo: a2c\nenv: CartPole-v1\n", "'algo' is given twice"),
        ("algo: [ppo]\nenv: CartPole-v1\n", "algo must be a name"),
        ("algo: ppo\nenv: CartPole-v1\nalgorithm: {gamma: 7}\n", "algorithm.gamma must be a number from 0 to 1"),
        ("algo: ppo\nenv: CartPole-v1\ncritic: 5\n", "critic must be a mapping"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
@pytest.mark.parametrize("command", [["train", "--resume", "--run-dir"], ["eval"]])
def test_a_spoilt_configuration(run: Path, tmp_path: Path, content: str | bytes, says: str, command: list[str]):
    (run / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(tmp_path, [*command, str(run)], "config.yaml", says)


def test_a_run_without_evaluations_has_no_best(run: Path, tmp_path: Path):
    says = ("has no best model: it was trained without --eval-every", "leave --best out")
    assert_refused(tmp_path, ["eval", str(run), "--best"], *says)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["ppo", "--set", "algorithm.vf_coef=0.3", "--set", "algorithm.vf_coef=0.4"], "algorithm.vf_coef"),
        (
            ["ppo", "--set", "algorithm.clip_range_vf=0.2", "--set", "algorithm.vf_coef=1"],
            "clip_range_vf, algorithm.vf",
        ),
        (["trpo", "--set", "algorithm.n_critic_updates=3"], "algorithm.n_critic_updates"),
        (["ppo", "--set", "algorithm.vf_coef=0.3", "--critic", "adam"], None),
        (["ppo", "--set", "algorithm.ent_coef=0.3"], None),
        (["ppo", "--preset", "paper"], None),
    ],
)
def test_a_setting_without_effect_is_named_once(words: list[str], names: str | None, tmp_path: Path):
    env = "Hopper-v4" if "paper" in words else "CartPole-v1"
    result = runner.invoke(app, ["train", words[0], env, *words[1:], *TINY, "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    said = [line for line in result.output.splitlines() if "no effect on a Kalman critic" in line]
    assert len(said) == (names is not None)
    assert names is None or names in said[0]


def corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[: len(content) // 2] = b"\0" * (len(content) // 2)
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("spoil", [corrupt, truncate, Path.unlink], ids=["corrupt", "truncated", "missing"])
@pytest.mark.parametrize("file", ["model.zip", "normalization.pkl"])
@pytest.mark.parametrize("command", [["train", "--resume", "--run-dir"], ["eval"]], ids=["train", "eval"])
def test_a_spoilt_checkpoint(run: Path, tmp_path: Path, spoil, file: str, command: list[str]):
    spoil(run / "checkpoints" / "0000000064" / file)
    says = ("0000000064", "delete that folder to continue from 0000000032")
    assert_refused(tmp_path, [*command, str(run)], *says)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("progress.csv", b"\xff\xfe"),
        ("progress.csv", b"a,b\n1,2\n"),
        ("progress.csv", b"time/total_timesteps\nnan\n"),
        ("monitor.csv", b"#{}\nr,l,t,step\n1,2\n"),
        ("monitor.csv", b"\0" * 200_000),
    ],
)
def test_a_spoilt_log(run: Path, tmp_path: Path, name: str, content: bytes):
    shutil.rmtree(run / "checkpoints" / "0000000064")
    (run / name).write_bytes(content)
    resume = ["train", "--resume", "--run-dir", str(run)]
    assert_refused(tmp_path, resume, f"{name} is damaged", "delete it to continue")
    (run / name).unlink()
    result = runner.invoke(app, resume)
    assert result.exit_code == 0, result.output


def test_the_advice_about_a_spoilt_checkpoint_works(run: Path):
    truncate(run / "checkpoints" / "0000000064" / "model.zip")
    shutil.rmtree(run / "checkpoints" / "0000000064")
    result = runner.invoke(app, ["train", "--resume", "--run-dir", str(run)])
    assert result.exit_code == 0, result.output
    assert (run / "checkpoints" / "0000000064" / "model.zip").exists()


def test_no_checkpoint_to_play(run: Path, tmp_path: Path):
    shutil.rmtree(run / "checkpoints")
    assert_refused(tmp_path, ["eval", str(run)], "is finished and has no checkpoint")
    (run / "status.json").write_text('{"state": "interrupted"}')
    assert_refused(tmp_path, ["eval", str(run)], "has no checkpoint yet", f"kova train --resume --run-dir {run}")


def test_no_run_to_play(tmp_path: Path):
    assert_refused(tmp_path, ["eval", str(tmp_path)], "is not a run: it has no config.yaml")
    assert_refused(tmp_path, ["train", "--resume", "--run-dir", str(tmp_path)], "is not a run: it has no config.yaml")


@pytest.mark.parametrize(
    ("video", "says"),
    [
        ("x.gif", "--video must name an .mp4 file, got x.gif; write x.mp4"),
        ("x", "--video must name an .mp4 file"),
        (".", "--video must name an .mp4 file"),
        ("file/x.mp4", "cannot be written"),
        ("folder.mp4", "folder.mp4 cannot be written: it is a directory"),
        ("/proc/x.mp4", "cannot be written"),
        (f"{LONG}.mp4", "too long"),
    ],
)
def test_a_video_that_cannot_be(run: Path, tmp_path: Path, monkeypatch, video: str, says: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.mp4").mkdir()
    assert_refused(tmp_path, ["eval", str(run), "--episodes", "1", "--video", video], says)


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "folder"],
        ["-o", "file/page.html"],
        ["-o", "/proc/page.html"],
        ["-o", "pipe"],
        ["-o", LONG],
        ["--data", "folder"],
        ["--data", "file/curves.csv"],
        ["--data", "pipe"],
        ["--data", LONG],
        ["--figures", "file"],
        ["--figures", "file/figures"],
        ["--figures", "/proc/figures"],
        ["--figures", LONG],
        ["--figures", "folder"],
        ["-o", "same", "--data", "same"],
        ["-o", "same", "--figures", "same"],
        ["--data", "same", "--figures", "same"],
        ["-o", "page", "--data", "page/curves.csv"],
        ["-o", "page", "--figures", "page/figures"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_report_that_cannot_write_all_of_it_writes_nothing(run: Path, tmp_path: Path, monkeypatch, words: list[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    # As a device is: to replace /dev/null would break the machine.
    os.mkfifo(tmp_path / "pipe")
    # A folder where a figure goes.
    (tmp_path / "folder" / "fig3-ppo.png").mkdir(parents=True)
    assert_refused(tmp_path, ["report", str(run), *words], f"choose another {words[-2]}")


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Blocker())
from kova.cli import app
from kova.experiments.runs.provenance import read_makers
app({arguments!r})
"""


@pytest.mark.parametrize("module", ["stable_baselines3", "typer"])
def test_a_missing_extra(module: str, tmp_path: Path):
    code = BLOCKED.format(module=module, arguments=["train", "ppo", "CartPole-v1"])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    says = (f"{module} is missing", 'pip install "kova-rl[experiments] @ git+https')
    errors = result.stderr if result.stderr.startswith("kova: ") else f"kova: {result.stderr}"
    assert_one_line(result.returncode, result.stdout, errors, says)
    assert list(tmp_path.iterdir()) == []


def test_the_real_command(tmp_path: Path):
    kova = Path(sys.executable).with_name("kova")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [kova, "train", "ppo", "HalfCheeta-v5"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
    )
    assert_one_line(result.returncode, result.stdout, result.stderr, ("did you mean",))
    assert list(tmp_path.iterdir()) == []


def test_a_run_keeps_the_command_that_was_typed(finished: Path, run: Path):
    typed = f"kova train ppo CartPole-v1 {' '.join(TINY)} --steps 64 --set checkpoint_every=32 --run-dir {finished}"
    (maker,) = read_makers(finished / "made_by.json")
    assert maker["command"] == typed
    # With the same versions on the same machine a resumed run has no other maker.
    assert runner.invoke(app, ["train", "--resume", "--run-dir", str(run)]).exit_code == 0
    assert read_makers(run / "made_by.json") == [maker]
    (run / "made_by.json").unlink()
    assert runner.invoke(app, ["train", "--resume", "--run-dir", str(run)]).exit_code == 0
    (maker,) = read_makers(run / "made_by.json")
    assert maker["command"] == f"kova train --resume --run-dir {run}"


def test_the_configuration_of_a_run_is_yaml(finished: Path):
    content = yaml.safe_load((finished / "config.yaml").read_text())
    assert content["algorithm"]["n_steps"] == 32
