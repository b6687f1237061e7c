"""The numbers of the page on the paper are those of the runs that are committed beside it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pages import ROOT

from kova.experiments.report.comparison import RETURN, Comparison
from kova.experiments.report.numbers import in_words
from kova.experiments.report.results import RunResult, collect
from kova.experiments.report.statistics import Interval, iqm_interval

TEXT = (ROOT / "docs" / "paper.md").read_text()
FIGURE_3 = ("paper-fig3-ppo", "paper-fig3-trpo")
#: A claim about one task, for one of the filters; a row without words is about the claim above it.
CLAIM = re.compile(r"\| (?:With (PPO|TRPO), (.+) on (\w+) )?\| (Memoryless|FadingMemory) \| (.+) \| (\w+) \|")


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


def judged(interval: Interval, *, more: bool) -> str:
    """Return whether a claim is true: that one arm has more, or that two are level, which runs can only refute."""
    if interval.low > 0.0:
        return "true" if more else "false"
    return "false" if interval.high < 0.0 else "open"
