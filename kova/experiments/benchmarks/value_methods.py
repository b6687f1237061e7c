"""The arms of the value benchmark: KOVA and its comparators, each with the settings it is allowed to choose from.

A setting that a user cannot know (a step size, a noise level) is chosen in hindsight, by the final error, from the
values listed; for KOVA as for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kova
from kova.experiments import baselines
from kova.experiments.baselines import Learner, ValueEstimate, lambda_labels
from kova.experiments.problems import Problem, Trajectory

#: P_{0|0} of every Bayesian method: wide beside the weights of all problems.
PRIOR_VARIANCE = 100.0
#: Labels of one Kalman step at most.
BATCH = 128
STEP_SIZES = (0.01, 0.03, 0.1, 0.3)
NOISES = (0.01, 0.1, 1.0, 10.0)
LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class KovaLearner(Learner):
    """KOVA on the λ-returns of each trajectory.

    Args:
        critic: Maps inputs (N, k) to (N, 1).
        gamma: γ.
        trace_decay: λ of the labels.
        noise: P_n.
        evolution: P_v.
        prior_variance: p₀.
        calibrated: Whether the reported variance is on the scale of the innovations.
    """

    def __init__(
        self,
        critic: nn.Module,
        gamma: float,
        trace_decay: float,
        noise: kova.Noise,
        evolution: kova.Evolution,
        prior_variance: float,
        *,
        calibrated: bool = False,
    ) -> None:
        self.critic, self.gamma, self.trace_decay, self.calibrated = critic, gamma, trace_decay, calibrated
        dtype = next(critic.parameters()).dtype
        # Noise and prior are given in the units of the problem.
        self.optimizer = kova.KOVA(
            critic,
            covariance="full",
            prior_variance=prior_variance,
            evolution=evolution,
            noise=noise,
            dtype=dtype,
            units=kova.RawUnits(),
        )

    def update(self, trajectory: Trajectory) -> None:
        """Label the trajectory and condition on it."""
        labels = lambda_labels(self.critic, trajectory, self.gamma, self.trace_decay)
        for batch in torch.arange(len(trajectory)).split(BATCH):
            self.optimizer.step(trajectory.inputs[batch], labels[batch])

    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return the value and its variance."""
        belief = self.optimizer.predict(inputs, calibrated=self.calibrated)
        return ValueEstimate(belief.mean, belief.variance)


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        make: Builds it for a problem, a choice and a seed.
        choices: Among which it may choose in hindsight.
        network: Whether it learns from observations through a network, not from features.
    """

    make: Callable[[Problem, float, int], Learner]
    choices: tuple[float, ...] = (0.0,)
    network: bool = False


def linear_critic(problem: Problem) -> nn.Module:
    """Return V = φᵀθ with θ = 0."""
    critic = nn.Linear(problem.dimension, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(critic.weight)
    return critic


def network_critic(problem: Problem, seed: int) -> nn.Module:
    """Return a tanh network with two hidden layers."""
    width = problem.observations(problem.evaluation.states[:1]).shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = (nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        return nn.Sequential(*layers).double()


def _kova(problem: Problem, variance: float, critic: nn.Module, trace_decay: float, prior: float) -> Learner:
    # Old data must be forgotten where labels change with the critic, or the linearisation with the weights.
    fixed = trace_decay == 1.0 and isinstance(critic, nn.Linear)
    evolution = kova.Static() if fixed else kova.FadingMemory(0.01)
    return KovaLearner(critic, problem.gamma, trace_decay, kova.ConstantNoise(variance), evolution, prior)


METHODS: Mapping[str, Method] = {
    "KOVA": Method(
        lambda problem, noise, _: _kova(problem, noise, linear_critic(problem), 1.0, PRIOR_VARIANCE), NOISES
    ),
    "KOVA, λ = 0.8": Method(
        lambda problem, noise, _: _kova(problem, noise, linear_critic(problem), 0.8, PRIOR_VARIANCE), NOISES
    ),
    "KOVA, network": Method(
        lambda problem, noise, seed: _kova(problem, noise, network_critic(problem, seed), 1.0, 1.0),
        NOISES,
        network=True,
    ),
    "Adam, network": Method(
        lambda problem, rate, seed: baselines.AdamLearner(network_critic(problem, seed), problem.gamma, 1.0, rate, 10),
        LEARNING_RATES,
        network=True,
    ),
    "Adam": Method(
        lambda problem, rate, _: baselines.AdamLearner(linear_critic(problem), problem.gamma, 1.0, 10 * rate, 10),
        LEARNING_RATES,
    ),
    "TD(0.8)": Method(
        lambda problem, size, _: baselines.TDLambda(problem.dimension, problem.gamma, 0.8, size), STEP_SIZES
    ),
    "LSTD(0)": Method(lambda problem, _, __: baselines.LSTD(problem.dimension, problem.gamma, 0.0, 1e-6)),
    "LSTD(1)": Method(lambda problem, _, __: baselines.LSTD(problem.dimension, problem.gamma, 1.0, 1e-6)),
    "GPTD": Method(
        lambda problem, noise, _: baselines.GPTD(problem.dimension, problem.gamma, noise, PRIOR_VARIANCE), NOISES
    ),
    "GPTD, coloured noise": Method(
        lambda problem, noise, _: baselines.ColouredGPTD(problem.dimension, problem.gamma, noise, PRIOR_VARIANCE),
        NOISES,
    ),
    "KTD": Method(
        lambda problem, noise, _: baselines.KTD(_zeros(problem), problem.gamma, noise, PRIOR_VARIANCE), NOISES
    ),
    "XKTD": Method(
        lambda problem, noise, _: baselines.XKTD(_zeros(problem), problem.gamma, noise, PRIOR_VARIANCE), NOISES
    ),
}


def _zeros(problem: Problem) -> Tensor:
    return torch.zeros(problem.dimension, dtype=torch.float64)
