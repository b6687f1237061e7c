"""``kova bench gradients``: the policy gradient of a critic, and the record that is kept of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import stable_baselines3
import torch
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.benchmarks import gradients
from kova.experiments.benchmarks.gradients_figure import best_rate

runner = CliRunner()


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_gradient_is_that_of_upstreams_loss(env):
    model = stable_baselines3.A2C("MlpPolicy", env, seed=0, device="cpu")
    model.learn(5)
    batch = next(model.rollout_buffer.get(None))
    actions = batch.actions.long().flatten() if env == "CartPole-v1" else batch.actions
    _, log_prob, _ = model.policy.evaluate_actions(batch.observations, actions)
    model.policy.zero_grad()
    (-(batch.advantages * log_prob).mean()).backward()
    upstreams = torch.cat([p.grad.flatten() for p in model.policy.parameters() if p.grad is not None])
    found = gradients.PolicyGradient(model)(batch.observations, batch.actions, batch.advantages)
    torch.testing.assert_close(found, -upstreams)


def test_an_agent_is_recorded_once_and_drawn(tmp_path):
    words = ["bench", "gradients", "--env", "Pendulum-v1", "--seeds", "1", "--frames", "4096", "--parts", "2"]
    words += ["--steps", "200", "--out", str(tmp_path)]
    assert runner.invoke(app, words).exit_code == 0
    path = tmp_path / "gradients.json"
    results = json.loads(path.read_text())["results"]
    assert {(r["arm"], r["frames"]) for r in results} == {(arm, n) for arm in gradients.ARMS for n in (2048, 4096)}
    assert all(-1.0 <= result["cosine"] <= 1.0 and result["explained"] <= 1.0 for result in results)
    assert (tmp_path / "gradients.png").stat().st_size > 10_000
    before = results
    assert runner.invoke(app, words).exit_code == 0
    assert json.loads(path.read_text())["results"] == before


def test_the_large_batch_leaves_the_small_ones_out():
    model = gradients.build(
        gradients.configuration("Pendulum-v1", 0, 2),
        gradients.environments.normalized(
            gradients.environments.make(gradients.configuration("Pendulum-v1", 0, 2)),
            gradients.configuration("Pendulum-v1", 0, 2),
        ),
    )
    frames = gradients.drawn(model, "Pendulum-v1", 1, 200)
    gradient = gradients.PolicyGradient(model)
    along = gradients.large_batch(model, gradient, frames)
    rewards = frames.rewards.clone()
    rewards[:, : gradients.SMALL] += 100.0
    torch.testing.assert_close(gradients.large_batch(model, gradient, replace(frames, rewards=rewards)), along)
    rewards[:, gradients.SMALL :] *= 2.0
    assert not torch.allclose(gradients.large_batch(model, gradient, replace(frames, rewards=rewards)), along)


def test_adam_is_shown_at_its_best_rate():
    results = [{"arm": "Adam × 1, 0.1", "cosine": 0.1}, {"arm": "Adam × 10, 0.1", "cosine": 0.9}]
    results.append({"arm": "Adam × 1, 0.2", "cosine": 0.2})
    assert best_rate(results, "Adam × 1", "cosine") == "Adam × 1, 0.2"


def test_the_agent_learns_at_one_rate_all_the_way():
    """A schedule would end at every stop, and each policy that is measured would have come to a standstill."""
    assert gradients.configuration("Pendulum-v1", 0, 2).algorithm["learning_rate"] == 3e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--frames", "3", "--parts", "5"], "--parts must be at most --frames"),
        (["--env", "FrozenLake-v1"], "observations of the kind Discrete"),
        (["--env", "Pendulum-v1", "--env", "Nothing-v0"], "Nothing-v0"),
        (["--env", "Reacher-v4", "--frames", "2048", "--parts", "1", "--steps", "200"], "a return that is known"),
    ],
)
def test_what_cannot_be_compared_is_said_at_once(words, said, tmp_path):
    result = runner.invoke(app, ["bench", "gradients", "--seeds", "1", "--out", str(tmp_path), *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert not list(tmp_path.iterdir())
