"""The model of a run: built anew, or read from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from kova.errors import CovarianceTooLarge
from kova.experiments.errors import UsageError, one_line
from kova.experiments.runs import environments, replay
from kova.experiments.runs.config import ALGORITHMS, RunConfig, upstream_of
from kova.experiments.runs.expressions import resolve
from kova.experiments.runs.run_directory import BEST

#: The files of a checkpoint.
MODEL, NORMALIZATION, REPLAY = "model.zip", "normalization.pkl", "replay.pkl"


def build(config: RunConfig, env: VecEnv) -> BaseAlgorithm:
    """Return the untrained model of a run.

    Raises:
        UsageError: The settings do not go together, or not with the environment.
    """
    _check_device(config)
    algorithm, critic = _algorithm(config)
    _check_actions(config, env)
    settings = resolve(config.algorithm)
    if critic.get("critic") == "kova":
        # Presets set them for every critic; given to a Kalman critic they would bring a warning.
        settings = {name: settings[name] for name in settings if name not in ALGORITHMS[config.algo].only_for_adam}
    if isinstance(settings.get("train_freq"), list):
        settings["train_freq"] = tuple(settings["train_freq"])
    if issubclass(ALGORITHMS[config.algo], OffPolicyAlgorithm):
        settings["buffer_size"] = _buffer_size(config)
    if "action_noise" in settings:
        settings["action_noise"] = _action_noise(settings["action_noise"], env)
    try:
        return algorithm(
            environments.policy_for(env),
            env,
            seed=config.seed,
            policy_kwargs=resolve(config.policy) or None,
            device=settings.pop("device", "cpu"),
            **critic,
            **settings,
        )
    except CovarianceTooLarge as error:
        raise UsageError(f"critic.covariance: {one_line(error)}") from error
    except Exception as error:
        # Upstream refuses what it cannot do with errors of many kinds; nothing has been trained or written yet.
        raise UsageError(f"{config.algo} on {config.env}: {one_line(error)}") from error


def _algorithm(config: RunConfig) -> tuple[Callable[..., BaseAlgorithm], dict[str, Any]]:
    """Return the class of a run and the arguments that only this library's classes take."""
    settings = dict(resolve(config.critic))
    optimizer = settings.pop("optimizer")
    if optimizer == "upstream":
        return upstream_of(config.algo), {}
    own = ("epochs", "batch_size", "learning_rate")
    passes = {f"critic_{name}": settings.pop(name) for name in own if name in settings}
    return ALGORITHMS[config.algo], {"critic": optimizer, "critic_kwargs": settings, **passes}


def _check_device(config: RunConfig) -> None:
    """Refuse a device that this machine does not have: upstream would train on the CPU instead."""
    device = config.algorithm.get("device", "cpu")
    if device == "auto":
        return
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, RuntimeError) as error:
        # What torch raises depends on the device.
        gpu = ", cuda" if torch.cuda.is_available() else ""
        raise UsageError(f"algorithm.device={device} is not a device of this machine; use cpu, auto{gpu}") from error


def _check_actions(config: RunConfig, env: VecEnv) -> None:
    """Refuse actions of a kind that the algorithm does not take, and name the algorithms that do."""
    takers = [name for name, algorithm in ALGORITHMS.items() if isinstance(env.action_space, algorithm.action_spaces)]
    if config.algo not in takers:
        taken = " or ".join(kind.__name__ for kind in ALGORITHMS[config.algo].action_spaces)
        way_out = f"use one of {', '.join(takers)}" if takers else "no algorithm takes those"
        raise UsageError(
            f"{config.algo} takes {taken} actions and {config.env} has {type(env.action_space).__name__}; {way_out}"
        )


def _buffer_size(config: RunConfig) -> int:
    """Return the frames of a replay buffer; one for more than the run has would only make checkpoints larger."""
    return min(int(config.algorithm.get("buffer_size", 1_000_000)), config.steps)


def _action_noise(sigma: float | None, env: VecEnv) -> NormalActionNoise | None:
    if sigma is None:
        return None
    size = env.action_space.shape or (1,)
    return NormalActionNoise(np.zeros(size), np.full(size, float(sigma)))


def load(
    config: RunConfig, checkpoint: Path, render_mode: str | None = None, *, to_train: bool = False
) -> tuple[BaseAlgorithm, VecEnv]:
    """Return model and environment of a checkpoint, with its replay buffer if it is ``to_train``.

    Raises:
        UsageError: It cannot be read.
    """
    if to_train:
        _check_device(config)
    saved = checkpoint / NORMALIZATION
    if not saved.exists() and (config.normalize_observations or config.normalize_rewards):
        raise UsageError(f"the checkpoint {checkpoint} has no {NORMALIZATION}; {_advice(checkpoint)}")
    try:
        env = environments.normalized(environments.make(config, render_mode), config, saved if saved.exists() else None)
        upstream = config.critic["optimizer"] == "upstream"
        algorithm = upstream_of(config.algo) if upstream else ALGORITHMS[config.algo]
        model = algorithm.load(checkpoint / MODEL, env=env, device=config.algorithm.get("device", "cpu"))
        if isinstance(model, OffPolicyAlgorithm) and to_train:
            model.load_replay_buffer(checkpoint / REPLAY)
            assert isinstance(model.replay_buffer, ReplayBuffer)
            # The run may have been extended.
            replay.grow(model.replay_buffer, _buffer_size(config))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the checkpoint {checkpoint} cannot be read: {one_line(error)}; {_advice(checkpoint)}"
        ) from error
    return model, env


def _advice(checkpoint: Path) -> str:
    if checkpoint.name == BEST:
        return "leave --best out to play the last checkpoint"
    older = sorted(path.name for path in checkpoint.parent.glob("[0-9]*") if path.name < checkpoint.name)
    if older:
        return f"delete that folder to continue from {older[-1]}"
    return "there is no older one: start a new run in another --run-dir"
