"""The examples run as a reader would run them, and say something true."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_from_the_shell(path):
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" in done.stdout
    assert "nan" not in done.stdout


@pytest.mark.parametrize(("name", "bound"), [("state_value", 0.12), ("action_value", 0.05), ("advantage", 0.4)])
def test_an_example_finds_the_known_answer(name, bound):
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]() < bound


@pytest.mark.parametrize("name", ["state_value", "advantage"])
def test_a_printed_bar_tells_where_the_exact_value_is(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    rows = re.findall(r"(-?\d+\.\d\d) +(-?\d+\.\d\d) ± (\d+\.\d\d)", capsys.readouterr().out)
    exact, learned, bars = np.array(rows, dtype=float).T
    assert len(rows) >= 7
    assert (np.abs(learned - exact) <= bars + 0.01).mean() > 0.8
    # And a bar that holds everything would tell nothing.
    assert np.median(bars) < 0.5 * np.std(exact)


def test_ppos_value_is_paid_and_its_bar_is_no_larger_than_what_is_unknown(capsys):
    """InvertedPendulum pays 1 a frame; an untrained agent holds it for some ten of them."""
    earned = runpy.run_path(str(EXAMPLES / "ppo_continuous_action.py"))["main"]()
    value, bar, error = map(
        float,
        re.search(r"value (\S+) ± (\S+) \(2σ\), root-mean-square error .* (\S+)\n", capsys.readouterr().out).groups(),
    )
    assert 0.25 * earned < value < 4.0 * earned
    assert bar < 2.0 * error


def test_a_policy_is_evaluated_in_twenty_lines():
    assert runpy.run_path(str(EXAMPLES / "policy_evaluation.py"))["main"]() > 30.0


def test_an_own_noise_model_pays():
    plain, robust = runpy.run_path(str(EXAMPLES / "own_models.py"))["main"]()
    assert robust < 0.3 * plain


def test_an_evaluation_with_the_critic_stops_sooner_and_is_as_right():
    found = runpy.run_path(str(EXAMPLES / "evaluate_until_known.py"))["main"](repeats=30)
    saved = np.array(found["with the critic"]) / np.array(found["returns alone"])
    assert saved[-1] < 0.8
    assert np.mean(found["with the critic: inside"]) > 0.85
