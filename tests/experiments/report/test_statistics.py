"""Statistics against numbers worked out by hand, and intervals against the truth in simulation."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kova.experiments.report import statistics


def test_a_curve_is_the_mean_of_the_episodes_that_ended_by_then():
    frames, returns = np.array([10.0, 20.0, 30.0, 40.0]), np.array([1.0, 2.0, 3.0, 6.0])
    found = statistics.curve(frames, returns, np.array([5.0, 10.0, 25.0, 40.0, 100.0]), window=2)
    np.testing.assert_array_equal(found, [np.nan, 1.0, 1.5, 4.5, 4.5])


def test_a_curve_without_episodes_is_unknown():
    assert np.isnan(statistics.curve(np.zeros(0), np.zeros(0), np.array([1.0, 2.0]))).all()


def test_a_metric_holds_until_the_next_is_logged():
    found = statistics.sampled(np.array([10.0, 20.0]), np.array([1.0, 5.0]), np.array([9.0, 10.0, 19.0, 20.0, 50.0]))
    np.testing.assert_array_equal(found, [np.nan, 1.0, 1.0, 5.0, 5.0])
    assert np.isnan(statistics.sampled(np.zeros(0), np.zeros(0), np.array([1.0]))).all()


def test_mean_and_standard_deviation_of_the_sample():
    mean, std = statistics.mean_and_std(np.array([[1.0, 2.0], [3.0, 2.0]]))
    np.testing.assert_allclose(mean, [2.0, 2.0])
    np.testing.assert_allclose(std, [math.sqrt(2), 0.0])
    mean, std = statistics.mean_and_std(np.array([[4.0]]))
    assert mean == 4.0
    assert np.isnan(std)


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    scores = {"t": np.array([100.0, 1.0, 2.0, 3.0]), "u": np.array([4.0, -50.0, 5.0, 6.0])}
    assert statistics.iqm_interval(scores).estimate == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_an_interval_is_cut_at_the_ends_of_the_scale():
    found = statistics.iqm_interval({"t": np.array([0.0, 0.8])})
    assert found.low < 0.0
    assert found.high > 1.0
    assert found.within(0.0, 1.0) == statistics.Interval(pytest.approx(0.4), 0.0, 1.0)
    inside = statistics.Interval(0.5, 0.4, 0.6)
    assert inside.within(0.0, 1.0) == inside
    one = statistics.iqm_interval({"t": np.array([0.3])}).within(0.0, 1.0)
    assert one.estimate == 0.3
    assert math.isnan(one.low)
    assert math.isnan(one.high)


def test_a_difference_has_welchs_interval():
    first, second = np.array([3.0, 5.0, 4.0]), np.array([1.0, 0.0, 2.0, 9.0])
    found = statistics.difference_interval(first, second)
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert found == statistics.Interval(pytest.approx(1.0), pytest.approx(welch.low), pytest.approx(welch.high))
    one = statistics.difference_interval(first, np.array([1.0]))
    assert one.estimate == 3.0
    assert math.isnan(one.low)
    same = statistics.difference_interval(np.full(3, 2.0), np.full(2, 1.0))
    assert same == statistics.Interval(1.0, 1.0, 1.0)


def test_scores_are_normalised_between_the_worst_and_the_best_run_of_a_task():
    found = statistics.normalised(
        {"a": {"t": np.array([10.0, 20.0])}, "b": {"t": np.array([30.0]), "u": np.array([5.0])}}
    )
    np.testing.assert_allclose(found["a"]["t"], [0.0, 0.5])
    np.testing.assert_allclose(found["b"]["t"], [1.0])
    np.testing.assert_allclose(found["b"]["u"], [0.0])


def test_a_profile_is_the_share_of_runs_above_a_score_every_task_alike():
    scores = {"t": np.array([0.2, 0.4, 0.6, 0.8]), "u": np.array([0.5, 1.0])}
    found = statistics.profile(scores, np.array([0.0, 0.5, 0.9]))
    np.testing.assert_allclose(found, [1.0, (2 / 4 + 1 / 2) / 2, (0 + 1 / 2) / 2])


def test_the_probability_of_improvement_counts_pairs():
    better, than = {"t": np.array([1.0, 3.0]), "u": np.array([5.0])}, {"t": np.array([2.0, 3.0]), "u": np.array([4.0])}
    # t: 1<2, 1<3, 3>2, 3=3 gives 1.5 of 4; u: 1 of 1.
    assert statistics.probability_of_improvement(better, than) == pytest.approx((1.5 / 4 + 1) / 2)
    assert math.isnan(statistics.probability_of_improvement({"t": np.ones(2)}, {"u": np.ones(2)}))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.lists(st.floats(-5, 5), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_either_arm_is_better_with_probabilities_that_add_up_to_one(first, second):
    a, b = {"t": np.array(first)}, {"t": np.array(second)}
    forward, backward = statistics.probability_of_improvement(a, b), statistics.probability_of_improvement(b, a)
    assert forward + backward == pytest.approx(1.0)


def test_sample_efficiency_compares_frames_to_the_others_final_score():
    grid = np.array([100.0, 200.0, 300.0, 400.0])
    slow, fast = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 3.0, 4.0, 5.0])
    assert statistics.frames_to_reach(grid, slow, 2.0) == 300.0
    assert statistics.frames_to_reach(grid, slow, 9.0) == math.inf
    assert statistics.sample_efficiency(grid, fast, slow) == pytest.approx(400 / 200)
    assert statistics.sample_efficiency(grid, slow, fast) == 0.0


def test_one_run_has_no_interval():
    found = statistics.iqm_interval({"t": np.array([1.0])})
    assert found.estimate == 1.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_an_interval_is_the_same_every_time_and_holds_its_estimate():
    scores = {"t": np.array([1.0, 2.0, 4.0]), "u": np.array([0.0, 3.0, 5.0])}
    first, second = statistics.iqm_interval(scores), statistics.iqm_interval(scores)
    assert first == second
    assert first.low < first.estimate < first.high


@pytest.mark.parametrize(
    ("tasks", "seeds", "louder"),
    [(1, 2, 1.0), (1, 3, 1.0), (2, 2, 1.0), (3, 3, 1.0), (3, 3, 10.0), (1, 5, 1.0), (3, 10, 1.0)],
)
def test_intervals_of_the_interquartile_mean_cover_at_the_nominal_rate(tasks, seeds, louder, monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    rng = np.random.default_rng(0)
    repetitions, covered = 400, 0
    for _ in range(repetitions):
        # The truth is 0. The first task may be louder.
        scores = {str(task): rng.normal(size=seeds) * (louder if task == 0 else 1.0) for task in range(tasks)}
        found = statistics.iqm_interval(scores)
        covered += found.low <= 0.0 <= found.high
    # 400 repetitions know a rate of 0.95 to within 0.022, two standard errors.
    assert 0.925 <= covered / repetitions <= 0.995


@pytest.mark.parametrize("effects", [(0,), (2,), (0, 0, 0), (1,) * 6, (2, 2, -2), (3, 3, -3), (3, 3, 3, 3, -1)])
@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_intervals_of_the_improvement_cover_at_the_nominal_rate(effects, seeds):
    rng = np.random.default_rng(0)
    truth = np.mean([NormalDist().cdf(effect / math.sqrt(2)) for effect in effects])
    repetitions, covered = 400, 0
    for _ in range(repetitions):
        # Better on some tasks and worse on others, by so much that samples do not overlap: still not certain.
        first, second = (
            {str(task): rng.normal(size=seeds) + shift * effect for task, effect in enumerate(effects)}
            for shift in (1.0, 0.0)
        )
        found = statistics.improvement_interval(first, second)
        covered += found.low <= truth <= found.high
        assert found.low < found.high
    # A probability from few pairs has few values, and its interval holds the truth more often than it has to.
    assert covered / repetitions >= 0.93


def test_a_mean_of_three_has_students_interval():
    found = statistics.iqm_interval({"t": np.array([1.0, 2.0, 6.0])})
    # A quarter of three runs is none: the mean, with a standard error of s/√n and two degrees of freedom.
    values = np.array([1.0, 2.0, 6.0])
    half = 4.302653 * values.std(ddof=1) / math.sqrt(3)
    assert found.estimate == pytest.approx(3.0)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.05)


def test_wins_without_exception_do_not_make_certain():
    high, low = {"t": np.array([4.0, 5.0, 6.0])}, {"t": np.array([1.0, 2.0, 3.0])}
    found = statistics.improvement_interval(high, low)
    # Three and a half wins of four, two degrees of freedom.
    half = 4.302653 * math.sqrt(0.875 * 0.125 / 4)
    assert found == statistics.Interval(1.0, pytest.approx(1 - half), 1.0)
    assert statistics.improvement_interval(low, high) == statistics.Interval(0.0, 0.0, pytest.approx(half))


def test_the_scatter_of_an_improvement_is_that_of_wins_per_run():
    first, second = (dict.fromkeys("tu", np.array(runs)) for runs in ([1.0, 4.5, 7.0, 8.0], [3.0, 4.0, 5.0, 6.0]))
    found = statistics.improvement_interval(first, second)
    # Runs of the one win 0, 2, 4 and 4 of 4, runs of the other lose to 3, 3, 2 and 2; twice three degrees of freedom.
    variance = (11 / 3) / 4**3 + (1 / 3) / 4**3
    assert found.estimate == pytest.approx(10 / 16)
    assert found.low == pytest.approx(10 / 16 - 2.446912 * math.sqrt(2 * variance) / 2)


def test_only_common_tasks_count_for_an_improvement():
    arms = {"t": np.array([1.0, 2.0, 4.0])}, {"t": np.array([1.5, 2.5, 3.0]), "u": np.array([9.0])}
    found = statistics.improvement_interval(*arms)
    assert found == statistics.improvement_interval(arms[0], {"t": arms[1]["t"]})
    assert math.isnan(statistics.improvement_interval({"a": np.ones(2)}, {"b": np.ones(2)}).estimate)


def test_a_rank_correlation_is_spearmans_and_of_several_groups_their_mean_by_fishers_z():
    first, second = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([10.0, 30.0, 20.0, 40.0, 500.0])
    found = statistics.rank_correlation_interval({"a": (first, second)})
    assert found.estimate == pytest.approx(0.9)
    half = 1.959964 * math.sqrt(1.06 / 2)
    assert math.atanh(found.high) - math.atanh(found.estimate) == pytest.approx(half, rel=1e-5)
    both = statistics.rank_correlation_interval({"a": (first, second), "b": (first, -second)})
    assert both.estimate == pytest.approx(0.0)
    assert math.atanh(both.high) == pytest.approx(half / math.sqrt(2), rel=1e-5)


@pytest.mark.parametrize("groups", [{}, {"a": (np.arange(3.0), np.arange(3.0))}, {"a": (np.ones(9), np.arange(9.0))}])
def test_a_rank_correlation_of_nothing_is_unknown(groups):
    assert math.isnan(statistics.rank_correlation_interval(groups).estimate)


def test_a_perfect_rank_correlation_has_an_interval():
    found = statistics.rank_correlation_interval({"a": (np.arange(9.0), np.exp(np.arange(9.0)))})
    assert 0.9 < found.low < found.estimate < found.high < 1.0


@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_the_interval_of_rank_correlations_covers_the_truth(strength):
    rng = np.random.default_rng(0)
    # Of the normal distribution: Spearman's correlation is 6/pi asin(r/2).
    truth, held, trials = 6 / math.pi * math.asin(strength / 2), 0, 400
    for _ in range(trials):
        groups = {}
        for group in range(4):
            first = rng.normal(size=9)
            groups[str(group)] = (first, strength * first + math.sqrt(1 - strength**2) * rng.normal(size=9))
        found = statistics.rank_correlation_interval(groups)
        held += found.low < truth < found.high
    assert 0.91 < held / trials < 0.985


def test_the_interval_of_rank_correlations_covers_nothing_found_where_one_number_has_three_values():
    rng = np.random.default_rng(0)
    levels, held, trials = np.repeat([0.001, 0.01, 0.1], 3), 0, 400
    for _ in range(trials):
        found = statistics.rank_correlation_interval({str(group): (levels, rng.normal(size=9)) for group in range(4)})
        held += found.low < 0.0 < found.high
    assert 0.91 < held / trials < 0.985
