"""Returns that are not known yet: frames of the training, and the rewards that have followed them so far."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

#: A return is known when what is still to come weighs less than this.
TAIL = 0.01
#: Of one that a time limit cuts, the value of the state that was cut off may stand for as much as this: some 1/(1-γ)
#: steps were seen.
MOST_CUT = math.exp(-1.0)
#: Share of the horizon 1/(1-γ) between two frames that are followed: their returns agree in nine tenths.
SPACING = 0.1
#: Beyond it the horizon is taken to be a thousand steps; with γ = 1 only returns of episodes that end become known.
LARGEST_GAMMA = 0.999


class PendingReturns:
    """Follows some frames of E environments in step until G = Σ γᵏ rₖ is known.

    It is known at the end of the task, or when γᴴ is below ``TAIL``; then γᴴ times the value of the state that was
    reached is added. Where a time limit cuts an episode, the value of the last state takes the place of the rest, if
    its weight is at most ``MOST_CUT``; later frames are dropped, for little of their return would be more than the
    critic's own word. Every few steps one frame of all environments is taken into a ring, whose length is H.

    Args:
        gamma: γ.
        environments: E.

    Attributes:
        every: Steps between two frames that are followed.
    """

    def __init__(self, gamma: float, environments: int) -> None:
        reach = min(gamma, LARGEST_GAMMA)
        self.every = max(1, round(SPACING / (1.0 - reach)))
        horizon = math.ceil(math.log(TAIL) / math.log(reach)) if reach > 0.0 else 1
        slots = math.ceil(horizon / self.every)
        self._gamma, self._clock = gamma, 0
        self._waiting = np.zeros((slots, environments), dtype=bool)
        self._values, self._totals = np.zeros((slots, environments)), np.zeros((slots, environments))
        self._weights, self._bounds = np.zeros((slots, 1)), np.zeros((slots, 2))
        self._known: list[Array] = []

    @property
    def due(self) -> bool:
        """Whether the frame before the next reward is to be followed."""
        return self._clock % self.every == 0

    def follow(self, values: Array, low: float, high: float) -> None:
        """Take the frame that is due.

        Args:
            values: Of the states it is at, (E,).
            low: What the band adds to them for its lower end.
            high: Likewise for the upper.
        """
        slot = (self._clock // self.every) % len(self._weights)
        if self._weights[slot, 0] <= MOST_CUT:
            reached = np.flatnonzero(self._waiting[slot])
            self._know(slot, reached, values[reached])
        self._waiting[slot], self._values[slot], self._totals[slot] = True, values, 0.0
        self._weights[slot], self._bounds[slot] = 1.0, (low, high)

    def pay(self, rewards: npt.NDArray[np.floating]) -> None:
        """Take the rewards of a step, (E,)."""
        self._totals += self._weights * rewards
        self._weights *= self._gamma
        self._clock += 1

    def waits_for(self, environment: int) -> bool:
        """Return whether the value of the state in which the episode is cut makes a return known."""
        return bool((self._waiting[:, environment] & (self._weights[:, 0] <= MOST_CUT)).any())

    def end(self, environment: int, *, cut_value: float | None = None) -> None:
        """Take the end of an episode after the reward of its last step.

        Args:
            environment: Which.
            cut_value: Of its last state if a time limit cut it; NaN if nobody knows. None where the task ended.
        """
        waiting = self._waiting[:, environment]
        if cut_value is not None:
            waiting = waiting & (self._weights[:, 0] <= MOST_CUT)
        self._know(np.flatnonzero(waiting), environment, cut_value or 0.0)
        self._waiting[:, environment] = False

    def _know(self, slots: int | Indices, environments: int | Indices, tails: float | Array) -> None:
        """Finish the returns of n frames: of one slot and n environments, or the other way round."""
        totals = self._totals[slots, environments] + self._weights[slots, 0] * tails
        rows = np.empty((len(totals), 3))
        rows[:, 0], rows[:, 1:] = totals - self._values[slots, environments], self._bounds[slots]
        self._known.append(rows)

    def news(self) -> list[list[float]]:
        """Return what became known since the last call: G - V of the frames, the lows and the highs of their bands.

        What is not finite is left out.
        """
        if not self._known:
            return [[], [], []]
        rows = np.concatenate(self._known)
        self._known = []
        columns: list[list[float]] = rows[np.isfinite(rows[:, 0])].T.tolist()
        return columns
