"""Extended Kalman temporal differences, XKTD-V (Geist & Pietquin, 2010): KTD with the noise of random transitions."""

from __future__ import annotations

import torch
from torch import Tensor

from kova.experiments.baselines.base import Estimate, Learner
from kova.experiments.baselines.drift import Drift, RandomWalkDrift
from kova.experiments.baselines.unscented import ValueFunction, linear_value, sigma_points
from kova.experiments.problems.trajectory import Trajectory


class XKTD(Learner):
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
        self.gamma = gamma
        self.noise_variance = noise_variance
        self.drift = RandomWalkDrift() if drift is None else drift
        self.value = value
        self.kappa = kappa
        # The last entry of both is ω_t.
        self._mean = torch.cat([initial.detach().double(), torch.zeros(1, dtype=torch.float64)])
        self._covariance = prior_variance * torch.eye(len(self._mean), dtype=torch.float64)
        self._forget_noise()

    @property
    def weights(self) -> Tensor:
        """Mean of θ, (d,)."""
        return self._mean[:-1]

    @property
    def covariance(self) -> Tensor:
        """Covariance of θ, (d, d)."""
        return self._covariance[:-1, :-1]

    @torch.no_grad()
    def update(self, trajectory: Trajectory) -> None:
        """Condition on every reward, with 2(d + 1) + 1 evaluations of V at two states and O(d³) each."""
        rows = zip(
            torch.stack([trajectory.inputs, trajectory.next_inputs], dim=1).double(),
            trajectory.rewards.tolist(),
            trajectory.terminated.tolist(),
            trajectory.ends.tolist(),
            strict=True,
        )
        for states, reward, terminated, ends in rows:
            self._covariance[:-1, :-1] = self.drift.predict(self.covariance)
            self._condition(states, reward, 0.0 if terminated else self.gamma)
            if ends:
                self._forget_noise()

    def _condition(self, states: Tensor, reward: float, gamma: float) -> None:
        """Condition (θ, ω_t, ω_{t+1}) on one reward, and keep (θ, ω_{t+1})."""
        sigma = sigma_points(self._mean, self._covariance, self.kappa)
        values = self.value(sigma.points[:, :-1], states)
        rewards = values[:, :1] - gamma * values[:, 1:] + sigma.points[:, -1:]
        scale = float(sigma.variance(rewards)) + gamma**2 * self.noise_variance
        correlation = sigma.covariance_with(rewards).squeeze(1)
        correlation[-1] = -gamma * self.noise_variance
        self._forget_noise()
        self._mean.add_(correlation, alpha=(reward - float(sigma.mean(rewards))) / scale)
        self._covariance.addr_(correlation, correlation, alpha=-1.0 / scale)

    def _forget_noise(self) -> None:
        """Replace ω by a fresh draw."""
        self._mean[-1] = 0.0
        self._covariance[-1, :] = 0.0
        self._covariance[:, -1] = 0.0
        self._covariance[-1, -1] = self.noise_variance

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Estimate:
        """Return mean and variance of V(s; θ) under N(θ, P), by the unscented transform."""
        sigma = sigma_points(self.weights, self.covariance, self.kappa)
        values = self.value(sigma.points, inputs.double())
        return Estimate(sigma.mean(values), sigma.variance(values))
