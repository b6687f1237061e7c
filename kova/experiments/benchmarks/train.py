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


@dataclass(frozen=True)
class Arm:
    """What is timed: an algorithm with the settings of a preset, some of them changed."""

    algorithm: str
    settings: Mapping[str, Any]
    preset: str = "default"

    def config(self, env: str, steps: int) -> RunConfig:
        """Return the configuration of a run."""
        return RunConfig.from_preset(self.algorithm, env, self.preset).with_values({"steps": steps, **self.settings})


UPSTREAM, ADAM = {"critic.optimizer": "upstream"}, {"critic.optimizer": "adam"}
EIGHT = {"n_envs": 8, "algorithm.n_steps": 256}
#: As ``kova sweep paper-fig3-ppo`` and ``-trpo`` have them.
FUSED = {**EIGHT, "policy.optimizer_kwargs": {"eps": 1e-5, "fused": True}}
OF_1024 = {"n_envs": 8, "algorithm.n_steps": 128}
MEMORYLESS, NEURON = {"critic.evolution": "Memoryless(0.1)"}, {"critic.covariance": "neuron"}
#: {what is compared: {its name: arm}}; the first arm is what the others are divided by.
ARMS: Mapping[str, Mapping[str, Arm]] = {
    "ppo": {"upstream PPO": Arm("ppo", UPSTREAM), "kova PPO": Arm("ppo", {})},
    "a2c": {
        "upstream A2C": Arm("a2c", UPSTREAM),
        "A2C, Adam × 1": Arm("a2c", {**ADAM, "critic.epochs": 1}),
        "A2C, Adam × 10": Arm("a2c", {**ADAM, "critic.epochs": 10}),
        "kova A2C": Arm("a2c", {}),
        # As many environments as A2C has: it is the faster way to train PPO too.
        "upstream PPO": Arm("ppo", {**UPSTREAM, **EIGHT}),
    },
    "paper-ppo": {
        "Adam, 1 × 2,048": Arm("ppo", UPSTREAM, "paper"),
        "Adam, 8 × 256": Arm("ppo", {**UPSTREAM, **EIGHT}, "paper"),
        "Adam, 8 × 256, fused": Arm("ppo", {**UPSTREAM, **FUSED}, "paper"),
        "KOVA Memoryless, 8 × 256, fused": Arm("ppo", {**MEMORYLESS, **FUSED}, "paper"),
        "KOVA FadingMemory, 8 × 256, fused": Arm("ppo", {**NEURON, **FUSED}, "paper"),
    },
    "paper-trpo": {
        "Adam, 1 × 1,024": Arm("trpo", UPSTREAM, "paper"),
        "Adam, 8 × 128": Arm("trpo", {**UPSTREAM, **OF_1024}, "paper"),
        "KOVA Memoryless, 8 × 128": Arm("trpo", {**MEMORYLESS, **OF_1024}, "paper"),
        "KOVA FadingMemory, 8 × 128": Arm("trpo", {**NEURON, **OF_1024}, "paper"),
    },
}


@dataclass(frozen=True)
class TimedRun:
    """One run: its frames, seconds by the clock and of the processor, and mean explained variance of its second half.

    Other work on the machine stretches the clock's seconds, and the processor's much less.
    """

    algorithm: str
    env: str
    arm: str
    seed: int
    threads: int
    frames: int
    seconds: float
    cpu_seconds: float
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
    configs = {name: arm.config(env, steps) for name, arm in ARMS[algorithm].items()}
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
    table = Table("arm", "seconds (median)", "from", "to", "ratio", "frames / CPU second", "explained variance")
    arms = list(dict.fromkeys(run.arm for run in runs))
    base = median(run.seconds for run in runs if run.arm == arms[0])
    for arm in arms:
        times = [run.seconds for run in runs if run.arm == arm]
        known = [run.explained_variance for run in runs if run.arm == arm and run.explained_variance is not None]
        cells = (median(times), min(times), max(times))
        speed = median(run.frames / run.cpu_seconds for run in runs if run.arm == arm)
        explained = f"{median(known):.2f}" if known else "none"
        ratio = f"{median(times) / base:.2f}"
        table.add_row(arm, *(f"{cell:.1f}" for cell in cells), ratio, f"{speed:,.0f}", explained)
    return table


def _timed(config: RunConfig) -> tuple[int, float, float, float | None]:
    """Return the frames and both kinds of seconds of a run and its mean explained variance over the second half."""
    env = environments.normalized(environments.make(config), config)
    explained = _Explained()
    try:
        model = build(config, env)
        start, worked = time.perf_counter(), time.process_time()
        model.learn(config.steps, callback=explained)
        took, cpu = time.perf_counter() - start, time.process_time() - worked
    finally:
        env.close()
    half = [value for value in explained.found[len(explained.found) // 2 :] if math.isfinite(value)]
    return model.num_timesteps, took, cpu, sum(half) / len(half) if half else None
