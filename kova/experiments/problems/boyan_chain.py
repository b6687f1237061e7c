"""The chain of Boyan (2002), whose value four features represent exactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kova.experiments.problems.finite import Chain, FiniteProblem, visiting_distribution

STATES = 13


@dataclass(frozen=True, kw_only=True, eq=False)
class BoyanChain(FiniteProblem):
    """From state 12 one or two states down with equal chance, at -3 a step; -2 from 1 to 0, and 0 ends for free.

    Undiscounted, V(s) = -2s. The four features are hat functions at the states 12, 8, 4 and 0, so θ* = (-24, -16, -8,
    0). States count as often as an episode visits them. (Counting the end, the chain has 14 states.)
    """

    gamma: float = 1.0
    length: int = 2 * STATES

    @cached_property
    def chain(self) -> Chain:
        """The chain, its hat functions and its visits."""
        transitions, rewards = np.zeros((STATES, STATES + 1)), np.zeros((STATES, STATES + 1))
        for state in range(2, STATES):
            transitions[state, [state - 1, state - 2]] = 0.5
            rewards[state, [state - 1, state - 2]] = -3.0
        transitions[1, 0], rewards[1, 0] = 1.0, -2.0
        transitions[0, STATES] = 1.0
        start = np.eye(STATES)[STATES - 1]
        distance = np.abs(np.arange(STATES)[:, None] - np.array([12, 8, 4, 0]))
        hats = np.clip(1.0 - distance / 4.0, 0.0, None)
        return Chain(transitions, rewards, start, hats, visiting_distribution(transitions, start))
