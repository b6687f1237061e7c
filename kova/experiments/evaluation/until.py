"""The mean return of an agent, known sooner: what the start decides need not be played.

Returns of a task that begins in many ways scatter mostly because the starts do. What a start is worth the critic knows
in advance, and the mean of its values over all starts costs no episode, only resets. So the mean return is taken as
that of a regression on the critic's value at the start, at the mean of that value (a control variate). A critic that is
wrong makes the interval wider and not wrong: the slope is fitted to the episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from kova.experiments.evaluation.play import Episode, mean_and_interval, play, start_value

Array = npt.NDArray[np.float64]

#: Starts that the mean of the critic's value is taken over.
STARTS = 1000
#: Episodes before the first look: a deviation of fewer says nothing.
LEAST = 10
#: No more are played, however far apart they are.
MOST = 1000


def adjusted_mean(returns: Sequence[float], values: Sequence[float], starts: Array) -> tuple[float, float]:
    """Return the mean return, and half the width of its 95 % interval.

    Args:
        returns: Of n episodes.
        values: Of the critic at their starts.
        starts: Of the critic at many other starts.

    Returns:
        With β the slope of returns over values, mean G - β (mean V - mean of ``starts``); the interval is that of the
        regression line at that point, and knows that ``starts`` are a sample too.
    """
    G, V = np.asarray(returns, dtype=np.float64), np.asarray(values, dtype=np.float64)
    spread = float(((V - V.mean()) ** 2).sum())
    if len(G) < 4 or spread <= 1e-12 * float((V**2).sum()):
        return mean_and_interval(list(returns))
    slope = float(((V - V.mean()) * (G - G.mean())).sum()) / spread
    off = float(starts.mean() - V.mean())
    residuals = G - G.mean() - slope * (V - V.mean())
    variance = float((residuals**2).sum()) / (len(G) - 2) * (1.0 / len(G) + off**2 / spread)
    variance += slope**2 * float(starts.var(ddof=1)) / len(starts)
    return float(G.mean()) + slope * off, float(np.sqrt(variance) * stats.t.ppf(0.975, len(G) - 2))


def start_values(model: BaseAlgorithm, env: VecEnv, *, seed: int, count: int = STARTS) -> Array | None:
    """Return the critic's values of many starts; none for a critic without uncertainty.

    Args:
        model: The agent.
        env: A vector of one environment; its normalisation must be at rest.
        seed: Of the starts.
        count: How many.
    """
    env.seed(seed)
    found = [start_value(model, env.reset()) for _ in range(count)]
    known = [value for value in found if value is not None]
    return np.array(known) if len(known) == count else None


def play_until(
    model: BaseAlgorithm, env: VecEnv, within: float, *, seed: int, deterministic: bool, most: int = MOST
) -> Iterator[tuple[Episode, float, float]]:
    """Play until the mean return is known to ± ``within``, and yield every episode with mean and interval so far.

    Args:
        model: The agent.
        env: A vector of one environment.
        within: Half the width of the 95 % interval, in the environment's reward units.
        seed: Of the first episode.
        deterministic: Whether the agent takes the mode of its policy.
        most: Episodes, at most.
    """
    returns: list[float] = []
    values: list[float] = []
    starts: Array | None = None
    for index in range(most):
        episode = play(model, env, seed=seed + index, deterministic=deterministic)
        returns.append(episode.total)
        if episode.mean is not None:
            values.append(float(episode.mean[0]))
        if index + 1 == LEAST and len(values) == len(returns):
            # Other seeds than the episodes', whatever theirs are.
            starts = start_values(model, env, seed=(seed + 2**31) % 2**32)
        mean, half = mean_and_interval(returns) if starts is None else adjusted_mean(returns, values, starts)
        yield episode, mean, half
        if index + 1 >= LEAST and half <= within:
            return
