"""What can be asked of the filter: values, their spread, and critics drawn from N(θ, P)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import Normal

from kova import _checks
from kova._checks import Inputs
from kova.calibration import Calibration
from kova.covariance.base import Covariance
from kova.errors import NumericalError
from kova.linearisation.jacobian import Jacobian
from kova.linearisation.observation import Observation
from kova.modes import without_modes
from kova.posterior import Predictive, check_variance
from kova.replicas import Replicas

T = TypeVar("T")

#: The most samples, and the most numbers of their Jacobian, that ``predict`` holds at once.
PREDICT_CHUNK, PREDICT_NUMBERS = 512, 2**24


class Beliefs:
    """The questions; :class:`kova.KOVA` learns the answers.

    Attributes:
        observation: h(u; θ).
        covariance: P.
        calibration: The scale of the uncertainty.
    """

    observation: Observation
    covariance: Covariance
    calibration: Calibration
    steps: int
    _piece: int
    _replicas: Replicas

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the covariance."""
        return self.covariance.dtype

    def predict(
        self, inputs: Inputs, observation_noise: float | Tensor | None = None, *, calibrated: bool = False
    ) -> Normal:
        """Return the distribution of h(u; θ) under the posterior, N(h(u; θ̂), j P jᵀ), one Normal of shape (N,).

        Args:
            inputs: u, as for :meth:`kova.KOVA.step`.
            observation_noise: A scalar or (N,) that is added to the variance, for the distribution of a target label.
            calibrated: Take the variance from what labels were seen to do. A filter with replicas gives the variance
                of their values; one without multiplies j P jᵀ by ``calibration.scale``, the factor by which labels
                scattered more or less than it expected. ``BatchSize`` noise is a weight and not a noise level: with it,
                only the calibrated variance is on the scale of the labels.

        Raises:
            TypeError: An argument is of the wrong kind.
            ValueError: Wrong shape, dtype or device, non-finite or negative numbers.
        """
        return self.predictive(inputs, observation_noise, calibrated=calibrated).label

    def predictive(
        self, inputs: Inputs, observation_noise: float | Tensor | None = None, *, calibrated: bool = False
    ) -> Predictive:
        """Return the same as :meth:`predict` with the two parts of the variance kept apart.

        Raises:
            TypeError: An argument is of the wrong kind.
            ValueError: Wrong shape, dtype or device, non-finite or negative numbers.
        """
        scale = self.calibration.scale if calibrated else 1.0
        if calibrated and self._replicas.errors is not None:
            mean, variance = self._compute(lambda: self._linearised(inputs, self._replicated_variance))
        else:
            mean, variance = self._compute(lambda: self._linearised(inputs, self.covariance.variance_of))
            variance = scale * variance.clamp(min=0.0)
        noise = torch.zeros_like(mean)
        if observation_noise is not None:
            noise = noise + check_variance(observation_noise, mean)
        return Predictive(mean, variance, scale * noise)

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return self._replicas.count

    def replica_values(self, inputs: Inputs) -> Tensor:
        """Return the value of every replica, h(u; θ) + j e, (N, m): from these it makes its own labels.

        Raises:
            TypeError: ``inputs`` are of the wrong kind.
            ValueError: Wrong shape, dtype or device, non-finite numbers, or there are no replicas.
        """
        if not self._replicas.count:
            raise ValueError("this filter has no replicas; make it with KOVA(critic, replicas=16)")

        def values() -> Tensor:
            # Not kept: before the first step P may still be in units that its labels will change.
            replicas = self._replicas.begun(self.covariance)
            means, spread = self._linearised(inputs, replicas.spread)
            return means[:, None] + spread

        return self._compute(values)

    def replica_noise(self, size: int) -> Tensor:
        """Return standard normal numbers, (size, m), for what happens between this step and the next.

        They follow from the number of steps: a restored filter draws the same.
        """
        return self._compute(lambda: self._replicas.noise(_checks.count("size", size), self.steps).to(self.dtype))

    def _replicated_variance(self, jacobian: Jacobian) -> Tensor:
        """Return the mean square of J Eᵀ, (N,): the errors of the replicas have mean 0."""
        return self._replicas.begun(self.covariance).spread(jacobian).square().mean(1)

    def _linearised(self, inputs: Inputs, of: Callable[[Jacobian], Tensor]) -> tuple[Tensor, Tensor]:
        """Return h(u; θ) and what ``of`` makes of J, a chunk of the batch at a time."""
        size = _checks.inputs(inputs, self.observation.device)
        means, found = [], []
        at_once = min(PREDICT_CHUNK, max(1, PREDICT_NUMBERS // self.covariance.dim), self._piece)
        for start in range(0, size, at_once):
            stop = min(start + at_once, size)
            chunk = _checks.map_inputs(operator.itemgetter(slice(start, stop)), inputs)
            jacobian = self.observation.linearise(chunk, stop - start, self.dtype)
            means.append(jacobian.values.to(self.dtype))
            found.append(of(jacobian))
            if not _checks.all_finite(found[-1]):
                jacobian.check_finite()
                raise NumericalError("the variance of the value is not finite")
        return torch.cat(means), torch.cat(found)

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draw critics from N(θ, P).

        Args:
            count: How many.
            generator: Source of randomness, on the covariance's device.

        Returns:
            {parameter name: (count, *shape)}, for ``torch.func.functional_call`` under ``vmap``.

        Raises:
            ValueError: ``count`` is below 1.
            NumericalError: P has no Cholesky factor.
        """
        count = _checks.count("count", count)
        draws = self._compute(lambda: self.covariance.sample(count, generator))
        parameters = self.observation.parameters
        parts = draws.split([parameter.numel() for parameter in parameters.values()], dim=1)
        return {
            name: parameter.detach() + part.reshape(count, *parameter.shape).to(parameter.dtype)
            for (name, parameter), part in zip(parameters.items(), parts, strict=True)
        }

    def _compute(self, work: Callable[[], T]) -> T:
        """Return ``work()``, done on the module's present device and outside the caller's torch modes."""
        device = self.observation.device

        def compute() -> T:
            if self.covariance.device != device:
                self.covariance.to(device)
            return work()

        return without_modes(device, compute)
