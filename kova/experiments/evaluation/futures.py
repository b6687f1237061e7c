"""Many futures of one state: the value of a policy where it acts, known from its returns."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from stable_baselines3.common.base_class import BaseAlgorithm

Array = npt.NDArray[np.float64]

#: No episode is this long: a critic values what would follow a time limit.
ENDLESS = 10**9
#: What is still to come when a future is broken off; the critic's word takes its place.
TAIL = 0.01


@dataclass(frozen=True, eq=False)
class Moment:
    """A state in which a task can begin again.

    Attributes:
        env: The task in that state. It is copied before it is played on.
        observation: What an agent sees of it, as the task gives it.
    """

    env: gym.Env[Any, Any]
    observation: Array


def copied(env: gym.Env[Any, Any], seed: int) -> gym.Env[Any, Any]:
    """Return the task in the same state, with random numbers of its own.

    Gymnasium's MuJoCo tasks are made anew by a copy; position and velocity are then set.
    """
    other = copy.deepcopy(env)
    inner, old = other.unwrapped, env.unwrapped
    if hasattr(old, "set_state") and hasattr(old, "data"):
        # ``set_state`` alone leaves what ``reset`` has made: a task that was never reset cannot be stepped.
        other.reset()
        inner.set_state(old.data.qpos.copy(), old.data.qvel.copy())  # type: ignore[attr-defined]
    inner.np_random = np.random.default_rng(seed)
    return other


def moments(model: BaseAlgorithm, name: str, count: int, *, seed: int, steps: int) -> list[Moment]:
    """Return states in which the agent, as it explores, comes: ``count`` of them, drawn at random.

    Args:
        model: The agent.
        name: Gymnasium id of its task.
        count: How many states.
        seed: Of episodes and draws.
        steps: Frames to draw them from.
    """
    chosen = set(np.random.default_rng(seed).choice(steps, count, replace=False).tolist())
    found, age = [], 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*is out of date.*")
        env, spec = gym.make(name, max_episode_steps=ENDLESS), gym.spec(name)
    observation, _ = env.reset(seed=seed)
    for step in range(steps):
        if step in chosen:
            found.append(Moment(copied(env, seed), np.asarray(observation)))
        action, _ = model.predict(_seen(model, np.asarray(observation)[None]), deterministic=False)
        observation, _, over, _, _ = env.step(action[0])
        age += 1
        if over or age == spec.max_episode_steps:
            observation, _ = env.reset()
            age = 0
    env.close()
    return found


def returns_from(model: BaseAlgorithm, moment: Moment, count: int, *, seed: int) -> Array:
    """Return the discounted returns of ``count`` futures, as the task pays them, (count,).

    Args:
        model: The agent, with a Kalman critic of V(s); it explores.
        moment: Where they begin.
        count: How many.
        seed: Of what is random in the task; the agent draws from torch's generator.
    """
    gamma: float = model.gamma  # type: ignore[attr-defined]
    envs = [copied(moment.env, seed + index) for index in range(count)]
    observations = np.stack([moment.observation] * count)
    returns, weight, alive = np.zeros(count), 1.0, np.ones(count, dtype=bool)
    while alive.any() and weight > TAIL:
        actions, _ = model.predict(_seen(model, observations), deterministic=False)
        for index in np.flatnonzero(alive).tolist():
            observations[index], reward, over, _, _ = envs[index].step(actions[index])
            returns[index] += weight * float(reward)
            alive[index] = not over
        weight *= gamma
    if alive.any():
        rest = model.predict_value(_seen(model, observations[alive])).mean.double().numpy()  # type: ignore[attr-defined]
        returns[alive] += weight * rest
    for env in envs:
        env.close()
    return returns


def _seen(model: BaseAlgorithm, observations: Array) -> Any:
    """Return observations as the agent sees them."""
    normaliser = model.get_vec_normalize_env()
    return observations if normaliser is None else normaliser.normalize_obs(observations)
