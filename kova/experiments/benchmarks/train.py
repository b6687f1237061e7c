"""``kova bench train``: the wall-clock time of whole PPO runs, a Kalman critic beside upstream, in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import stable_baselines3
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kova.sb3
from kova.experiments.benchmarks.record import Record
from kova.experiments.files import check_folder
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.expressions import resolve
from kova.experiments.runs.training import build

UPSTREAM = "upstream PPO"
ARMS: Mapping[str, type[Any]] = {UPSTREAM: stable_baselines3.PPO, "kova PPO": kova.sb3.PPO}


@dataclass(frozen=True)
class TimedRun:
    """One run: its seconds, and its mean explained variance over the second half."""

    arm: str
    seed: int
    seconds: float
    explained_variance: float


def run(out: Path, env: str, steps: int, repeats: int, console: Console, command: str) -> None:
    """Time every arm ``repeats`` times, print the ratio of medians, and write ``train.json``.

    Raises:
        UsageError: The environment cannot be trained on, or the file cannot be written.
    """
    check_folder(out, "--out", "train.json")
    config = RunConfig.from_preset("ppo", env).changed(steps=steps)
    trial = environments.normalized(environments.make(config), config)
    build(config, trial)
    trial.close()
    record = Record(out / "train.json", "train", command, {"env": env, "steps": steps, "repeats": repeats})
    runs: list[TimedRun] = []
    with record.kept(console), Progress(console=console) as bar:
        task = bar.add_task("training", total=repeats * len(ARMS))
        for seed in range(repeats):
            for arm, algorithm in ARMS.items():
                runs.append(TimedRun(arm, seed, *_timed(algorithm, config, steps, seed)))
                record.add(asdict(runs[-1]))
                console.print(f"{arm}, seed {seed}: {runs[-1].seconds:.1f} s", highlight=False)
                bar.advance(task)
    console.print(_table(runs))
    console.print(str(record.path), highlight=False, soft_wrap=True)


def _table(runs: Sequence[TimedRun]) -> Table:
    table = Table("arm", "seconds (median)", "from", "to", "ratio", "explained variance")
    base = median(run.seconds for run in runs if run.arm == UPSTREAM)
    for arm in ARMS:
        times = [run.seconds for run in runs if run.arm == arm]
        explained = median(run.explained_variance for run in runs if run.arm == arm)
        cells = (median(times), min(times), max(times))
        table.add_row(arm, *(f"{cell:.1f}" for cell in cells), f"{median(times) / base:.2f}", f"{explained:.2f}")
    return table


def _timed(algorithm: type[Any], config: RunConfig, steps: int, seed: int) -> tuple[float, float]:
    """Return the seconds of a run and its mean explained variance over the second half."""
    env = environments.normalized(environments.make(config), config)
    model = algorithm(environments.policy_for(env), env, seed=seed, device="cpu", **resolve(config.algorithm))
    explained: list[float] = []
    upstream_train = model.train

    def train() -> None:
        upstream_train()
        explained.append(float(model.logger.name_to_value["train/explained_variance"]))

    model.train = train
    start = time.perf_counter()
    model.learn(steps)
    took = time.perf_counter() - start
    env.close()
    half = explained[len(explained) // 2 :]
    return took, sum(half) / len(half)
