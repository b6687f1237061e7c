"""``kova export`` and ``kova fetch``: a run for people without kova, on disk and on the hub."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import stable_baselines3
from hub_stand_in import hub
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from typer.testing import CliRunner

import kova
from kova.cli import app
from kova.experiments.runs.model import load
from kova.experiments.runs.run_directory import RunDirectory

runner = CliRunner()

TINY = {
    "ppo": ["CartPole-v1", "--steps", "32", "--set", "algorithm.n_steps=32", "--set", "algorithm.batch_size=32"],
    "td3": ["Pendulum-v1", "--steps", "120", "--set", "policy.net_arch=[8]", "--set", "algorithm.batch_size=8"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for algo, words in TINY.items():
        done = runner.invoke(app, ["train", algo, *words, "--run-dir", str(folder / algo)])
        assert done.exit_code == 0, done.output
    return {algo: folder / algo for algo in TINY}


def agent(run: Path):
    """Return the model of a run and its environment."""
    return load(*RunDirectory(run).trained())


def test_a_run_as_a_file_of_plain_stable_baselines3(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["export", str(runs["ppo"]), "--to", "sb3"])
    assert done.exit_code == 0, done.output
    folder = Path("exports") / "ppo"
    assert sorted(path.name for path in folder.iterdir()) == ["normalization.pkl", "ppo-CartPole-v1.zip"]
    assert 'open it: stable_baselines3.PPO.load("exports/ppo/ppo-CartPole-v1.zip")' in done.output
    assert 'VecNormalize.load("exports/ppo/normalization.pkl", env)' in done.output
    model, env = agent(runs["ppo"])
    plain = stable_baselines3.PPO.load(folder / "ppo-CartPole-v1.zip", device="cpu")
    assert plain.num_timesteps == model.num_timesteps == 32
    statistics = VecNormalize.load(
        str(folder / "normalization.pkl"), DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    )
    raw = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(statistics.normalize_obs(raw), env.normalize_obs(raw))
    given = env.normalize_obs(raw)
    assert np.array_equal(*(each.predict(given, deterministic=True)[0] for each in (plain, model)))
    # Again, over what is there.
    assert runner.invoke(app, ["export", str(runs["ppo"]), "--to", "sb3"]).exit_code == 0


def test_a_file_of_a_chosen_name_opens_without_kova(runs, tmp_path):
    out = tmp_path / "deep" / "agent.zip"
    assert runner.invoke(app, ["export", str(runs["td3"]), "--to", "sb3", "-o", str(out)]).exit_code == 0
    assert [path.name for path in out.parent.iterdir()] == ["agent.zip"]
    model, _ = agent(runs["td3"])
    given = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    with (tmp_path / "asked").open("wb") as file:
        pickle.dump((given, model.predict(given, deterministic=True)[0]), file)
    script = """
        import pickle, sys
        sys.modules["kova"] = None
        import numpy as np, stable_baselines3
        model = stable_baselines3.TD3.load(sys.argv[1], device="cpu")
        given, chosen = pickle.load(open(sys.argv[2], "rb"))
        assert np.array_equal(model.predict(given, deterministic=True)[0], chosen)
        print("opened")
    """
    words = [sys.executable, "-c", textwrap.dedent(script), out, tmp_path / "asked"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "opened\n", done.stderr


WRONG = {
    "an unknown kind": (["--to", "onnx"], "--to onnx is unknown; there are hub, sb3"),
    "a repository for a file": (["--to", "sb3", "--repo", "me/it"], "--repo is for --to hub"),
    "a file for the hub": (["--to", "hub", "--repo", "me/it", "-o", "x.zip"], "-o is for --to sb3"),
    "a private file": (["--to", "sb3", "--private"], "--private is for --to hub"),
    "no repository": (["--to", "hub"], "--to hub needs a repository: --repo user/name"),
    "half a repository": (["--to", "hub", "--repo", "me"], "'me' is not a repository of the hub; write user/name"),
    "another suffix": (["--to", "sb3", "-o", "x.pt"], "-o x.pt must end in .zip"),
    "a file below a file": (["--to", "sb3", "-o", "/dev/null/x.zip"], "cannot be written", "choose another -o"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_one_line_and_leaves_nothing(name, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, *says = WRONG[name]
    done = runner.invoke(app, ["export", str(runs["ppo"]), *arguments])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert all(words in done.stderr for words in says), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_statistics_of_another_model_are_not_written_over(runs, tmp_path):
    (tmp_path / "normalization.pkl").write_text("of another model")
    done = runner.invoke(app, ["export", str(runs["ppo"]), "--to", "sb3", "-o", str(tmp_path / "mine.zip")])
    assert done.exit_code == 2
    assert "is of another model; choose a -o in another directory" in done.stderr
    assert (tmp_path / "normalization.pkl").read_text() == "of another model"


def test_a_run_without_a_checkpoint(tmp_path, runs):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text((runs["ppo"] / "config.yaml").read_text())
    for path, says in ((tmp_path / "run", "has no checkpoint yet"), (tmp_path / "none", "is not a directory")):
        done = runner.invoke(app, ["export", str(path), "--to", "sb3"])
        assert done.exit_code == 2
        assert says in done.stderr


#: Runs commands one after the other and prints [exit code, stdout, stderr] of each; every import takes seconds.
COMMANDS = """
    import json, sys
    from typer.testing import CliRunner
    from kova.cli import app
    done = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
    print(json.dumps([[each.exit_code, each.stdout, each.stderr] for each in done]))
"""


def typed(endpoint: str, home: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Run commands in a process that takes ``endpoint`` for the hub, and knows no login."""
    source = str(Path(kova.__file__).parents[1])
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "PYTHONPATH": source}
    words = [sys.executable, "-c", textwrap.dedent(COMMANDS), json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_goes_to_the_hub_and_comes_back(runs, tmp_path):
    pytest.importorskip("huggingface_hub")
    # As a run that was evaluated has them.
    evaluated = Path(shutil.copytree(runs["ppo"], tmp_path / "evaluated"))
    shutil.copytree(RunDirectory(evaluated).latest_checkpoint(), evaluated / "best")
    (evaluated / "evaluations.csv").write_text("step,return\n")
    with hub() as there:
        there.repositories["me/pole"] = dict.fromkeys(("normalization.pkl", "run/old.csv", "mine.zip"), b"old")
        sent, got = typed(
            there.address,
            tmp_path,
            ["export", str(evaluated), "--to", "hub", "--repo", "me/pole"],
            ["fetch", "me/pole"],
        )
        assert sent[0] == got[0] == 0, sent[2] + got[2]
        assert f"{there.address}/me/pole" in sent[1]
        files = there.repositories["me/pole"]
    assert {"README.md", "ppo-CartPole-v1.zip", "normalization.pkl", "run/config.yaml", "mine.zip"} <= files.keys()
    assert {"run/evaluations.csv", "run/best/model.zip"} <= files.keys()
    assert "run/old.csv" not in files
    assert b'PPO.load(hf_hub_download("me/pole", "ppo-CartPole-v1.zip"))' in files["README.md"]
    (tmp_path / "plain.zip").write_bytes(files["ppo-CartPole-v1.zip"])
    plain = stable_baselines3.PPO.load(tmp_path / "plain.zip", device="cpu")
    run = tmp_path / "runs" / "pole"
    assert [path.name for path in run.parent.iterdir()] == ["pole"]
    (first, env), (second, _) = agent(runs["ppo"]), agent(run)
    assert files["normalization.pkl"] == (RunDirectory(run).latest_checkpoint() / "normalization.pkl").read_bytes()
    given = env.reset()
    one, other = first.predict_value(given), second.predict_value(given)
    assert float(one.mean) == float(other.mean)
    assert float(one.stddev) == float(other.stddev)
    states = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert np.array_equal(*(each.predict(states, deterministic=True)[0] for each in (plain, second)))


#: Prints where huggingface_sb3, on its own, puts a file of a repository.
THEIRS = "import sys; from huggingface_sb3 import load_from_hub; print(load_from_hub(*sys.argv[1:]))"


def test_huggingface_sb3_opens_what_was_sent_and_its_models_are_fetched(runs, tmp_path):
    pytest.importorskip("huggingface_sb3")
    with hub() as there:
        (sent,) = typed(there.address, tmp_path, ["export", str(runs["ppo"]), "--to", "hub", "--repo", "me/pole"])
        assert sent[0] == 0, sent[2]
        words = [sys.executable, "-c", THEIRS, "me/pole", "ppo-CartPole-v1.zip"]
        environment = {**os.environ, "HF_ENDPOINT": there.address, "HF_HOME": str(tmp_path / "theirs")}
        found = subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.strip()
        plain = stable_baselines3.PPO.load(found, device="cpu")
        # As rl-zoo leaves a repository: no run of kova.
        ours = there.repositories["me/pole"]
        names = {"ppo-CartPole-v1.zip": "ppo-CartPole-v1.zip", "vec_normalize.pkl": "normalization.pkl"}
        there.repositories["sb3/ppo-CartPole-v1"] = {name: ours[own] for name, own in names.items()} | {
            "README.md": b"theirs",
            "replay.mp4": b"large",
        }
        (got,) = typed(there.address, tmp_path, ["fetch", "sb3/ppo-CartPole-v1"])
    assert got[0] == 0, got[2]
    folder = tmp_path / "models" / "ppo-CartPole-v1"
    assert {path.name for path in folder.iterdir()} == set(names)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert 'kova.sb3.PPO.load("models/ppo-CartPole-v1/ppo-CartPole-v1.zip")' in got[1]
    with pytest.warns(UserWarning, match="holds no filter"):
        own = kova.sb3.PPO.load(folder / "ppo-CartPole-v1.zip", device="cpu")
    states = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert np.array_equal(*(each.predict(states, deterministic=True)[0] for each in (plain, own)))


def test_what_the_hub_refuses_is_one_line(runs, tmp_path):
    pytest.importorskip("huggingface_hub")
    export = ["export", str(runs["td3"]), "--to", "hub", "--repo"]
    says = [
        "the hub does not show me/nothing",
        "me/bare has neither a run of kova nor a model of Stable-Baselines3",
        "the hub refuses: ",
    ]
    calls = [["fetch", "me/nothing"], ["fetch", "me/bare"], [*export, "stranger/swing"]]
    with hub() as there:
        there.repositories["me/bare"] = {"README.md": b"nothing"}
        *refused, taken = typed(there.address, tmp_path, *calls, [*export, "me/swing", "--private"])
    for (code, output, errors), words in zip(refused, says, strict=True):
        assert (code, output, errors.count("\n")) == (2, "", 1), errors
        assert errors.startswith(f"kova: {words}")
    assert not list((tmp_path / "runs").glob("*"))
    assert taken[0] == 0, taken[2]
    assert there.private == {"me/swing": True}
    # No statistics, and no replay buffer.
    assert not [name for name in there.repositories["me/swing"] if name.endswith(".pkl")]


def test_a_hub_that_does_not_answer_is_one_line(runs, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    # What the client does without a network, and without the half minute it takes to give up.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    calls = [["fetch", "me/it"], ["export", str(runs["td3"]), "--to", "hub", "--repo", "me/it"]]
    for code, output, errors in typed("http://127.0.0.1:9", tmp_path, *calls):
        assert (code, output, errors.count("\n")) == (2, "", 1), errors
        assert errors.startswith("kova: the hub does not answer: ")
    assert not list((tmp_path / "runs").glob("*"))


def test_without_the_library_the_hub_says_what_to_install(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for words in (["export", str(runs["ppo"]), "--to", "hub", "--repo", "me/it"], ["fetch", "me/it"]):
        done = runner.invoke(app, words)
        assert done.exit_code == 2
        assert (
            'huggingface_hub is missing; the hub needs: pip install "kova-rl[experiments,hub] @ git+https'
            in done.stderr
        )


def test_what_is_there_is_not_fetched_over(tmp_path):
    pytest.importorskip("huggingface_hub")
    (tmp_path / "mine").mkdir()
    done = runner.invoke(app, ["fetch", "me/it", "--run-dir", str(tmp_path / "mine")])
    assert done.exit_code == 2
    assert "exists and is not a run; choose another --run-dir" in done.stderr
