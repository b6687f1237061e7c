"""``kova bench scale``: the same task paid in cents, in euros and in hundreds of euros.

A critic with a learning rate knows the scale of its rewards; a filter in the units of its labels does not. Rewards are
multiplied, nothing else changes, and returns are reported as the environment pays them. The policy's own learning rate
is upstream's in every arm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn, VecEnvWrapper

from kova.experiments.benchmarks.record import Record, read_results
from kova.experiments.benchmarks.scale_figure import save_figure
from kova.experiments.errors import UsageError
from kova.experiments.files import check_folder
from kova.experiments.report.statistics import probability_of_improvement
from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build
from kova.experiments.streams.recording import Recorder
from kova.experiments.streams.replay import explained

ALGORITHMS = ("a2c", "ppo")
ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "Hopper-v4", "HalfCheetah-v4")
SCALES = (0.01, 1.0, 100.0)
RATES = (1e-4, 3e-4, 1e-3, 3e-3)

#: Tried at scale 1 only: it divides the scale out.
NORMALISED = {"normalize_observations": True, "normalize_rewards": True}
#: {arm: settings of the run}; every arm is trained on raw observations and rewards unless it says otherwise.
ARMS: Mapping[str, Mapping[str, Any]] = {
    "KOVA": {"critic.optimizer": "kova"},
    "upstream": {"critic.optimizer": "upstream"},
    "upstream + VecNormalize": {"critic.optimizer": "upstream", **NORMALISED},
    "KOVA + VecNormalize": {"critic.optimizer": "kova", **NORMALISED},
    **{f"Adam critic, {rate:g}": {"critic.optimizer": "adam", "critic.learning_rate": rate} for rate in RATES},
}

ROW = "{:<6} {:<16} {:<24} {:>7} {:>5} {:>12} {:>10}"
#: Share of the episodes, the last ones, whose mean is the return that is reported.
LAST = 0.25


class Scaled(VecEnvWrapper):
    """Pays rewards in another unit.

    Args:
        venv: The environments.
        scale: What a reward of 1 is worth.
    """

    def __init__(self, venv: VecEnv, scale: float) -> None:
        super().__init__(venv)
        self.scale = scale

    def reset(self) -> VecEnvObs:
        """Reset the environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Change the rewards; the monitors below have seen them as they were."""
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, (self.scale * rewards).astype(rewards.dtype), dones, infos


class Values(BaseCallback):
    """Keeps what the critic said of every frame before it learned from it, and the returns of the episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[np.ndarray] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        assert isinstance(self.model, OnPolicyAlgorithm)
        self.said.append(self.model.rollout_buffer.values.copy())


def configuration(algo: str, env: str, arm: str, seed: int, frames: int) -> RunConfig:
    """Return the run of an arm: upstream's own settings, eight environments, nothing normalised unless the arm says."""
    shape = {"algorithm.n_steps": 256} if algo == "ppo" else {}
    common = {"n_envs": 8, "steps": frames, "seed": seed, "normalize_observations": False, "normalize_rewards": False}
    return RunConfig.from_preset(algo, env).with_values({**common, **shape, **ARMS[arm]})


def trained(config: RunConfig, scale: float) -> dict[str, float]:
    """Train with scaled rewards; return the mean of the last returns and how well the critic explained returns."""
    env = environments.normalized(Scaled(environments.make(config), scale), config)
    # What the critic says is compared with returns in the units that it has seen.
    recorder, values = Recorder(env, as_paid=False), Values()
    try:
        build(config, recorder).learn(config.steps, callback=values)
    finally:
        env.close()
    said = torch.from_numpy(np.concatenate(values.said))
    stream = recorder.stream()
    found = explained(stream, said, gamma=0.99)
    late = values.returns[-max(1, round(LAST * len(values.returns))) :]
    return {
        "return": float(np.mean(late)) if late else float("nan"),
        "explained": float(np.mean(np.clip(found[len(found) // 2 :], -1.0, 1.0))),
    }


def run(out: Path, seeds: int, frames: int, algos: Sequence[str], console: Console, command: str) -> None:
    """Train every arm at every scale, seed by seed, and write ``scale.json`` and ``scale.png`` as it goes.

    Raises:
        UsageError: An algorithm is not one of these, or a file cannot be read or written.
    """
    for algo in algos:
        if algo not in ALGORITHMS:
            raise UsageError(f"--algo must be one of {', '.join(ALGORITHMS)}, got {algo!r}")
    check_folder(out, "--out", "scale.json", "scale.png")
    path = out / "scale.json"
    record = Record(path, "scale", command, {"frames": frames}, read_results(path, "scale"))
    keys = ("algorithm", "environment", "arm", "scale", "seed")
    known = {tuple(result[key] for key in keys) for result in record.results}
    jobs = [
        (algo, env, arm, scale, seed)
        for seed in range(seeds)
        for env in ENVIRONMENTS
        for algo in algos or ALGORITHMS
        for arm in ARMS
        for scale in SCALES
        if scale == 1.0 or not ARMS[arm].get("normalize_rewards")
        if (algo, env, arm, scale, seed) not in known
    ]
    torch.set_num_threads(1)
    console.print(
        ROW.format("algo", "task", "critic", "scale", "seed", "return", "explained"), highlight=False, soft_wrap=True
    )
    with record.kept(console):
        for job in track(jobs, "training", console=console, transient=True):
            algo, env, arm, scale, seed = job
            result = trained(configuration(algo, env, arm, seed, frames), scale)
            record.add({**dict(zip(keys, job, strict=True)), **result})
            console.print(
                ROW.format(algo, env, arm, f"{scale:g}", seed, f"{result['return']:.1f}", f"{result['explained']:.3f}"),
                highlight=False,
                soft_wrap=True,
            )
    save_figure(out / "scale.png", record.results)
    for line in chances(record.results):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(str(path), highlight=False, soft_wrap=True)


def chances(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, for every algorithm and arm, how likely a run of the filter earns more at the same task and scale."""

    def scores(algo: str, arm: str) -> dict[str, np.ndarray]:
        own = [result for result in results if (result["algorithm"], result["arm"]) == (algo, arm)]
        cells: dict[str, list[float]] = {}
        for result in own:
            cells.setdefault(f"{result['environment']} × {result['scale']:g}", []).append(result["return"])
        return {cell: np.array(values) for cell, values in cells.items()}

    lines = []
    for algo in dict.fromkeys(result["algorithm"] for result in results):
        for arm in (arm for arm in ARMS if "KOVA" not in arm):
            found = probability_of_improvement(scores(algo, "KOVA"), scores(algo, arm))
            lines.append(f"{algo}: P(KOVA earns more than {arm}) = {found:.2f}")
    return lines
