"""The interface of every learner of values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kova.experiments.problems.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class ValueEstimate:
    """A learner's estimate of V at N states.

    Attributes:
        mean: (N,).
        variance: (N,), or ``None`` for a method that has none.
        believed: The variance j P jᵀ of a filter whose ``variance`` comes from its replicas, (N,).
    """

    mean: Tensor
    variance: Tensor | None = None
    believed: Tensor | None = None


class Learner(ABC):
    """Learns V from trajectories, in the order in which they come.

    An online method remembers where it was: a trajectory whose last step neither terminated nor was truncated goes on
    with the next update.
    """

    @abstractmethod
    def update(self, trajectory: Trajectory) -> None:
        """Learn from T transitions, whose inputs are (T, k)."""

    @abstractmethod
    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return the value at inputs (N, k)."""


class Transition(NamedTuple):
    """One step of a trajectory.

    Attributes:
        states: s_t and s_{t+1}, (2, k), float64.
        reward: r_t.
        gamma: γ, or 0 where the task ended.
        ends: No step follows this one.
    """

    states: Tensor
    reward: float
    gamma: float
    ends: bool


def transitions(trajectory: Trajectory, gamma: float) -> Iterator[Transition]:
    """Return the steps one by one, for methods that condition on every reward."""
    return map(
        Transition,
        torch.stack([trajectory.inputs, trajectory.next_inputs], dim=1).double(),
        trajectory.rewards.tolist(),
        [0.0 if terminated else gamma for terminated in trajectory.terminated.tolist()],
        trajectory.ends.tolist(),
    )


def bellman_features(trajectory: Trajectory, gamma: float) -> Tensor:
    """Return h_t = φ(s_t) - γφ(s_{t+1}) in float64, (T, d); the end of a task has no features."""
    successors = trajectory.next_inputs.double().masked_fill(trajectory.terminated[:, None], 0.0)
    return trajectory.inputs.double() - gamma * successors


def linear_estimate(inputs: Tensor, weights: Tensor, covariance: Tensor) -> ValueEstimate:
    """Return φᵀθ and φᵀPφ at inputs (N, d)."""
    phi = inputs.double()
    return ValueEstimate(phi @ weights, ((phi @ covariance) * phi).sum(1))
