"""DeepSea: a treasure that no undirected exploration finds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

ID = "kova/DeepSea-v0"

#: The cost of N steps to the right.
MOVE_COST = 0.01

Observation = npt.NDArray[np.float32]


class DeepSea(gym.Env[Observation, np.int64]):
    """The N×N grid of Osband et al., "Deep Exploration via Randomized Value Functions" (2019), deterministic.

    A diver starts top left and sinks one row a step, to the left or to the right; which action is which differs from
    cell to cell. A step to the right costs 0.01/N, and the last one, from the bottom right cell, earns 1. One of 2ᴺ
    sequences of actions finds the treasure, with return 0.99, and every immediate reward speaks against it: ε-greedy
    needs some 2ᴺ episodes, an explorer that plans for what it has not tried at most one per cell and action, N(N+1).

    Args:
        depth: N.
        mapping_seed: Draws which of the two actions means right, for every cell.
    """

    def __init__(self, depth: int = 10, mapping_seed: int = 0) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.depth = depth
        self.observation_space = spaces.Box(0.0, 1.0, (depth * depth,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._right = np.random.default_rng(mapping_seed).integers(2, size=(depth, depth))
        self._row, self._column = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Return to the surface."""
        super().reset(seed=seed)
        self._row, self._column = 0, 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move down one row; ``is_success`` in the last step's info says whether the treasure was found."""
        right = action == self._right[self._row, self._column]
        treasure = bool(right and self._column == self.depth - 1)
        reward = float(treasure) - (MOVE_COST / self.depth if right else 0.0)
        self._column = min(self._column + 1, self.depth - 1) if right else max(self._column - 1, 0)
        self._row += 1
        done = self._row == self.depth
        return self._observation(), reward, done, False, {"is_success": treasure} if done else {}

    def right(self) -> int:
        """Return the action that leads to the right from here."""
        return int(self._right[self._row, self._column])

    def _observation(self) -> Observation:
        """Return the cell as a unit vector; the sea floor is no cell."""
        cells = np.zeros((self.depth, self.depth), np.float32)
        if self._row < self.depth:
            cells[self._row, self._column] = 1.0
        return cells.ravel()


gym.register(ID, f"{__name__}:{DeepSea.__name__}")
