"""The KOVA optimizer, Algorithm 1 of "Trust Region Value Optimization using Kalman Filtering"."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from kova import _checks
from kova import covariance as structures
from kova._checks import Inputs
from kova.calibration import Calibration
from kova.covariance.base import Covariance
from kova.errors import NumericalError
from kova.evolution import Evolution, FadingMemory
from kova.factorise import factorise_innovation
from kova.interrupts import HeldSignals
from kova.linearisation.jacobian import Jacobian
from kova.linearisation.observation import Observation, ObservationFn
from kova.modes import without_modes
from kova.noise import Batch, BatchSize, Memory, Noise
from kova.observation_noise import ObservationNoise
from kova.posterior import Predictive, check_variance
from kova.step_report import StepReport, measure

T = TypeVar("T")

#: Of the state_dict.
FORMAT = 1
STATE_KEYS = {"state", "param_groups", "format", "steps", "parameters", "covariance"}

#: Samples whose Jacobian ``predict`` holds at once.
PREDICT_CHUNK = 512


class KOVA(torch.optim.Optimizer):
    """An Extended Kalman Filter over the weights of a value function.

    It keeps a Gaussian N(θ, P) over the parameters and, for every batch of N target labels y, takes the step that
    minimises the linearised L_EKF (Eq. 12): the squared error under the observation noise P_n, plus a trust region in
    the metric P_{t|t-1}⁻¹.

    Args:
        critic: Any module; its parameters that require grad are optimised, the others left alone.
        observation_fn: h, ``(module, inputs) -> (N,)``; by default ``module(inputs)``, (N,) or (N, 1).
        covariance: Structure of P: a name or an instance from :mod:`kova.covariance`.
        prior_variance: P_{0|0} = prior_variance · I.
        evolution: P_v, how the parameters may move between batches.
        noise: P_n, how the target labels scatter around the value.
        step_size: α in (0, 1], or a callable of the step number t = 1, 2, …
        dtype: Of the covariance.
        memory_budget: Bytes the covariance may take; by default four fifths of what is free.
        flop_budget: Operations a step of 64 samples may spend on P before ``covariance="auto"`` takes a sparser
            structure.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is out of range, or the module has nothing to optimise.
        CovarianceTooLarge: P does not fit in memory.

    Example:
        >>> critic = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> optimizer = KOVA(critic, evolution=FadingMemory(eta=0.01))
        >>> report = optimizer.step(torch.randn(32, 3), torch.randn(32))
        >>> value = optimizer.predict(torch.randn(5, 3))
        >>> value.mean.shape, value.stddev.shape
        (torch.Size([5]), torch.Size([5]))
    """

    def __init__(
        self,
        critic: nn.Module,
        observation_fn: ObservationFn | None = None,
        covariance: str | Covariance = "auto",
        prior_variance: float = 1.0,
        evolution: Evolution = FadingMemory(eta=0.01),
        noise: Noise = BatchSize(),
        step_size: float | Callable[[int], float] = 1.0,
        dtype: torch.dtype = torch.float32,
        *,
        memory_budget: int | None = None,
        flop_budget: float = 1e9,
    ) -> None:
        _check_kinds(critic, observation_fn, evolution, noise, dtype)
        if not callable(step_size):
            _check_step_size(step_size)
        settings = structures.Settings(
            prior_variance=_checks.representable("prior_variance", prior_variance, dtype),
            dtype=dtype,
            memory_budget=None if memory_budget is None else _checks.count("memory_budget", memory_budget),
            flop_budget=_checks.positive("flop_budget", flop_budget),
        )
        parameters, self.covariance = structures.make(critic, covariance, evolution, settings)
        self.observation = Observation(critic, observation_fn, parameters)
        self.evolution = evolution
        self.noise = noise
        self.step_size = step_size
        self.steps = 0
        self.calibration = Calibration()
        self._noise_memory: Memory = {}
        super().__init__(list(parameters.values()), {})

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the covariance."""
        return self.covariance.dtype

    def step(  # type: ignore[override]
        self,
        inputs: Inputs,
        targets: Tensor,
        ratio: Tensor | None = None,
        noise: float | Tensor | None = None,
        next_variance: Tensor | None = None,
    ) -> StepReport:
        """Condition N(θ, P) on one batch of target labels (one pass of Algorithm 1's loop).

        Args:
            inputs: u, a tensor or a tuple/dict of tensors whose first dimension is N.
            targets: y, (N,) or (N, 1).
            ratio: π_old(a|s)/π_new(a|s), (N,); ``MaxRatio`` needs it.
            noise: P_n of this step instead of the model's: a variance, (N,) variances or an (N, N) covariance.
            next_variance: Variance of the value each label bootstraps from, (N,); ``InverseVariance`` needs it.

        Returns:
            What the step measured; see :class:`StepReport`.

        Raises:
            TypeError: An argument is not a tensor.
            ValueError: Wrong shape, dtype or device, non-finite or out-of-range numbers.
            NumericalError: S has no Cholesky factor, or the update is not finite.

        After any of them θ, P and the counters are bit-identical to before the call.
        """
        return self._compute(lambda: self._step(inputs, targets, ratio, noise, next_variance))

    def _step(
        self,
        inputs: Inputs,
        targets: Tensor,
        ratio: Tensor | None,
        noise: float | Tensor | None,
        next_variance: Tensor | None,
    ) -> StepReport:
        jacobian, y, known = self._observe(inputs, targets, ratio, next_variance)
        try:
            return self._condition(jacobian, y, known, noise)
        except NumericalError:
            # The usual cause has a clearer name.
            jacobian.check_finite()
            raise

    def _observe(
        self, inputs: Inputs, targets: Tensor, ratio: Tensor | None, next_variance: Tensor | None
    ) -> tuple[Jacobian, Tensor, dict[str, Tensor]]:
        """Check the batch and linearise h at it (lines 3 to 5 of Algorithm 1).

        Returns:
            The linearisation, y, and what else the noise model may look at.
        """
        size = _checks.inputs(inputs, self.observation.device)
        like = torch.empty(0, dtype=self.dtype, device=self.covariance.device)
        y = _checks.per_sample("targets", targets, like, size=size)
        given = {"ratio": ratio, "next_variance": next_variance}
        known = {
            name: _checks.not_below_zero(name, _checks.per_sample(name, value, like, size=size))
            for name, value in given.items()
            if value is not None
        }
        return self.observation.linearise(inputs, size, self.dtype), y, known

    def _condition(
        self, jacobian: Jacobian, y: Tensor, known: dict[str, Tensor], noise: float | Tensor | None
    ) -> StepReport:
        """Predict P, weigh the innovation, and update θ and P (lines 2 and 6 to 9 of Algorithm 1)."""
        alpha = self._alpha(self.steps + 1)
        # Subtracted in the wider of the two types: near a large value float32 has no room for a small difference.
        delta = (y - jacobian.values).to(self.dtype)
        P = self.evolution.predict(self.covariance.seen_by(jacobian))
        gram = P.gram(self.dtype)
        batch = Batch(delta.clone(), predicted=gram.diagonal(), memory=self._noise_memory, **known)
        P_n = ObservationNoise.of(self.noise.covariance(batch) if noise is None else noise, like=delta)
        memory = self.noise.remember(batch) if noise is None else self._noise_memory

        P, gram, L, inflation = factorise_innovation(P, gram, P_n)
        # Where S needed float64 its inverse times δ does too: large terms cancel in the gain.
        standardised = torch.linalg.solve_triangular(L, delta.to(L.dtype)[:, None], upper=False)
        weights = torch.linalg.solve_triangular(L.mT, standardised, upper=True).squeeze(1)
        update = P.gain(weights).to(self.dtype).mul_(alpha)
        if not _checks.all_finite(update):
            raise NumericalError("the parameter update is not finite; nothing was changed")
        moved = self._moved(update)
        store = P.condition(L, alpha)
        standardised = standardised.squeeze(1)
        measured = measure(gram, P_n.log_det, L, delta, standardised, weights, alpha)
        calibration = self.calibration.updated(standardised)

        # All that can fail has been done. Held signals arrive when θ and P belong together again.
        with HeldSignals():
            store()
            for parameter, value in zip(self.observation.parameters.values(), moved, strict=True):
                parameter.copy_(value)
            self.calibration, self._noise_memory = calibration, memory
            self.steps += 1
        return StepReport(
            **measured,
            update_norm=update.norm(),
            mean_variance=self.covariance.mean_variance(),
            inflation=delta.new_tensor(inflation),
            innovation=delta,
        )

    def predict(
        self, inputs: Inputs, observation_noise: float | Tensor | None = None, *, calibrated: bool = False
    ) -> Normal:
        """Return the distribution of h(u; θ) under the posterior, N(h(u; θ̂), j P jᵀ), one Normal of shape (N,).

        Args:
            inputs: u, as for :meth:`step`.
            observation_noise: A scalar or (N,) added to the variance: the distribution of a target label, not a value.
            calibrated: Multiply the variance by ``calibration.scale``, the factor by which labels were seen to scatter
                more or less than the filter expected. With ``BatchSize`` noise, a weight rather than a noise level, P
                is on no scale without it.

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
        mean, variance = self._compute(lambda: self._moments(inputs))
        noise = torch.zeros_like(mean)
        if observation_noise is not None:
            noise = noise + check_variance(observation_noise, mean)
        scale = self.calibration.scale if calibrated else 1.0
        return Predictive(mean, scale * variance.clamp(min=0.0), scale * noise)

    def _moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return mean and variance of h(u; θ), a chunk of the batch at a time."""
        size = _checks.inputs(inputs, self.observation.device)
        means, variances = [], []
        for start in range(0, size, PREDICT_CHUNK):
            stop = min(start + PREDICT_CHUNK, size)
            chunk = _checks.map_inputs(operator.itemgetter(slice(start, stop)), inputs)
            jacobian = self.observation.linearise(chunk, stop - start, self.dtype)
            means.append(jacobian.values.to(self.dtype))
            variances.append(self.covariance.variance_of(jacobian))
            if not _checks.all_finite(variances[-1]):
                jacobian.check_finite()
                raise NumericalError("the variance of the value is not finite")
        return torch.cat(means), torch.cat(variances)

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

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot from which a filter over the same critic continues bit for bit.

        The critic's own weights are the module's, as with any optimizer. Unlike Adam's, the tensors are copies.
        """
        return {
            **super().state_dict(),
            "format": FORMAT,
            "steps": self.steps,
            "parameters": self._parameter_shapes(),
            "covariance": self.covariance.state_dict(),
            "calibration": self.calibration.state_dict(),
            "noise_memory": dict(self._noise_memory),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a snapshot of :meth:`state_dict`, on the device of the module.

        Raises:
            ValueError: It belongs to another optimizer or another critic; nothing was changed.
        """
        if not isinstance(state_dict, Mapping) or not state_dict.keys() >= STATE_KEYS:
            raise ValueError(f"state_dict is not a KOVA's: it must have {', '.join(sorted(STATE_KEYS))}")
        if state_dict["format"] != FORMAT:
            raise ValueError(f"state_dict has format {state_dict['format']}, this version of kova reads {FORMAT}")
        own, theirs = self._parameter_shapes(), state_dict["parameters"]
        if theirs != own:
            raise ValueError(f"state_dict belongs to a critic with {theirs}, this one has {own}")
        if not isinstance(state_dict["steps"], int) or state_dict["steps"] < 0:
            raise ValueError(f"state_dict has steps = {state_dict['steps']!r}, expected a count")
        self.covariance.check_state(state_dict["covariance"])
        calibration = Calibration.from_state_dict(state_dict.get("calibration", Calibration().state_dict()))
        memory = _check_memory(state_dict.get("noise_memory", {}))
        with HeldSignals():
            super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
            self._compute(lambda: self.covariance.load_state_dict(state_dict["covariance"]))
            self.calibration, self._noise_memory = calibration, memory
            self.steps = state_dict["steps"]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the critic's parameters, once.

        Raises:
            ValueError: Called by a user: P is over the parameters the critic had at construction.
        """
        if self.param_groups:
            raise ValueError("KOVA optimises the critic it was made for; parameters cannot be added")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """Keep everything: the base class would drop θ's names, P and the models on deepcopy and pickle."""
        return self.__dict__.copy()

    def __repr__(self) -> str:
        """Say what the filter is made of."""
        parts = (
            f"{self.covariance.name} P over {self.covariance.dim} parameters",
            f"evolution={self.evolution!r}",
            f"noise={self.noise!r}",
            f"steps={self.steps}",
        )
        return f"KOVA({', '.join(parts)})"

    def _alpha(self, step: int) -> float:
        return _check_step_size(self.step_size(step) if callable(self.step_size) else self.step_size)

    def _parameter_shapes(self) -> list[tuple[str, list[int]]]:
        return [(name, list(parameter.shape)) for name, parameter in self.observation.parameters.items()]

    def _compute(self, work: Callable[[], T]) -> T:
        """Return ``work()``, done on the device the module is on now and outside the caller's torch modes."""
        device = self.observation.device

        def compute() -> T:
            if self.covariance.device != device:
                self.covariance.to(device)
            return work()

        return without_modes(device, compute)

    def _moved(self, update: Tensor) -> list[Tensor]:
        """Return the parameters plus the update, checked in their own dtype."""
        parameters = list(self.observation.parameters.values())
        parts = update.split([parameter.numel() for parameter in parameters])
        moved = [p + part.view_as(p).to(p.dtype) for p, part in zip(parameters, parts, strict=True)]
        # In its own dtype the update is finite; only a cast to another can make it overflow.
        if any(value.dtype != self.dtype and not _checks.all_finite(value) for value in moved):
            raise NumericalError("the updated parameters are not finite; nothing was changed")
        return moved


def _check_kinds(critic: object, observation_fn: object, evolution: object, noise: object, dtype: object) -> None:
    if not isinstance(critic, nn.Module):
        raise TypeError(f"critic must be a torch.nn.Module, got {type(critic).__name__}")
    if observation_fn is not None and not callable(observation_fn):
        raise TypeError(f"observation_fn must be a callable (module, inputs) -> (N,), got {observation_fn!r}")
    if not isinstance(evolution, Evolution):
        raise TypeError(f"evolution must be a kova.Evolution such as kova.FadingMemory(0.01), got {evolution!r}")
    if not isinstance(noise, Noise):
        raise TypeError(f"noise must be a kova.Noise such as kova.BatchSize(), got {noise!r}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype of the covariance must be torch.float32 or torch.float64, got {dtype}")


def _check_step_size(value: object) -> float:
    alpha = _checks.number("step_size", value)
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"step_size must be in (0, 1], got {value!r}")
    return alpha


def _check_memory(memory: object) -> Memory:
    numbers = isinstance(memory, Mapping) and all(isinstance(value, int | float) for value in memory.values())
    if not numbers or not isinstance(memory, Mapping):
        raise ValueError(f"state_dict has noise_memory = {memory!r}, expected numbers by name")
    return dict(memory)
