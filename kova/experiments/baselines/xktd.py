"""Extended Kalman temporal differences, XKTD-V (Geist & Pietquin, 2010): KTD with the noise of random transitions."""

from __future__ import annotations

import torch
from torch import Tensor

from kova.experiments.baselines.base import ValueEstimate
from kova.experiments.baselines.coloured_noise import ColouredNoise, PredictedReward
from kova.experiments.baselines.drift import Drift, RandomWalkDrift
from kova.experiments.baselines.unscented import ValueFunction, linear_value, sigma_points, unscented_estimate


class XKTD(ColouredNoise):
    """An unscented Kalman filter over (θ, ω_t) that observes r_t = V(s_t; θ) - γV(s_{t+1}; θ) + ω_t - γω_{t+1}.

    ω_t ~ N(0, σ²) white makes the noise of the rewards a moving average, and the estimate unbiased where transitions
    are random: for a linear V without drift this is :class:`ColouredGPTD`. The paper's state also carries the noise
    n_t = ω_t - γω_{t+1} itself; it is a sum of the other two, so leaving it out changes nothing but keeps P regular.
    The fresh ω_{t+1} enters linearly and needs no sigma points.

    Args:
        initial: Mean of θ, (d,).
        gamma: γ.
        noise_variance: σ² > 0.
        prior_variance: p₀ > 0, P_0 = p₀I. The points lie √(d + κ) deviations out: a network wants it small.
        drift: P_v of θ.
        value: V(s; θ); linear by default, ``critic_value(module)`` for a network.
        kappa: κ > -d - 1 of the unscented transform.
    """

    def __init__(
        self,
        initial: Tensor,
        gamma: float,
        noise_variance: float,
        prior_variance: float = 1.0,
        drift: Drift | None = None,
        value: ValueFunction = linear_value,
        kappa: float = 1.0,
    ) -> None:
        super().__init__(initial, gamma, noise_variance, prior_variance)
        self.drift = RandomWalkDrift() if drift is None else drift
        self.value = value
        self.kappa = kappa

    def _predict_reward(self, states: Tensor, gamma: float) -> PredictedReward:
        """Take 2(d + 1) + 1 evaluations of V at two states and O(d³) time."""
        self._covariance[:-1, :-1] = self.drift.predict(self.covariance)
        sigma = sigma_points(self._mean, self._covariance, self.kappa)
        values = self.value(sigma.points[:, :-1], states)
        rewards = values[:, :1] - gamma * values[:, 1:] + sigma.points[:, -1:]
        correlation = sigma.covariance_with(rewards).squeeze(1)
        return PredictedReward(float(sigma.mean(rewards)), float(sigma.variance(rewards)), correlation)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return mean and variance of V(s; θ) under N(θ, P), by the unscented transform."""
        return unscented_estimate(self.value, inputs, self.weights, self.covariance, self.kappa)
