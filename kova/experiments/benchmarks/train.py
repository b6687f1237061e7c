"""``kova bench train``: the wall-clock time of whole PPO runs, a Kalman critic beside upstream, in turns."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stable_baselines3
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kova.sb3
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.expressions import resolve
from kova.experiments.runs.provenance import provenance

ARMS: Mapping[str, type[Any]] = {"upstream PPO": stable_baselines3.PPO, "kova PPO": kova.sb3.PPO}


def run(out: Path, env: str, steps: int, repeats: int, console: Console) -> None:
    """Time every arm ``repeats`` times, print the ratio of medians, and write ``train.json``.

    Raises:
        UsageError: The environment does not exist.
    """
    config = RunConfig.from_preset("ppo", env)
    environments.make(config).close()
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    explained: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with Progress(console=console) as bar:
        task = bar.add_task("training", total=repeats * len(ARMS))
        for repeat in range(repeats):
            for arm, algorithm in ARMS.items():
                took, variance = _timed(algorithm, config, steps, seed=repeat)
                seconds[arm].append(took)
                explained[arm].append(variance)
                bar.advance(task)
    base = statistics.median(seconds["upstream PPO"])
    table = Table("arm", "seconds (median)", "from", "to", "ratio", "explained variance")
    for arm, times in seconds.items():
        middle = statistics.median(times)
        shown = statistics.median(explained[arm])
        cells = (f"{middle:.1f}", f"{min(times):.1f}", f"{max(times):.1f}", f"{middle / base:.2f}", f"{shown:.2f}")
        table.add_row(arm, *cells)
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    ratio = statistics.median(seconds["kova PPO"]) / base
    command = f"kova bench train --env {env} --steps {steps} --repeats {repeats}"
    record = {
        **provenance(command),
        "env": env,
        "steps": steps,
        "seconds": seconds,
        "explained_variance": explained,
        "ratio": ratio,
    }
    (out / "train.json").write_text(json.dumps(record, indent=2) + "\n")


def _timed(algorithm: type[Any], config: RunConfig, steps: int, seed: int) -> tuple[float, float]:
    """Return the seconds of a run and its mean explained variance over the second half."""
    env = environments.normalized(environments.make(config), config)
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **resolve(config.algorithm))
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
