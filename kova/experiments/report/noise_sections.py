"""What η and the observation noise did, as in the paper's Figure 4, in sections of the page."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kova.experiments.report import charts
from kova.experiments.report.comparison import RETURN, Comparison
from kova.experiments.report.noise_grid import duels, explorations, noise_grids
from kova.experiments.report.numbers import in_words
from kova.experiments.report.palette import Palette
from kova.experiments.report.results import RunResult
from kova.experiments.report.section import TITLES, Section, Table
from kova.experiments.report.statistics import Scores, improvement_interval, rank_correlation_interval

Array = npt.NDArray[np.float64]


def noise_sections(comparison: Comparison, runs: Sequence[RunResult], palette: Palette) -> list[Section]:
    """Return the sections about runs that vary both η and the noise; none if there are no such runs."""
    return [*_grids(comparison, runs), *_explorations(comparison, runs, palette), *_duels(comparison, runs)]


def _grids(comparison: Comparison, runs: Sequence[RunResult]) -> list[Section]:
    grids = noise_grids(comparison, runs, (RETURN, "entropy", "policy_loss"))
    if not grids:
        return []
    figures = [charts.grid(f"{g.name}: {TITLES[g.metric]}", g.etas, g.noises, g.means) for g in grids]
    return [Section("grid", "η × observation noise", "Means over seeds and the last tenth of the frames.", figures)]


def _explorations(comparison: Comparison, runs: Sequence[RunResult], palette: Palette) -> list[Section]:
    found = explorations(comparison, runs)
    if not found:
        return []
    note = (
        "A point is a run: its entropy over the last tenth of the frames and its last 100 episodes. Spearman's rank "
        "correlation of the two, and of η with the entropy, over the runs of one noise, with a 95 % interval by "
        "Fisher's z: where it holds 0, the runs cannot tell."
    )
    figures = [charts.exploration(one.name, one.arms, palette) for one in found]
    columns = {
        "entropy with return": {one.name: one.pairs for one in found},
        "η with entropy": {one.name: one.forgetting for one in found},
    }
    names = [one.name for one in found]
    cells = [[_correlation({name: groups[name]}) for groups in columns.values()] for name in names]
    if len(names) > 1:
        names, cells = [*names, "mean"], [*cells, [_correlation(groups) for groups in columns.values()]]
    table = Table(["", *columns], [[name, *own] for name, own in zip(names, cells, strict=True)])
    return [Section("exploration", "Does more entropy earn more?", note, figures, table)]


def _correlation(groups: Mapping[str, tuple[Array, Array]]) -> str:
    found = rank_correlation_interval(groups)
    return "too few runs" if np.isnan(found.estimate) else in_words(found)


def _duels(comparison: Comparison, runs: Sequence[RunResult]) -> list[Section]:
    found = duels(comparison, runs)
    if not found:
        return []
    note = (
        "The probability that a run with the one noise earns more than a run with the other and the same η, mean over "
        "η, with a 95 % interval: where it holds 0.5, the runs cannot tell."
    )
    rows = []
    for pair in dict.fromkeys(one.noises for one in found):
        own = [one for one in found if one.noises == pair]
        scores: dict[str, tuple[Scores, Scores]] = {one.name: one.scores for one in own}
        if len(own) > 1:
            scores["mean"] = ChainMap(*(one.scores[0] for one in own)), ChainMap(*(one.scores[1] for one in own))
        rows += [[name, *pair, in_words(improvement_interval(*both))] for name, both in scores.items()]
    table = Table(["", "noise", "against", "P(earns more)"], rows)
    return [Section("noise", "Which noise earns more?", note, table=table)]
