"""Algorithm 1 transcribed literally: every matrix formed, every inverse explicit, nothing shared with the package."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

#: (P, J, p0) -> P_{t|t-1}
Rule = Callable[[Tensor, Tensor, float], Tensor]


def fading(eta: float, max_variance: float) -> Rule:
    return lambda P, J, p0: guard(P + eta / (1 - eta) * P, p0, max_variance)


def directional(eta: float, max_variance: float) -> Rule:
    def rule(P: Tensor, J: Tensor, p0: float) -> Tensor:
        A = P @ J.T
        return guard(P + eta / (1 - eta) * A @ torch.linalg.inv(J @ A) @ A.T, p0, max_variance)

    return rule


def relaxation(eta: float) -> Rule:
    return lambda P, J, p0: (1 - eta) * P + eta * p0 * torch.eye(len(P), dtype=P.dtype)


def random_walk(variance: float) -> Rule:
    return lambda P, J, p0: P + variance * torch.eye(len(P), dtype=P.dtype)


def memoryless(eta: float) -> Rule:
    return lambda P, J, p0: p0 / (1 - eta) * torch.eye(len(P), dtype=P.dtype)


def static() -> Rule:
    return lambda P, J, p0: P


def guard(P: Tensor, p0: float, max_variance: float) -> Tensor:
    largest = float(P.diagonal().max())
    if largest <= max_variance:
        return P
    beta = (largest - max_variance) / (largest - p0)
    return (1 - beta) * P + beta * p0 * torch.eye(len(P), dtype=P.dtype)


class Algorithm1:
    """The filter as printed, over a copy of the critic's parameters.

    Args:
        critic: Gives h(u; θ) = critic(u), (N, 1); not changed.
        rule: P_{t|t-1} from P_{t-1|t-1}.
        prior_variance: p0.
    """

    def __init__(self, critic: nn.Module, rule: Rule, prior_variance: float = 1.0) -> None:
        self.critic, self.rule, self.prior_variance = critic, rule, prior_variance
        self.theta = nn.utils.parameters_to_vector(critic.parameters()).detach().clone()
        self.P = prior_variance * torch.eye(len(self.theta), dtype=self.theta.dtype)

    def h(self, theta: Tensor, u: Tensor) -> Tensor:
        parameters, start = {}, 0
        for name, parameter in self.critic.named_parameters():
            parameters[name] = theta[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return functional_call(self.critic, parameters, (u,)).squeeze(-1)

    def jacobian(self, u: Tensor) -> Tensor:
        return jacrev(self.h)(self.theta, u)

    def step(self, u: Tensor, y: Tensor, P_n: Tensor, alpha: float) -> None:
        J = self.jacobian(u)
        P = self.rule(self.P, J, self.prior_variance)
        cross = P @ J.T
        S = J @ P @ J.T + P_n
        K = cross @ torch.linalg.inv(S)
        self.theta = self.theta + alpha * K @ (y - self.h(self.theta, u))
        self.P = P - alpha * K @ S @ K.T
