"""What every problem gives: features, trajectories of its policy, and the true value V."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from kova.experiments.problems.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Where a learner is judged.

    Attributes:
        states: (M, n).
        values: V(s), (M,).
        weights: Share of each state in the score, (M,), sums to 1.
        standard_error: Of ``values``, (M,); 0 where linear algebra gave them.
    """

    states: Tensor
    values: Tensor
    weights: Tensor
    standard_error: Tensor

    def rmse(self, estimates: Tensor) -> float:
        """Return √(Σ_s w_s (V̂(s) - V(s))²) for estimates V̂, (M,).

        Raises:
            ValueError: Wrong shape.
        """
        if estimates.shape != self.values.shape:
            raise ValueError(f"estimates must be {tuple(self.values.shape)}, got {tuple(estimates.shape)}")
        errors = estimates.to(self.values.dtype) - self.values
        return float((self.weights * errors.square()).sum().sqrt())


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem(ABC):
    """A Markov reward process (an MDP under a fixed policy) whose value V(s) = E[Σ_t γᵗ r_t | s_0 = s] is known.

    All tensors are float64: a critic of another dtype takes ``trajectory.to(dtype)``.

    Args:
        gamma: γ.
    """

    gamma: float

    @abstractmethod
    def features(self, states: Tensor) -> Tensor:
        """Return φ(s), (N, n) -> (N, d), for methods with V = φᵀθ."""

    @abstractmethod
    def observations(self, states: Tensor) -> Tensor:
        """Return what a network should see, (N, n) -> (N, k), of about unit scale."""

    @abstractmethod
    def values(self, states: Tensor) -> Tensor:
        """Return V(s), (N, n) -> (N,)."""

    @abstractmethod
    def roll_out(self, rng: np.random.Generator) -> Trajectory:
        """Return one episode as states; its last step terminated or was truncated."""

    @cached_property
    @abstractmethod
    def evaluation(self) -> Evaluation:
        """States with their values and weights."""

    def episode(self, rng: np.random.Generator) -> Trajectory:
        """Return one episode as features φ(s)."""
        return self.roll_out(rng).through(self.features)

    @cached_property
    def dimension(self) -> int:
        """Number of features d."""
        return self.features(self.evaluation.states[:1]).shape[1]
