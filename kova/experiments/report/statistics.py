"""Statistics of runs: curves on a common grid, interquartile means with intervals, profiles, comparisons of arms.

Scores come as {task: (runs,)} for one arm. Seeds are few, so point estimates come with intervals (Agarwal et al., 2021,
"Deep Reinforcement Learning at the Edge of the Statistical Precipice").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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

    def within(self, low: float, high: float) -> Interval:
        """Return the part of it inside the range that the quantity can have: that part covers the truth as often."""
        # In this order NaN stays NaN.
        return Interval(self.estimate, max(self.low, low), min(self.high, high))


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
    """Return mean and standard deviation of the sample over the runs of (runs, ...); NaN for the deviation of one."""
    mean: Array = curves.mean(axis=0)
    std: Array = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.full_like(mean, np.nan)
    return mean, std


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
    """Return the interquartile mean over all runs of all tasks with its interval.

    The mean of the middle half: a quarter of the runs at each end is left out. The width is Student's t times a
    standard error by the stratified bootstrap.
    """
    return _bootstrap(lambda drawn: _middle(np.concatenate(list(drawn.values()), axis=-1)), scores, level, seed)


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
    found = [_wins(better[task], than[task]).mean() for task in better if task in than]
    return float(np.mean(found)) if found else math.nan


def improvement_interval(better: Scores, than: Scores, *, level: float = LEVEL) -> Interval:
    """Return the probability of improvement with its interval, over their common tasks.

    Student's t on the standard error of Mann and Whitney's statistic (DeLong et al., 1988). Where every run of one arm
    beats every run of the other, that error is zero, and so is a bootstrap's: a task is never taken to be surer than
    as many independent pairs are, half a win and half a loss added. From about ten runs that floor is what counts, and
    the interval covers more than it claims.
    """
    estimate = probability_of_improvement(better, than)
    arms = [(better[task], than[task]) for task in better if task in than]
    pairs = np.array([min(len(first), len(second)) for first, second in arms])
    if not arms or pairs.min() < 2:
        return Interval(estimate, math.nan, math.nan)
    wins = [_wins(first, second) for first, second in arms]
    scatter = [w.mean(1).var(ddof=1) / w.shape[0] + w.mean(0).var(ddof=1) / w.shape[1] for w in wins]
    shares = (pairs * np.array([w.mean() for w in wins]) + 0.5) / (pairs + 1)
    variances = np.maximum(scatter, shares * (1 - shares) / (pairs + 1))
    half = _students_t(variances, pairs, level) * math.sqrt(variances.sum()) / len(arms)
    return Interval(estimate, max(estimate - half, 0.0), min(estimate + half, 1.0))


def _wins(first: Array, second: Array) -> Array:
    """Return 1 for every pair the first wins, ½ for a tie, 0 for a loss."""
    differences = first[:, None] - second
    return np.asarray((differences > 0) + 0.5 * (differences == 0))


def difference_interval(first: Array, second: Array, *, level: float = LEVEL) -> Interval:
    """Return mean(first) - mean(second) with Welch's interval: the arms may scatter differently."""
    estimate = float(first.mean() - second.mean())
    if min(len(first), len(second)) < 2:
        return Interval(estimate, math.nan, math.nan)
    variances = np.array([values.var(ddof=1) / len(values) for values in (first, second)])
    if variances.sum() == 0.0:
        return Interval(estimate, estimate, estimate)
    half = _students_t(variances, np.array([len(first), len(second)]), level) * math.sqrt(variances.sum())
    return Interval(estimate, estimate - half, estimate + half)


def rank_correlation_interval(groups: Mapping[str, tuple[Array, Array]], *, level: float = LEVEL) -> Interval:
    """Return the mean of Spearman's rank correlations of some groups of pairs, with its interval.

    Taken by Fisher's z, whose variance is about 1.06/(n - 3) for ranks (Fieller et al., 1957). A correlation of ±1, of
    which z is infinite, counts as half of the smallest step of n ranks away from it.

    Args:
        groups: {name: (one number of every run, another)}; at least four runs are needed to say anything.
        level: How often the interval covers the truth.
    """
    known = [pair for pair in groups.values() if len(pair[0]) > 3 and all(np.ptp(values) > 0 for values in pair)]
    if not known:
        return Interval(math.nan, math.nan, math.nan)
    counts = np.array([len(first) for first, _ in known], dtype=float)
    found = np.array([stats.spearmanr(first, second).statistic for first, second in known])
    most = 1.0 - 6.0 / (counts**3 - counts)
    middle = np.arctanh(np.clip(found, -most, most)).mean()
    half = stats.norm.ppf(0.5 + level / 2) * math.sqrt(np.sum(1.06 / (counts - 3.0))) / len(counts)
    return Interval(*(float(np.tanh(end)) for end in (middle, middle - half, middle + half)))


def frames_to_reach(grid: Array, mean_curve: Array, score: float) -> float:
    """Return the first frame of the grid at which a mean curve is at ``score``, infinity if it never is."""
    reached = np.flatnonzero(mean_curve >= score)
    return float(grid[reached[0]]) if len(reached) else math.inf


def sample_efficiency(grid: Array, curve_a: Array, curve_b: Array) -> float:
    """Return frames(B) / frames(A), each to reach B's final score: above 1, A needs fewer; 0, A never gets there."""
    final = curve_b[-1]
    needed = frames_to_reach(grid, curve_a, final)
    return frames_to_reach(grid, curve_b, final) / needed if math.isfinite(needed) else 0.0


def _bootstrap(statistic: Callable[[Scores], Array], scores: Scores, level: float, seed: int) -> Interval:
    """Return a statistic of (..., runs) arrays with its interval.

    Percentiles of the bootstrap never leave the range of the data: from three seeds of one task they cover 73 % where
    95 is claimed. The bootstrap gives the standard error instead, made up for the (n - 1)/n its variance is short by,
    and Student's t the width.
    """
    estimate = float(statistic(scores))
    counts = np.array([len(values) for values in scores.values()])
    if counts.min() < 2:
        return Interval(estimate, math.nan, math.nan)
    draws = statistic(_resampled(scores, np.random.default_rng(seed)))
    error = float(np.std(draws)) * math.sqrt(counts.min() / (counts.min() - 1))
    variances = np.array([values.var(ddof=1) / len(values) for values in scores.values()])
    if error == 0.0 or variances.sum() == 0.0:
        return Interval(estimate, estimate, estimate)
    half = _students_t(variances, counts, level) * error
    return Interval(estimate, estimate - half, estimate + half)


def _students_t(variances: Array, counts: npt.NDArray[np.int_], level: float) -> float:
    """Return t for a sum of estimates, with Satterthwaite's degrees of freedom: few when one task scatters most."""
    freedom = variances.sum() ** 2 / np.sum(variances**2 / (counts - 1))
    return float(stats.t.ppf(0.5 + level / 2, freedom))


def _resampled(scores: Scores, rng: np.random.Generator) -> dict[str, Array]:
    """Draw as many runs of every task as there are, with replacement, (RESAMPLES, runs)."""
    return {task: values[rng.integers(len(values), size=(RESAMPLES, len(values)))] for task, values in scores.items()}
