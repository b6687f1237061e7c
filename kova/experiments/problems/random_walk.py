"""The random walk of Sutton & Barto, Example 7.1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kova.experiments.problems.finite import Chain, FiniteProblem


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomWalkChain(FiniteProblem):
    """Steps left or right with equal chance from the middle; leaving earns -1 on the left, 1 on the right.

    Undiscounted, V(s) = 2(s + 1)/(n + 1) - 1. Features are one-hot, states count equally.

    Args:
        states: n, odd so that there is a middle.

    Raises:
        ValueError: ``states`` is even or below 3.
    """

    gamma: float = 1.0
    length: int = 100_000
    states: int = 19

    def __post_init__(self) -> None:
        """Check the number of states."""
        if self.states < 3 or self.states % 2 == 0:
            raise ValueError(f"states must be odd and >= 3, got {self.states}")

    @cached_property
    def chain(self) -> Chain:
        """Neighbours with chance 1/2, the end beyond both edges."""
        n = self.states
        transitions, rewards = np.zeros((n, n + 1)), np.zeros((n, n + 1))
        for state in range(n):
            transitions[state, state - 1 if state > 0 else n] += 0.5
            transitions[state, state + 1] += 0.5
        rewards[0, n], rewards[n - 1, n] = -1.0, 1.0
        start = np.zeros(n)
        start[n // 2] = 1.0
        return Chain(transitions, rewards, start, np.eye(n), np.full(n, 1.0 / n))
