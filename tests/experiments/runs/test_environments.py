"""The environments of a run: what they give is what upstream's give."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from kova.experiments.runs.vectors import Environments


def test_steps_are_upstreams_and_old_infos_stay_as_they_were():
    makers = [lambda: Monitor(gym.make("CartPole-v1", max_episode_steps=30)) for _ in range(3)]
    own, theirs = Environments(makers), DummyVecEnv(makers)
    for env in (own, theirs):
        env.seed(0)
    np.testing.assert_array_equal(own.reset(), theirs.reset())
    rng, kept, ends = np.random.default_rng(0), [], {"terminated": 0, "truncated": 0}
    for step in range(120):
        # Chosen by the observation for a while, so that episodes reach the limit too.
        actions = rng.integers(2, size=3) if step < 60 else (own.buf_obs[None][:, 2] > 0).astype(int)
        found, expected = own.step(actions), theirs.step(actions)
        for one, other in zip(found[:3], expected[:3], strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        for info, wanted in zip(found[3], expected[3], strict=True):
            assert info.keys() == wanted.keys()
            assert info["TimeLimit.truncated"] == wanted["TimeLimit.truncated"]
            if "terminal_observation" in wanted:
                np.testing.assert_array_equal(info["terminal_observation"], wanted["terminal_observation"])
                assert info["episode"]["r"] == wanted["episode"]["r"]
                ends["truncated" if wanted["TimeLimit.truncated"] else "terminated"] += 1
                kept.append((info["terminal_observation"], wanted["terminal_observation"]))
    assert all(ends.values())
    for info, wanted in kept:
        np.testing.assert_array_equal(info, wanted)
