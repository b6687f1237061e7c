"""``kova bench policy``: evaluate a fixed policy from a stream of its returns, KOVA and Adam side by side.

The same 64-64 tanh critic learns from every batch once, in the order the episodes bring them, and moves on; one arm
makes ten steps on a batch before it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from kova import KOVA, BatchSize, RawUnits, Static
from kova.experiments.benchmarks.record import Record
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder, replacing
from kova.experiments.problems import pendulum
from kova.experiments.problems.pendulum import GAMMA, WARM_UP, PendulumStream, Samples, joined

BATCH = 64
#: Grids around Adam's best rate on this task; ten passes go ten times as far, hence a tenth of the rates.
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
PASSES = 10
BAND = 2.0

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"

Tick = Callable[[], None]


@dataclass(frozen=True)
class LearningCurve:
    """One learner's explained variance on the held-out returns, at every point of the task."""

    name: str
    explained_variance: list[float]


@dataclass(frozen=True, eq=False)
class Bands:
    """Values of the held-out states in raw units, with the deviation of the value and of a return around it."""

    value: Tensor
    value_std: Tensor
    return_std: Tensor


@dataclass(frozen=True)
class EvaluationResults:
    """What was measured.

    Attributes:
        samples_seen: Where the scores of every learner were taken.
        kova: The filter's scores.
        once: Adam's with one step on every batch, a learner for every rate.
        often: Adam's with several.
    """

    samples_seen: list[int]
    kova: LearningCurve
    once: list[LearningCurve]
    often: list[LearningCurve]

    @property
    def arms(self) -> list[LearningCurve]:
        """What the table and the figure show."""
        default = replace(self.once[0], name=f"{self.once[0].name} (default)")
        return [self.kova, default, best(self.once), best(self.often)]

    @property
    def adam_grid(self) -> list[LearningCurve]:
        """All of Adam's learners."""
        return [*self.once, *self.often]


def new_critic(seed: int) -> nn.Module:
    """Return the critic all arms start from, without touching torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def follow(task: PendulumStream, critic: nn.Module, learn: Callable[[Tensor, Tensor], None], tick: Tick) -> list[float]:
    """Feed the stream to ``learn`` once and return the explained variance at every point."""
    held_out = joined(task.held_out)
    scores, seen = [], 0
    batches = zip(task.stream.observations.split(BATCH), task.stream.returns.split(BATCH), strict=True)
    for observations, returns in batches:
        learn(observations, returns)
        seen += len(returns)
        if seen in task.points:
            scores.append(explained_variance(critic, held_out))
        tick()
    return scores


@torch.no_grad()
def explained_variance(critic: nn.Module, samples: Samples) -> float:
    """Return 1 - Var(G - V)/Var(G)."""
    errors = samples.returns - critic(samples.observations).squeeze(1)
    return float(1.0 - errors.var() / samples.returns.var())


def run_kova(task: PendulumStream, seed: int, tick: Tick) -> tuple[LearningCurve, Bands, float]:
    """Return the filter's scores, its bands, and the mean NIS over the second half of the stream."""
    critic = new_critic(seed)
    # The policy is fixed, so its value does not move: nothing needs forgetting. Neighbours in an episode say nearly the
    # same, so a batch counts as one sample would: the noise of each is the batch's size, and nothing is tuned.
    optimizer = KOVA(critic, covariance="full", evolution=Static(), noise=BatchSize(), units=RawUnits())
    nis: list[float] = []
    scores = follow(task, critic, lambda inputs, targets: nis.append(float(optimizer.step(inputs, targets).nis)), tick)
    late = nis[len(nis) // 2 :]
    factor = sum(late) / len(late)
    return LearningCurve("KOVA", scores), bands(task, optimizer, factor), factor


def bands(task: PendulumStream, optimizer: KOVA, factor: float) -> Bands:
    """Return the filter's uncertainty about the held-out states, in raw units.

    P is on the scale of the assumed noise; ``factor`` puts both on the scale of the errors the filter met.
    """
    inputs = joined(task.held_out).observations
    scale = task.std * factor**0.5
    value = optimizer.predict(inputs)
    label = optimizer.predict(inputs, observation_noise=float(BATCH))
    return Bands(value.mean * task.std + task.mean, value.stddev * scale, label.stddev * scale)


def run_adam(task: PendulumStream, seed: int, rate: float, passes: int, tick: Tick) -> LearningCurve:
    """Return the scores of Adam on the mean squared error, with ``passes`` steps on every batch."""
    critic = new_critic(seed)
    optimizer = torch.optim.Adam(critic.parameters(), lr=rate)

    def learn(observations: Tensor, returns: Tensor) -> None:
        for _ in range(passes):
            optimizer.zero_grad()
            nn.functional.mse_loss(critic(observations).squeeze(1), returns).backward()
            optimizer.step()

    return LearningCurve(
        f"Adam {rate:g}" + (f", {passes} passes" if passes > 1 else ""), follow(task, critic, learn, tick)
    )


def run(out: Path, seed: int, samples: int, console: Console, command: str) -> None:
    """Collect returns, learn with all arms, and write ``policy_evaluation.json`` and ``policy_evaluation.png``.

    Raises:
        UsageError: There are too few samples, or the files cannot be written.
    """
    if samples < WARM_UP:
        raise UsageError(f"--samples must be at least {WARM_UP}, which set the scale of the returns, got {samples}")
    picture, numbers = (out / f"policy_evaluation.{suffix}" for suffix in ("png", "json"))
    check_folder(out, "--out", picture.name, numbers.name)
    columns = (TextColumn("{task.description:<22}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:

        def phase(description: str, total: int) -> Tick:
            identifier = progress.add_task(description, total=total)
            return lambda: progress.advance(identifier)

        count = pendulum.episodes_for(samples) + pendulum.HELD_OUT_EPISODES
        task = pendulum.collect(seed, samples, phase("Collecting returns", count))
        settings = {"seed": seed, "samples": samples, "samples_seen": task.points}
        scale = {"return_mean": task.mean, "return_std": task.std}
        record = Record(numbers, "policy", command, {**settings, **scale})
        steps = math.ceil(samples / BATCH)
        with record.kept(console):
            kova, band, factor = run_kova(task, seed, phase("Learning with KOVA", steps))
            held = coverage(task, band)
            record.add({**_result(kova), "mean_nis": factor, "return_band_coverage": held})
            tick = phase("Learning with Adam", 2 * len(RATES) * steps)

            def adam(rate: float, passes: int) -> LearningCurve:
                found = run_adam(task, seed, rate, passes, tick)
                record.add(_result(found))
                return found

            once = [adam(rate, 1) for rate in RATES]
            often = [adam(rate / PASSES, PASSES) for rate in RATES]
    results = EvaluationResults(task.points, kova, once, often)
    draw(results, task, band, picture)
    console.print(table(results))
    console.print(verdict(results), highlight=False)
    console.print(
        f"KOVA's ±2σ band of a return holds {held:.1%} of the held-out returns (nominal 95 %); "
        "it takes returns for independent and equally noisy, and those of one episode are neither.",
        highlight=False,
    )
    console.print(f"{picture}\n{numbers}", highlight=False, soft_wrap=True)


def _result(curve: LearningCurve) -> dict[str, Any]:
    return {"arm": curve.name, "explained_variance": curve.explained_variance}


def best(arms: Sequence[LearningCurve]) -> LearningCurve:
    """Return the arm that did best along the stream: a choice in hindsight that no learner could make."""
    winner = max(arms, key=lambda arm: sum(arm.explained_variance))
    return replace(winner, name=f"{winner.name} (best rate)")


def coverage(task: PendulumStream, band: Bands) -> float:
    """Return the share of held-out returns inside the band of a return."""
    raw = joined(task.held_out).returns * task.std + task.mean
    return float(((raw - band.value).abs() <= BAND * band.return_std).float().mean())


def table(results: EvaluationResults) -> Table:
    """Return the explained variances, one row per number of samples seen."""
    output = Table(title="Explained variance of held-out returns", caption="1 is perfect, 0 a constant guess")
    output.add_column("samples seen", justify="right")
    for arm in results.arms:
        output.add_column(arm.name, justify="right")
    for row, seen in enumerate(results.samples_seen):
        scores = (arm.explained_variance[row] for arm in results.arms)
        output.add_row(f"{seen:,}", *(f"{score:.3f}" for score in scores))
    return output


def verdict(results: EvaluationResults) -> str:
    """Return in words what the scores of this run say, against the best that any of Adam's rates ever reached."""
    kova = results.arms[0].explained_variance
    peak, seen = max(
        (max(scores), at) for scores, at in zip(_by_point(results.adam_grid), results.samples_seen, strict=True)
    )
    passed = next((at for score, at in zip(kova, results.samples_seen, strict=True) if score >= peak), None)
    outcome = "KOVA did not reach it" if passed is None else f"KOVA had passed it at {passed:,}"
    return f"Over all of Adam's rates the best score is {peak:.3f}, at {seen:,} samples; {outcome}."


def _by_point(arms: Sequence[LearningCurve]) -> list[tuple[float, ...]]:
    return list(zip(*(arm.explained_variance for arm in arms), strict=True))


def draw(results: EvaluationResults, task: PendulumStream, band: Bands, path: Path) -> None:
    """Save the figure."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_scores(left, results)
    draw_episode(right, task, band)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=130)


def draw_scores(axes: Axes, results: EvaluationResults) -> None:
    """Plot explained variance against samples seen."""
    for arm in results.adam_grid:
        axes.plot(results.samples_seen, arm.explained_variance, color="0.85", linewidth=0.8, zorder=1)
    for arm, colour, marker in zip(results.arms, (BLUE, PURPLE, ORANGE, GREEN), "osD^", strict=True):
        (line,) = axes.plot(results.samples_seen, arm.explained_variance, color=colour, marker=marker, label=arm.name)
        line.set(linewidth=2.8 if arm is results.arms[0] else 1.4, zorder=3 if arm is results.arms[0] else 2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(results.samples_seen, [f"{seen:,}" for seen in results.samples_seen])
    axes.set_ylim(-0.2, 1.02)
    axes.set(xlabel="samples seen", ylabel="explained variance, held-out returns")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_title("Learning from a stream of returns (grey: Adam at other rates)", fontsize=10)


def draw_episode(axes: Axes, task: PendulumStream, band: Bands) -> None:
    """Plot the bands along the held-out episode that starts worst, the longest swing-up."""
    sizes = [len(part.returns) for part in task.held_out]
    chosen = min(range(len(sizes)), key=lambda index: float(task.held_out[index].returns[0]))
    value, value_std, return_std = (
        part.split(sizes)[chosen].numpy() for part in (band.value, band.value_std, band.return_std)
    )
    returns = task.held_out[chosen].returns.numpy() * task.std + task.mean
    seconds = [pendulum.STEP_SECONDS * step for step in range(sizes[chosen])]
    for std, alpha, label in ((return_std, 0.15, "a return, ±2σ"), (value_std, 0.4, "the value, ±2σ")):
        lower, upper = value - BAND * std, value + BAND * std
        axes.fill_between(seconds, lower, upper, color=BLUE, alpha=alpha, linewidth=0, label=label)
    axes.plot(seconds, value, color=BLUE, linewidth=1.5, label="KOVA's value")
    axes.plot(seconds, returns, ".", color="0.35", markersize=3, label="measured returns")
    axes.set(xlabel="time in the episode (s)", ylabel=f"discounted return, γ = {GAMMA:g} (reward units)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_title("One held-out swing-up", fontsize=10)
