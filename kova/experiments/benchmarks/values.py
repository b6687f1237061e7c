"""``kova bench values``: every method on every problem whose values are known: error, calibration, time."""

from __future__ import annotations

import math
import multiprocessing
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.distributions import Normal

from kova import posterior
from kova.experiments.baselines import Learner, ValueEstimate
from kova.experiments.benchmarks.record import Record, read_results, same_settings
from kova.experiments.benchmarks.value_methods import METHODS, REPLICAS, Method
from kova.experiments.benchmarks.values_figures import save_chain, save_curves, save_reliability
from kova.experiments.files import check_folder
from kova.experiments.problems import PROBLEMS, Problem, Trajectory, joined

#: Nominal levels of the reliability diagram, and those that the table has room for.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SHOWN = (0.5, 0.8, 0.95)
#: Transitions after which the error is taken.
GRID = (100, 200, 400, 800, 1600)
#: Transitions a method learns from at a time, at least: an episode may have only one.
TOGETHER = 32
FIGURES = ("values_error.png", "values_reliability.png", "values_chain.png")


@dataclass(frozen=True)
class MethodScore:
    """One method on one problem with one seed.

    Attributes:
        problem: Its name.
        arm: The method's.
        seed: Of the trajectories.
        choice: What it chose in hindsight.
        errors: Root-mean-square error over the standard deviation of V, at :data:`GRID`.
        coverage: Share of evaluation states inside the central interval, at :data:`LEVELS`; none without a variance.
        nll: Mean negative log-likelihood of the exact values.
        crps: Mean continuous ranked probability score over the standard deviation of V.
        coverage_believed: The same share for the variance j P jᵀ of a filter that is judged by its replicas.
        crps_believed: Likewise its score.
        microseconds: Of an update, per transition.
    """

    problem: str
    arm: str
    seed: int
    choice: float
    errors: list[float]
    coverage: list[float] | None
    nll: float | None
    crps: float | None
    coverage_believed: list[float] | None
    crps_believed: float | None
    microseconds: float


def run(
    out: Path, seeds: int, console: Console, command: str, names: Sequence[str] = tuple(PROBLEMS), jobs: int = 1
) -> list[MethodScore]:
    """Run what the record does not have, print it row by row, and write ``values.json`` and three figures.

    Args:
        out: Where they go.
        seeds: Repetitions.
        console: For progress and tables.
        command: What the user typed.
        names: The problems.
        jobs: Methods that are run at a time, each with one thread if there are several.

    Raises:
        UsageError: The files cannot be read or written.
    """
    check_folder(out, "--out", "values.json", *FIGURES)
    path = out / "values.json"
    settings = {"seeds": seeds, "levels": list(LEVELS), "grid": list(GRID), "replicas": REPLICAS}
    # Another number of seeds may choose another setting, so those results are of no use.
    known = read_results(path, "values") if same_settings(path, settings) else []
    record = Record(path, "values", command, settings, known)
    done = {(result["problem"], result["arm"]) for result in known}
    tasks = [(name, arm, seeds) for name in names for arm in METHODS if (name, arm) not in done]
    with record.kept(console), Progress(console=console) as bar:
        console.print("RMSE / std of V, every seed (∞: diverged)", highlight=False)
        advance = bar.add_task("evaluating", total=len(tasks))
        for scores in _outcomes(tasks, jobs):
            record.add(*map(asdict, scores))
            row = f"  {scores[0].problem:<16} {scores[0].arm:<22}"
            console.print(row, *(_number(score.errors[-1]) for score in scores), highlight=False)
            bar.advance(advance)
    scores = [MethodScore(**result) for result in record.results]
    curves, reliability, chain = (out / figure for figure in FIGURES)
    save_curves(curves, scores, GRID)
    save_reliability(reliability, scores, LEVELS)
    save_chain(chain)
    _print(console, scores, list(dict.fromkeys(score.problem for score in scores)))
    return scores


def _outcomes(tasks: Sequence[tuple[str, str, int]], jobs: int) -> Iterator[list[MethodScore]]:
    if jobs == 1:
        yield from (_outcome(*task) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for future in as_completed([pool.submit(_outcome, *task) for task in tasks]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _outcome(name: str, arm: str, seeds: int) -> list[MethodScore]:
    """Return how a method does on a problem, seed by seed."""
    method, problem = METHODS[arm], PROBLEMS[name]()
    runs = range(min(seeds, method.most_seeds or seeds))
    return best(name, problem, arm, method, [_trajectories(problem, seed) for seed in runs])


def best(
    name: str, problem: Problem, label: str, method: Method, trajectories: Sequence[list[Trajectory]]
) -> list[MethodScore]:
    """Return the outcomes, seed by seed, of the method's best choice by the median of its final errors."""
    found = [
        [_measure(name, problem, label, method, choice, seed, own) for seed, own in enumerate(trajectories)]
        for choice in method.choices
    ]
    return min(found, key=lambda own: float(np.median([item.errors[-1] for item in own])))


def _trajectories(problem: Problem, seed: int) -> list[Trajectory]:
    """Return episodes of :data:`GRID`'s last number of transitions in all, short ones joined to :data:`TOGETHER`."""
    rng = np.random.default_rng(seed)
    found: list[Trajectory] = []
    waiting: list[Trajectory] = []
    while sum(map(len, found)) < GRID[-1]:
        waiting.append(problem.roll_out(rng))
        if sum(map(len, waiting)) >= TOGETHER:
            found.append(joined(waiting))
            waiting = []
    return found


def _measure(
    name: str, problem: Problem, label: str, method: Method, choice: float, seed: int, trajectories: list[Trajectory]
) -> MethodScore:
    view = problem.observations if method.network else problem.features
    learner = method.make(problem, choice, seed)
    truth = problem.evaluation
    states = view(truth.states)
    mean = (truth.weights * truth.values).sum()
    # On Baird's star V is 0 everywhere.
    scale = float((truth.weights * (truth.values - mean).square()).sum().sqrt()) or 1.0
    errors: list[float] = []
    seen, spent = 0, 0.0
    estimate = ValueEstimate(torch.zeros_like(truth.values))
    for trajectory in trajectories:
        start = time.perf_counter()
        finite = _learn(learner, trajectory.through(view))
        spent += time.perf_counter() - start
        seen += len(trajectory)
        if finite and seen < GRID[len(errors)]:
            continue
        estimate = learner.predict(states)
        finite = finite and bool(torch.isfinite(estimate.mean).all())
        while len(errors) < len(GRID) and seen >= GRID[len(errors)]:
            errors.append(truth.rmse(estimate.mean) / scale if finite else math.inf)
        if not finite:
            errors += [math.inf] * (len(GRID) - len(errors))
            break
    scores = _scores(estimate.mean, estimate.variance, truth.values, truth.weights, scale)
    believed = _scores(estimate.mean, estimate.believed, truth.values, truth.weights, scale)
    before = {"coverage_believed": believed["coverage"], "crps_believed": believed["crps"]}
    return MethodScore(name, label, seed, choice, errors, microseconds=1e6 * spent / seen, **scores, **before)


def _learn(learner: Learner, trajectory: Trajectory) -> bool:
    """Update; return whether the method could. Diverging is a result, not a failure of the benchmark."""
    try:
        learner.update(trajectory)
    except (ValueError, ArithmeticError, RuntimeError):
        return False
    return True


def _scores(mean: Tensor, variance: Tensor | None, values: Tensor, weights: Tensor, scale: float) -> dict[str, Any]:
    if variance is None or not bool(torch.isfinite(variance).all()):
        return {"coverage": None, "nll": None, "crps": None}
    belief = Normal(mean, variance.clamp(min=1e-300).sqrt())
    # States count as often as the policy visits them.
    chosen = torch.multinomial(weights, 10_000, replacement=True, generator=torch.Generator().manual_seed(0))
    sampled = Normal(belief.mean[chosen], belief.stddev[chosen])
    return {
        "coverage": posterior.coverage(sampled, values[chosen], LEVELS).tolist(),
        "nll": posterior.nll(sampled, values[chosen]).item(),
        "crps": posterior.crps(sampled, values[chosen]).item() / scale,
    }


def _print(console: Console, scores: list[MethodScore], names: Sequence[str]) -> None:
    errors = Table("method", title="RMSE / std of V, median over seeds (∞: diverged)", box=None)
    # The first word of a name is enough, and eighty columns have room for all of them.
    for name in names:
        errors.add_column(re.split(r"[\s-]", name)[0], justify="right", no_wrap=True)
    bars = Table("method", title="error bars, median over problems and seeds", box=None)
    places = [LEVELS.index(level) for level in SHOWN]
    for column in (*(f"{level:.0%} covers" for level in SHOWN), "NLL", "CRPS", "µs/sample"):
        bars.add_column(column, justify="right", no_wrap=True)
    for label in METHODS:
        own = [item for item in scores if item.arm == label]
        errors.add_row(label, *(_median([item.errors[-1] for item in own if item.problem == name]) for name in names))
        covered = [item.coverage for item in own if item.coverage is not None]
        shares = [_median([shares[place] for shares in covered]) for place in places]
        likelihood = _median([item.nll for item in own if item.nll is not None])
        ranked = _median([item.crps for item in own if item.crps is not None])
        spent = f"{float(np.median([item.microseconds for item in own])):.0f}"
        bars.add_row(label, *shares, likelihood, ranked, spent)
    console.print(errors, bars, sep="\n", highlight=False)


def _median(values: Sequence[float]) -> str:
    return _number(float(np.median(values))) if values else "–"


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "∞"
