"""What 0.1.0 saved still opens: filters of every structure, models of every algorithm, runs and sweeps."""

import json
import pathlib
import shutil
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import kova
import kova.sb3
from kova.cli import app
from kova.experiments.report.results import collect
from kova.experiments.runs.run_directory import RunDirectory

DATA = pathlib.Path(__file__).parent / "data" / "0.1.0"
FILTERS = torch.load(DATA / "filters.pt", weights_only=True)
MODELS = json.loads((DATA / "models.json").read_text())
WITHOUT_UNITS = "the filter was saved without units of its labels and goes on without"
EVOLUTIONS = {
    "FadingMemory": kova.FadingMemory(0.05),
    "PriorRelaxation": kova.PriorRelaxation(0.01),
    "Memoryless": kova.Memoryless(0.1),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_continue(name):
    structure, evolution = name.split()
    saved = FILTERS[name]
    critic = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    critic.load_state_dict(saved["critic"])
    settings = {"covariance": structure, "evolution": EVOLUTIONS[evolution]}
    if evolution != "Memoryless":
        settings["noise"] = kova.Robust(kova.InnovationNoise(floor=1e-6))
    optimizer = kova.KOVA(critic, **settings)
    with pytest.warns(UserWarning, match=WITHOUT_UNITS):
        optimizer.load_state_dict(saved["filter"])
    if evolution == "Memoryless":
        assert optimizer.noise == kova.BatchSize(), "a filter that named no noise goes on with what was the default"
    optimizer.step(*saved["next"])
    value = optimizer.predict(saved["inputs"])
    # Another machine may round the last bits otherwise.
    torch.testing.assert_close(value.mean, saved["mean"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(value.stddev, saved["stddev"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_models_open_and_go_on(name):
    algorithm, expected = getattr(kova.sb3, name.upper()), MODELS[name]
    env = "Pendulum-v1" if name == "ddpg" else "CartPole-v1"
    with warnings.catch_warnings():
        # TRPO's minibatches, as they were saved.
        warnings.filterwarnings("ignore", "You have specified a mini-batch size")
        with warnings.catch_warnings(record=True) as seen:
            warnings.filterwarnings("always", WITHOUT_UNITS)
            model = algorithm.load(DATA / f"{name}.zip", env=gym.make(env), device="cpu")
    assert sum(WITHOUT_UNITS in str(warning.message) for warning in seen) == 1, "it is said once"
    was = model.critic_kwargs.get("noise", kova.BatchSize())
    assert model.critic_optimizer.noise == was, "it goes on with its noise, or what was the default"
    assert model.num_timesteps == expected["frames"]
    size = model.observation_space.shape[0]
    observations = np.linspace(-0.5, 0.5, 5 * size, dtype=np.float32).reshape(5, -1)
    actions = {"dqn": [np.zeros(5, dtype=int)], "ddpg": [np.zeros((5, 1), dtype=np.float32)]}.get(name, [])
    value = model.predict_value(observations, *actions)
    np.testing.assert_allclose(value.mean.numpy(), expected["mean"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value.stddev.numpy(), expected["stddev"], rtol=1e-4, atol=1e-6)
    before = model.critic_optimizer.steps
    model.learn(64, reset_num_timesteps=False)
    assert model.critic_optimizer.steps > before


def test_a_stopped_run_goes_on(tmp_path):
    run = shutil.copytree(DATA / "stopped", tmp_path / "run")
    with pytest.warns(UserWarning, match=WITHOUT_UNITS):
        done = CliRunner().invoke(app, ["train", "--resume", "--run-dir", str(run)])
    assert done.exit_code == 0, done.output
    assert RunDirectory(run).is_finished()
    assert RunDirectory(run).status()["step"] == 800


def test_a_sweep_is_reported_and_is_complete(tmp_path):
    folder = shutil.copytree(DATA / "sweep", tmp_path / "sweep")
    results = collect(folder)
    assert len(results.finished) == 4
    assert not results.damaged
    assert not results.waiting
    # A run's directory is named by its content: another name would be another run.
    done = CliRunner().invoke(app, ["sweep", str(folder / "sweep.yaml"), "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert "0 finished, 4 kept from before, 0 failed" in done.output


def test_a_run_is_played(tmp_path):
    run = next((DATA / "sweep" / "runs").glob("*kova-seed0*"))
    with pytest.warns(UserWarning, match=WITHOUT_UNITS):
        done = CliRunner().invoke(app, ["eval", str(shutil.copytree(run, tmp_path / "run")), "--episodes", "1"])
    assert done.exit_code == 0, done.output
    assert "return" in done.output
