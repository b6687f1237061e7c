"""Kalman temporal differences, KTD-V (Geist & Pietquin, 2010)."""

from __future__ import annotations

import torch
from torch import Tensor

from kova.experiments.baselines.base import Learner, ValueEstimate, transitions
from kova.experiments.baselines.drift import Drift, RandomWalkDrift
from kova.experiments.baselines.unscented import ValueFunction, linear_value, sigma_points, unscented_estimate
from kova.experiments.problems.trajectory import Trajectory


class KTD(Learner):
    """An unscented Kalman filter over θ that observes r_t = V(s_t; θ) - γV(s_{t+1}; θ) + n_t, n_t ~ N(0, σ²) white.

    For a linear V without drift it is recursive least squares on the Bellman residual, as :class:`GPTD` with white
    noise is; it minimises E[(r + γV(s') - V(s))²], which is biased where transitions are random.

    Args:
        initial: Mean of θ, (d,).
        gamma: γ.
        noise_variance: σ² > 0.
        prior_variance: p₀ > 0, P_0 = p₀I. The points lie √(d + κ) deviations out: a network wants it small.
        drift: P_v.
        value: V(s; θ); linear by default, ``critic_value(module)`` for a network.
        kappa: κ > -d of the unscented transform.
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
        self.gamma = gamma
        self.noise_variance = noise_variance
        self.drift = RandomWalkDrift() if drift is None else drift
        self.value = value
        self.kappa = kappa
        self.weights = initial.detach().double().clone()
        self.covariance = prior_variance * torch.eye(len(initial), dtype=torch.float64)

    @torch.no_grad()
    def update(self, trajectory: Trajectory) -> None:
        """Condition on every reward, with 2d + 1 evaluations of V at two states and O(d³) each."""
        for states, reward, gamma, _ in transitions(trajectory, self.gamma):
            predicted = self.drift.predict(self.covariance)
            sigma = sigma_points(self.weights, predicted, self.kappa)
            values = self.value(sigma.points, states)
            rewards = values[:, :1] - gamma * values[:, 1:]
            scale = float(sigma.variance(rewards)) + self.noise_variance
            correlation = sigma.covariance_with(rewards).squeeze(1)
            self.weights.add_(correlation, alpha=(reward - float(sigma.mean(rewards))) / scale)
            self.covariance = predicted.addr(correlation, correlation, alpha=-1.0 / scale)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return mean and variance of V(s; θ) under N(θ, P), by the unscented transform."""
        return unscented_estimate(self.value, inputs, self.weights, self.covariance, self.kappa)
