"""Finitely many states: the value and the visiting distribution are solutions of linear systems."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kova.experiments.problems.base import Evaluation, Problem
from kova.experiments.problems.trajectory import Trajectory

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Chain:
    """A Markov chain with rewards; column n of the (n, n + 1) matrices is the end of the task.

    Attributes:
        transitions: P(s' | s), (n, n + 1), rows sum to 1.
        rewards: r(s, s'), (n, n + 1).
        start: Distribution of s_0, (n,).
        features: φ(s), (n, d).
        weights: Share of each state in the score, (n,).

    Raises:
        ValueError: A distribution does not sum to 1.
    """

    transitions: Array
    rewards: Array
    start: Array
    features: Array
    weights: Array

    def __post_init__(self) -> None:
        """Check the distributions."""
        for name, total in (
            ("transitions", self.transitions.sum(1)),
            ("start", self.start.sum()),
            ("weights", self.weights.sum()),
        ):
            if not np.allclose(total, 1.0):
                raise ValueError(f"{name} must sum to 1")


def exact_values(chain: Chain, gamma: float) -> Array:
    """Return V = (I - γP)⁻¹ r̄ with r̄(s) = Σ_s' P(s'|s) r(s, s'), (n,)."""
    count = len(chain.start)
    expected = (chain.transitions * chain.rewards).sum(1)
    values: Array = np.linalg.solve(np.eye(count) - gamma * chain.transitions[:, :count], expected)
    return values


def visiting_distribution(transitions: Array, start: Array) -> Array:
    """Return the share of each state among the visits of an episode, (I - Pᵀ)⁻¹ μ₀ scaled to sum 1, (n,)."""
    visits = np.linalg.solve(np.eye(len(start)) - transitions[:, : len(start)].T, start)
    share: Array = visits / visits.sum()
    return share


def stationary_distribution(transitions: Array) -> Array:
    """Return μ with μᵀP = μᵀ and Σμ = 1 of a chain that never ends, (n,).

    Raises:
        ValueError: There are several.
    """
    count = len(transitions)
    system = np.vstack([np.eye(count) - transitions[:, :count].T, np.ones(count)])
    share, _, rank, _ = np.linalg.lstsq(system, np.append(np.zeros(count), 1.0), rcond=None)
    if rank < count:
        raise ValueError("the chain has more than one stationary distribution: its states fall into separate classes")
    return np.asarray(share, dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class FiniteProblem(Problem):
    """A problem made of a :class:`Chain`; a state is its number, (N, 1). A network sees it one-hot.

    Args:
        length: Steps after which an episode is truncated.
    """

    length: int

    @cached_property
    @abstractmethod
    def chain(self) -> Chain:
        """The matrices."""

    def features(self, states: Tensor) -> Tensor:
        """Return the rows of the feature matrix, (N, d)."""
        return torch.from_numpy(self.chain.features)[states.long().squeeze(1)]

    def observations(self, states: Tensor) -> Tensor:
        """Return one-hot vectors, (N, n)."""
        return torch.nn.functional.one_hot(states.long().squeeze(1), len(self.chain.start)).double()

    def values(self, states: Tensor) -> Tensor:
        """Return V(s) = [(I - γP)⁻¹ r̄]_s, (N,)."""
        return self._values[states.long().squeeze(1)]

    @cached_property
    def _values(self) -> Tensor:
        return torch.from_numpy(exact_values(self.chain, self.gamma))

    def roll_out(self, rng: np.random.Generator) -> Trajectory:
        """Return one episode, as state numbers; where the task ended the next state repeats the last."""
        end = len(self.chain.start)
        cumulative = self.chain.transitions.cumsum(1)
        state = _draw(self.chain.start.cumsum(), rng)
        visited = [state]
        rewards: list[float] = []
        while state != end and len(rewards) < self.length:
            successor = _draw(cumulative[state], rng)
            rewards.append(float(self.chain.rewards[state, successor]))
            visited.append(successor)
            state = successor
        terminated = torch.zeros(len(rewards), dtype=torch.bool)
        truncated = terminated.clone()
        if state == end:
            visited[-1] = visited[-2]
            terminated[-1] = True
        else:
            truncated[-1] = True
        states = torch.tensor(visited, dtype=torch.float64)[:, None]
        return Trajectory(states[:-1], torch.tensor(rewards, dtype=torch.float64), states[1:], terminated, truncated)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Every state once, with the weights of the chain."""
        states = torch.arange(len(self.chain.start), dtype=torch.float64)[:, None]
        values = self.values(states)
        return Evaluation(states, values, torch.from_numpy(self.chain.weights), torch.zeros_like(values))


def _draw(cumulative: Array, rng: np.random.Generator) -> int:
    # Rounding may leave the last sum just below 1; scaling keeps the draw inside, on an outcome of positive chance.
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
