"""What a run will take, from a few hundred of its frames: work per frame does not depend on how many there are."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass

import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from kova.experiments import environments
from kova.experiments.config import RunConfig
from kova.experiments.training import build
from kova.optimizer import KOVA

#: Frames of a probe; a multiple of every usual minibatch.
PROBE = 256


@dataclass(frozen=True)
class Estimate:
    """Of one run.

    Attributes:
        seconds: On one core of this machine.
        bytes: Of memory.
    """

    seconds: float
    bytes: int


def estimate(config: RunConfig) -> Estimate:
    """Train a little, with one thread, and scale up.

    Raises:
        WrongCall: The run cannot be built.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _probe(config)
    finally:
        torch.set_num_threads(threads)


def _probe(config: RunConfig) -> Estimate:
    env = environments.normalized(environments.make(config), config)
    model = build(config, env)
    if isinstance(model, OnPolicyAlgorithm):
        rollout = min(model.n_steps, max(1, PROBE // config.n_envs))
        model.n_steps = model.rollout_buffer.buffer_size = rollout
        model.rollout_buffer.reset()
        frames = 2 * rollout * config.n_envs
    else:
        model.learning_starts = min(model.learning_starts, PROBE)  # type: ignore[attr-defined]
        frames = 2 * PROBE
    # Random numbers of the whole program are not the probe's to change.
    with torch.random.fork_rng(devices=[]):
        start = time.perf_counter()
        model.learn(frames, log_interval=frames)
        seconds = time.perf_counter() - start
    env.close()
    optimizer = getattr(model, "critic_optimizer", None)
    covariance = optimizer.covariance.nbytes if isinstance(optimizer, KOVA) else 0
    return Estimate(seconds / frames * config.steps, _resident() + covariance)


def _resident() -> int:
    """Return the most memory this process has had: Python, torch, the environment, and the buffers of the probe."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
