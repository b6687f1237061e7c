"""``kova bench passes``: how many passes over a rollout does a critic need?

Two agents that differ in their critics soon differ in their policies, and their explained variances no longer compare.
Here PPO with the Adam critic makes the rollouts once, and every arm learns the value from the same ones, with labels of
its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from rich.console import Console
from rich.progress import track
from stable_baselines3.common.utils import explained_variance
from torch import Tensor, nn

import kova
from kova.experiments.benchmarks.record import Record
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.training import build
from kova.sb3 import PPO, upstream
from kova.sb3.adam import AdamCritic
from kova.targets import gae_targets


@dataclass(frozen=True, eq=False)
class Rollout:
    """What a critic sees of a rollout: T observations and one more, T rewards, and which steps ended an episode."""

    observations: Tensor
    rewards: Tensor
    ended: Tensor


@dataclass(frozen=True)
class CriticFit:
    """A way to fit the critic: passes over a rollout, N, and the filter's settings; none for Adam."""

    passes: int
    size: int
    settings: Mapping[str, Any] | None = None


ARMS: Mapping[str, CriticFit] = {
    "Adam, 10 × 64": CriticFit(10, 64),
    "Adam, 1 × 64": CriticFit(1, 64),
    "neuron, 1 × 64": CriticFit(1, 64, {"covariance": "neuron"}),
    "neuron, 2 × 64": CriticFit(2, 64, {"covariance": "neuron"}),
    "neuron, 2 × 256": CriticFit(2, 256, {"covariance": "neuron"}),
    "neuron, η = 0.1, 1 × 64": CriticFit(1, 64, {"covariance": "neuron", "evolution": kova.FadingMemory(0.1)}),
    "memoryless, 10 × 64": CriticFit(10, 64, {"evolution": kova.Memoryless(0.1)}),
    "full, η = 0.1, 1 × 64": CriticFit(1, 64, {"covariance": "full", "evolution": kova.FadingMemory(0.1)}),
}

ROW = "{:<24} {:>30} {:>9} {:>13}"


def record_rollouts(env_name: str, steps: int, seed: int) -> list[Rollout]:
    """Return the rollouts of a PPO run with the Adam critic.

    Raises:
        UsageError: The environment does not exist, or its observations are not vectors.
    """
    config = RunConfig.from_preset("ppo", env_name).with_critic("adam").changed(steps=steps, seed=seed)
    env = environments.normalized(environments.make(config), config)
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UsageError(f"{env_name} has observations of the kind {space}; choose one whose observations are vectors")
    model = build(config, env)
    assert isinstance(model, PPO)
    found: list[Rollout] = []
    train = model.train

    def keep_and_train() -> None:
        buffer = model.rollout_buffer
        last = torch.as_tensor(np.asarray(upstream.last_observation(model)), dtype=torch.float32)
        observations = torch.as_tensor(buffer.observations, dtype=torch.float32).flatten(0, 1)
        starts = np.concatenate([buffer.episode_starts[1:, 0], upstream.last_episode_starts(model).astype(float)])
        rewards = torch.as_tensor(buffer.rewards[:, 0], dtype=torch.float32).clone()
        found.append(Rollout(torch.cat([observations, last]), rewards, torch.as_tensor(starts) > 0))
        train()

    model.train = keep_and_train  # type: ignore[method-assign]
    model.learn(steps)
    env.close()
    return found


def replay(arm: CriticFit, rollouts: list[Rollout]) -> tuple[list[float], float]:
    """Return the explained variance of every rollout before the critic learned from it, and the seconds of learning."""
    critic = _critic(rollouts[0].observations.shape[1])
    optimizer: kova.KOVA | AdamCritic
    if arm.settings is None:
        optimizer = AdamCritic(critic, lr=3e-4, loss_weight=0.5, max_grad_norm=0.5)
    else:
        optimizer = kova.KOVA(critic, **arm.settings)
    rng = np.random.default_rng(0)
    explained, spent = [], 0.0
    for index, rollout in enumerate(rollouts):
        with torch.no_grad():
            values = critic(rollout.observations).squeeze(1)
        never = torch.zeros_like(rollout.ended)
        labels = gae_targets(
            rollout.rewards, values[:-1], values[1:], rollout.ended, never, gamma=0.99, gae_lambda=0.95
        )
        explained.append(float(explained_variance(values[:-1].numpy(), labels.numpy())))
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = 3e-4 * (1.0 - index / len(rollouts))
        start = time.perf_counter()
        for _ in range(arm.passes):
            for batch in torch.as_tensor(rng.permutation(len(labels))).split(arm.size):
                optimizer.step(rollout.observations[batch], labels[batch])
        spent += time.perf_counter() - start
    return explained, spent


def _critic(inputs: int) -> nn.Module:
    """Return the value network of upstream's MlpPolicy, with upstream's initialisation."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for fan_in, fan_out, gain in ((inputs, 64, 2**0.5), (64, 64, 2**0.5), (64, 1, 1.0)):
            layer = nn.Linear(fan_in, fan_out)
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def run(out: Path, env_name: str, steps: int, seed: int, console: Console, command: str) -> None:
    """Record rollouts, replay them for every arm, print it row by row, and write ``critic_passes_ENV.json``.

    Raises:
        UsageError: The environment does not fit, or the file cannot be written.
    """
    name = f"critic_passes_{env_name.replace('/', '-')}.json"
    check_folder(out, "--out", name)
    with console.status("recording rollouts"):
        rollouts = record_rollouts(env_name, steps, seed)
    settings = {"env": env_name, "steps": steps, "seed": seed, "rollouts": len(rollouts)}
    record = Record(out / name, "passes", command, settings)
    console.print(ROW.format("critic", "explained variance, 1st half", "2nd half", "ms a rollout"), highlight=False)
    with record.kept(console):
        for arm, fit in track(ARMS.items(), "replaying", console=console, transient=True):
            explained, spent = replay(fit, rollouts)
            half = len(explained) // 2
            # One rollout has no first half.
            first, second = float(np.mean(explained[: max(half, 1)])), float(np.mean(explained[half:]))
            milliseconds = 1e3 * spent / len(rollouts)
            record.add({"arm": arm, "first_half": first, "second_half": second, "milliseconds": milliseconds})
            console.print(ROW.format(arm, f"{first:.3f}", f"{second:.3f}", f"{milliseconds:.0f}"), highlight=False)
    console.print(str(record.path), highlight=False, soft_wrap=True)
