"""Time and memory of a run, measured on a few hundred of its frames and scaled up."""

from __future__ import annotations

import math
import resource
import sys
import time
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from kova.experiments.runs import environments
from kova.experiments.runs.config import RunConfig
from kova.experiments.runs.model import build
from kova.optimizer import KOVA

#: Frames of a probe, trained on once to warm up and once to be timed; a multiple of every usual minibatch.
PROBE = 128


@dataclass(frozen=True)
class RunCost:
    """The cost of one run.

    Attributes:
        seconds: On one core of this machine.
        bytes: Of memory.
    """

    seconds: float
    bytes: int


def estimate(config: RunConfig) -> RunCost:
    """Train a little, with one thread, and scale up.

    Raises:
        UsageError: The run cannot be built.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _probe(config)
    finally:
        torch.set_num_threads(threads)


def _probe(config: RunConfig) -> RunCost:
    env = environments.normalized(environments.make(config), config)
    model = build(config, env)
    frames, total = PROBE, config.steps
    if isinstance(model, OnPolicyAlgorithm):
        # The last rollout is completed.
        rollout = model.n_steps * config.n_envs
        total = math.ceil(total / rollout) * rollout
        model.n_steps = model.rollout_buffer.buffer_size = min(model.n_steps, max(1, PROBE // config.n_envs))
        model.rollout_buffer.reset()
        frames = model.n_steps * config.n_envs
    elif isinstance(model, OffPolicyAlgorithm):
        model.learning_starts = min(model.learning_starts, PROBE)
    model.learn(frames, log_interval=10 * frames)
    before, start = model.num_timesteps, time.perf_counter()
    model.learn(frames, log_interval=10 * frames, reset_num_timesteps=False)
    seconds = (time.perf_counter() - start) / (model.num_timesteps - before)
    env.close()
    return RunCost(seconds * total, _resident() + _held(model))


def _held(model: BaseAlgorithm) -> int:
    """Return the bytes that grow with the run's settings: P and its copy in a checkpoint, and the replay buffer."""
    optimizers = getattr(model, "critic_optimizers", ())
    covariance = sum(2 * optimizer.covariance.nbytes for optimizer in optimizers if isinstance(optimizer, KOVA))
    replay = vars(model.replay_buffer) if isinstance(model, OffPolicyAlgorithm) else {}
    return covariance + sum(value.nbytes for value in replay.values() if isinstance(value, np.ndarray))


@cache
def _resident() -> int:
    """Return the most memory this process had by the end of the first probe: Python, torch, the environment."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
