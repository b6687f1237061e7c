"""Mountain Car under a policy that pumps energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kova.experiments.problems.simulated import Array, SimulatedProblem, Step

GOAL = 0.5
POWER, GRAVITY = 0.001, 0.0025


@dataclass(frozen=True, kw_only=True, eq=False)
class MountainCar(SimulatedProblem):
    """A car in a valley, state (position, velocity), -1 a step until position 0.5; the dynamics are Gymnasium's.

    The policy pushes in the direction of motion, and with chance ``randomness`` in a uniformly random one of three.
    Episodes start anywhere in the box.

    Args:
        randomness: Of the policy, in [0, 1).
    """

    low: ClassVar[tuple[float, ...]] = (-1.2, -0.07)
    high: ClassVar[tuple[float, ...]] = (0.6, 0.07)

    gamma: float = 0.99
    randomness: float = 0.2

    def start(self, rng: np.random.Generator) -> Array:
        """Return a uniform state left of the goal, (2,)."""
        return rng.uniform(self.low, (GOAL, self.high[1]))

    def step(self, states: Array, rng: np.random.Generator) -> Step:
        """Apply the force and move."""
        pushes = np.where(states[:, 1] < 0.0, -1.0, 1.0)
        random = rng.integers(-1, 2, len(states))
        return roll(states, np.where(rng.random(len(states)) < self.randomness, random, pushes))

    def over(self, states: Array) -> NDArray[np.bool_]:
        """Return where the car is at the goal and not rolling back, (N,)."""
        return np.asarray((states[:, 0] >= GOAL) & (states[:, 1] >= 0.0))


def roll(states: Array, pushes: Array) -> Step:
    """Return one step of the dynamics under pushes in {-1, 0, 1}, (N,); the wall on the left stops the car."""
    velocity = states[:, 1] + POWER * pushes - GRAVITY * np.cos(3.0 * states[:, 0])
    velocity = np.clip(velocity, MountainCar.low[1], MountainCar.high[1])
    position = np.clip(states[:, 0] + velocity, MountainCar.low[0], MountainCar.high[0])
    velocity = np.where((position == MountainCar.low[0]) & (velocity < 0.0), 0.0, velocity)
    terminated = (position >= GOAL) & (velocity >= 0.0)
    return Step(np.stack([position, velocity], axis=1), np.full(len(states), -1.0), terminated)
