"""A reward process drawn from the prior of a Bayesian linear model, so that its posterior is the right answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kova.experiments.problems.base import Evaluation, Problem
from kova.experiments.problems.trajectory import Trajectory

#: Correlation of successive states.
PERSISTENCE = 0.8


@dataclass(frozen=True, eq=False)
class Posterior:
    """N(mean, covariance) over θ, (d,) and (d, d)."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearGaussian(Problem):
    """θ* ~ N(0, p₀I), and r_t = φ(s_t)ᵀθ* - γ φ(s_{t+1})ᵀθ* + n_t with white n_t ~ N(0, σ²), so V(s) = φ(s)ᵀθ*.

    At γ = 0 a reward is a noisy label y = φ(s)ᵀθ* + n. States follow s' = ρs + √(1-ρ²)·ε in the plane with ε ~ N(0, I),
    and φ are random cosines √(2/d) cos(ωᵀs + b). Over seeds a correct posterior covers θ* exactly as often as it says.

    Args:
        count: d, number of features.
        prior_variance: p₀.
        noise_variance: σ².
        length: Steps after which an episode is truncated.
        states: How many evaluation states.
        seed: Of θ*; the features are the same for every seed.
    """

    gamma: float = 0.0
    count: int = 12
    prior_variance: float = 1.0
    noise_variance: float = 0.1
    length: int = 50
    states: int = 200
    seed: int = 0

    @cached_property
    def weights(self) -> Tensor:
        """θ*, (d,)."""
        draws = np.random.default_rng([self.seed, 1]).normal(size=self.count)
        return torch.from_numpy(math.sqrt(self.prior_variance) * draws)

    @cached_property
    def _cosines(self) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(0)
        frequencies, phases = rng.normal(size=(2, self.count)), rng.uniform(0.0, 2.0 * math.pi, self.count)
        return torch.from_numpy(frequencies), torch.from_numpy(phases)

    def features(self, states: Tensor) -> Tensor:
        """Return √(2/d) cos(ωᵀs + b), (N, d)."""
        frequencies, phases = self._cosines
        return math.sqrt(2.0 / self.count) * torch.cos(states @ frequencies + phases)

    def observations(self, states: Tensor) -> Tensor:
        """Return s, (N, 2), which is standard normal."""
        return states

    def values(self, states: Tensor) -> Tensor:
        """Return φ(s)ᵀθ*, (N,)."""
        return self.features(states) @ self.weights

    def roll_out(self, rng: np.random.Generator) -> Trajectory:
        """Return ``length`` steps from the stationary law."""
        path = rng.normal(size=(self.length + 1, 2))
        for step in range(self.length):
            path[step + 1] = PERSISTENCE * path[step] + math.sqrt(1.0 - PERSISTENCE**2) * path[step + 1]
        states = torch.from_numpy(path)
        values = self.values(states)
        noise = torch.from_numpy(math.sqrt(self.noise_variance) * rng.normal(size=self.length))
        never = torch.zeros(self.length, dtype=torch.bool)
        last = never.clone()
        last[-1] = True
        return Trajectory(states[:-1], values[:-1] - self.gamma * values[1:] + noise, states[1:], never, last)

    def posterior(self, trajectory: Trajectory) -> Posterior:
        """Return N(m, C) of θ* given a trajectory of features, with rows h_t = φ(s_t) - γφ(s_{t+1}).

        C = (I/p₀ + HᵀH/σ²)⁻¹ and m = C Hᵀr/σ².
        """
        H = trajectory.inputs - self.gamma * trajectory.next_inputs
        information = H.T @ H / self.noise_variance
        information.diagonal().add_(1.0 / self.prior_variance)
        covariance = torch.linalg.inv(information)
        return Posterior(covariance @ H.T @ trajectory.rewards / self.noise_variance, covariance)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Draws from the stationary law, equally weighted."""
        states = torch.from_numpy(np.random.default_rng(2).normal(size=(self.states, 2)))
        weights = torch.full((self.states,), 1.0 / self.states, dtype=torch.float64)
        return Evaluation(states, self.values(states), weights, torch.zeros_like(weights))
