"""Playing a trained agent: its returns, and the critic's value along the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from kova.optimizer import KOVA
from kova.sb3.off_policy import OffPolicyCritic
from kova.sb3.on_policy import OnPolicyCritic
from kova.sb3.pending_returns import MOST_CUT

Array = npt.NDArray[np.float64]

#: Share of a return that may lie beyond a time limit for it still to count as known.
UNKNOWN = 0.05
RESAMPLES = 1_000
#: Of the band of the return.
RETURN_LEVEL = 0.9


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode.

    Attributes:
        total: Undiscounted return, as the environment pays it.
        realised: Discounted return from every frame on, as the environment pays it.
        mean: The critic's value at every frame, if it is a Kalman critic, in the same units.
        stddev: Its standard deviation.
        frames: Pictures, if the environment renders.
        known: Frames from the start whose return is known: all, or those far from the time limit that cut it.
        low: Lower end of the band that holds nine returns of ten, if the critic keeps one and has seen enough returns.
        high: Its upper end.
        judged: Returns to compare the value of the first frames with: where a time limit cut the episode, the value of
            the state that was cut off stands for the rest, for up to e⁻¹ of a return; by default the known ones.
    """

    total: float
    realised: Array
    mean: Array | None
    stddev: Array | None
    frames: list[npt.NDArray[np.uint8]]
    known: int
    low: Array | None = None
    high: Array | None = None
    judged: Array | None = None

    @property
    def length(self) -> int:
        """Frames."""
        return len(self.realised)


def play(model: BaseAlgorithm, env: VecEnv, *, seed: int, deterministic: bool = True, record: bool = False) -> Episode:
    """Play one episode in a vector of one environment."""
    normaliser = unwrap_vec_normalize(env)
    if normaliser is not None:
        normaliser.training = False
    env.seed(seed)
    observation: Any = env.reset()
    observations, actions, rewards, frames = [], [], [], []
    while True:
        if record:
            frames.append(np.asarray(env.render()))
        action, _ = model.predict(observation, deterministic=deterministic)
        observations.append(observation)
        actions.append(action)
        observation, reward, done, infos = env.step(action)
        rewards.append(float(_paid(normaliser, reward)[0]))
        if done[0]:
            break
    asked = _asked(model, observations, actions)
    mean, stddev = value_trace(model, asked)
    low, high = return_trace(model, asked)
    total = float(infos[0]["episode"]["r"])
    gamma: float = model.gamma  # type: ignore[attr-defined]
    realised, known, judged = _discounted(rewards, gamma), len(rewards), None
    if infos[0].get("TimeLimit.truncated", False) and gamma < 1.0:
        weights = gamma ** np.arange(len(rewards), 0.0, -1.0)
        known = int((weights <= UNKNOWN).sum())
        rest = _value_of(model, infos[0]["terminal_observation"])
        judged = None if rest is None else (realised + rest * weights)[weights <= MOST_CUT]
    return Episode(total, realised, mean, stddev, frames, known, low, high, judged)


def play_as_valued(model: BaseAlgorithm, env: VecEnv, *, seed: int) -> Episode:
    """Play one episode of the policy that the critic values."""
    return play(model, env, seed=seed, deterministic=not values_exploration(model))


def values_exploration(model: BaseAlgorithm) -> bool:
    """Return whether the critic values the policy with its exploration, as it does on-policy, or without."""
    return not isinstance(model, OffPolicyAlgorithm)


def _asked(model: BaseAlgorithm, observations: list[Any], actions: list[Any]) -> tuple[Any, ...]:
    """Return what the model's critic is asked about: states, or states and actions."""
    if isinstance(observations[0], dict):
        batch: Any = {key: np.concatenate([item[key] for item in observations]) for key in observations[0]}
    else:
        batch = np.concatenate(observations)
    return (batch, np.concatenate(actions)) if isinstance(model, OffPolicyCritic) else (batch,)


def _value_of(model: BaseAlgorithm, observation: Any) -> float | None:
    """Return the value of one state for the policy; none for a critic without uncertainty."""
    several = isinstance(observation, dict)
    alone: Any = {key: part[None] for key, part in observation.items()} if several else observation[None]
    return start_value(model, alone)


def start_value(model: BaseAlgorithm, observations: Any) -> float | None:
    """Return the value of the state that a vector of one environment is in; none for a critic without uncertainty."""
    action, _ = model.predict(observations, deterministic=True)
    mean, _ = value_trace(model, _asked(model, [observations], [action]))
    return None if mean is None else float(mean[0])


def value_trace(model: BaseAlgorithm, asked: tuple[Any, ...]) -> tuple[Array | None, Array | None]:
    """Return mean and standard deviation of the value along an episode; none for a critic without uncertainty.

    Both are in the units in which the model's environment pays.
    """
    if not isinstance(model, OnPolicyCritic | OffPolicyCritic) or not isinstance(model.critic_optimizer, KOVA):
        return None, None
    value = model.predict_value(*asked, calibrated=True)
    return value.mean.double().numpy(), value.stddev.double().numpy()


def return_trace(model: BaseAlgorithm, asked: tuple[Any, ...]) -> tuple[Array | None, Array | None]:
    """Return the ends of the band of the return along an episode; none for a critic that has seen too few returns."""
    if not isinstance(model, OnPolicyCritic | OffPolicyCritic):
        return None, None
    band = model.predict_return(*asked, level=RETURN_LEVEL)
    low, high = band.low.numpy(), band.high.numpy()
    return (low, high) if np.isfinite(low).all() and np.isfinite(high).all() else (None, None)


def mean_and_interval(totals: list[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval (Student's t)."""
    if len(totals) < 2:
        return float(np.mean(totals)), float("nan")
    error = float(np.std(totals, ddof=1) / np.sqrt(len(totals)))
    return float(np.mean(totals)), error * float(stats.t.ppf(0.975, len(totals) - 1))


def value_at_start(episodes: list[Episode]) -> tuple[float, float] | None:
    """Return the mean value of the first frames and its standard deviation; none without an uncertainty.

    The values of all first frames come from the same weights, so that their errors do not average out: the deviation
    is the mean of theirs, and not smaller with more episodes.
    """
    first = [
        (episode.mean[0], episode.stddev[0])
        for episode in episodes
        if episode.mean is not None and episode.stddev is not None
    ]
    if not first:
        return None
    mean, stddev = np.mean(first, axis=0)
    return float(mean), float(stddev)


def uncertainty_correlation(episodes: list[Episode]) -> tuple[float, float, float] | None:
    """Return Spearman's rank correlation between σ(V) and |return - V|, and its 95 % interval.

    The frames of an episode are not independent: the interval resamples whole episodes.

    Returns:
        Correlation, lower and upper end; none without an uncertainty or with fewer than two usable episodes.
    """
    pairs = []
    for episode in episodes:
        returns = episode.realised[: episode.known] if episode.judged is None else episode.judged
        if episode.mean is not None and episode.stddev is not None and len(returns) > 1:
            first = slice(len(returns))
            pairs.append(np.stack([episode.stddev[first], np.abs(returns - episode.mean[first])]))
    if len(pairs) < 2:
        return None
    rng = np.random.default_rng(0)
    found = [_spearman([pairs[index] for index in rng.integers(len(pairs), size=len(pairs))]) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(found, [0.025, 0.975])
    return _spearman(pairs), float(low), float(high)


def _spearman(pairs: list[Array]) -> float:
    deviations, errors = np.concatenate(pairs, axis=1)
    if np.ptp(deviations) == 0.0:
        return float("nan")
    return float(stats.spearmanr(deviations, errors).statistic)


def _paid(normaliser: VecNormalize | None, reward: Array) -> Array:
    return reward if normaliser is None else normaliser.get_original_reward()


def _discounted(rewards: list[float], gamma: float) -> Array:
    returns = np.zeros(len(rewards))
    following = 0.0
    for index in reversed(range(len(rewards))):
        following = returns[index] = rewards[index] + gamma * following
    return returns
