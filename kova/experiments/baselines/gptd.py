"""Parametric Gaussian-process TD with white noise (Engel, Mannor & Meir, 2003)."""

from __future__ import annotations

import torch
from torch import Tensor

from kova.experiments.baselines.base import Learner, ValueEstimate, bellman_features, linear_estimate
from kova.experiments.problems.trajectory import Trajectory


class GPTD(Learner):
    """Bayesian regression of rewards: r_t = (φ_t - γφ_{t+1})ᵀθ + n_t, n_t ~ N(0, σ²) white, θ ~ N(0, p₀I).

    The posterior is P = (I/p₀ + HᵀH/σ²)⁻¹, θ = P Hᵀr/σ², kept up recursively. White noise is right where transitions
    are deterministic and rewards noisy. Where transitions are random the noise γ(E[V(s')] - V(s')) correlates with the
    features of s', and θ is biased: :class:`ColouredGPTD` is not.

    Args:
        dimension: d.
        gamma: γ.
        noise_variance: σ² > 0.
        prior_variance: p₀ > 0.
    """

    def __init__(self, dimension: int, gamma: float, noise_variance: float, prior_variance: float = 1.0) -> None:
        self.gamma = gamma
        self.noise_variance = noise_variance
        self.weights = torch.zeros(dimension, dtype=torch.float64)
        self.covariance = prior_variance * torch.eye(dimension, dtype=torch.float64)

    def update(self, trajectory: Trajectory) -> None:
        """Condition on every reward, in O(d²) each."""
        for h, reward in zip(bellman_features(trajectory, self.gamma), trajectory.rewards.tolist(), strict=True):
            correlation = self.covariance @ h
            scale = float(h @ correlation) + self.noise_variance
            self.weights.add_(correlation, alpha=(reward - float(h @ self.weights)) / scale)
            self.covariance.addr_(correlation, correlation, alpha=-1.0 / scale)

    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return φᵀθ and φᵀPφ."""
        return linear_estimate(inputs, self.weights, self.covariance)
