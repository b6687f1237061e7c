"""Parametric Gaussian-process TD with coloured noise (Engel, Mannor & Meir, 2005)."""

from __future__ import annotations

import torch
from torch import Tensor

from kova.experiments.baselines.base import ValueEstimate, linear_estimate
from kova.experiments.baselines.coloured_noise import ColouredNoise, PredictedReward


class ColouredGPTD(ColouredNoise):
    """r_t = (φ_t - γφ_{t+1})ᵀθ + ω_t - γω_{t+1}: ω_t ~ N(0, σ²) is how far the return from s_t is from its mean V(s_t).

    The noise of successive rewards then has covariance σ²HHᵀ with the bidiagonal H = [1, -γ], and on episodes that
    terminate the posterior is that of regressing the Monte-Carlo returns on φ with white noise σ². It takes O(d²) a
    step, and the posterior is that of the recursion of the paper.

    Args:
        dimension: d.
        gamma: γ.
        noise_variance: σ² > 0.
        prior_variance: p₀ > 0.
    """

    def __init__(self, dimension: int, gamma: float, noise_variance: float, prior_variance: float = 1.0) -> None:
        super().__init__(torch.zeros(dimension), gamma, noise_variance, prior_variance)

    def _predict_reward(self, states: Tensor, gamma: float) -> PredictedReward:
        h = torch.nn.functional.pad(states[0] - gamma * states[1], (0, 1), value=1.0)
        correlation = self._covariance @ h
        return PredictedReward(float(h @ self._mean), float(h @ correlation), correlation)

    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return φᵀθ and φᵀPφ."""
        return linear_estimate(inputs, self.weights, self.covariance)
