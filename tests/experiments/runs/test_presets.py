"""The presets hold the published tables, and every one of them can be built."""

from __future__ import annotations

import re

import pytest
import torch

import kova
from kova.experiments.errors import UsageError
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.expressions import resolve
from kova.experiments.runs.model import build

ENVIRONMENTS = ("Swimmer-v4", "Hopper-v4", "HalfCheetah-v4", "Ant-v4", "Walker2d-v4")
STEPS = dict(zip(ENVIRONMENTS, (10**6, 10**6, 10**6, 2 * 10**6, 2 * 10**6), strict=True))

POLICY = {
    "ppo": {
        "n_steps": 2048,
        "n_epochs": 10,
        "batch_size": 64,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "ent_coef": 0.0,
        "vf_coef": 0.25,
        "max_grad_norm": 0.5,
    },
    "trpo": {
        "n_steps": 1024,
        "batch_size": 64,
        "gamma": 0.99,
        "gae_lambda": 0.98,
        "target_kl": 0.01,
        "cg_max_steps": 10,
        "cg_damping": 0.1,
        "n_critic_updates": 5,
        "learning_rate": 1e-3,
    },
}

#: {algorithm: {environment: (α, η)}}
CRITIC = {
    "ppo": dict(zip(ENVIRONMENTS, ((1.0, 0.01), (0.1, 0.1), (1.0, 0.1), (0.1, 0.1), (1.0, 0.01)), strict=True)),
    "trpo": dict(zip(ENVIRONMENTS, ((1.0, 0.01), (1.0, 0.01), (0.1, 0.01), (0.01, 0.01), (0.01, 0.01)), strict=True)),
}
PASSES = {"ppo": (10, 64), "trpo": (5, 64)}


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_the_paper_preset_is_the_papers_tables(algo: str, env: str):
    config = RunConfig.from_preset(algo, env, "paper")
    settings = resolve(config.algorithm)
    if algo == "ppo":
        rate = settings.pop("learning_rate")
        assert [rate(left) for left in (1.0, 0.5, 0.0)] == pytest.approx([3e-4, 1.5e-4, 0.0])
    assert settings == POLICY[algo]
    step_size, eta = CRITIC[algo][env]
    epochs, batch_size = PASSES[algo]
    assert resolve(config.critic) == {
        "optimizer": "kova",
        "covariance": "full",
        "prior": kova.Isotropic(),
        "units": kova.RawUnits(),
        "noise": kova.MaxRatio(),
        "evolution": kova.FadingMemory(eta),
        "step_size": step_size,
        "epochs": epochs,
        "batch_size": batch_size,
    }
    assert config.steps == STEPS[env]
    assert config.n_envs == 1
    assert config.normalize_observations
    assert config.normalize_rewards
    assert not config.time_limit_bootstrap


@pytest.mark.parametrize("critic", ["kova", "adam"])
@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_the_paper_preset_builds(algo: str, env: str, critic: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_preset(algo, env, "paper").with_critic(critic)
    made = environments.normalized(environments.make(config), config)
    model = build(config, made)
    made.close()
    assert model.n_steps == POLICY[algo]["n_steps"]
    optimizer = model.critic_optimizer
    if critic == "kova":
        assert (optimizer.step_size, optimizer.evolution.eta) == CRITIC[algo][env]
        assert isinstance(optimizer.noise, kova.MaxRatio)
        assert type(optimizer.covariance).__name__ == "Full"
        assert (model.critic_epochs, model.critic_batch_size) == PASSES[algo]
    else:
        assert optimizer.param_groups[0]["lr"] == (3e-4 if algo == "ppo" else 1e-3)
    # MuJoCo would leave a MUJOCO_LOG.TXT.
    assert list(tmp_path.iterdir()) == []


DEFAULTS = [("ppo", "CartPole-v1"), ("trpo", "CartPole-v1"), ("a2c", "CartPole-v1"), ("dqn", "CartPole-v1")]


@pytest.mark.parametrize(("algo", "env"), [*DEFAULTS, *((algo, "Pendulum-v1") for algo in ("ddpg", "sac", "td3"))])
def test_the_control_arm_differs_only_in_the_critics_optimizer(algo: str, env: str):
    config = RunConfig.from_preset(algo, env)
    control = config.with_critic("adam")
    assert control.changed(critic=config.critic) == config
    models = [build(arm, environments.normalized(environments.make(arm), arm)) for arm in (config, control)]
    ours, theirs = (model.policy.state_dict() for model in models)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name in config.algorithm:
        if name not in ("learning_rate", "action_noise"):
            assert getattr(models[0], name) == getattr(models[1], name)
    optimizers = [(getattr(model, "actor", None) or model.policy).optimizer.defaults for model in models]
    assert optimizers[0] == optimizers[1]
    assert isinstance(models[0].critic_optimizer, kova.KOVA)
    assert isinstance(models[1].critic_optimizer, torch.optim.Adam)


def test_the_control_arm_is_the_same_by_set():
    config = RunConfig.from_preset("ppo", "Hopper-v4", "paper")
    assert config.with_overrides(["critic.optimizer=adam"]) == config.with_critic("adam")
    assert config.with_critic("adam").critic == {"optimizer": "adam"}


def test_a_preset_may_be_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "all: {steps: 2000}\na2c:\n  algorithm: {learning_rate: 3e-4, n_steps: 8}\n"
        "  critic: {optimizer: adam, learning_rate: 1e-3}\n"
    )
    config = RunConfig.from_preset("a2c", "CartPole-v1", str(path))
    # YAML itself reads 3e-4 as a text.
    assert config.algorithm == {"learning_rate": 3e-4, "n_steps": 8}
    assert config.steps == 2000
    assert config.preset == str(path)
    # To name the critic that the file has anyway changes nothing; another has none of its settings.
    assert config.with_critic("adam") == config
    assert config.with_critic("kova").critic == {"optimizer": "kova"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just words", "must have names, each with its value"),
        ("a2c: 5", "a2c must be a mapping of settings, got 5"),
        ("a2c: [1]", "a2c must be a mapping of settings"),
        ("a2x: {}\n", "has 'a2x', which is no algorithm; did you mean 'a2c'?"),
        ("ppo: {}", "has no a2c; it has ppo"),
        ("a2c: {stepz: 5}", "has 'stepz', which is unknown; did you mean 'steps'?"),
        ("a2c: {env: Other-v0}", "has 'env', which is unknown"),
        ("a2c: {algorithm: {gamma: 7}}", "algorithm.gamma must be a number from 0 to 1, got 7"),
        ("a2c: {critic: fast}", "critic must be a mapping of settings"),
        ("a2c: {environments: 3}", "environments must be a mapping"),
        ("a2c: {a", "cannot be read"),
    ],
)
def test_a_file_that_is_no_preset_is_one_clear_error(text, says, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(says)) as refused:
        RunConfig.from_preset("a2c", "CartPole-v1", str(path))
    assert "mine.yaml" in str(refused.value)


def test_a_preset_that_is_not_there_names_those_that_are():
    with pytest.raises(UsageError, match="neither a file nor one that comes with kova; did you mean 'paper'"):
        RunConfig.from_preset("ppo", "Hopper-v4", "papr")
    with pytest.raises(UsageError, match=r"nowhere\.yaml cannot be read"):
        RunConfig.from_preset("ppo", "Hopper-v4", "nowhere.yaml")
