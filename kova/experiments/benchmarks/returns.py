"""``kova bench returns``: does the band of the return hold its level over a training, and after a change?

Agents learn with their default presets. Every return that becomes known is judged by the band that was promised when it
was predicted. Half way the task may change: its rewards are tripled, or gravity is half as strong again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from stable_baselines3.common.callbacks import BaseCallback

from kova.conformal import ConformalBand
from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.expressions import suggestion
from kova.experiments.runs.model import build
from kova.experiments.runs.vectors import Environments
from kova.sb3.returns import ReturnBands

#: Frames over which a share is taken.
STRETCH = 20_000
FRAMES = 60_000
GRAVITY = 1.5
REWARDS = 3.0
ON_POLICY = ("a2c", "ppo", "trpo")
TASKS = ("CartPole-v1", "Pendulum-v1", "Hopper-v4", "HalfCheetah-v4")

#: (algorithm, task, frames, change); DDPG's frames take a hundred times as long as A2C's.
AGENTS: tuple[tuple[str, str, int, str], ...] = (
    *((algo, env, FRAMES, "none") for env in TASKS for algo in ON_POLICY),
    ("dqn", "CartPole-v1", FRAMES, "none"),
    ("ddpg", "Pendulum-v1", FRAMES // 3, "none"),
    *(
        (algo, env, 2 * FRAMES, change)
        for env in TASKS[2:]
        for algo in ON_POLICY[:2]
        for change in ("rewards", "gravity")
    ),
)

ROW = "{:<5} {:<15} {:<8} {:>4} {:>7}   {}"


class Tripled(gym.RewardWrapper[Any, Any]):
    """Rewards times :data:`REWARDS`, once it is told so."""

    factor = 1.0

    def reward(self, reward: SupportsFloat) -> float:
        """Return the reward in its present unit."""
        return self.factor * float(reward)


def _triple(env: gym.Env[Any, Any]) -> None:
    layer: Any = env
    while not isinstance(layer, Tripled):
        layer = layer.env
    layer.factor = REWARDS


def _heavier(env: gym.Env[Any, Any]) -> None:
    task: Any = env.unwrapped
    task.model.opt.gravity[:] *= GRAVITY


def _nothing(env: gym.Env[Any, Any]) -> None:
    """Leave the task as it is."""


CHANGES: Mapping[str, Callable[[gym.Env[Any, Any]], None]] = {
    "none": _nothing,
    "rewards": _triple,
    "gravity": _heavier,
}


class WatchedBand(ConformalBand):
    """A band that keeps what it judged, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = 0
        self.judged: list[tuple[int, bool]] = []

    def observe(self, scores: Iterable[float], lows: Iterable[float], highs: Iterable[float]) -> None:
        """Take scores; note whether each was inside."""
        taken = list(zip(scores, lows, highs, strict=True))
        self.judged += [(self.frame, low <= score <= high) for score, low, high in taken if math.isfinite(low)]
        super().observe(*(zip(*taken, strict=True) if taken else ((), (), ())))

    def share(self, first: int, last: int) -> float | None:
        """Return the share inside of the returns that became known from frame ``first`` to before ``last``."""
        inside = [value for frame, value in self.judged if first <= frame < last]
        return float(np.mean(inside)) if inside else None


class _Watch(BaseCallback):
    """Tells the band the time, and changes the tasks half way."""

    def __init__(
        self,
        band: WatchedBand,
        tasks: Sequence[gym.Env[Any, Any]],
        change: Callable[[gym.Env[Any, Any]], None],
        at: int,
    ) -> None:
        super().__init__()
        self._band, self._tasks, self._change, self._at = band, tasks, change, at

    def _on_step(self) -> bool:
        self._band.frame = self.num_timesteps
        if self._at <= self.num_timesteps < self._at + self.training_env.num_envs:
            for task in self._tasks:
                self._change(task)
        return True


def covered(algo: str, env: str, frames: int, change: str, seed: int) -> dict[str, Any]:
    """Train an agent and return the share of returns inside its band, over all and in every stretch."""
    config = RunConfig.from_preset(algo, env).with_values({"seed": seed, "steps": frames})
    bare = environments.make(config)
    assert isinstance(bare, Environments)
    if change == "rewards":
        bare.envs = [Tripled(task) for task in bare.envs]
    model = build(config, environments.normalized(bare, config))
    assert isinstance(model, ReturnBands)
    band = model.return_band = WatchedBand()
    model.learn(frames, callback=_Watch(band, bare.envs, CHANGES[change], frames // 2))
    bare.close()
    return {
        "arm": "KOVA",
        "algorithm": algo,
        "environment": env,
        "frames": frames,
        "change": change,
        "seed": seed,
        "level": band.level,
        "judged": len(band.judged),
        "inside": band.share(0, frames + 1),
        "stretches": [band.share(start, start + STRETCH) for start in range(0, frames, STRETCH)],
    }


def run(out: Path, algos: Sequence[str], seeds: int, console: Console, command: str) -> None:
    """Train every agent that the record does not have, and write ``returns.json`` as it goes.

    Args:
        out: Its folder.
        algos: Algorithms; all of them if there are none.
        seeds: Agents of every kind.
        console: The screen.
        command: What was typed.

    Raises:
        UsageError: An algorithm is unknown, or the file cannot be read or written.
    """
    check_folder(out, "--out", "returns.json")
    known_algos = list(dict.fromkeys(agent[0] for agent in AGENTS))
    for algo in algos:
        if algo not in known_algos:
            raise UsageError(f"algorithm {algo!r} is unknown{suggestion(algo, known_algos)}")
    path = out / "returns.json"
    record = Record(path, "returns", command, {"stretch": STRETCH}, read_results(path, "returns"))
    keys = ("algorithm", "environment", "frames", "change", "seed")
    known = {tuple(result[key] for key in keys) for result in record.results}
    agents = [(*agent, seed) for seed in range(seeds) for agent in AGENTS if not algos or agent[0] in algos]
    torch.set_num_threads(1)
    stretches = f"in every {STRETCH:,} frames"
    console.print(ROW.format("algo", "task", "change", "seed", "inside", stretches), highlight=False)
    with record.kept(console):
        for agent in track(
            [agent for agent in agents if agent not in known], "agents", console=console, transient=True
        ):
            result = covered(*agent)
            record.add(result)
            parts = " ".join("–" if share is None else f"{100 * share:.0f}" for share in result["stretches"])
            algo, env, _, change, seed = agent
            inside = "–" if result["inside"] is None else f"{100 * result['inside']:.1f} %"
            console.print(ROW.format(algo, env, change, seed, inside, parts), highlight=False)
    console.print(str(path), highlight=False, soft_wrap=True)
