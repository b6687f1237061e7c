"""The demo and the study of passes, on a small scale, as a user would run them."""

from __future__ import annotations

import json

from rich.console import Console

from kova.experiments.benchmarks import critic_passes
from kova.experiments.commands import demo


def test_the_demo_ends_with_a_table_and_a_picture_and_goes_on_where_it_was(tmp_path):
    console = Console(record=True, width=120)
    demo.run(tmp_path, "CartPole-v1", 2_048, 1, console, "kova demo --steps 2048")
    text = console.export_text()
    assert "Kalman critic" in text
    assert "Adam critic" in text
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    runs = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert runs == ["CartPole-v1-2048-adam-seed0", "CartPole-v1-2048-kova-seed0"]
    before = [(tmp_path / name / "monitor.csv").read_text() for name in runs]
    demo.run(tmp_path, "CartPole-v1", 2_048, 1, Console(quiet=True), "kova demo")
    assert [(tmp_path / name / "monitor.csv").read_text() for name in runs] == before


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
