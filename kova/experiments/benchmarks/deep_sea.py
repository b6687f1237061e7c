"""``kova bench deep-sea``: DeepSea of growing depth, exploration by the filter's posterior beside ε-greedy.

Solved is a run that finds the treasure in at least 50 of its last 100 training episodes. After a depth that no seed
solved, an arm is not sent deeper. All arms make as many steps on minibatches of the same size as they made steps in the
environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import stable_baselines3
from matplotlib.figure import Figure
from rich.console import Console
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

from kova.evolution import PriorRelaxation
from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder, replacing
from kova.experiments.problems.deep_sea import DeepSea
from kova.experiments.runs.expressions import suggestion
from kova.noise import ConstantNoise
from kova.sb3 import DQN
from kova.sb3.exploration import UCBDQN, PosteriorDQN, ThompsonDQN

WINDOW = 100
ENOUGH = 50
BATCH = 64

#: The Thompson sampler must learn between episodes; for ε-greedy it makes no difference.
COMMON: Mapping[str, Any] = {
    "batch_size": BATCH,
    "buffer_size": 100_000,
    "learning_starts": 0,
    "train_freq": (1, "episode"),
    "gradient_steps": -1,
    "device": "cpu",
}

#: One weight per cell and action: with one-hot cells the filter is the tabular posterior. Values are of the order of 1,
#: and one visit shows what an action does in a cell.
TABULAR: Mapping[str, Any] = {
    "policy_kwargs": {"net_arch": []},
    "critic_kwargs": {
        "covariance": "neuron",
        "prior_variance": 1.0,
        "evolution": PriorRelaxation(1e-4),
        "noise": ConstantNoise(1e-4),
    },
}


class MyopicThompsonDQN(ThompsonDQN):
    """Acts on the draw and learns from the mean: what is left when the draw does not pass through the bootstrap."""

    def _next_values(self, batch: ReplayBufferSamples) -> Tensor:
        values: Tensor = self.q_net(batch.next_observations)
        return values


def posterior(algorithm: type[PosteriorDQN], env: DeepSea, seed: int) -> Any:
    """Return an explorer by the posterior."""
    return algorithm("MlpPolicy", env, seed=seed, **COMMON, **TABULAR)


def epsilon_kova(env: DeepSea, seed: int) -> Any:
    """Return ε-greedy with the filter of the Thompson sampler."""
    return DQN("MlpPolicy", env, seed=seed, target_update_interval=env.depth, **COMMON, **TABULAR)


def epsilon_adam(env: DeepSea, seed: int) -> Any:
    """Return upstream's DQN with its own network and ε; its rate and target interval are for runs of this length."""
    options = {**COMMON, "learning_rate": 1e-3, "target_update_interval": 100}
    return stable_baselines3.DQN("MlpPolicy", env, seed=seed, **options)


ARMS: Mapping[str, Callable[[DeepSea, int], Any]] = {
    "Thompson, KOVA": lambda env, seed: posterior(ThompsonDQN, env, seed),
    "UCB, KOVA": lambda env, seed: posterior(UCBDQN, env, seed),
    "Thompson, myopic labels": lambda env, seed: posterior(MyopicThompsonDQN, env, seed),
    "ε-greedy, KOVA": epsilon_kova,
    "ε-greedy, Adam": epsilon_adam,
}
STYLES = dict(zip(ARMS, ("o#0072B2", "D#009E73", "v#56B4E9", "^#CC79A7", "s#E69F00"), strict=True))


@dataclass(frozen=True)
class Run:
    """One run: the episodes to the first treasure and to the solution, ``None`` if there was none."""

    arm: str
    depth: int
    seed: int
    episodes: int
    first_treasure: int | None
    solved: int | None
    treasures: int
    seconds: float


class Treasures(BaseCallback):
    """Notes which episodes found the treasure and stops once the task is solved or the episodes are used up."""

    def __init__(self, episodes: int) -> None:
        super().__init__()
        self.episodes = episodes
        self.found: list[bool] = []

    @property
    def solved(self) -> bool:
        """Whether the last episodes hold enough treasures."""
        return sum(self.found[-WINDOW:]) >= ENOUGH

    def _on_step(self) -> bool:
        if self.locals["dones"][0]:
            self.found.append(bool(self.locals["infos"][0]["is_success"]))
        return len(self.found) < self.episodes and not self.solved


def run(arm: str, depth: int, seed: int, episodes: int) -> Run:
    """Train one arm until it has solved the task, for at most ``episodes``."""
    start = time.perf_counter()
    treasures = Treasures(episodes)
    ARMS[arm](DeepSea(depth, mapping_seed=seed), seed).learn(episodes * depth, treasures, log_interval=episodes + 1)
    found = treasures.found
    return Run(
        arm,
        depth,
        seed,
        episodes=len(found),
        first_treasure=found.index(True) + 1 if any(found) else None,
        solved=len(found) if treasures.solved else None,
        treasures=sum(found),
        seconds=round(time.perf_counter() - start, 1),
    )


def grow(
    arm: str,
    depths: Sequence[int],
    seeds: Sequence[int],
    episodes: int,
    report: Callable[[Run], None],
    done: Sequence[Run] = (),
) -> None:
    """Run one arm on ever deeper seas, up to the first that no seed solves; what is ``done`` is not run again."""
    known = {(one.arm, one.depth, one.seed): one for one in done if one.solved or one.episodes >= episodes}
    for depth in depths:
        runs = []
        for seed in seeds:
            one = known.get((arm, depth, seed)) or run(arm, depth, seed, episodes)
            runs.append(one)
            report(one)
        if all(one.solved is None for one in runs):
            return


def draw(runs: Sequence[Run], path: Path) -> None:
    """Plot the episodes to the solution against the depth, every seed a marker, the median a line."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    limit = max(one.episodes for one in runs)
    present = [arm for arm in ARMS if any(one.arm == arm for one in runs)]
    for place, arm in enumerate(present):
        marker, colour = STYLES[arm][0], STYLES[arm][1:]
        # Side by side, so that arms with equal results do not hide each other.
        shift = 0.25 * (place - (len(present) - 1) / 2)
        own = [one for one in runs if one.arm == arm]
        for solved, face in ((True, colour), (False, "none")):
            some = [one for one in own if (one.solved is not None) == solved]
            places = [one.depth + shift for one in some]
            axes.plot(places, [one.episodes for one in some], marker, color=colour, markerfacecolor=face, alpha=0.7)
        depths = sorted({one.depth for one in own})
        middle = [median(one.episodes for one in own if one.depth == depth) for depth in depths]
        axes.plot([depth + shift for depth in depths], middle, color=colour, label=arm)
    span = range(min(one.depth for one in runs), max(one.depth for one in runs) + 1)
    axes.plot(span, [2**depth for depth in span], "--", color="0.6", label="2ᴺ, undirected exploration")
    axes.set_xticks(sorted({one.depth for one in runs}))
    axes.set(yscale="log", ylim=(40, 1.5 * limit), xlabel="depth N", ylabel="episodes to solve (open: not solved)")
    axes.set_title("DeepSea: the treasure in 50 of the last 100 episodes", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.grid(alpha=0.25)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=130)


def compare(
    out: Path,
    depths: Sequence[int],
    seeds: int,
    episodes: int,
    arms: Sequence[str],
    console: Console,
    command: str,
) -> None:
    """Run the comparison and write ``deep_sea.json`` and ``deep_sea.png``; runs that the file has are not repeated.

    Raises:
        UsageError: An arm is unknown, the files cannot be written, or the file there is another.
    """
    for arm in arms:
        if arm not in ARMS:
            raise UsageError(f"--arm {arm!r} is unknown{suggestion(arm, ARMS)}")
    check_folder(out, "--out", "deep_sea.json", "deep_sea.png")
    numbers = out / "deep_sea.json"
    known = read_results(numbers, "deep-sea")
    try:
        done = [Run(**one) for one in known]
    except TypeError:
        raise UsageError(f"{numbers} is not a record of kova bench deep-sea; choose another --out") from None
    record = Record(numbers, "deep-sea", command, {"window": WINDOW, "enough": ENOUGH}, known)
    runs: list[Run] = []

    def report(one: Run) -> None:
        runs.append(one)
        outcome = "not solved" if one.solved is None else f"solved after {one.solved}"
        line = f"{one.arm:<24} depth {one.depth:>2} seed {one.seed}: {outcome} ({one.seconds:.0f} s)"
        console.print(line, highlight=False)
        if asdict(one) not in record.results:
            record.add(asdict(one))

    with record.kept(console):
        for arm in arms or ARMS:
            grow(arm, sorted(set(depths)), range(seeds), episodes, report, done)
    draw(runs, out / "deep_sea.png")
    console.print(f"{numbers}\n{out / 'deep_sea.png'}", highlight=False, soft_wrap=True)
