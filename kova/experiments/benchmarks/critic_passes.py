"""How many passes over a rollout does a critic need? Critics side by side on one stream of rollouts.

Two agents that differ in their critics soon differ in their policies, and their explained variances no longer compare.
Here PPO with the Adam critic makes the rollouts once, and every arm learns the value from the same ones, with labels of
its own.

    python -m kova.experiments.benchmarks.critic_passes --env HalfCheetah-v4 --steps 200000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from stable_baselines3.common.utils import explained_variance
from torch import Tensor, nn

import kova
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.provenance import provenance
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


def record(env_name: str, steps: int, seed: int) -> list[Rollout]:
    """Return the rollouts of a PPO run with the Adam critic."""
    config = RunConfig.from_preset("ppo", env_name).with_critic("adam").changed(steps=steps, seed=seed)
    env = environments.normalized(environments.make(config), config)
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
    """Return the value network of upstream's MlpPolicy, initialised as it is."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for fan_in, fan_out, gain in ((inputs, 64, 2**0.5), (64, 64, 2**0.5), (64, 1, 1.0)):
            layer = nn.Linear(fan_in, fan_out)
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def run(out: Path, env_name: str, steps: int, seed: int, console: Console) -> None:
    """Record, replay every arm, print a table, and write the numbers."""
    rollouts = record(env_name, steps, seed)
    results = {}
    table = Table("critic", "explained variance, 1st half", "2nd half", "ms of learning a rollout")
    for name, arm in track(ARMS.items(), "replaying", console=console):
        explained, spent = replay(arm, rollouts)
        half = len(explained) // 2
        first, second = float(np.mean(explained[:half])), float(np.mean(explained[half:]))
        results[name] = {"first_half": first, "second_half": second, "milliseconds": 1e3 * spent / len(rollouts)}
        table.add_row(name, f"{first:.3f}", f"{second:.3f}", f"{results[name]['milliseconds']:.0f}")
    console.print(table)
    command = f"python -m kova.experiments.benchmarks.critic_passes --env {env_name} --steps {steps} --seed {seed}"
    out.mkdir(parents=True, exist_ok=True)
    content = {**provenance(command), "rollouts": len(rollouts), "arms": results}
    (out / f"critic_passes_{env_name}.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/data"), help="where the numbers go")
    parser.add_argument("--env", default="HalfCheetah-v4", help="a Gymnasium id")
    parser.add_argument("--steps", type=int, default=200_000, help="frames of the recorded run")
    parser.add_argument("--seed", type=int, default=0, help="of the recorded run")
    arguments = parser.parse_args()
    run(arguments.out, arguments.env, arguments.steps, arguments.seed, Console())


if __name__ == "__main__":
    main()
