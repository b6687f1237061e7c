"""Continuous states without a closed form: the value is the mean return of many simulated episodes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kova.experiments.problems.base import Evaluation, Problem
from kova.experiments.problems.trajectory import Trajectory

Array = NDArray[np.float64]


class Step(NamedTuple):
    """The result of one step of N simulations."""

    states: Array
    rewards: Array
    terminated: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedProblem(Problem):
    """A box of states, simulated many at a time.

    Features are ``radial``ⁿ Gaussian bumps on a grid over the box, one grid spacing wide, and a constant. Evaluation
    states are the centres of a finer grid of cells, equally weighted, without those where the task is over.

    Args:
        length: Steps after which an episode is truncated.
        radial: Bumps along each axis.
        cells: Evaluation cells along each axis.
        rollouts: Simulated episodes per value.
    """

    low: ClassVar[tuple[float, ...]]
    high: ClassVar[tuple[float, ...]]

    length: int = 1000
    radial: int = 6
    cells: int = 12
    rollouts: int = 2000

    @abstractmethod
    def start(self, rng: np.random.Generator) -> Array:
        """Return s_0, (n,)."""

    @abstractmethod
    def step(self, states: Array, rng: np.random.Generator) -> Step:
        """Let the policy make one step from each of the states, (N, n)."""

    @abstractmethod
    def over(self, states: Array) -> NDArray[np.bool_]:
        """Return where the task has ended, boolean (N,)."""

    def observations(self, states: Tensor) -> Tensor:
        """Return the state scaled to [-1, 1], (N, n)."""
        low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (self.low, self.high))
        return 2.0 * (states - low) / (high - low) - 1.0

    def features(self, states: Tensor) -> Tensor:
        """Return exp(-|x - c|²/2w²) for every centre c, and 1, in scaled coordinates, (N, radialⁿ + 1)."""
        width = 2.0 / (self.radial - 1)
        bumps = torch.exp(-0.5 * (torch.cdist(self.observations(states), self._centres) / width).square())
        return torch.cat([bumps, torch.ones_like(bumps[:, :1])], dim=1)

    @cached_property
    def _centres(self) -> Tensor:
        axis = torch.linspace(-1.0, 1.0, self.radial, dtype=torch.float64)
        return torch.cartesian_prod(*[axis] * len(self.low))

    def roll_out(self, rng: np.random.Generator) -> Trajectory:
        """Return one episode from a random start."""
        path = [self.start(rng)]
        rewards: list[float] = []
        terminated = False
        while not terminated and len(rewards) < self.length:
            step = self.step(path[-1][None], rng)
            path.append(step.states[0])
            rewards.append(float(step.rewards[0]))
            terminated = bool(step.terminated[0])
        states = torch.from_numpy(np.array(path))
        ended, cut = torch.zeros(len(rewards), dtype=torch.bool), torch.zeros(len(rewards), dtype=torch.bool)
        ended[-1], cut[-1] = terminated, not terminated
        return Trajectory(states[:-1], torch.tensor(rewards, dtype=torch.float64), states[1:], ended, cut)

    def returns(self, states: Tensor, rng: np.random.Generator) -> Tensor:
        """Return Σ_t γᵗ r_t of ``rollouts`` episodes from each state, (N, n) -> (N, rollouts).

        Raises:
            RuntimeError: An episode did not end within ``length`` steps: its return would be wrong.
        """
        current: Array = np.repeat(states.numpy(), self.rollouts, axis=0)
        totals = np.zeros(len(current))
        running = np.flatnonzero(~self.over(current))
        current = current[running]
        for time in range(self.length):
            if not len(running):
                return torch.from_numpy(totals.reshape(len(states), self.rollouts))
            step = self.step(current, rng)
            totals[running] += self.gamma**time * step.rewards
            running, current = running[~step.terminated], step.states[~step.terminated]
        raise RuntimeError(f"{len(running)} of {len(totals)} episodes did not end within {self.length} steps")

    def values(self, states: Tensor) -> Tensor:
        """Return the mean of :meth:`returns`, (N,)."""
        return self.returns(states, np.random.default_rng(0)).mean(1)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Centres of the cells; simulated once, then kept."""
        axes = [
            torch.from_numpy(np.linspace(low, high, 2 * self.cells + 1)[1::2].copy())
            for low, high in zip(self.low, self.high, strict=True)
        ]
        states = torch.cartesian_prod(*axes)
        states = states[torch.from_numpy(~self.over(states.numpy()))]
        returns = self.returns(states, np.random.default_rng(0))
        weights = torch.full((len(states),), 1.0 / len(states), dtype=torch.float64)
        return Evaluation(states, returns.mean(1), weights, returns.std(1) / self.rollouts**0.5)
