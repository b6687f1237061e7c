"""The common part of methods with coloured noise: a filter over the weights and the noise of the next reward."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from kova.experiments.baselines.base import Learner, Transition, transitions
from kova.experiments.problems.trajectory import Trajectory


class PredictedReward(NamedTuple):
    """The prediction of r_t, without ω_{t+1}.

    Attributes:
        mean: Of V(s_t) - γV(s_{t+1}) + ω_t.
        variance: Of the same.
        correlation: Its covariance with (θ, ω_t), (d + 1,).
    """

    mean: float
    variance: float
    correlation: Tensor


class ColouredNoise(Learner):
    """A filter over (θ, ω_t) that observes r_t = V(s_t; θ) - γV(s_{t+1}; θ) + ω_t - γω_{t+1}.

    ω_t ~ N(0, σ²) is how far the return from s_t is from its mean. Each reward brings a fresh ω_{t+1}, and ω_t is
    integrated out once it was used. Beyond the end of a task the return is 0 for certain, so ω_T = 0; after a cut ω_T
    stays unknown and is dropped.

    Args:
        initial: Mean of θ, (d,).
        gamma: γ.
        noise_variance: σ² > 0.
        prior_variance: p₀ > 0, P_0 = p₀I.
    """

    def __init__(self, initial: Tensor, gamma: float, noise_variance: float, prior_variance: float) -> None:
        self.gamma = gamma
        self.noise_variance = noise_variance
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

    @abstractmethod
    def _predict_reward(self, states: Tensor, gamma: float) -> PredictedReward:
        """Predict the reward between two states (2, k), with γ = 0 where the second is the end of the task."""

    @torch.no_grad()
    def update(self, trajectory: Trajectory) -> None:
        """Condition on every reward."""
        for transition in transitions(trajectory, self.gamma):
            self._condition(transition)
            if transition.ends:
                self._forget_noise()

    def _condition(self, transition: Transition) -> None:
        """Condition (θ, ω_t, ω_{t+1}) on one reward, and keep (θ, ω_{t+1})."""
        gamma = transition.gamma
        mean, variance, correlation = self._predict_reward(transition.states, gamma)
        scale = variance + gamma**2 * self.noise_variance
        correlation[-1] = -gamma * self.noise_variance
        self._forget_noise()
        self._mean.add_(correlation, alpha=(transition.reward - mean) / scale)
        self._covariance.addr_(correlation, correlation, alpha=-1.0 / scale)

    def _forget_noise(self) -> None:
        """Replace ω by a fresh draw."""
        self._mean[-1] = 0.0
        self._covariance[-1, :] = 0.0
        self._covariance[:, -1] = 0.0
        self._covariance[-1, -1] = self.noise_variance
