"""Parametric Gaussian-process TD with coloured noise (Engel, Mannor & Meir, 2005)."""

from __future__ import annotations

import torch
from torch import Tensor

from kova.experiments.baselines.base import Estimate, Learner, bellman_features
from kova.experiments.problems.trajectory import Trajectory


class ColouredGPTD(Learner):
    """r_t = (φ_t - γφ_{t+1})ᵀθ + ω_t - γω_{t+1}: ω_t ~ N(0, σ²) is how far the return from s_t is from its mean V(s_t).

    The noise of successive rewards then has covariance σ²HHᵀ with the bidiagonal H = [1, -γ], and on episodes that
    terminate the posterior is that of regressing the Monte-Carlo returns on φ with white noise σ². Beyond the end of a
    task the return is 0 for certain, so ω_T = 0; after a cut ω_T stays unknown and is dropped.

    The filter's state is (θ, ω_t): each reward brings a fresh ω_{t+1}, and ω_t is integrated out once it was used. That
    is O(d²) a step and the same posterior as the recursion of the paper.

    Args:
        dimension: d.
        gamma: γ.
        noise_variance: σ² > 0.
        prior_variance: p₀ > 0.
    """

    def __init__(self, dimension: int, gamma: float, noise_variance: float, prior_variance: float = 1.0) -> None:
        self.gamma = gamma
        self.noise_variance = noise_variance
        # The last entry of both is ω_t.
        self._mean = torch.zeros(dimension + 1, dtype=torch.float64)
        self._covariance = prior_variance * torch.eye(dimension + 1, dtype=torch.float64)
        self._forget_noise()

    @property
    def weights(self) -> Tensor:
        """Mean of θ, (d,)."""
        return self._mean[:-1]

    @property
    def covariance(self) -> Tensor:
        """Covariance of θ, (d, d)."""
        return self._covariance[:-1, :-1]

    def update(self, trajectory: Trajectory) -> None:
        """Condition on every reward, in O(d²) each."""
        rows = zip(
            torch.nn.functional.pad(bellman_features(trajectory, self.gamma), (0, 1), value=1.0),
            trajectory.rewards.tolist(),
            trajectory.terminated.tolist(),
            trajectory.ends.tolist(),
            strict=True,
        )
        for h, reward, terminated, ends in rows:
            self._condition(h, reward, 0.0 if terminated else self.gamma)
            if ends:
                self._forget_noise()

    def _condition(self, h: Tensor, reward: float, gamma: float) -> None:
        """Condition (θ, ω_t, ω_{t+1}) on hᵀ(θ, ω_t) - γω_{t+1} = r, and keep (θ, ω_{t+1})."""
        fresh = -gamma * self.noise_variance  # Covariance of ω_{t+1} with the reward.
        correlation = self._covariance @ h
        scale = float(h @ correlation) + gamma**2 * self.noise_variance
        error = reward - float(h @ self._mean)
        correlation[-1] = fresh
        self._forget_noise()
        self._mean.add_(correlation, alpha=error / scale)
        self._covariance.addr_(correlation, correlation, alpha=-1.0 / scale)

    def _forget_noise(self) -> None:
        """Replace ω by a fresh draw."""
        self._mean[-1] = 0.0
        self._covariance[-1, :] = 0.0
        self._covariance[:, -1] = 0.0
        self._covariance[-1, -1] = self.noise_variance

    def predict(self, inputs: Tensor) -> Estimate:
        """Return φᵀθ and φᵀPφ."""
        phi = inputs.double()
        return Estimate(phi @ self.weights, ((phi @ self.covariance) * phi).sum(1))
