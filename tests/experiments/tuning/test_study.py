"""The study: what it draws after a stop, what it refuses, and what it makes of its trials."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import TrialState

from kova.experiments.errors import UsageError
from kova.experiments.runs.config import RunConfig
from kova.experiments.tuning import figure
from kova.experiments.tuning.importance import ENOUGH, importances
from kova.experiments.tuning.ranges import Real
from kova.experiments.tuning.study import JOURNAL, POINTS, TuningStudy

BASE = RunConfig.from_preset("a2c", "CartPole-v1")
SPACE = [
    Real(1e-4, 1e-2, log=True).around("algorithm.learning_rate", 7e-4),
    Real(0.9, 1.0).around("algorithm.gae_lambda", 1.0),
    Real(0.1, 5.0, log=True).around("algorithm.max_grad_norm", 0.5),
]


def study(folder: Path, base: RunConfig = BASE, seeds: tuple[int, ...] = (100,), space=SPACE) -> TuningStudy:
    return TuningStudy(folder, base, space, seeds)


def earned(trial) -> float:
    """Return what a trial would earn: most at a learning rate of 0.002."""
    return 100.0 - 40.0 * (math.log10(trial.params["algorithm.learning_rate"]) - math.log10(0.002)) ** 2


def search(folder: Path, count: int, stop_after: int | None = None) -> TuningStudy:
    """Run a search that is left and opened again after some trials, in the middle of one."""
    found = study(folder)
    while len(found.trials) < count:
        trial = found.ask()
        trial.report(earned(trial) / 2, 5)
        if trial.number == stop_after:
            found = study(folder)
            (trial,) = found.unfinished
        if trial.should_prune():
            found.tell(trial)
        else:
            found.tell(trial, earned(trial))
    return found


def outcome(found: TuningStudy) -> list:
    return [(trial.number, trial.params, trial.state, trial.values) for trial in found.trials]


def test_a_search_that_was_stopped_draws_what_it_would_have_drawn(tmp_path):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = search(tmp_path / "whole", 16)
    stopped = search(tmp_path / "stopped", 16, stop_after=12)
    assert outcome(stopped) == outcome(whole)
    # Opening it once more changes nothing, and no two trials are the same.
    assert outcome(study(tmp_path / "stopped")) == outcome(whole)
    assert len({str(trial.params) for trial in whole.trials}) == 16
    assert {trial.state for trial in whole.trials} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_the_first_trial_is_the_default_exactly(tmp_path):
    found = study(tmp_path)
    first, second = found.ask(), found.ask()
    assert found.settings(first) == {}
    assert found.config(first, 100) == BASE.changed(seed=100)
    assert first.params["algorithm.learning_rate"] == 7e-4
    assert found.config(second, 101).algorithm.keys() == {"learning_rate", "gae_lambda", "max_grad_norm"}
    assert found.config(second, 101).seed == 101


def test_half_a_line_that_a_kill_left_is_forgotten(tmp_path):
    before = outcome(search(tmp_path, 3))
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    (tmp_path / f"{JOURNAL}.lock").write_text("")
    found = study(tmp_path)
    assert outcome(found) == before
    # What is written after it can be read again.
    found.tell(found.ask(), 1.0)
    assert len(study(tmp_path).trials) == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"base": BASE.changed(steps=5)}, "begun with other settings"),
        ({"seeds": (100, 101)}, "begun with other seeds"),
        ({"space": SPACE[:1]}, "begun with other ranges"),
    ],
)
def test_another_search_in_the_same_place_is_refused(change, says, tmp_path):
    study(tmp_path)
    with pytest.raises(UsageError, match=f"{says}; give those again, or choose another --out"):
        study(tmp_path, **change)
    assert study(tmp_path).trials == []


def test_a_file_that_is_no_study_is_refused(tmp_path):
    (tmp_path / JOURNAL).write_text("words\nand words\n")
    with pytest.raises(UsageError, match="cannot be read"):
        study(tmp_path)


def test_a_failed_trial_is_kept_with_its_reason_and_is_never_the_best(tmp_path):
    found = study(tmp_path)
    found.tell(found.ask(), why="out of memory")
    assert found.best is None
    found.tell(found.ask(), 3.0)
    found.tell(found.ask(), 3.0)
    assert found.trials[0].state is TrialState.FAIL
    assert found.trials[0].user_attrs["why"] == "out of memory"
    assert found.best.number == 1


def test_the_setting_that_mattered_is_named_although_most_trials_were_pruned(tmp_path):
    found, rng = study(tmp_path), np.random.default_rng(0)
    assert importances(found.trials, SPACE) == {}
    for number in range(3 * ENOUGH):
        trial = found.ask()
        for point in range(1, POINTS if number % 3 == 0 else 5):
            trial.report(earned(trial) * point / POINTS + rng.normal(), point)
        if number % 3 == 0:
            found.tell(trial, earned(trial))
        else:
            found.tell(trial)
    weights = importances(found.trials, SPACE)
    assert next(iter(weights)) == "algorithm.learning_rate"
    assert weights["algorithm.learning_rate"] > 0.5
    assert all(0.0 <= weight <= 1.0 for weight in weights.values())


@pytest.mark.parametrize("count", [0, 1, 12])
def test_every_search_can_be_drawn(count, tmp_path):
    found = study(tmp_path)
    for number in range(count):
        trial = found.ask()
        trial.report(1.0, 1)
        found.tell(trial, *([earned(trial)] if number % 3 == 0 else []), why="x" if number % 3 == 1 else "")
    figure.save(found, tmp_path / "tuning.png", "title")
    assert (tmp_path / "tuning.png").stat().st_size > 10_000
