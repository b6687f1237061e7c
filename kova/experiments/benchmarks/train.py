"""``kova bench train``: the wall-clock time of whole runs, a Kalman critic beside upstream, in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from stable_baselines3.common.callbacks import BaseCallback

from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build

UPSTREAM, ADAM = {"critic.optimizer": "upstream"}, {"critic.optimizer": "adam"}
#: {algorithm: {arm: (its algorithm, settings)}}; the first arm is what the others are divided by.
ARMS: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "ppo": {"upstream PPO": ("ppo", UPSTREAM), "kova PPO": ("ppo", {})},
    "a2c": {
        "upstream A2C": ("a2c", UPSTREAM),
        "A2C, Adam × 1": ("a2c", {**ADAM, "critic.epochs": 1}),
        "A2C, Adam × 10": ("a2c", {**ADAM, "critic.epochs": 10}),
        "kova A2C": ("a2c", {}),
        # As many environments as A2C has: it is the faster way to train PPO too.
        "upstream PPO": ("ppo", {**UPSTREAM, "n_envs": 8, "algorithm.n_steps": 256}),
    },
}


@dataclass(frozen=True)
class TimedRun:
    """One run: its frames, seconds, and mean explained variance over the second half, if there was any."""

    algorithm: str
    env: str
    arm: str
    seed: int
    threads: int
    frames: int
    seconds: float
    explained_variance: float | None


class _Explained(BaseCallback):
    """Keeps what upstream logs of every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._look()

    def _on_training_end(self) -> None:
        self._look()

    def _look(self) -> None:
        logged = self.model.logger.name_to_value
        if "train/explained_variance" in logged:
            self.found.append(float(logged["train/explained_variance"]))


def run(out: Path, algorithm: str, env: str, steps: int, repeats: int, console: Console, command: str) -> None:
    """Time every arm ``repeats`` times, print the ratio of medians, and write ``train.json``.

    Results of other algorithms stay in the file.

    Raises:
        UsageError: The algorithm has no arms, the environment cannot be trained on, or the file cannot be written.
    """
    if algorithm not in ARMS:
        raise UsageError(f"--algorithm must be one of {', '.join(ARMS)}, got {algorithm!r}")
    check_folder(out, "--out", "train.json")
    path = out / "train.json"
    # Results of 0.1.0 say neither algorithm nor frames.
    others = [result for result in read_results(path, "train") if result.get("algorithm", algorithm) != algorithm]
    configs = {
        arm: RunConfig.from_preset(algo, env).with_values({"steps": steps, **settings})
        for arm, (algo, settings) in ARMS[algorithm].items()
    }
    for config in configs.values():
        trial = environments.normalized(environments.make(config), config)
        build(config, trial)
        trial.close()
    record = Record(path, "train", command, {}, others)
    runs: list[TimedRun] = []
    with record.kept(console), Progress(console=console) as bar:
        task = bar.add_task("training", total=repeats * len(configs))
        for seed in range(repeats):
            for arm, config in configs.items():
                timed = _timed(config.changed(seed=seed))
                runs.append(TimedRun(algorithm, env, arm, seed, torch.get_num_threads(), *timed))
                record.add(asdict(runs[-1]))
                console.print(f"{arm}, seed {seed}: {runs[-1].seconds:.1f} s", highlight=False)
                bar.advance(task)
    console.print(_table(runs))
    console.print(str(path), highlight=False, soft_wrap=True)


def _table(runs: Sequence[TimedRun]) -> Table:
    table = Table("arm", "seconds (median)", "from", "to", "ratio", "explained variance")
    arms = list(dict.fromkeys(run.arm for run in runs))
    base = median(run.seconds for run in runs if run.arm == arms[0])
    for arm in arms:
        times = [run.seconds for run in runs if run.arm == arm]
        known = [run.explained_variance for run in runs if run.arm == arm and run.explained_variance is not None]
        cells = (median(times), min(times), max(times))
        explained = f"{median(known):.2f}" if known else "none"
        table.add_row(arm, *(f"{cell:.1f}" for cell in cells), f"{median(times) / base:.2f}", explained)
    return table


def _timed(config: RunConfig) -> tuple[int, float, float | None]:
    """Return the frames and seconds of a run and its mean explained variance over the second half."""
    env = environments.normalized(environments.make(config), config)
    explained = _Explained()
    try:
        model = build(config, env)
        start = time.perf_counter()
        model.learn(config.steps, callback=explained)
        took = time.perf_counter() - start
    finally:
        env.close()
    half = [value for value in explained.found[len(explained.found) // 2 :] if math.isfinite(value)]
    return model.num_timesteps, took, sum(half) / len(half) if half else None
