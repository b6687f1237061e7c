"""``kova eval``, the video and the pictures."""

from __future__ import annotations

import re
from pathlib import Path

import imageio.v2 as imageio
import matplotlib as mpl
import numpy as np
import pytest
import scipy.stats
import torch
from stable_baselines3.common.vec_env import VecFrameStack
from typer.testing import CliRunner

from kova.cli import app
from kova.experiments.commands.evaluate import at_the_start
from kova.experiments.evaluation import curves, video
from kova.experiments.evaluation.play import (
    Episode,
    mean_and_interval,
    play,
    return_trace,
    uncertainty_correlation,
    value_at_start,
)
from kova.experiments.evaluation.wording import with_error
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build, load
from kova.experiments.runs.run_directory import RunDirectory
from kova.sb3 import A2C, PPO

runner = CliRunner()

# imageio leaves the pipe to its encoder to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", params=["kova", "adam"])
def trained(request, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("eval") / "run"
    arguments = ["--steps", "128", "--critic", request.param, "--run-dir", str(run)]
    sizes = ["--set", "algorithm.n_steps=64", "--set", "algorithm.batch_size=64"]
    result = runner.invoke(app, ["train", "ppo", "CartPole-v1", *arguments, *sizes])
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert f"kova eval {run}" in result.output
    assert "returns and values are in the environment's reward units" in result.output
    return run


def test_eval_prints_the_mean_and_writes_a_video_that_plays(trained: Path, tmp_path: Path):
    path = tmp_path / "new" / "play.mp4"
    result = runner.invoke(app, ["eval", str(trained), "--episodes", "3", "--video", str(path)])
    assert result.exit_code == 0, result.output
    found = re.search(r"return (\d+\.\d) ± (\d+\.\d) \(95 % interval\), 3 episodes", result.output)
    assert found, result.output
    with imageio.get_reader(path) as reader:
        frames = [np.asarray(frame) for frame in reader]
        assert reader.get_meta_data()["fps"] == 50
    assert 8 <= len(frames) <= 500
    # CartPole draws 400 lines; the strip is below.
    assert {frame.shape for frame in frames} == {(frames[0].shape[0], 600, 3)}
    strips = [frame[400:] for frame in frames]
    assert strips[0].shape[0] >= 100
    orange = [(np.abs(strip.astype(int) - video.BAND).sum(2) < 60).mean() for strip in strips]
    # Below the text only the cursor has more green than red.
    green = [np.argmax((strip[60:, :, 1].astype(int) - strip[60:, :, 0]).sum(0)) for strip in strips]
    if "optimizer: kova" in (trained / "config.yaml").read_text():
        assert min(orange) > 0.05
        assert green[0] < 40
        assert green[-1] > 560
    else:
        assert max(orange) == 0.0
    assert [item.name for item in path.parent.iterdir()] == ["play.mp4"]


def test_eval_repeats_itself(trained: Path):
    outputs = {runner.invoke(app, ["eval", str(trained), "--episodes", "2"]).output for _ in range(2)}
    assert len(outputs) == 1


def test_a_picture_of_any_size_gets_a_strip(tmp_path: Path):
    for width in (33, 210, 1201):
        frames = [np.zeros((21, width, 3), np.uint8)] * 2
        episode = Episode(1.0, np.ones(2), np.array([1.0, 2.0]), np.array([0.5, 0.5]), frames, 2)
        video.write(tmp_path / "any.mp4", episode, fps=10)
        with imageio.get_reader(tmp_path / "any.mp4") as reader:
            assert reader.count_frames() == 2
            assert reader.get_data(0).shape[1] == width + width % 2


def test_the_words_of_a_strip_fit_and_do_not_touch():
    for width in (120, 210, 600, 1201):
        frames = [np.zeros((21, width, 3), np.uint8)]
        length = 30
        mean, deviations = np.linspace(-12345.0, -300.0, length), np.full(length, 80.0)
        strip = video.Strip(Episode(1.0, mean, mean, deviations, frames * length, length)).at(0)
        size = int(np.clip(width / 32, 11, 28))
        ink = (strip < 200).any(axis=2)
        first, second = ink[: size * 5 // 4], ink[size * 3 // 2 : 5 * size // 2]
        assert first.any()
        assert second.any()
        for line in (first, second):
            assert not line[:, : size // 4].any()
            assert not line[:, -(size // 4) :].any()
        # The gap between the range and the present value.
        assert not first[:, int(0.67 * width) : int(0.69 * width)].any()


def test_a_number_has_the_digits_of_its_error():
    assert with_error(-1234.567, 75.3) == "-1235 ± 75"
    assert with_error(44.123, 3.04) == "44.1 ± 3.0"
    assert with_error(0.00123, 0.00045) == "0.00123 ± 0.00045"
    assert with_error(7.0, 0.0) == "7.00 ± 0.00"
    assert with_error(99.342951696, 1e-14) == "99.34 ± 0.00"


def test_the_interval_is_students():
    mean, half = mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    assert np.isnan(mean_and_interval([1.0])[1])


def test_the_learning_curve_is_a_picture(trained: Path):
    picture = np.asarray(imageio.imread(trained / "curves.png"))
    assert picture.shape[0] == 480
    assert {path.name for path in trained.glob(".*")} <= {".lock"}


def test_the_pictures_say_in_which_units_they_are(trained: Path, tmp_path: Path):
    values = np.array([3.0, 2.0, 1.0])
    with mpl.rc_context({"svg.fonttype": "none"}):
        episode = Episode(3.0, values, values, values, [], 3, values - 2.0, values + 1.0)
        curves.save(tmp_path / "c.svg", {"arm": [trained]}, episode, "title")
    # Lines of a label are texts of their own.
    words = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "c.svg").read_text())
    assert words.count("in the environment's reward units") == 2
    assert {"return of a training episode,", "discounted return,", "discounted return that followed"} <= set(words)
    assert {"90% of returns", "± 2σ of the value"} <= set(words)


def test_an_episode_has_the_band_of_the_return_once_enough_returns_are_known():
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, gamma=0.8, seed=0, device="cpu").learn(512)
    asked = (np.zeros((3, 4), dtype=np.float32),)
    low, high = return_trace(model, asked)
    band = model.predict_return(*asked, level=0.9)
    np.testing.assert_array_equal(low, band.low.numpy())
    assert (low < high).all()
    early = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, seed=0, device="cpu").learn(16)
    assert return_trace(early, asked) == (None, None)


def test_eval_prints_the_value_at_the_start_beside_what_followed(trained: Path):
    directory = RunDirectory(trained)
    model, env = load(directory.config().changed(n_envs=1), directory.latest_checkpoint())
    output = runner.invoke(app, ["eval", str(trained), "--episodes", "3"]).output
    if directory.config().critic["optimizer"] != "kova":
        assert "at the start" not in output
        return
    played = [play(model, env, seed=seed) for seed in range(3)]
    value, error = (np.mean([getattr(episode, name)[0] for episode in played]) for name in ("mean", "stddev"))
    followed = with_error(*mean_and_interval([episode.realised[0] for episode in played]))
    assert (
        f"at the start: value {with_error(value, 2 * error)} (2σ), discounted return that followed {followed} "
        "(95 % interval), in the environment's reward units; the value is that of the policy with its exploration "
        "(--stochastic)\n"
    ) in output
    alone = runner.invoke(app, ["eval", str(trained), "--episodes", "1", "--stochastic"]).output
    assert re.search(r"that followed [\d.]+, in the environment's reward units\n", alone), alone


def test_the_error_at_the_start_does_not_average_out():
    episodes = [Episode(0.0, np.zeros(2), np.full(2, mean), np.full(2, 3.0), [], 2) for mean in (1.0, 2.0, 6.0)]
    assert value_at_start(episodes) == (3.0, 3.0)
    assert "value 3.0 ± 6.0 (2σ)" in at_the_start(episodes)
    assert value_at_start([Episode(0.0, np.zeros(2), None, None, [], 2)]) is None


@pytest.mark.parametrize(("known", "said"), [(0, True), (1, False)])
def test_a_return_that_the_time_limit_cut_is_called_so(known, said):
    """The critic values what would have followed, too."""
    played = [Episode(1.0, np.ones(2), np.ones(2), np.ones(2), [], frames) for frames in (2, known)]
    assert ("cut off by the time limit" in at_the_start(played)) == said


def episode_with(errors: np.ndarray, deviations: np.ndarray, known: int | None = None) -> Episode:
    zeros = np.zeros(len(errors))
    return Episode(0.0, errors, zeros, deviations, [], len(errors) if known is None else known)


def test_the_correlation_of_uncertainty_and_error_is_spearmans():
    rng = np.random.default_rng(0)
    deviations = rng.uniform(0.1, 1.0, (6, 200))
    telling = [episode_with(row * rng.standard_normal(200), row) for row in deviations]
    silent = [episode_with(rng.standard_normal(200), row) for row in deviations]
    rho, low, high = uncertainty_correlation(telling)
    assert 0.2 < low < rho < high < 0.8
    together = np.concatenate([np.abs(episode.realised) for episode in telling])
    assert rho == pytest.approx(scipy.stats.spearmanr(deviations.ravel(), together).statistic)
    _, low, high = uncertainty_correlation(silent)
    assert low < 0.0 < high


def test_frames_whose_return_a_time_limit_hides_do_not_count():
    rng = np.random.default_rng(0)
    row = rng.uniform(0.1, 1.0, 400)
    errors = np.concatenate([row[:200], 100.0 - row[200:]])
    rho, *_ = uncertainty_correlation([episode_with(errors, row, known=200)] * 2)
    assert rho == pytest.approx(1.0)
    assert uncertainty_correlation([episode_with(errors, row, known=0)] * 2) is None
    assert uncertainty_correlation([episode_with(errors, row)]) is None


@pytest.mark.parametrize("normalised", [True, False])
def test_values_and_returns_are_in_units_of_the_reward(normalised):
    """Observations are normalised in both, and VecNormalize keeps a scale of rewards even where it does not use it."""
    config = RunConfig.from_preset("a2c", "Pendulum-v1").with_values({"normalize_rewards": normalised, "n_envs": 1})
    env = environments.normalized(environments.make(config), config)
    model = build(config, env)
    model.learn(600)
    episode = play(model, env, seed=0)
    assert episode.total < -100.0
    # Pendulum ends at its time limit; with a discount of 0.99 a seventh of the return is left after 200 frames.
    discounted = float(episode.realised[0])
    assert episode.total < discounted < 0.2 * episode.total
    env.seed(0)
    # A2C's preset normalises observations too, so this is what the critic sees.
    critic = model.critic_optimizer.predict(torch.as_tensor(env.reset()), calibrated=True)
    scale = np.sqrt(env.ret_rms.var + env.epsilon) if normalised else 1.0
    assert episode.mean[0] == pytest.approx(scale * float(critic.mean), rel=1e-5)
    assert episode.stddev[0] == pytest.approx(scale * float(critic.stddev), rel=1e-5)
    again = play(model, env, seed=0)
    np.testing.assert_allclose(again.mean, episode.mean)


def test_rewards_are_as_paid_also_where_the_normalisation_is_not_the_outermost_wrapper():
    config = RunConfig.from_preset("a2c", "Pendulum-v1").with_values({"normalize_rewards": True, "n_envs": 1})
    env = VecFrameStack(environments.normalized(environments.make(config), config), 2)
    model = build(config, env)
    model.learn(300)
    episode = play(model, env, seed=0)
    assert episode.total < episode.realised[0] < 0.2 * episode.total


def test_a_return_that_a_time_limit_cuts_is_completed_by_the_value_of_the_last_state():
    model = A2C("MlpPolicy", "Pendulum-v1", seed=0, n_steps=64, gamma=0.95).learn(256)
    env = model.get_env()
    episode = play(model, env, seed=3)
    assert episode.length == 200
    assert episode.known == 200 - 58
    # 0.95 ** 20 is just below 1/e.
    assert len(episode.judged) == 200 - 19
    rest = (episode.judged - episode.realised[:181]) / 0.95 ** np.arange(200, 19, -1)
    assert rest == pytest.approx(np.full(181, rest[0]), rel=1e-5)
    env.seed(3)
    observation = env.reset()
    for _ in range(200):
        observation, _, _, infos = env.step(model.predict(observation, deterministic=True)[0])
    last = infos[0]["terminal_observation"]
    assert rest[0] == pytest.approx(model.predict_value(last).mean.item(), rel=1e-4)
