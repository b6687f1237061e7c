"""The demo, on a small scale, as a user would run it."""

from __future__ import annotations

from rich.console import Console

from kova.experiments.commands import demo


def test_the_demo_ends_with_a_table_and_a_picture_and_goes_on_where_it_was(tmp_path):
    console = Console(record=True, width=120)
    demo.run(tmp_path, "CartPole-v1", 2_048, 1, console, "kova demo --steps 2048")
    text = console.export_text()
    assert "A2C, Kalman critic" in text
    assert "A2C, Stable-Baselines3" in text
    assert "returns are in the environment's reward units" in text
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    runs = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert runs == ["a2c-CartPole-v1-2048-kova-seed0", "a2c-CartPole-v1-2048-upstream-seed0"]
    before = [(tmp_path / name / "monitor.csv").read_text() for name in runs]
    demo.run(tmp_path, "CartPole-v1", 2_048, 1, Console(quiet=True), "kova demo")
    assert [(tmp_path / name / "monitor.csv").read_text() for name in runs] == before


def test_a_demo_in_which_no_episode_ends_says_so(tmp_path):
    console = Console(record=True, width=120)
    demo.run(tmp_path, "Pendulum-v1", 400, 1, console, "kova demo --steps 400")
    assert "no episode ended" in console.export_text()
