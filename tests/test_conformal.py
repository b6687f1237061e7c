"""The band that follows its own misses: against known distributions, its identity, and its snapshots."""

import copy
import itertools
import json
import math
import pickle
import random

import pytest

from kova.conformal import LEAST, LIMIT, ConformalBand


def played(band, scores, delay=0):
    """Feed scores that become known late, each judged by the band of its time; return the bounds each had."""
    given = []
    for time, _ in enumerate(scores):
        given.append(band.bounds())
        if time >= delay:
            known = time - delay
            band.observe([scores[known]], [given[known][0]], [given[known][1]])
    return given


def shares(scores, given):
    judged = [(z, low, high) for z, (low, high) in zip(scores, given, strict=True) if math.isfinite(low)]
    return sum(z < low for z, low, _ in judged) / len(judged), sum(z > high for z, _, high in judged) / len(judged)


def test_the_ends_are_the_quantiles_of_a_known_distribution():
    draw = random.Random(0)
    band = ConformalBand(window=4000, rate=1e-4)
    played(band, [draw.gauss(3.0, 2.0) for _ in range(4000)])
    for level, z in ((0.5, 0.6745), (0.9, 1.6449), (0.95, 1.96)):
        low, high = band.bounds(level)
        assert low == pytest.approx(3.0 - 2.0 * z, abs=0.2)
        assert high == pytest.approx(3.0 + 2.0 * z, abs=0.2)


def test_each_end_is_on_its_own():
    draw = random.Random(0)
    band = ConformalBand()
    scores = [draw.expovariate(1.0) for _ in range(5000)]
    below, above = shares(scores, played(band, scores))
    assert below == pytest.approx(0.05, abs=0.01)
    assert above == pytest.approx(0.05, abs=0.01)
    low, high = band.bounds()
    assert 0.0 < low < 0.2 < 2.0 < high


@pytest.mark.parametrize("delay", [0, 50, 200])
def test_the_level_holds_under_drift_by_the_identity(delay):
    draw = random.Random(1)
    # The spread grows, the mean wanders, and half way everything jumps.
    scores = [(1.0 + 2.0 * (i > 4000)) * draw.gauss(math.sin(i / 500), 0.5 + i / 8000) for i in range(8000)]
    band = ConformalBand()
    given = played(band, scores, delay)
    ends = given[: len(scores) - delay]
    below, above = shares(scores[: len(ends)], ends)
    judged = sum(math.isfinite(low) for low, _ in ends)
    for share, c in zip((below, above), band.widening, strict=True):
        assert abs(c) < LIMIT
        assert share - 0.05 == pytest.approx(c / (band.rate * judged), abs=1e-9)
        assert share == pytest.approx(0.05, abs=0.02)
    # Quantiles of the window alone would not have done.
    frozen = ConformalBand(rate=1e-12)
    if delay:
        without = sum(shares(scores, played(frozen, scores, delay)))
        assert abs(without - 0.1) > abs(below + above - 0.1)


def test_before_there_are_scores_nothing_is_promised():
    band = ConformalBand()
    for count in range(LEAST):
        assert len(band) == count
        assert band.bounds() == (-math.inf, math.inf)
        band.observe([float(count)], *([bound] for bound in band.bounds()))
    assert band.coverage is None
    assert band.widening == (0.0, 0.0)
    assert all(math.isfinite(bound) for bound in band.bounds())
    assert band.bounds(0.99) == (-math.inf, math.inf), "fifty scores say nothing of one in two hundred"


def test_levels_are_nested():
    draw = random.Random(2)
    band = ConformalBand()
    played(band, [draw.gauss(0.0, 1.0) for _ in range(600)])
    bands = [band.bounds(level) for level in (0.5, 0.8, 0.9, 0.95)]
    assert all(outer[0] < inner[0] < inner[1] < outer[1] for inner, outer in itertools.pairwise(bands))
    assert band.bounds(0.9) == band.bounds()


def test_coverage_is_of_the_last_outcomes():
    band = ConformalBand(window=100)
    for index in range(300):
        band.observe([0.0 if index % 4 else 5.0], [-1.0], [1.0])
        assert band.coverage == pytest.approx(1.0 - math.ceil(min(index + 1, 100) / 4) / min(index + 1, 100), abs=0.011)
    assert band.coverage == 0.75


def test_a_sudden_change_is_forgotten_again():
    band = ConformalBand()
    for _ in range(5000):
        band.observe([9.0], [-1.0], [1.0])
    assert band.widening == (-LIMIT, LIMIT)


def test_a_snapshot_goes_on_bit_for_bit():
    draw = random.Random(3)
    scores = [draw.gauss(0.0, 1.0) for _ in range(900)]
    band = ConformalBand()
    played(band, scores)
    copies = [
        ConformalBand.from_state_dict(json.loads(json.dumps(band.state_dict()))),
        pickle.loads(pickle.dumps(band)),
        copy.deepcopy(band),
    ]
    played(band, scores[::-1])
    for other in copies:
        assert other.bounds() != band.bounds()
        played(other, scores[::-1])
        assert other.state_dict() == band.state_dict()
        assert other.bounds(0.8) == band.bounds(0.8)
        assert other.coverage == band.coverage


DAMAGED = [
    None,
    {},
    {"level": 2.0},
    {"scores": [math.nan]},
    {"scores": [math.inf]},
    {"scores": [0.0] * 701},
    {"scores": 3},
    {"widening": [0.0]},
    {"widening": [0.0, 9.0]},
    {"sides": [4]},
    {"window": 0},
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_snapshot_is_refused(damage):
    state = {**ConformalBand().state_dict(), **damage} if damage else damage
    with pytest.raises(ValueError, match="the checkpoint's conformal band is damaged"):
        ConformalBand.from_state_dict(state)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0])
def test_a_level_is_a_share(level):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        ConformalBand(level)
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        ConformalBand().bounds(level)


def test_scores_that_are_no_numbers_change_nothing():
    band = ConformalBand()
    before = band.state_dict()
    with pytest.raises(ValueError, match="scores has non-finite"):
        band.observe([1.0, math.nan], [-1.0, -1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="zip"):
        band.observe([1.0], [-1.0, -1.0], [1.0])
    assert band.state_dict() == before
