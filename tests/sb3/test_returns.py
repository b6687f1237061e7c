"""The band of the return: what is followed against what was paid, checkpoints, units and levels."""

import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from sb3_cases import ALL, DQN, ON_POLICY, PPO, actions, environment, make, observations, same, value_arguments
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from kova.sb3.pending_returns import MOST_CUT, PendingReturns
from kova.sb3.returns import ReturnBand

#: Steps that make a hundred returns known where γ = 0.8 and episodes have 20 steps.
LONG = 160


def short(algorithm, n_envs=1):
    name = environment(algorithm)
    return make_vec_env(lambda: gymnasium.make(name, max_episode_steps=20), n_envs=n_envs, seed=0)


def small(algorithm, critic="kova", normalise=False, gamma=0.8, n_envs=1, **options):
    env = short(algorithm, n_envs)
    if normalise:
        env = VecNormalize(env, gamma=gamma)
    return make(algorithm, env, critic=critic, gamma=gamma, **options)


def expected(rewards, values, ends, cut_values, gamma, every, slots):
    """Return G - V of every frame that is known at the end of one environment's story, by the definition."""
    found, total = [], len(rewards)
    for start in range(0, total, every):
        weight, gained = 1.0, 0.0
        for time in range(start, total):
            if time == start + slots * every:
                found.append(gained + weight * values[time] - values[start])
                break
            gained, weight = gained + weight * rewards[time], weight * gamma
            if ends[time] == "terminated":
                found.append(gained - values[start])
                break
            if ends[time] == "truncated":
                if weight <= MOST_CUT:
                    found.append(gained + weight * cut_values[time] - values[start])
                break
    return found


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.97, 0.99])
def test_returns_are_those_of_the_definition(gamma):
    rng = np.random.default_rng(0)
    steps, count = 1500, 3
    rewards, values, cuts = (rng.normal(size=(steps, count)) for _ in range(3))
    kinds = rng.choice(["", "terminated", "truncated"], p=[0.98, 0.01, 0.01], size=(steps, count))
    pending, known = PendingReturns(gamma, count), []
    slots = math.ceil((math.ceil(math.log(0.01) / math.log(gamma)) if gamma else 1) / pending.every)
    assert gamma ** (slots * pending.every) <= 0.01
    for time in range(steps):
        if pending.due:
            pending.follow(values[time], -1.0, 2.0)
        pending.pay(rewards[time])
        for each in np.flatnonzero(kinds[time] != ""):
            cut = cuts[time, each] if kinds[time, each] == "truncated" else None
            pending.end(int(each), cut_value=cut)
        scores, lows, highs = pending.news()
        known += scores
        assert set(lows) <= {-1.0}
        assert set(highs) <= {2.0}
    wanted = [
        score
        for each in range(count)
        for score in expected(
            rewards[:, each], values[:, each], kinds[:, each], cuts[:, each], gamma, pending.every, slots
        )
    ]
    assert len(known) == len(wanted) > 100
    np.testing.assert_allclose(sorted(known), sorted(wanted), atol=1e-10)


def test_without_a_discount_only_ends_make_a_return_known():
    pending = PendingReturns(1.0, 1)
    for _ in range(10 * pending.every):
        if pending.due:
            pending.follow(np.zeros(1), -math.inf, math.inf)
        pending.pay(np.ones(1))
    assert not pending.waits_for(0)
    pending.end(0, cut_value=math.nan)
    assert pending.news() == [[], [], []]
    pending.follow(np.zeros(1), -math.inf, math.inf)
    pending.pay(np.ones(1))
    pending.end(0)
    assert pending.news()[0] == [1.0]


class Story(BaseCallback):
    """What a user sees of a training, in the environment's own units."""

    def __init__(self):
        super().__init__()
        self.rewards, self.values, self.ends, self.cuts = [], [], [], []
        self._unit = None

    def _unit_now(self):
        env = self.model.get_vec_normalize_env()
        return 1.0 if env is None else math.sqrt(env.ret_rms.var + env.epsilon)

    def _on_training_start(self):
        self._unit = self._unit_now()

    def _value(self, observation):
        chosen = [self.locals["actions"]] if isinstance(self.model, DQN) else []
        return float(self.model.predict_value(observation, *chosen).mean[0]) / self._unit_now()

    def _on_step(self):
        env, info = self.model.get_vec_normalize_env(), self.locals["infos"][0]
        self.values.append(self._unit * self._value(self.model._last_obs))
        self.rewards.append(float((self.locals["rewards"] if env is None else env.get_original_reward())[0]))
        cut = info.get("TimeLimit.truncated", False)
        self.ends.append("" if not self.locals["dones"][0] else "truncated" if cut else "terminated")
        last = info.get("terminal_observation")
        self._unit = self._unit_now()
        self.cuts.append(self._cut(last) if cut else math.nan)
        return True

    def _cut(self, last):
        if not isinstance(self.model, DQN):
            return self._unit * self._value(last)
        both = self.model.predict_value(np.stack([last, last]), np.arange(2)).mean
        return float(both.max())


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_what_is_followed_is_what_was_paid(algorithm, normalise):
    model, story = small(algorithm, normalise=normalise), Story()
    model.learn(LONG, callback=story)
    pending = PendingReturns(0.8, 1)
    wanted = expected(story.rewards, story.values, story.ends, story.cuts, 0.8, pending.every, len(pending._weights))
    found = model.return_band.state_dict()["scores"]
    # The last ones became known after the last frame that was taken.
    assert 80 < len(found) <= len(wanted)
    left = sorted(wanted)
    for score in found:
        nearest = min(left, key=lambda each, score=score: abs(each - score))
        assert nearest == pytest.approx(score, abs=1e-4)
        left.remove(nearest)


@pytest.mark.parametrize("critic", ["kova", "adam"])
@pytest.mark.parametrize("algorithm", ALL)
def test_the_band_lies_around_the_value(algorithm, critic):
    model = small(algorithm, critic)
    given = value_arguments(model, observations(model, 5), 5)
    fresh = model.predict_return(*given)
    assert torch.isinf(fresh.low).all()
    assert torch.isinf(fresh.high).all()
    model.learn(LONG, log_interval=None)
    band, wide = model.predict_return(*given), model.predict_return(*given, level=0.95)
    assert isinstance(band, ReturnBand)
    assert (band.level, wide.level) == (0.9, 0.95)
    assert band.value.shape == band.low.shape == band.high.shape == (5,)
    low, high = model.return_band.bounds(0.9)
    assert torch.equal(band.low, band.value + low)
    assert torch.equal(band.high, band.value + high)
    assert bool((wide.low <= band.low).all() & (band.low < band.high).all() & (band.high <= wide.high).all())
    if critic == "kova":
        torch.testing.assert_close(band.value, model.predict_value(*given).mean.double())
    assert model.logger.name_to_value["kova/return_coverage"] == model.return_band.coverage
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        model.predict_return(*given, level=90)


@pytest.mark.parametrize("algorithm", ALL)
def test_the_band_is_saved_and_goes_on_bit_for_bit(algorithm, tmp_path):
    model = small(algorithm, normalise=True).learn(LONG)
    model.save(tmp_path / "model")
    state, given = model.return_band.state_dict(), value_arguments(model, observations(model, 3), 3)
    loaded = algorithm.load(tmp_path / "model")
    assert loaded.return_band.state_dict() == state
    # Without an environment the worth of a reward is that of the last training, some steps old.
    one, other = model.predict_return(*given), loaded.predict_return(*given)
    torch.testing.assert_close(one.low, other.low, rtol=0.05, atol=0.05)
    model.get_env().save(str(tmp_path / "normalisation"))
    loaded.set_env(VecNormalize.load(str(tmp_path / "normalisation"), short(algorithm)))
    other = loaded.predict_return(*given)
    assert same([one.value, one.low, one.high], [other.value, other.low, other.high])
    if algorithm not in ON_POLICY:
        loaded.replay_buffer = copy.deepcopy(model.replay_buffer)
    for each in (model, loaded):
        each.set_random_seed(3)
        each._last_obs = None
        each.learn(64, reset_num_timesteps=False)
    assert model.return_band.state_dict() == loaded.return_band.state_dict() != state


def test_many_environments_are_followed_side_by_side():
    model = small(PPO, n_envs=3).learn(LONG)
    alone = small(PPO).learn(LONG)
    assert len(model.return_band) == pytest.approx(len(alone.return_band), rel=0.2)


@pytest.mark.parametrize("algorithm", ALL)
def test_values_are_in_the_environments_units(algorithm):
    model = small(algorithm, normalise=True).learn(LONG)
    env = model.get_vec_normalize_env()
    given = value_arguments(model, observations(model, 4), 4)
    unit = math.sqrt(env.ret_rms.var + env.epsilon)
    assert abs(unit - 1.0) > 0.1
    value = model.predict_return(*given).value
    torch.testing.assert_close(value, model.predict_value(*given).mean.double())
    model.get_vec_normalize_env().norm_reward = False
    torch.testing.assert_close(value, unit * model.predict_value(*given).mean.double())


def test_one_observation_is_enough():
    model = small(DQN).learn(LONG)
    assert model.predict_return(observations(model, 1)[0], actions(model, 1)[0]).value.shape == (1,)


def test_every_form_of_callback_is_called():
    calls = []

    def note(*_):
        calls.append(1)
        return True

    story, listed = Story(), Story()
    for given in (note, story, [listed], None):
        assert len(small(PPO).learn(32, callback=given).return_band) > 0
    assert len(calls) == len(story.rewards) == len(listed.rewards) == 32
