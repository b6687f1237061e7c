"""Streams: what was recorded is what happened, and a critic that replays them learns what it would in an agent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

import kova
from kova.experiments.errors import UsageError
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build
from kova.experiments.streams.recording import Recorder, record
from kova.experiments.streams.replay import ReplayBuffer, Rollouts, explained
from kova.experiments.streams.stream import Stream
from kova.sb3.adam import AdamCritic
from kova.targets import gae_targets

DATA = Path(__file__).parents[2] / "data" / "streams"
#: 12,000 and 16,000 frames of PPO: Hopper-v4 with normalised observations, Pendulum-v1 as it is; rewards as paid.
HOPPER, PENDULUM = (Stream.load(DATA / f"{name}.npz") for name in ("hopper", "pendulum"))
PPO_LABELS, A2C_LABELS = Rollouts(256, 0.95, batch_size=64), Rollouts(5, 1.0)


def cut(stream: Stream, steps: int) -> Stream:
    names = [field.name for field in dataclasses.fields(stream) if field.name != "choices"]
    return dataclasses.replace(stream, **{name: getattr(stream, name)[:steps] for name in names})


def fit(scheme, stream: Stream, **settings) -> float:
    def make(critic: nn.Sequential, h: object) -> kova.KOVA:
        # Labels bootstrap, and values that mean nothing yet would be taken for their scale.
        for parameter in critic[-1].parameters():
            nn.init.zeros_(parameter)
        return kova.KOVA(critic, h, **settings)

    return scheme.replay(stream, make).mean


class Rollout(BaseCallback):
    """Keeps the last rollout's returns and values as upstream computes them."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.returns, self.values = buffer.returns.copy(), buffer.values.copy()


@pytest.mark.parametrize("normalised", [False, True])
def test_what_is_recorded_gives_upstreams_labels(normalised):
    """Rewards as the agent saw them, time limits and last observations included."""
    config = RunConfig.from_preset("ppo", "CartPole-v1").with_critic("upstream")
    config = config.with_values(
        {"steps": 640, "n_envs": 2, "algorithm.n_steps": 320, "normalize_observations": normalised}
    ).with_values({"normalize_rewards": normalised})
    env = environments.normalized(environments.make(config), config)
    recorder, rollout = Recorder(env, as_paid=False), Rollout()
    model = build(config, recorder)
    value = {}
    train = model.train

    def note_and_train() -> None:
        stream = recorder.stream()
        with torch.no_grad():
            value["now"], value["next"] = (
                model.policy.predict_values(x.flatten(0, 1)).reshape(x.shape[:2])
                for x in (stream.observations, stream.next_observations)
            )
        train()

    model.train = note_and_train
    model.learn(640, callback=rollout)
    stream = recorder.stream()
    assert stream.frames == 640
    assert int(stream.terminated.sum()) > 5
    labels = gae_targets(
        stream.rewards,
        value["now"],
        value["next"],
        stream.terminated,
        stream.truncated,
        gamma=model.gamma,
        gae_lambda=model.gae_lambda,
    )
    np.testing.assert_allclose(rollout.values, value["now"].numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rollout.returns, labels.numpy(), rtol=1e-4, atol=1e-4)


def test_rewards_are_kept_as_paid_and_time_limits_as_such():
    config = RunConfig.from_preset("ppo", "Pendulum-v1").with_critic("upstream")
    stream = record(config.with_values({"steps": 512, "n_envs": 2, "algorithm.n_steps": 256}))
    assert stream.observations.shape == (256, 2, 3)
    assert int(stream.truncated.sum()) == 2
    assert not bool(stream.terminated.any())
    # Normalised rewards would be of the order of one.
    assert float(stream.rewards.min()) < -3.0
    assert torch.equal(stream.observations[1:][~stream.done[:-1]], stream.next_observations[:-1][~stream.done[:-1]])
    assert not torch.equal(stream.observations[200], stream.next_observations[199])


def test_observations_that_are_not_vectors_are_refused():
    with pytest.raises(UsageError, match="choose one with vectors"):
        record(RunConfig.from_preset("ppo", "FrozenLake-v1").with_critic("upstream"))


def test_a_stream_is_saved_and_loaded(tmp_path):
    PENDULUM.save(tmp_path / "stream.npz")
    again = Stream.load(tmp_path / "stream.npz")
    for field in dataclasses.fields(Stream):
        ours, theirs = getattr(PENDULUM, field.name), getattr(again, field.name)
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs
    (tmp_path / "other.npz").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="not a recorded stream"):
        Stream.load(tmp_path / "other.npz")


def test_returns_are_the_discounted_sums_where_they_are_known():
    steps, gamma = 30, 0.8
    rewards = torch.arange(1.0, steps + 1.0)[:, None].expand(steps, 2).clone()
    terminated, truncated = torch.zeros(steps, 2, dtype=torch.bool), torch.zeros(steps, 2, dtype=torch.bool)
    terminated[9, 0], truncated[19, 0], terminated[29, 1] = True, True, True
    nothing = torch.zeros(steps, 2, 1)
    stream = Stream(nothing, nothing, nothing, rewards, terminated, truncated)
    returns, known = stream.returns(gamma)
    ends = {0: (9, 19, 29), 1: (29,)}
    for env in (0, 1):
        for step in range(steps):
            end = next(last for last in ends[env] if last >= step)
            expected = sum(gamma ** (t - step) * float(rewards[t, env]) for t in range(step, end + 1))
            assert float(returns[step, env]) == pytest.approx(expected, rel=1e-5)
            whole = bool(terminated[end, env])
            # 1/(1-γ) = 5 steps before a cut are not judged.
            assert bool(known[step, env]) == (whole or end - step >= 5)


def test_explained_variance_is_of_returns_and_window_by_window():
    returns, known = PENDULUM.returns(0.99)
    # The returns of the last window are not known.
    assert explained(PENDULUM, returns, 0.99) == pytest.approx([1.0] * 9)
    assert explained(PENDULUM, torch.zeros_like(returns), 0.99) == pytest.approx([0.0] * 9)
    noisy = returns + 30.0 * torch.randn(returns.shape, generator=torch.Generator().manual_seed(0))
    expected = [
        1.0 - 900.0 / float(truth[where].var())
        for truth, where in zip(returns.tensor_split(10), known.tensor_split(10), strict=True)
        if int(where.sum()) > 1
    ]
    assert explained(PENDULUM, noisy, 0.99) == pytest.approx(expected, abs=0.1)


def test_the_default_predicts_where_adam_does_not():
    """Raw rewards: values of −150 are a long way for a learning rate."""
    kalman = fit(A2C_LABELS, PENDULUM)
    adam = max(
        A2C_LABELS.replay(PENDULUM, lambda critic, h, rate=rate: AdamCritic(critic, h, lr=rate)).mean
        for rate in (3e-4, 3e-3)
    )
    assert kalman > 0.2
    assert adam < 0.05


@pytest.mark.parametrize("factor", [1e-3, 1e4])
@pytest.mark.parametrize("labels", [A2C_LABELS, PPO_LABELS], ids=["A2C", "PPO"])
def test_other_units_of_the_rewards_change_nothing(labels, factor):
    short = cut(HOPPER, 300)
    plain, other = fit(labels, short, dtype=torch.float64), fit(labels, short.paid(factor), dtype=torch.float64)
    assert other == pytest.approx(plain, abs=1e-3)


def test_the_width_of_the_critic_does_not_matter():
    found = [fit(Rollouts(256, 0.95, batch_size=64, hidden=(width, width)), HOPPER) for width in (16, 64, 256)]
    assert min(found) > 0.3
    assert max(found) - min(found) < 0.03


def test_noise_learned_from_labels_that_bootstrap_does_not_collapse():
    """They agree with the critic, so what is left of them looks like no noise at all."""

    class Watched(kova.InnovationNoise):
        def remember(self, batch):
            memory = super().remember(batch)
            seen.append(memory["variance"])
            return memory

    least, scores = {}, {}
    for floor in (1e-6, 0.1):
        seen: list[float] = []
        scores[floor] = fit(A2C_LABELS, HOPPER, noise=Watched(floor=floor), evolution=kova.PriorRelaxation(0.001))
        least[floor] = min(seen)
    assert least[1e-6] < 0.02, "without its floor the estimate falls to a fiftieth of the labels' variance"
    assert least[0.1] == pytest.approx(0.1)
    assert scores[0.1] > 0.7


def test_a_checked_step_forgives_a_noise_that_is_wrong_a_thousand_times():
    found = [
        fit(A2C_LABELS, HOPPER, noise=kova.ConstantNoise(0.05 * wrong), trust=kova.GainRatio())
        for wrong in (1e-3, 1.0, 1e3)
    ]
    best = max(fit(A2C_LABELS, HOPPER, noise=kova.ConstantNoise(noise)) for noise in (0.01, 0.05))
    # Not 0.95, as on long streams: of these 12,000 frames it needs some to find out.
    assert min(found) > 0.9 * best
    assert fit(A2C_LABELS, HOPPER, noise=kova.ConstantNoise(100.0)) < 0.2 * best, "unchecked it does not learn at all"


@pytest.mark.parametrize(("algo", "env"), [("dqn", "CartPole-v1"), ("ddpg", "Pendulum-v1")])
def test_off_policy_streams_are_learned_from(algo, env):
    config = RunConfig.from_preset(algo, env).with_critic("upstream").with_values({"steps": 1500})
    stream = record(config)
    assert stream.choices == (2 if algo == "dqn" else 0)
    scheme = ReplayBuffer(every=100, updates=20, batch_size=32, tau=0.1, learning_starts=200, gamma=0.9)
    found = scheme.replay(stream, lambda critic, h: kova.KOVA(critic, h))
    assert np.mean(found.explained[-3:]) > 0.1
    assert found.seconds > 0.0
