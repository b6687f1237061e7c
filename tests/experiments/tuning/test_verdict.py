"""The verdict must not praise what the runs cannot tell."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from kova.experiments.runs.config import RunConfig
from kova.experiments.tuning.preset import as_preset
from kova.experiments.tuning.verdict import Verdict, comparison

BASE = RunConfig.from_preset("a2c", "CartPole-v1").with_critic("adam").changed(steps=700)
FOUND = {"critic.learning_rate": 0.002, "algorithm.gamma": 0.98}


@pytest.mark.parametrize(
    ("default", "tuned", "says"),
    [
        ([1, 2, 3, 4, 5], [11, 12, 13, 14, 15], "Tuning helped: a run of the tuned setting earns more than one of the"),
        ([11, 12, 13, 14, 15], [1, 2, 3, 4, 5], "Tuning did harm"),
        ([1, 2, 3, 4, 5], [2, 3, 4, 5, 6], "Tuning did not beat the default"),
        # All three wins, and still it might be luck.
        ([1, 2, 3], [4, 5, 6], "Tuning did not beat the default"),
        ([1], [4], "There is no verdict"),
        ([1, 2], [], "There is no verdict: no run of tuned was finished"),
        ([], [], "There is no verdict: no run of default and tuned was finished"),
    ],
)
def test_the_sentence_is_as_sure_as_the_interval(default, tuned, says):
    verdict = Verdict({"default": np.array(default, float), "tuned": np.array(tuned, float)})
    assert verdict.sentence.startswith(says)


def test_the_default_that_was_best_is_said_to_be():
    assert "found nothing better" in Verdict({"default": np.array([1.0, 2.0])}).sentence


def test_intervals_stay_inside_the_scores():
    verdict = Verdict({"default": np.array([1.0, 9.0]), "tuned": np.array([2.0, 3.0])})
    for arm in ("default", "tuned"):
        interval = verdict.interval(arm)
        assert 1.0 <= interval.low <= interval.estimate <= interval.high <= 9.0
    assert Verdict({"default": np.zeros(0)}).interval("default") is None


def test_both_settings_are_run_on_the_same_seeds():
    sweep = comparison(BASE, {"n_envs": 2}, FOUND, [102, 103], "name")
    runs = sweep.runs()
    assert [(run.arm, run.config.seed) for run in runs] == [
        *(("default", 102), ("tuned", 102)),
        *(("default", 103), ("tuned", 103)),
    ]
    held = BASE.with_values({"n_envs": 2})
    assert runs[0].config == held.changed(seed=102)
    assert runs[1].config == held.with_values(FOUND).changed(seed=102)
    assert list(comparison(BASE, {}, {}, [102], "name").arms) == ["default"]


def test_a_preset_gives_the_run_back(tmp_path):
    config = BASE.with_values(FOUND)
    path = tmp_path / "preset.yaml"
    path.write_text(as_preset(config, ["two\nlines", "word " * 60]))
    assert RunConfig.from_preset("a2c", "CartPole-v1", str(path)).changed(preset="default") == config
    text = path.read_text()
    assert text.startswith("# two lines\n# word")
    assert max(map(len, text.splitlines())) <= 120
    assert {"seed", "wrappers", "env_kwargs", "vec"}.isdisjoint(yaml.safe_load(text)["a2c"])
