"""Statistics of runs: curves on a common grid, interquartile means with intervals, profiles, comparisons of arms.

Scores come as {task: (runs,)} for one arm. Seeds are few, so point estimates come with intervals that resample the runs
of every task (Agarwal et al., 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]
Scores = Mapping[str, Array]

RESAMPLES = 2_000
LEVEL = 0.95
#: Episodes whose mean is the score at a frame.
WINDOW = 100


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its interval; they are NaN where one run says nothing about the scatter."""

    estimate: float
    low: float
    high: float


def curve(frames: Array, returns: Array, grid: Array, window: int = WINDOW) -> Array:
    """Return the mean of the last ``window`` episodes that ended by each frame of the grid, NaN before the first.

    Args:
        frames: When each episode ended, in order.
        returns: Its return.
        grid: Frames at which to look.
        window: How many episodes.
    """
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    ends = np.searchsorted(frames, grid, side="right")
    starts = np.maximum(ends - window, 0)
    with np.errstate(invalid="ignore"):
        means: Array = (sums[ends] - sums[starts]) / np.where(ends > starts, ends - starts, np.nan)
    return means


def sampled(frames: Array, values: Array, grid: Array) -> Array:
    """Return the last value logged by each frame of the grid, NaN before the first."""
    places = np.searchsorted(frames, grid, side="right") - 1
    return np.where(places >= 0, values[np.maximum(places, 0)], np.nan) if len(values) else np.full(len(grid), np.nan)


def mean_and_std(curves: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation (of the sample; zero for one run) over the runs of (runs, grid)."""
    mean: Array = curves.mean(axis=0)
    std: Array = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(mean)
    return mean, std


def iqm(values: npt.ArrayLike) -> float:
    """Return the mean of the middle half: a quarter of the runs at each end is left out."""
    return float(_middle(np.ravel(np.asarray(values, dtype=float))))


def normalised(arms: Mapping[str, Scores]) -> dict[str, dict[str, Array]]:
    """Return scores on a common scale: in each task 0 is the worst run of any arm and 1 the best."""
    tasks = {task for scores in arms.values() for task in scores}
    ranges = {}
    for task in tasks:
        pooled = np.concatenate([scores[task] for scores in arms.values() if task in scores])
        ranges[task] = (float(pooled.min()), float(np.ptp(pooled)) or 1.0)
    return {
        arm: {task: (values - ranges[task][0]) / ranges[task][1] for task, values in scores.items()}
        for arm, scores in arms.items()
    }


def iqm_interval(scores: Scores, *, level: float = LEVEL, seed: int = 0) -> Interval:
    """Return the interquartile mean over all runs of all tasks with its stratified bootstrap interval."""
    return _bootstrap(lambda drawn: _middle(np.concatenate(list(drawn.values()), axis=-1)), [scores], level, seed)


def _middle(values: Array) -> Array:
    return np.asarray(stats.trim_mean(values, 0.25, axis=-1))


def profile(scores: Scores, thresholds: Array) -> Array:
    """Return the share of runs above each threshold, every task counted alike."""
    shares = [(values[..., None] > thresholds).mean(axis=-2) for values in scores.values()]
    result: Array = np.mean(shares, axis=0)
    return result


def profile_band(scores: Scores, thresholds: Array, *, level: float = LEVEL, seed: int = 0) -> tuple[Array, Array]:
    """Return the ends of the profile's pointwise percentile interval; few runs make it too narrow."""
    draws = profile(_resampled(scores, np.random.default_rng(seed)), thresholds)
    low, high = np.quantile(draws, (0.5 - level / 2, 0.5 + level / 2), axis=0)
    return low, high


def probability_of_improvement(better: Scores, than: Scores) -> float:
    """Return P(a run of one arm beats a run of the other), a tie counting half, mean over their common tasks."""
    return float(_improvement(better, than))


def improvement_interval(better: Scores, than: Scores, *, level: float = LEVEL, seed: int = 0) -> Interval:
    """Return the probability of improvement with its interval; both arms are resampled on their common tasks."""
    common = [task for task in better if task in than]
    arms = [{task: scores[task] for task in common} for scores in (better, than)]
    if not common:
        return Interval(math.nan, math.nan, math.nan)
    found = _bootstrap(_improvement, arms, level, seed)
    if found.low < found.high:
        return Interval(found.estimate, max(found.low, 0.0), min(found.high, 1.0))
    # Every run of one arm beats every run of the other, and resampling knows no doubt: the exact bound for as many
    # independent pairs that all went one way (Clopper and Pearson).
    pairs = sum(min(len(arms[0][task]), len(arms[1][task])) for task in common)
    bound = (0.5 - level / 2) ** (1 / pairs)
    low, high = {1.0: (bound, 1.0), 0.0: (0.0, 1.0 - bound)}.get(found.estimate, (found.low, found.high))
    return Interval(found.estimate, low, high)


def _improvement(better: Scores, than: Scores) -> Array:
    common = [task for task in better if task in than]
    differences = [better[task][..., :, None] - than[task][..., None, :] for task in common]
    found = [((d > 0) + 0.5 * (d == 0)).mean(axis=(-2, -1)) for d in differences]
    return np.mean(found, axis=0) if found else np.array(math.nan)


def frames_to_reach(grid: Array, mean_curve: Array, score: float) -> float:
    """Return the first frame of the grid at which a mean curve is at ``score``, infinity if it never is."""
    reached = np.flatnonzero(mean_curve >= score)
    return float(grid[reached[0]]) if len(reached) else math.inf


def sample_efficiency(grid: Array, curve_a: Array, curve_b: Array) -> float:
    """Return frames(B) / frames(A), each to reach B's final score: above 1, A needs fewer; 0, A never gets there."""
    final = curve_b[-1]
    needed = frames_to_reach(grid, curve_a, final)
    return frames_to_reach(grid, curve_b, final) / needed if math.isfinite(needed) else 0.0


def _bootstrap(statistic: Callable[..., Array], data: Sequence[Scores], level: float, seed: int) -> Interval:
    """Return a statistic of (..., runs) arrays, one mapping for each of ``data``, with its interval.

    Percentiles of the bootstrap never leave the range of the data: from three seeds of one task they cover 73 % where
    95 is claimed. The bootstrap gives the standard error instead, made up for the (n - 1)/n its variance is short by,
    and Student's t the width, with Satterthwaite's degrees of freedom: few when one task scatters most.
    """
    estimate = float(statistic(*data))
    samples = [values for scores in data for values in scores.values()]
    smallest = min(map(len, samples))
    if smallest < 2:
        return Interval(estimate, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    draws = statistic(*(_resampled(scores, rng) for scores in data))
    error = float(np.std(draws)) * math.sqrt(smallest / (smallest - 1))
    shares = np.array([values.var(ddof=1) / len(values) for values in samples])
    if error == 0.0 or shares.sum() == 0.0:
        return Interval(estimate, estimate, estimate)
    freedom = shares.sum() ** 2 / np.sum(shares**2 / np.array([len(values) - 1 for values in samples]))
    half = float(stats.t.ppf(0.5 + level / 2, freedom)) * error
    return Interval(estimate, estimate - half, estimate + half)


def _resampled(scores: Scores, rng: np.random.Generator) -> dict[str, Array]:
    """Draw as many runs of every task as there are, with replacement, (RESAMPLES, runs)."""
    return {task: values[rng.integers(len(values), size=(RESAMPLES, len(values)))] for task, values in scores.items()}
