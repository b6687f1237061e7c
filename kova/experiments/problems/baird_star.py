"""The star of Baird (1995), on which semi-gradient TD(0) diverges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kova.experiments.problems.finite import Chain, FiniteProblem

STATES = 7
#: θ_0 of Sutton & Barto, Section 11.2; from θ = 0, which has no error, nothing would move.
INITIAL_WEIGHTS = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class BairdStar(FiniteProblem):
    """Seven states, all of which lead to the seventh; every reward is 0, so V = 0.

    States are drawn uniformly instead of by the policy, which is what makes the problem off-policy: an episode is one
    transition, cut. The eight features are V(s_i) = 2θ_i + θ_8 for i <= 6 and V(s_7) = θ_7 + 2θ_8.
    """

    gamma: float = 0.99
    length: int = 1

    @cached_property
    def chain(self) -> Chain:
        """Everything leads to the last state."""
        transitions = np.zeros((STATES, STATES + 1))
        transitions[:, STATES - 1] = 1.0
        features = np.hstack([2.0 * np.eye(STATES), np.ones((STATES, 1))])
        features[-1, -2:] = 1.0, 2.0
        uniform = np.full(STATES, 1.0 / STATES)
        return Chain(transitions, np.zeros_like(transitions), uniform, features, uniform)
