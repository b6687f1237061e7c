"""A linear system with quadratic costs under a linear policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from kova.experiments.problems.base import Evaluation, Problem
from kova.experiments.problems.trajectory import Trajectory

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearQuadratic(Problem):
    """x' = Ax + Bu + w with u = -Kx, w ~ N(0, W) and r = -xᵀQx - uᵀRu; it never ends.

    With M = A - BK and C = Q + KᵀRK the value is V(x) = -xᵀSx - γ/(1-γ) tr(SW), where S = C + γMᵀSM is the solution of
    a discrete Lyapunov equation. Features are the monomials of degree 2 and a constant, which represent V exactly.
    Episodes start from the stationary law N(0, Σ), Σ = MΣMᵀ + W, and evaluation states are drawn from it.

    Args:
        A: (n, n); by default a double integrator at 10 Hz.
        B: (n, m).
        K: (m, n).
        noise: W = noise · I.
        length: Steps after which an episode is truncated.
        states: How many evaluation states.

    Raises:
        ValueError: The policy is not stable: an eigenvalue of M is not inside the unit circle.
    """

    gamma: float = 0.95
    A: Matrix = ((1.0, 0.1), (0.0, 1.0))
    B: Matrix = ((0.0,), (0.1,))
    K: Matrix = ((1.0, 2.0),)
    noise: float = 0.01
    length: int = 200
    states: int = 500

    def __post_init__(self) -> None:
        """Check that there is a stationary law."""
        radius = float(np.abs(np.linalg.eigvals(self.closed_loop)).max())
        if radius >= 1.0:
            raise ValueError(f"K must be stable: the spectral radius of A - BK is {radius:.3g}")

    @cached_property
    def closed_loop(self) -> NDArray[np.float64]:
        """M = A - BK, (n, n)."""
        return np.asarray(np.array(self.A) - np.array(self.B) @ np.array(self.K))

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """C = Q + KᵀRK with Q = R = I, (n, n)."""
        return np.asarray(np.eye(len(self.A)) + np.array(self.K).T @ np.array(self.K))

    @cached_property
    def cost_to_go(self) -> NDArray[np.float64]:
        """S = C + γMᵀSM, (n, n)."""
        return np.asarray(solve_discrete_lyapunov(np.sqrt(self.gamma) * self.closed_loop.T, self.cost))

    @cached_property
    def stationary_covariance(self) -> NDArray[np.float64]:
        """Σ = MΣMᵀ + W, (n, n)."""
        return np.asarray(solve_discrete_lyapunov(self.closed_loop, self.noise * np.eye(len(self.A))))

    def features(self, states: Tensor) -> Tensor:
        """Return x_i x_j for i <= j and 1, (N, n(n+1)/2 + 1)."""
        first, second = torch.triu_indices(states.shape[1], states.shape[1])
        return torch.cat([states[:, first] * states[:, second], torch.ones_like(states[:, :1])], dim=1)

    def observations(self, states: Tensor) -> Tensor:
        """Return x in units of its stationary deviation, (N, n)."""
        return states / torch.from_numpy(self.stationary_covariance.diagonal().copy()).sqrt()

    def values(self, states: Tensor) -> Tensor:
        """Return -xᵀSx - γ/(1-γ) tr(SW), (N,)."""
        constant = self.gamma / (1.0 - self.gamma) * self.noise * float(np.trace(self.cost_to_go))
        return -_quadratic(states, self.cost_to_go) - constant

    def roll_out(self, rng: np.random.Generator) -> Trajectory:
        """Return ``length`` steps from the stationary law."""
        n = len(self.A)
        path = np.empty((self.length + 1, n))
        path[0] = np.linalg.cholesky(self.stationary_covariance) @ rng.normal(size=n)
        disturbances = np.sqrt(self.noise) * rng.normal(size=(self.length, n))
        for step, disturbance in enumerate(disturbances):
            path[step + 1] = self.closed_loop @ path[step] + disturbance
        states = torch.from_numpy(path)
        never = torch.zeros(self.length, dtype=torch.bool)
        last = never.clone()
        last[-1] = True
        return Trajectory(states[:-1], -_quadratic(states[:-1], self.cost), states[1:], never, last)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Draws from the stationary law, equally weighted."""
        noise = np.random.default_rng(0).normal(size=(self.states, len(self.A)))
        states = torch.from_numpy(noise @ np.linalg.cholesky(self.stationary_covariance).T)
        weights = torch.full((self.states,), 1.0 / self.states, dtype=torch.float64)
        return Evaluation(states, self.values(states), weights, torch.zeros_like(weights))


def _quadratic(states: Tensor, matrix: NDArray[np.float64]) -> Tensor:
    return ((states @ torch.from_numpy(matrix)) * states).sum(1)
