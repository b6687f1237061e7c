"""The comparison of critics on the same rollouts, on a small scale."""

from __future__ import annotations

import json

from rich.console import Console

from kova.experiments.benchmarks import critic_passes


def test_critics_are_compared_on_the_same_rollouts(tmp_path, monkeypatch):
    few = {name: critic_passes.ARMS[name] for name in ("Adam, 10 × 64", "neuron, 1 × 64")}
    monkeypatch.setattr(critic_passes, "ARMS", few)
    critic_passes.run(tmp_path, "Pendulum-v1", 6_144, 0, Console(quiet=True), "kova bench passes")
    record = json.loads((tmp_path / "critic_passes_Pendulum-v1.json").read_text())
    assert record["settings"]["rollouts"] == 3
    assert [arm["arm"] for arm in record["results"]] == list(few)
    for arm in record["results"]:
        assert arm["second_half"] <= 1.0
        assert arm["milliseconds"] > 0.0


def test_a_rollout_is_recorded_as_the_buffer_had_it():
    rollouts = critic_passes.record_rollouts("CartPole-v1", 2_048, 0)
    assert len(rollouts) == 1
    rollout = rollouts[0]
    assert rollout.observations.shape == (2_049, 4)
    assert rollout.rewards.shape == rollout.ended.shape == (2_048,)
    # An untrained cart ends an episode about every twenty steps.
    assert 40 < int(rollout.ended.sum()) < 200
    explained, seconds = critic_passes.replay(critic_passes.CriticFit(5, 64), rollouts * 2)
    assert explained[1] > explained[0] + 0.1
    assert seconds > 0.0
