"""Settings are read as data, whole and never as code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

import kova
from kova.experiments.errors import UsageError
from kova.experiments.runs import expressions, ranges
from kova.experiments.runs.config import ALGORITHMS, RunConfig, settable
from kova.experiments.runs.expressions import resolve
from kova.experiments.runs.model import build


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("FadingMemory(0.1)", kova.FadingMemory(0.1)),
        ("FadingMemory(eta=0.1)", kova.FadingMemory(eta=0.1)),
        ("PriorRelaxation(0.02)", kova.PriorRelaxation(0.02)),
        ("MaxRatio()", kova.MaxRatio()),
        ("float64", torch.float64),
        ("ReLU", nn.ReLU),
        ("inf", math.inf),
        ("full", "full"),
        ([1, "Tanh"], [1, nn.Tanh]),
        ({"pi": [64]}, {"pi": [64]}),
        (3, 3),
        (None, None),
    ],
)
def test_a_text_stands_for(text, value):
    assert resolve(text) == value


def test_every_exported_model_can_be_written_as_text(monkeypatch):
    @dataclass(frozen=True)
    class Constant(kova.ConstantNoise):
        """A model that a later version exports."""

    monkeypatch.setattr(kova, "Constant", Constant, raising=False)
    monkeypatch.setattr(kova, "__all__", [*kova.__all__, "Constant"])
    models = expressions._models()
    assert models["Constant"] is Constant
    assert models.keys() - {"Constant"} == expressions.CALLS.keys() - {"linear"}
    # The kinds of models are exported too, and stand for none.
    assert not {"Evolution", "Noise"} & models.keys()
    assert {"FadingMemory", "BatchSize", "Robust"} <= models.keys()


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch broken')",
        "open('broken', 'w')",
        "FadingMemory(open('broken', 'w'))",
        "FadingMemory(*[0.1])",
        "FadingMemory(**{'eta': 0.1})",
        "(lambda: 0)()",
        "FadingMemory(0.1) + 1",
        "FadingMemory(0.1",
        "FadingMemory({[]: 1})",
        "FadingMemory(" + "(" * 300 + "1" + ")" * 300 + ")",
        "FadingMemory('\0')",
    ],
)
def test_code_is_refused_and_not_run(text: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read|is unknown|not a number"):
        resolve(text)
    config = RunConfig.from_preset("ppo", "CartPole-v1")
    with pytest.raises(UsageError):
        config.with_overrides([f"critic.evolution={text}"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("assignment", "section", "name", "value"),
    [
        ("steps=1e6", None, "steps", 1_000_000),
        ("algorithm.learning_rate=3e-4", "algorithm", "learning_rate", 3e-4),
        ("algorithm.gamma=1", "algorithm", "gamma", 1),
        ("normalize_rewards=false", None, "normalize_rewards", False),
        ("algorithm.target_kl=null", "algorithm", "target_kl", None),
        ("policy.net_arch=[32, 16]", "policy", "net_arch", [32, 16]),
        ("policy.net_arch={pi: [8], vf: [16]}", "policy", "net_arch", {"pi": [8], "vf": [16]}),
        (" critic.noise = ConstantNoise(2.0)", "critic", "noise", "ConstantNoise(2.0)"),
    ],
)
def test_an_override_is_read(assignment, section, name, value):
    config = RunConfig.from_preset("ppo", "CartPole-v1").with_overrides([assignment])
    found = getattr(config, section)[name] if section else getattr(config, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_configuration_survives_its_file(algo: str, tmp_path: Path):
    config = RunConfig.from_preset(algo, "CartPole-v1").with_overrides(["critic.evolution=PriorRelaxation(0.02)"])
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert RunConfig.from_yaml(tmp_path / "config.yaml") == config


def test_every_range_belongs_to_a_setting_and_every_upstream_setting_has_a_range():
    known = {key for algo in ALGORITHMS for key in settable(algo)}
    assert set(ranges.CHECKS) <= known
    # The filter checks these itself; the critic's optimizer is checked with --critic.
    others = {"prior_variance", "dtype", "memory_budget", "flop_budget", "optimizer"}
    unchecked = {key for key in known if "." in key} - set(ranges.CHECKS)
    assert unchecked <= {f"critic.{name}" for name in others}


def test_a_model_may_hold_another():
    assert resolve("Robust(BatchSize(2.0), c=5)") == kova.Robust(kova.BatchSize(2.0), 5.0)
    with pytest.raises(ValueError, match="not a number"):
        resolve("Robust(open('x'))")


class PairOfActions(gymnasium.Env):
    """Actions of a kind that nothing here takes."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_actions_that_no_algorithm_takes(algo: str):
    config = RunConfig.from_preset(algo, "Pairs-v0")
    with pytest.raises(UsageError, match="and Pairs-v0 has Tuple; no algorithm takes those"):
        build(config, DummyVecEnv([PairOfActions]))


@pytest.mark.parametrize(("algo", "name"), [("ppo", "vf_coef"), ("trpo", "n_critic_updates")])
def test_what_a_preset_sets_for_adam_alone_reaches_adam_alone(algo: str, name: str):
    config = RunConfig.from_preset(algo, "Hopper-v4", "paper")
    env = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")])
    # A warning would be an error here.
    kalman, adam = (build(config.with_critic(critic), env) for critic in ("kova", "adam"))
    assert getattr(adam, name) == config.algorithm[name] != getattr(kalman, name)
