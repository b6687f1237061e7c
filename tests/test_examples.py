"""The examples run as a reader would run them, and say something true."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

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


def test_a_policy_is_evaluated_in_twenty_lines():
    assert runpy.run_path(str(EXAMPLES / "policy_evaluation.py"))["main"]() > 30.0


def test_an_own_noise_model_pays():
    plain, robust = runpy.run_path(str(EXAMPLES / "own_models.py"))["main"]()
    assert robust < 0.3 * plain
