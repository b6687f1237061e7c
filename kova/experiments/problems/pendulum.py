"""The task of ``kova bench policy``: a fixed policy on Gymnasium's Pendulum-v1 and the discounted returns it earns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kova.targets import n_step_targets

GAMMA = 0.97
#: Half as long again as the task's default, so that half of an episode remains after the cut below.
EPISODE_STEPS = 300
#: Simulated seconds per step.
STEP_SECONDS = 0.05
#: Standard deviation of the torque's noise in N·m.
TORQUE_NOISE = 1.0
#: The share of its future that a return may miss.
MISSING_FUTURE = 0.01
#: Steps after which no more than that is left: γ^HORIZON <= MISSING_FUTURE.
HORIZON = math.ceil(math.log(MISSING_FUTURE) / math.log(GAMMA))
HELD_OUT_EPISODES = 15
#: The first score, and the samples whose mean and deviation put returns near unit scale: a single episode may start
#: upright and earn almost constant returns.
WARM_UP = 512

MAX_TORQUE = 2.0
# Angular acceleration of the uncontrolled pendulum at the horizontal, in rad/s²: 3g/2l.
GRAVITY = 15.0
# From here the balancing torque stays within the motor's limit long enough to stop the pendulum.
CATCH_COSINE = 0.9
CATCH_SPEED = 4.0


@dataclass(frozen=True, eq=False)
class Samples:
    """States under the policy and the returns that followed.

    Attributes:
        observations: (cos angle, sin angle, angular velocity), (N, 3); angle 0 is upright.
        returns: Discounted Monte-Carlo returns, (N,).
    """

    observations: Tensor
    returns: Tensor


@dataclass(frozen=True, eq=False)
class PendulumStream:
    """The same data for every learner; ``stream`` and ``held_out`` have standardised returns.

    Attributes:
        stream: To learn from, in order.
        held_out: Episodes to score on.
        points: Numbers of samples seen at which to score.
        mean: What standardising subtracted from a raw return.
        std: What it divided by.
    """

    stream: Samples
    held_out: list[Samples]
    points: list[int]
    mean: float
    std: float


def controller(observation: NDArray[np.float32]) -> float:
    """Return the torque that pumps energy until the pendulum is nearly up, and balances it there."""
    cosine, sine, speed = (float(part) for part in observation)
    if cosine > CATCH_COSINE and abs(speed) < CATCH_SPEED:
        return -10.0 * math.atan2(sine, cosine) - 2.0 * speed
    missing_energy = GRAVITY * (1.0 - cosine) - speed**2 / 2.0
    return math.copysign(MAX_TORQUE, speed * missing_energy)


def roll_out(seed: int) -> tuple[Tensor, Tensor]:
    """Return the observations (EPISODE_STEPS, 3) and the rewards of one episode under the noisy controller."""
    environment: gymnasium.Env[Any, Any] = gymnasium.make("Pendulum-v1", max_episode_steps=EPISODE_STEPS)
    # The environment draws its start from default_rng(seed): the same seed here would tie the noise to the start.
    disturbances = np.random.default_rng([seed, 1]).normal(scale=TORQUE_NOISE, size=EPISODE_STEPS)
    observation, _ = environment.reset(seed=seed)
    observations, rewards = [], []
    for disturbance in disturbances:
        observations.append(torch.as_tensor(observation))
        torque = np.array([controller(observation) + disturbance], dtype=np.float32)
        observation, reward, _, _, _ = environment.step(torque)
        rewards.append(float(reward))
    environment.close()
    return torch.stack(observations), torch.tensor(rewards)


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return Σ_i γⁱ r_{t+i} up to the end of ``rewards``, for every t."""
    nothing_after = torch.zeros_like(rewards)
    never = torch.zeros_like(rewards, dtype=torch.bool)
    return n_step_targets(rewards, nothing_after, never, never, gamma=gamma)


def episode(seed: int) -> Samples:
    """Return the part of one episode whose returns are complete.

    The time limit is not the pendulum's end: the returns of the last states lack rewards that the value counts. They
    are dropped, not bootstrapped, so that every label is a measurement and no arm learns from its own guess.
    """
    observations, rewards = roll_out(seed)
    complete = EPISODE_STEPS - HORIZON
    return Samples(observations[:complete], discounted_returns(rewards, GAMMA)[:complete])


def episodes(seed: int, stream: int) -> Iterator[Samples]:
    """Yield episodes for ever; different ``stream`` numbers give independent ones."""
    for number in itertools.count():
        yield episode(int(np.random.SeedSequence([seed, stream, number]).generate_state(1)[0]))


def joined(parts: list[Samples]) -> Samples:
    """Return the samples of all parts in order."""
    return Samples(torch.cat([part.observations for part in parts]), torch.cat([part.returns for part in parts]))


def collect(seed: int, samples: int, tick: Callable[[], None]) -> PendulumStream:
    """Roll the policy out for the stream and for the held-out episodes; ``tick`` is called after every episode."""
    parts = [_heard(part, tick) for part in itertools.islice(episodes(seed, stream=0), episodes_for(samples))]
    others = [_heard(part, tick) for part in itertools.islice(episodes(seed, stream=1), HELD_OUT_EPISODES)]
    raw = joined(parts)
    std, mean = (float(part) for part in torch.std_mean(raw.returns[:WARM_UP]))
    return PendulumStream(
        stream=Samples(raw.observations[:samples], (raw.returns[:samples] - mean) / std),
        held_out=[Samples(part.observations, (part.returns - mean) / std) for part in others],
        points=[
            *itertools.takewhile(lambda seen: seen < samples, (WARM_UP * 2**k for k in itertools.count())),
            samples,
        ],
        mean=mean,
        std=std,
    )


def episodes_for(samples: int) -> int:
    """Return how many episodes bring that many samples."""
    return math.ceil(samples / (EPISODE_STEPS - HORIZON))


def _heard(part: Samples, tick: Callable[[], None]) -> Samples:
    tick()
    return part
