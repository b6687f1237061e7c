"""The numbers of the page on the paper are those of the runs that are committed beside it."""

from __future__ import annotations

import re
import tarfile
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pages import ROOT

from kova.experiments.report.comparison import RETURN, Comparison
from kova.experiments.report.noise_grid import Duel, Exploration, duels, explorations
from kova.experiments.report.numbers import in_words
from kova.experiments.report.results import RunResult, collect
from kova.experiments.report.statistics import (
    Interval,
    improvement_interval,
    iqm_interval,
    rank_correlation_interval,
)

TEXT = (ROOT / "docs" / "paper.md").read_text()
FIGURE_3 = ("paper-fig3-ppo", "paper-fig3-trpo")
#: A claim about one task, for one of the filters; a row without words is about the claim above it.
CLAIM = re.compile(r"\| (?:With (PPO|TRPO), (.+) on (\w+) )?\| (Memoryless|FadingMemory) \| (.+) \| (\w+) \|")
#: A claim of Figure 4, about a task and a noise or over both.
CLAIM_4 = re.compile(r"\| (?:(\S.*) )?\| ((?:Swimmer|HalfCheetah|mean)\b.*) \| (.+) \| (\w+) \|")
#: The supplement's η of the tasks of Figure 4.
ETA = {"Swimmer": "0.01", "HalfCheetah": "0.1"}
NOISES = {"max-ratio": "MaxRatio", "batch-size": "BatchSize"}
#: {metric: decimals}.
SHOWN = {"entropy": 2, "policy_loss": 4}


def unpacked(name: str, folder: Path) -> list[RunResult]:
    with tarfile.open(ROOT / "docs" / "data" / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return collect(folder).finished


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory) -> dict[str, Comparison]:
    return {name: Comparison(unpacked(name, tmp_path_factory.mktemp(name))) for name in FIGURE_3}


def final_returns(comparison: Comparison) -> Iterator[str]:
    """Return the lines of the table of final returns: every run, and how far each filter is from Adam."""
    differences = comparison.differences(RETURN)
    for task in comparison.tasks:
        runs = [every_run(task.arms[arm].final) for arm in comparison.arms]
        apart = [in_words(own[task.name], 0) for own in differences.values()]
        yield f"| {' | '.join([task.name.split()[1], *runs, *apart])} |"


def every_run(scores: Sequence[float]) -> str:
    return ", ".join(f"{score:,.0f}" for score in scores)


def over_tasks(comparison: Comparison) -> Iterator[str]:
    """Return the numbers over all tasks: interquartile means, and the probabilities of earning more."""
    pairs = comparison.pairs()
    yield from (in_words(iqm_interval(own).within(0.0, 1.0)) for own in comparison.normalised().values())
    yield from (in_words(pairs[arm]["Adam"]) for arm in ("KOVA Memoryless", "KOVA FadingMemory"))
    yield in_words(pairs["KOVA FadingMemory"]["KOVA Memoryless"])


@pytest.mark.parametrize("name", FIGURE_3)
def test_every_run_of_figure_3_is_on_the_page(comparisons, name):
    lines = TEXT.splitlines()
    assert [line for line in final_returns(comparisons[name]) if line not in lines] == []


@pytest.mark.parametrize("name", FIGURE_3)
def test_the_numbers_over_all_tasks_are_on_the_page(comparisons, name):
    assert [numbers for numbers in over_tasks(comparisons[name]) if numbers not in TEXT] == []


def test_the_verdicts_on_tasks_follow_from_the_intervals(comparisons):
    found, about = [], ("", "", "")
    for line in TEXT.splitlines():
        if row := CLAIM.fullmatch(line):
            about = row.group(1, 2, 3) if row[1] else about
            found.append((*about, *row.group(4, 5, 6)))
    assert len(found) == 14, "PPO on five tasks and TRPO on two, each for both filters"
    for algorithm, words, task, arm, numbers, verdict in found:
        interval = comparisons[f"paper-fig3-{algorithm.lower()}"].differences(RETURN)[f"KOVA {arm}"][
            f"{algorithm} {task}-v4"
        ]
        expected = in_words(interval, 0), judged(interval, more="earns more" in words)
        assert (numbers, verdict) == expected, f"{algorithm}, {task}, {arm}"


def judged(interval: Interval, *, more: bool = True, level: float = 0.0) -> str:
    """Return whether a claim is true: that one arm has more, or that two are level, which runs can only refute."""
    if interval.low > level:
        return "true" if more else "false"
    return "false" if interval.high < level else "open"


@pytest.fixture(scope="module")
def figure_4(tmp_path_factory) -> tuple[Comparison, list[RunResult]]:
    runs = unpacked("paper-fig4", tmp_path_factory.mktemp("paper-fig4"))
    return Comparison(runs), runs


def test_every_run_of_figure_4_is_on_the_page(figure_4):
    comparison, _ = figure_4
    lines = TEXT.splitlines()
    for task in comparison.tasks:
        for arm, own in task.arms.items():
            means = [f"{own.number(metric).mean():.{places}f}" for metric, places in SHOWN.items()]
            line = f"| {' | '.join([task.name.split()[1], arm, every_run(own.final), *means])} |"
            assert line in lines, line


def test_the_verdicts_of_figure_4_follow_from_the_intervals(figure_4):
    comparison, runs = figure_4
    found: dict[str, dict[str, tuple[str, str]]] = {}
    claim = ""
    for line in TEXT.splitlines():
        if row := CLAIM_4.fullmatch(line):
            claim = row[1] or claim
            found.setdefault(claim, {})[row[2]] = (row[3], row[4])
    # Below three seeds nothing is called true or false.
    whole = all(len(own.seeds) >= 3 for task in comparison.tasks for own in task.arms.values())
    expected = {
        "With KOVA the entropy of the policy is higher than with Adam": against_adam(comparison, "entropy"),
        # A loss is minimised here; what the paper calls the loss is what it maximises.
        "With KOVA less is gained in an update of the policy than with Adam": against_adam(comparison, "policy_loss"),
        "Of different η, the one with the higher entropy earns more": correlations(
            explorations(comparison, runs), lambda one: one.pairs
        ),
        "A larger η keeps the entropy higher": correlations(explorations(comparison, runs), lambda one: one.forgetting),
        "Max-ratio earns more than batch-size": noises(duels(comparison, runs)),
    }
    assert found == {
        words: {where: (numbers, verdict if whole else "open") for where, (numbers, verdict) in rows.items()}
        for words, rows in expected.items()
    }


def against_adam(comparison: Comparison, metric: str) -> dict[str, tuple[str, str]]:
    """Return {task, noise: difference from Adam and verdict} for the supplement's η."""
    differences, answers = comparison.differences(metric), {}
    for task, eta in ETA.items():
        for noise in NOISES:
            interval = differences[f"KOVA η = {eta}, {noise}"][f"PPO {task}-v4"]
            answers[f"{task}, {noise}"] = in_words(interval, SHOWN[metric]), judged(interval)
    return answers


def correlations(found: Sequence[Exploration], pairs: Callable[[Exploration], tuple]) -> dict[str, tuple[str, str]]:
    """Return {task, noise: rank correlation and verdict}, and of their mean."""
    groups = {one.name: pairs(one) for one in found}
    own = {}
    for task in ETA:
        for noise, model in NOISES.items():
            (name,) = (name for name in groups if name.startswith(f"PPO {task}-v4,") and model in name)
            own[f"{task}, {noise}"] = {name: groups[name]}
    intervals = {where: rank_correlation_interval(group) for where, group in {**own, "mean": groups}.items()}
    return {where: (in_words(interval), judged(interval)) for where, interval in intervals.items()}


def noises(found: Sequence[Duel]) -> dict[str, tuple[str, str]]:
    """Return {task: probability that max-ratio earns more and verdict}, and of the mean."""
    assert all(duel.noises == ("MaxRatio", "BatchSize") for duel in found)
    scores = {duel.name.split()[1].partition("-")[0]: duel.scores for duel in found}
    both = tuple(ChainMap(*(duel.scores[side] for duel in found)) for side in (0, 1))
    intervals = {where: improvement_interval(*pair) for where, pair in {**scores, "mean": both}.items()}
    return {where: (in_words(interval), judged(interval, level=0.5)) for where, interval in intervals.items()}
