"""Puddle World (Boyan & Moore, 1995; Sutton, 1996) under a policy that heads for the corner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kova.experiments.problems.simulated import Array, SimulatedProblem, Step

STRIDE = 0.05
#: x + y of the corner's diagonal.
GOAL = 1.9
RADIUS = 0.1
DEPTH_COST = 400.0
#: The ends of the two line segments around which the water lies.
PUDDLES = (((0.1, 0.75), (0.45, 0.75)), ((0.45, 0.4), (0.45, 0.8)))


@dataclass(frozen=True, kw_only=True, eq=False)
class PuddleWorld(SimulatedProblem):
    """A walk in the unit square from anywhere to its upper right corner, -1 a step and -400 per depth of water.

    The policy steps right or up with equal chance, and every step is disturbed by N(0, noise²) in both coordinates. A
    step is paid for where it leads.

    Args:
        noise: Standard deviation of the disturbance.
    """

    low: ClassVar[tuple[float, ...]] = (0.0, 0.0)
    high: ClassVar[tuple[float, ...]] = (1.0, 1.0)

    gamma: float = 1.0
    noise: float = 0.01

    def start(self, rng: np.random.Generator) -> Array:
        """Return a uniform state outside the goal, (2,)."""
        while True:
            state: Array = rng.random(2)
            if state.sum() < GOAL:
                return state

    def step(self, states: Array, rng: np.random.Generator) -> Step:
        """Go right or up."""
        axis = rng.integers(0, 2, len(states))
        moved = states + STRIDE * np.eye(2)[axis] + self.noise * rng.normal(size=states.shape)
        moved = np.clip(moved, 0.0, 1.0)
        return Step(moved, -1.0 - DEPTH_COST * depth(moved), self.over(moved))

    def over(self, states: Array) -> NDArray[np.bool_]:
        """Return where x + y >= 1.9, (N,)."""
        return np.asarray(states.sum(1) >= GOAL)


def depth(states: Array) -> Array:
    """Return how far inside a puddle each state is: max(0, 0.1 - distance to the nearer segment), (N,)."""
    distances = []
    for first, last in PUDDLES:
        nearest = np.clip(states, first, last)  # The segments are parallel to the axes.
        distances.append(np.linalg.norm(states - nearest, axis=1))
    return np.asarray(np.clip(RADIUS - np.minimum(*distances), 0.0, None))
