"""The arms of the value benchmark: KOVA and its comparators, each with the settings it is allowed to choose from.

A setting that a user cannot know (a step size, a noise level) is chosen in hindsight for every problem, by the median
final error over the seeds, from the values listed; for KOVA as for the others. How large weights are is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kova
from kova.experiments import baselines
from kova.experiments.baselines import Learner, ValueEstimate, lambda_labels
from kova.experiments.problems import Problem, Trajectory
from kova.targets import replica_targets

#: Labels of one Kalman step at most.
BATCH = 128
#: Transitions after which labels that bootstrap are made again: from values that do not change nothing is learned.
PIECE = 16
REPLICAS = 32
STEP_SIZES = (0.01, 0.03, 0.1, 0.3)
NOISES = (0.01, 0.1, 1.0, 10.0)
FORGETTING = (0.01, 0.03, 0.1, 0.2)
LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class KovaLearner(Learner):
    """KOVA on the λ-returns of each trajectory, or of pieces of it, with error bars by its replicas.

    Args:
        critic: Maps inputs (N, k) to (N, 1).
        gamma: γ.
        trace_decay: λ of the labels.
        noise: P_n.
        evolution: P_v.
        prior_variance: p₀.
        piece: Transitions that are labelled together, at most.
    """

    def __init__(
        self,
        critic: nn.Module,
        gamma: float,
        trace_decay: float,
        noise: kova.Noise,
        evolution: kova.Evolution,
        prior_variance: float,
        piece: int | None = None,
    ) -> None:
        self.critic, self.gamma, self.trace_decay, self._piece = critic, gamma, trace_decay, piece
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
            replicas=REPLICAS,
        )

    def update(self, trajectory: Trajectory) -> None:
        """Label the trajectory and condition on it."""
        for piece in trajectory.pieces(self._piece or len(trajectory)):
            labels = lambda_labels(self.critic, piece, self.gamma, self.trace_decay)
            replicas = self._replica_labels(piece)
            for batch in torch.arange(len(piece)).split(BATCH):
                self.optimizer.step(piece.inputs[batch], labels[batch], replica_targets=replicas[batch])

    @torch.no_grad()
    def _replica_labels(self, piece: Trajectory) -> Tensor:
        return replica_targets(
            piece.rewards,
            self.critic(piece.inputs).reshape(-1),
            self.critic(piece.next_inputs).reshape(-1),
            self.optimizer.replica_values(piece.inputs),
            self.optimizer.replica_values(piece.next_inputs),
            self.optimizer.replica_noise(len(piece)),
            piece.terminated,
            piece.truncated,
            gamma=self.gamma,
            gae_lambda=self.trace_decay,
        )

    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return the value, its variance by the replicas, and that which P alone believes."""
        told = self.optimizer.predict(inputs, calibrated=True)
        return ValueEstimate(told.mean, told.variance, self.optimizer.predict(inputs).variance)


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        make: Builds it for a problem, a choice and a seed.
        choices: Among which it may choose in hindsight.
        network: Whether it learns from observations through a network, not from features.
        most_seeds: How many it is run with at most, if it is slow.
    """

    make: Callable[[Problem, float, int], Learner]
    choices: tuple[float, ...] = (0.0,)
    network: bool = False
    most_seeds: int | None = None


def prior_variance(problem: Problem) -> float:
    """Return P_{0|0} of every Bayesian method with V = φᵀθ: the size of weights, to the next power of ten.

    A prior that is far too wide is a wrong belief about the first values, and labels that bootstrap keep it for long.
    """
    truth = problem.evaluation
    # Bumps that overlap fit the last digits of V by weights a hundred times as large, which cancel: these are cut off.
    features = problem.features(truth.states)
    weights = torch.linalg.lstsq(features, truth.values, rcond=0.01, driver="gelsd").solution
    # On Baird's star they are 0.
    return 10.0 ** math.ceil(math.log10(float(weights.square().mean()) or 1.0))


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


def _linear(problem: Problem, noise: float) -> Learner:
    evolution, P_n = kova.Static(), kova.ConstantNoise(noise)
    return KovaLearner(linear_critic(problem), problem.gamma, 1.0, P_n, evolution, prior_variance(problem))


def _bootstrapped(problem: Problem, eta: float) -> Learner:
    # Labels change with the critic, so old ones must be forgotten; how fast is the one thing to choose.
    evolution, P_n = kova.FadingMemory(eta), kova.ConstantNoise(1.0)
    return KovaLearner(linear_critic(problem), problem.gamma, 0.8, P_n, evolution, prior_variance(problem), PIECE)


def _network(problem: Problem, noise: float, seed: int) -> Learner:
    # The linearisation changes with the weights.
    evolution, P_n = kova.FadingMemory(0.01), kova.ConstantNoise(noise)
    return KovaLearner(network_critic(problem, seed), problem.gamma, 1.0, P_n, evolution, 1.0)


METHODS: Mapping[str, Method] = {
    "KOVA": Method(lambda problem, noise, _: _linear(problem, noise), NOISES),
    "KOVA, λ = 0.8": Method(lambda problem, eta, _: _bootstrapped(problem, eta), FORGETTING),
    "KOVA, network": Method(_network, NOISES, network=True),
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
        lambda problem, noise, _: baselines.GPTD(problem.dimension, problem.gamma, noise, prior_variance(problem)),
        NOISES,
    ),
    "GPTD, coloured noise": Method(
        lambda problem, noise, _: baselines.ColouredGPTD(
            problem.dimension, problem.gamma, noise, prior_variance(problem)
        ),
        NOISES,
    ),
    "KTD": Method(
        lambda problem, noise, _: baselines.KTD(_zeros(problem), problem.gamma, noise, prior_variance(problem)), NOISES
    ),
    # 2d + 1 evaluations a transition, of the whole trace: two thirds of the time of all methods.
    "XKTD": Method(
        lambda problem, noise, _: baselines.XKTD(_zeros(problem), problem.gamma, noise, prior_variance(problem)),
        NOISES,
        most_seeds=3,
    ),
}


def _zeros(problem: Problem) -> Tensor:
    return torch.zeros(problem.dimension, dtype=torch.float64)
