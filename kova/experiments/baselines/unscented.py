"""The unscented transform (Julier & Uhlmann, 1997), for values that are any function of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kova.experiments.baselines.base import ValueEstimate
from kova.factorise import cholesky_with_jitter

#: (weights (M, d), inputs (N, k)) -> values (M, N).
ValueFunction = Callable[[Tensor, Tensor], Tensor]

#: Relative to the largest variance: what rounding may have taken from P's smallest eigenvalue.
JITTER = 1e-14


@dataclass(frozen=True, eq=False)
class SigmaPoints:
    """2d + 1 points with the mean and covariance of N(mean, covariance).

    Attributes:
        points: mean, and mean ± √(d + κ) L_j for the columns of L Lᵀ = covariance, (2d + 1, d).
        weights: κ/(d + κ), and 1/(2(d + κ)) for the others, (2d + 1,).
    """

    points: Tensor
    weights: Tensor

    def mean(self, images: Tensor) -> Tensor:
        """Return the weighted mean of the images of the points, (2d + 1, N) -> (N,)."""
        return self.weights @ images

    def covariance_with(self, images: Tensor) -> Tensor:
        """Return the covariance of the points with their images, (2d + 1, N) -> (d, N)."""
        return (self.points - self.points[0]).T @ (self.weights[:, None] * (images - self.mean(images)))

    def variance(self, images: Tensor) -> Tensor:
        """Return the variance of the images, (2d + 1, N) -> (N,)."""
        return self.weights @ (images - self.mean(images)).square()


def sigma_points(mean: Tensor, covariance: Tensor, kappa: float) -> SigmaPoints:
    """Spread the points of N(mean, covariance), (d,) and (d, d), with κ > -d, in O(d³).

    Raises:
        NumericalError: The covariance is indefinite.
    """
    size = len(mean)
    jitter = JITTER * float(covariance.diagonal().max())
    spread = (size + kappa) ** 0.5 * cholesky_with_jitter("P", covariance, jitter).T
    weights = torch.full((2 * size + 1,), 0.5 / (size + kappa), dtype=mean.dtype)
    weights[0] = kappa / (size + kappa)
    return SigmaPoints(torch.cat([mean[None], mean + spread, mean - spread]), weights)


def unscented_estimate(
    value: ValueFunction, inputs: Tensor, mean: Tensor, covariance: Tensor, kappa: float
) -> ValueEstimate:
    """Return mean and variance of V(s; θ), θ ~ N(mean, covariance), at inputs (N, k)."""
    sigma = sigma_points(mean, covariance, kappa)
    values = value(sigma.points, inputs.double())
    return ValueEstimate(sigma.mean(values), sigma.variance(values))


def linear_value(weights: Tensor, inputs: Tensor) -> Tensor:
    """Return V = φᵀθ for every row of weights, (M, d) and (N, d) -> (M, N)."""
    return weights @ inputs.T


def critic_value(critic: nn.Module) -> ValueFunction:
    """Return V(s; θ) of a module as a function of its flat parameters, in the order of ``critic.parameters()``."""
    shapes = {name: parameter.shape for name, parameter in critic.named_parameters()}

    def value(weights: Tensor, inputs: Tensor) -> Tensor:
        parts = weights.split([shape.numel() for shape in shapes.values()], dim=1)
        stacked = {name: part.reshape(-1, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        values: Tensor = torch.func.vmap(lambda parameters: torch.func.functional_call(critic, parameters, (inputs,)))(
            stacked
        )
        return values.reshape(len(weights), len(inputs))

    return value
