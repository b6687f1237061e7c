"""The mean return with the critic as control variate: its interval holds, is narrower where it can be, and stops."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.evaluation.play import mean_and_interval
from kova.experiments.evaluation.until import LEAST, adjusted_mean, play_until, start_values
from kova.sb3 import A2C


def evaluation(rng: np.random.Generator, count: int, explained: float) -> tuple[np.ndarray, np.ndarray]:
    """Return episodes of mean 5 and variance 1, and a critic on another scale that explains a share of it."""
    values = rng.standard_normal(count)
    returns = 5.0 + np.sqrt(explained) * values + np.sqrt(1.0 - explained) * rng.standard_normal(count)
    return returns, 100.0 + 3.0 * values


@pytest.mark.parametrize("explained", [0.0, 0.9])
def test_the_interval_holds_the_mean_and_is_as_wide_as_what_is_not_explained(explained):
    rng = np.random.default_rng(0)
    inside, widths, plain = [], [], []
    for _ in range(1500):
        returns, values = evaluation(rng, 30, explained)
        starts = 100.0 + 3.0 * rng.standard_normal(1000)
        mean, half = adjusted_mean(returns, values, starts)
        inside.append(abs(mean - 5.0) <= half)
        widths.append(half)
        plain.append(mean_and_interval(list(returns))[1])
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)
    # With the error of a mean over 1,000 starts: 0.1 / 30 + 0.9 / 1000 of the plain 1 / 30.
    expected = np.sqrt(1.0 - explained + explained * 30 / 1000)
    assert np.median(widths) / np.median(plain) == pytest.approx(expected, rel=0.06)


def test_it_is_the_regression_line_at_the_mean_of_the_starts():
    rng = np.random.default_rng(1)
    returns, values = evaluation(rng, 12, 0.5)
    starts = np.full(100_000, 101.0)
    mean, half = adjusted_mean(returns, values, starts)
    line = scipy.stats.linregress(values, returns)
    assert mean == pytest.approx(line.intercept + line.slope * 101.0)
    # The textbook's interval of a regression line.
    residuals = returns - line.intercept - line.slope * values
    error = np.sqrt((residuals**2).sum() / 10 * (1 / 12 + (101.0 - values.mean()) ** 2 / (12 * values.var())))
    assert half == pytest.approx(error * scipy.stats.t.ppf(0.975, 10))


def test_a_critic_that_says_the_same_of_all_starts_is_left_out():
    returns = np.arange(6.0)
    assert adjusted_mean(returns, np.full(6, 7.0), np.full(50, 7.0)) == mean_and_interval(list(returns))


def test_an_interval_that_stops_early_still_holds():
    """Looking after every episode stops too early by chance; not so often as to matter."""
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(400):
        returns, values = evaluation(rng, 200, 0.8)
        starts = 100.0 + 3.0 * rng.standard_normal(1000)
        for count in range(LEAST, 200):
            mean, half = adjusted_mean(returns[:count], values[:count], starts)
            if half <= 0.15:
                break
        inside.append(abs(mean - 5.0) <= half)
    assert np.mean(inside) > 0.9


def test_an_agent_is_played_until_its_return_is_known():
    model = A2C("MlpPolicy", "Pendulum-v1", seed=0).learn(3000)
    env = model.get_env()
    starts = start_values(model, env, seed=5, count=40)
    assert starts.shape == (40,)
    assert starts.std() > 0.0
    played = list(play_until(model, env, 400.0, seed=0, deterministic=True, most=15))
    assert LEAST <= len(played) <= 15
    assert played[-1][2] <= 400.0 or len(played) == 15
    assert [episode.length for episode, *_ in played] == [200] * len(played)
    assert len(list(play_until(model, env, 1e-6, seed=0, deterministic=True, most=11))) == 11


def test_kova_eval_stops_by_itself(tmp_path):
    run = tmp_path / "run"
    cli = CliRunner()
    assert cli.invoke(app, ["train", "a2c", "CartPole-v1", "--steps", "400", "--run-dir", str(run)]).exit_code == 0
    found = cli.invoke(app, ["eval", str(run), "--within", "500"])
    assert found.exit_code == 0, found.output
    assert f"{LEAST} episodes" in found.output
    found = cli.invoke(app, ["eval", str(run), "--within", "0.0001", "--stochastic", "--episodes", "12"])
    assert "not within ± 0.0001 after 12 episodes" in found.output
    found = cli.invoke(app, ["eval", str(run), "--within", "1", "--video", str(tmp_path / "a.mp4")])
    assert found.exit_code == 2
    assert "--within and --video do not go together" in found.output
