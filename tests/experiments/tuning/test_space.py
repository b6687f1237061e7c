"""What a search varies, and how it is written down."""

from __future__ import annotations

import pytest

import kova
from kova.experiments.errors import UsageError
from kova.experiments.runs import environments
from kova.experiments.runs.config import ALGORITHMS, RunConfig
from kova.experiments.runs.expressions import linear, resolve
from kova.experiments.runs.model import build
from kova.experiments.tuning.ranges import Dimension, Doublings, Field, FromOne, Rate, Real, Whole
from kova.experiments.tuning.space import dimensions


def space(algo: str, critic: str = "kova", held: tuple[str, ...] = (), **values) -> dict[str, Dimension]:
    base = RunConfig.from_preset(algo, "Pendulum-v1" if algo in ("ddpg", "td3", "sac") else "CartPole-v1")
    base = base.with_critic(critic).with_values({"policy.net_arch": [8], **values})
    env = environments.normalized(environments.make(base), base)
    try:
        return {one.key: one for one in dimensions(base, build(base, env), held)}
    finally:
        env.close()


@pytest.mark.parametrize("critic", ["kova", "adam", "upstream"])
@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_both_ends_of_every_range_and_its_start_are_settings_that_a_run_takes(algo, critic):
    found = space(algo, critic)
    base = RunConfig.from_preset(algo, "X-v0").with_critic(critic)
    assert "algorithm.gamma" in found
    for key, one in found.items():
        assert one.distribution.low <= one.start <= one.distribution.high
        for drawn in (one.distribution.low, one.start, one.distribution.high):
            assert base.with_values({key: one.write(drawn)}) != base or drawn == one.start


def test_the_filters_models_stay_and_their_numbers_are_searched():
    found = space("dqn")
    # The algorithm's own defaults, not those of the optimizer.
    assert resolve(found["critic.evolution"].write(found["critic.evolution"].start)) == kova.PriorRelaxation(0.01)
    assert resolve(found["critic.noise"].write(found["critic.noise"].start)) == kova.ConstantNoise(1.0)
    paper = {"critic.evolution": "FadingMemory(0.02, max_variance=7.0)", "critic.units": "RawUnits()"}
    other = space("a2c", **paper)
    assert resolve(other["critic.evolution"].write(0.1234567)) == kova.FadingMemory(0.123, max_variance=7.0)
    assert resolve(other["critic.noise"].write(3.0)) == kova.BatchSize(3.0)


def test_rivals_are_searched_by_what_they_have():
    adam, upstream = space("ppo", "adam"), space("ppo", "upstream")
    assert {"critic.learning_rate", "critic.epochs"} <= adam.keys()
    # As often as upstream passes over a rollout, and with its rate.
    assert (adam["critic.epochs"].start, adam["critic.learning_rate"].start) == (10, 3e-4)
    assert "algorithm.vf_coef" in upstream
    assert "algorithm.vf_coef" not in space("ppo", "kova")
    assert not [key for key in upstream if key.startswith("critic.")]
    assert "algorithm.learning_rate" in space("dqn", "upstream")
    assert "algorithm.learning_rate" not in space("dqn", "kova")


def test_what_is_held_is_not_searched():
    every = space("a2c")
    assert space("a2c", held=("algorithm.gamma",)).keys() == every.keys() - {"algorithm.gamma"}
    with pytest.raises(UsageError, match="held by --set; leave one out"):
        space("a2c", held=tuple(every))


def test_a_rollout_is_a_tenth_of_the_run_at_most():
    # Eight environments: 8 × 5 × 16 = 640 frames is a tenth of 6,400.
    assert space("a2c", steps=6400)["algorithm.n_steps"].distribution.high == 4
    assert space("a2c", steps=6399)["algorithm.n_steps"].distribution.high == 3
    # What the search begins with stays, even if it is too much.
    assert space("a2c", steps=10)["algorithm.n_steps"].distribution.high == 0


def test_a_setting_that_is_no_number_is_left_alone():
    assert "algorithm.train_freq" in space("dqn")
    assert "algorithm.train_freq" not in space("dqn", **{"algorithm.train_freq": [1, "episode"]})


@pytest.mark.parametrize(
    ("one", "drawn", "written"),
    [
        (Real(0.0, 1.0).around("k", 0.5), 0.123456, 0.123),
        (Whole(1, 4).around("k", 2), 3, 3),
        (Doublings(1, 2).around("k", 5), 2, 20),
        (Doublings(1, 2).around("k", 5), -1, 2),
        (FromOne(0.001, 0.1).around("k", 0.99), 0.0123456, 0.9877),
        (Rate(1e-4, 1e-2).around("k", 1e-3), 0.00123456, 0.00123),
        (Rate(1e-4, 1e-2).around("k", linear(1e-3, 5e-4)), 0.002, "linear(0.002, 0.001)"),
        (Field("eta", 1e-4, 0.1).around("k", kova.PriorRelaxation(0.01)), 0.02, "PriorRelaxation(eta=0.02)"),
    ],
)
def test_what_was_drawn_is_written_as_a_setting(one, drawn, written):
    assert one.write(drawn) == written


def test_a_range_is_widened_to_where_the_search_begins():
    wide = Real(0.1, 1.0, log=True).around("k", 30.0)
    assert (wide.distribution.low, wide.distribution.high, wide.start) == (0.1, 30.0, 30.0)
    # A logarithm has no zero.
    assert FromOne(0.001, 0.1).around("k", 1.0).start == 0.001
