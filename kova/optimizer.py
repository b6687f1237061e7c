"""The KOVA optimizer, Algorithm 1 of "Trust Region Value Optimization using Kalman Filtering"."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from kova import _checks, checkpoint
from kova._checks import Inputs
from kova.calibration import Calibration
from kova.conditioning import Conditioned, condition, condition_in_pieces
from kova.covariance.base import Covariance
from kova.covariance.choice import Choice, Settings, choose
from kova.covariance.layout import Layout
from kova.covariance.scales import Scales
from kova.errors import NumericalError
from kova.evolution import Evolution, FadingMemory
from kova.interrupts import HeldSignals
from kova.linearisation.jacobian import Jacobian
from kova.linearisation.observation import Observation, ObservationFn
from kova.linearisation.output_layer import OutputLayer, find_output_layer
from kova.modes import without_modes
from kova.noise import Batch, BatchSize, ConstantNoise, MaxRatio, Memory, Noise
from kova.observation_noise import ObservationNoise
from kova.posterior import Predictive, check_variance
from kova.prediction import Prediction
from kova.prior import FanIn, Isotropic, Prior
from kova.step_report import StepReport
from kova.units import LabelUnits, RawUnits, Units, UnitState

T = TypeVar("T")

#: The most samples, and the most numbers of their Jacobian, that ``predict`` holds at once.
PREDICT_CHUNK, PREDICT_NUMBERS = 512, 2**24


class KOVA(torch.optim.Optimizer):
    """An Extended Kalman Filter over the weights of a value function.

    It keeps a Gaussian N(θ, P) over the parameters and, for every batch of N target labels y, takes the step that
    minimises the linearised L_EKF (Eq. 12): the squared error under the observation noise P_n, plus a trust region in
    the metric P_{t|t-1}⁻¹.

    Args:
        critic: Any module; its parameters that require grad are optimised, the others left alone.
        observation_fn: h, ``(module, inputs) -> (N,)``; by default ``module(inputs)``, (N,) or (N, 1).
        covariance: Structure of P: a name or an instance from :mod:`kova.covariance`.
        prior_variance: P_{0|0} = prior_variance · I, short for ``prior=kova.Isotropic(prior_variance)``.
        evolution: P_v, how the parameters may move between batches.
        noise: P_n, how the target labels scatter around the value.
        step_size: α in (0, 1], or a callable of the step number t = 1, 2, …
        dtype: Of the covariance.
        prior: P_{0|0}; by default :class:`kova.FanIn`.
        units: Of the labels: by default noise and prior are those of labels with mean 0 and deviation 1, whatever the
            labels are, and the output layer starts at their mean and deviation with the first batch. This needs an
            output layer, a Linear layer with h = w·φ + b. ``kova.RawUnits()`` switches it off.
        batch_size: N of a typical step. ``covariance="auto"`` takes the most faithful structure that then costs at most
            five steps of Adam. A step may have any number of samples; a large batch is taken in pieces, which for a
            full P give what the whole batch gives (see :func:`kova.conditioning.condition_in_pieces`).
        memory_budget: Bytes that the covariance and a step together may take. By default the covariance may take four
            fifths of what is free, and a step is not limited.
        flop_budget: Operations that a step of ``batch_size`` samples may spend on P before ``covariance="auto"`` takes
            a sparser structure, in place of the comparison with Adam.

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
        prior_variance: float | None = None,
        evolution: Evolution = FadingMemory(eta=0.01),
        noise: Noise = BatchSize(),
        step_size: float | Callable[[int], float] = 1.0,
        dtype: torch.dtype = torch.float32,
        *,
        prior: Prior | None = None,
        units: Units = LabelUnits(),
        batch_size: int = 64,
        memory_budget: int | None = None,
        flop_budget: float | None = None,
    ) -> None:
        _check_kinds(critic, observation_fn, evolution, noise, dtype)
        _check_prior(prior, prior_variance, units)
        if not callable(step_size):
            _check_step_size(step_size)
        base = 1.0 if prior_variance is None else prior_variance
        settings = Settings(
            prior_variance=_checks.representable("prior_variance", base, dtype),
            dtype=dtype,
            memory_budget=None if memory_budget is None else _checks.count("memory_budget", memory_budget),
            batch_size=_checks.count("batch_size", batch_size),
            flop_budget=None if flop_budget is None else _checks.positive("flop_budget", flop_budget),
        )
        if prior is None and prior_variance is not None:
            prior = Isotropic(prior_variance)
        # An instance comes with a prior of its own.
        self.prior = FanIn() if prior is None and isinstance(covariance, str) else prior
        self.units = units
        self._unit_state = UnitState()
        self._output: OutputLayer | None = None
        choice = choose(critic, covariance, evolution, settings)
        self.observation = Observation(critic, observation_fn, choice.parameters)
        self._take(choice, settings)
        self.evolution = evolution
        self.noise = noise
        self.step_size = step_size
        self.steps = 0
        self.calibration = Calibration()
        self._noise_memory: Memory = {}
        super().__init__(list(choice.parameters.values()), {})

    def _take(self, choice: Choice, settings: Settings) -> None:
        self.covariance, self._reason, self._piece = choice.covariance, choice.reason, choice.piece
        self._settings = settings
        self._prior_scales = self.covariance.scales
        if self.prior is not None:
            layout = Layout.of(choice.parameters)
            variances = self.prior.variances(layout)
            self._prior_scales = Scales.of_prior(layout, variances, self.covariance.prior_variance)
        self.covariance.scales = self._scales(self._unit_state)

    def _scales(self, state: UnitState) -> Scales:
        """Return the prior's scales in the units of the labels: those of the output layer times s."""
        names = () if self._output is None else self._output.names
        factors = [state.scale if name in names else 1.0 for name in self.observation.parameters]
        return self._prior_scales.times(factors)

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
        size = _checks.inputs(inputs, self.observation.device)
        like = torch.empty(0, dtype=self.dtype, device=self.covariance.device)
        y = _checks.per_sample("targets", targets, like, size=size)
        given = {"ratio": ratio, "next_variance": next_variance}
        known = {
            name: _checks.not_below_zero(name, _checks.per_sample(name, value, like, size=size))
            for name, value in given.items()
            if value is not None
        }
        if self.units.active and not self._unit_state.known:
            return self._begin(inputs, y, lambda: self._filter(inputs, y, known, noise))
        return self._filter(inputs, y, known, noise)

    def _begin(self, inputs: Inputs, y: Tensor, step: Callable[[], StepReport]) -> StepReport:
        """Take the first step in the units of its labels; if it fails, nothing was changed."""
        few = min(len(y), self._piece, PREDICT_CHUNK)
        part = _checks.map_inputs(operator.itemgetter(slice(0, few)), inputs)
        jacobian = self.observation.linearise(part, few, self.dtype)
        parameters = self.observation.parameters
        output = find_output_layer(self.observation.module, parameters, jacobian)
        if output is None:
            raise ValueError(
                "the critic has no output layer that is optimised, a Linear layer with h = w·φ + b, so it cannot take "
                "the units of its labels; pass units=kova.RawUnits() and labels of about unit scale"
            )
        state = self.units.updated(self._unit_state, y, centred=output.bias is not None)
        before = {name: parameters[name].detach().clone() for name in output.names}
        steps, scales = self.steps, self.covariance.scales
        try:
            with HeldSignals():
                self._output, self._unit_state = output, state
                self.covariance.scales = self._scales(state)
                for name in output.names:
                    parameters[name].mul_(state.scale).add_(state.mean if name == output.bias else 0.0)
            return step()
        except BaseException:
            if self.steps == steps:
                with HeldSignals():
                    self._output, self._unit_state, self.covariance.scales = None, UnitState(), scales
                    for name, value in before.items():
                        parameters[name].copy_(value)
            raise

    def _filter(self, inputs: Inputs, y: Tensor, known: dict[str, Tensor], noise: float | Tensor | None) -> StepReport:
        size = len(y)
        alpha = self._alpha(self.steps + 1)
        matrix = isinstance(noise, Tensor) and noise.dim() == 2
        if size > self._piece and alpha == 1.0 and not matrix:
            report = self._step_in_pieces(inputs, y, known, noise)
            if report is not None:
                return report
        jacobian = self.observation.linearise(inputs, size, self.dtype)
        try:
            return self._step_at_once(jacobian, y, known, noise, alpha)
        except NumericalError:
            # Usually a derivative is not finite, and an error that says so is clearer.
            jacobian.check_finite()
            raise

    def _step_at_once(
        self, jacobian: Jacobian, y: Tensor, known: dict[str, Tensor], noise: float | Tensor | None, alpha: float
    ) -> StepReport:
        """Predict P, weigh the innovation, and update θ and P (lines 2 and 6 to 9 of Algorithm 1)."""
        # Subtracted in the wider of the two types: in float32 a small difference of large values would be lost.
        delta = (y - jacobian.values).to(self.dtype)
        P = self.evolution.predict(self.covariance.seen_by(jacobian))
        gram = P.gram(self.dtype)
        P_n, memory = self._weigh(delta, gram.diagonal(), known, noise)
        conditioned = condition(P, gram, delta, P_n, alpha)
        self._commit(conditioned, memory, y)
        return self._report(conditioned, delta)

    def _step_in_pieces(
        self, inputs: Inputs, y: Tensor, known: dict[str, Tensor], noise: float | Tensor | None
    ) -> StepReport | None:
        """Take a large batch one piece after the other; return ``None`` if it must be taken as a whole."""
        size = len(y)
        pieces = [slice(start, min(start + self._piece, size)) for start in range(0, size, self._piece)]

        def linearise(piece: slice) -> Jacobian:
            part = _checks.map_inputs(operator.itemgetter(piece), inputs)
            return self.observation.linearise(part, piece.stop - piece.start, self.dtype)

        first = linearise(pieces[0])
        evolved = self.evolution.predict(self.covariance.seen_by(first))
        if evolved.depends_on_batch:
            return None
        delta = (y - self.observation.values(inputs, size)).to(self.dtype)
        # What a model of the user's own looks at is not known, so it is computed unless the model is known not to look.
        blind = noise is not None or isinstance(self.noise, BatchSize | MaxRatio | ConstantNoise)
        predicted = None if blind else torch.cat([self._predicted(linearise(piece)) for piece in pieces])
        P_n, memory = self._weigh(delta, predicted, known, noise)
        if P_n.correlated:
            return None

        def predictions() -> Iterator[tuple[Prediction, Jacobian]]:
            # Made again: linearising the other pieces for ``predicted`` has overwritten the workspace.
            yield self.evolution.predict(self.covariance.seen_by(first)), first
            for piece in pieces[1:]:
                jacobian = linearise(piece)
                yield self.covariance.seen_by(jacobian), jacobian

        before = self.covariance.state_dict()
        steps = self.steps
        try:
            conditioned = condition_in_pieces(predictions(), pieces, delta, P_n)
            self._commit(conditioned, memory, y)
        except BaseException:
            # A signal that was held during the commit arrives after it: then the step has happened.
            if self.steps == steps:
                with HeldSignals():
                    self.covariance.load_state_dict(before)
            raise
        return self._report(conditioned, delta)

    def _predicted(self, jacobian: Jacobian) -> Tensor:
        """Return diag(J P_{t|t-1} Jᵀ), (N,)."""
        return self.evolution.predict(self.covariance.seen_by(jacobian)).gram(self.dtype).diagonal()

    def _weigh(
        self, delta: Tensor, predicted: Tensor | None, known: dict[str, Tensor], noise: float | Tensor | None
    ) -> tuple[ObservationNoise, Memory]:
        """Return P_n and what the noise model will remember of the batch."""
        if noise is not None:
            return ObservationNoise.of(noise, like=delta), self._noise_memory
        # A noise model sees labels of unit deviation, and speaks of them.
        s = self._unit_state.scale
        if "next_variance" in known:
            known = {**known, "next_variance": known["next_variance"] / s**2}
        seen = None if predicted is None else predicted / s**2
        batch = Batch(delta / s, predicted=seen, memory=self._noise_memory, **known)
        P_n = self.noise.covariance(batch)
        return ObservationNoise.of(P_n if s == 1.0 else P_n * s**2, like=delta), self.noise.remember(batch)

    def _commit(self, conditioned: Conditioned, memory: Memory, y: Tensor) -> None:
        """Store θ, P and the counters together, when nothing can fail any more."""
        moved = self._moved(conditioned.update)
        calibration = self.calibration.updated(conditioned.standardised)
        units, rescale = self._unit_state, None
        if self.steps:
            centred = self._output is not None and self._output.bias is not None
            units = self.units.updated(units, y, centred=centred)
        if units.scale != self._unit_state.scale:
            rescale = self.covariance.rescale(self._scales(units))
        # Signals wait until both θ and P are stored.
        with HeldSignals():
            conditioned.store()
            if rescale is not None:
                rescale()
            self._unit_state = units
            for parameter, value in zip(self.observation.parameters.values(), moved, strict=True):
                parameter.copy_(value)
            self.calibration, self._noise_memory = calibration, memory
            self.steps += 1

    def _report(self, conditioned: Conditioned, delta: Tensor) -> StepReport:
        return StepReport(
            **conditioned.measured,
            update_norm=conditioned.update.norm(),
            mean_variance=self.covariance.mean_variance(),
            inflation=delta.new_tensor(conditioned.inflation),
            innovation=delta,
        )

    def predict(
        self, inputs: Inputs, observation_noise: float | Tensor | None = None, *, calibrated: bool = False
    ) -> Normal:
        """Return the distribution of h(u; θ) under the posterior, N(h(u; θ̂), j P jᵀ), one Normal of shape (N,).

        Args:
            inputs: u, as for :meth:`step`.
            observation_noise: A scalar or (N,) that is added to the variance, for the distribution of a target label.
            calibrated: Multiply the variance by ``calibration.scale``, the factor by which labels were seen to scatter
                more or less than the filter expected. ``BatchSize`` noise is a weight and not a noise level: with it,
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
        at_once = min(PREDICT_CHUNK, max(1, PREDICT_NUMBERS // self.covariance.dim), self._piece)
        for start in range(0, size, at_once):
            stop = min(start + at_once, size)
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
            "format": checkpoint.FORMAT,
            "steps": self.steps,
            "parameters": self._parameter_shapes(),
            "covariance": self.covariance.state_dict(),
            "calibration": self.calibration.state_dict(),
            "noise_memory": dict(self._noise_memory),
            **self._units_state_dict(),
        }

    def _units_state_dict(self) -> dict[str, Any]:
        if not self.units.active:
            return {}
        names = None if self._output is None else [self._output.weight, self._output.bias]
        return {"units": self._unit_state.state_dict(), "output_layer": names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a snapshot of :meth:`state_dict`, on the device of the module.

        Raises:
            ValueError: It belongs to another optimizer or another critic; nothing was changed.
            CovarianceTooLarge: "auto" chose a structure then that does not fit in memory now; nothing was changed.
        """
        snapshot = checkpoint.checked(state_dict, self._parameter_shapes())
        choice = self._saved_choice(snapshot)
        (self.covariance if choice is None else choice.covariance).check_state(snapshot.covariance)
        with HeldSignals():
            if choice is not None:
                self._take(choice, self._settings)
            super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
            self._compute(lambda: self.covariance.load_state_dict(snapshot.covariance))
            self.calibration, self._noise_memory = snapshot.calibration, snapshot.noise_memory
            self.steps = snapshot.steps
            self._restore_units(snapshot)

    def _restore_units(self, snapshot: checkpoint.Snapshot) -> None:
        if snapshot.units is not None:
            self._unit_state, self._output = snapshot.units, snapshot.output
            return
        if self.units.active:
            warnings.warn(
                "the filter was saved without units of its labels, by kova 0.1 or with RawUnits: it goes on without",
                stacklevel=4,
            )
        self.units, self._unit_state, self._output = RawUnits(), UnitState(), None
        self._prior_scales = self.covariance.scales

    def _saved_choice(self, snapshot: checkpoint.Snapshot) -> Choice | None:
        """Return the structure of a snapshot if "auto" chose another one here; it depends on N and on the version."""
        saved = checkpoint.structure(snapshot.covariance)
        if not self._reason or saved in (None, self.covariance.name):
            return None
        choice = choose(self.observation.module, saved, self.evolution, self._settings)
        return replace(choice, reason=f"{saved} was chosen when it was saved")

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
        chosen = f" (auto: {self._reason})" if self._reason else ""
        parts = (
            f"{self.covariance.name} P over {self.covariance.dim} parameters{chosen}",
            f"evolution={self.evolution!r}",
            f"noise={self.noise!r}",
            f"prior={self.prior!r}",
            f"units={self.units!r}",
            f"steps={self.steps}",
        )
        return f"KOVA({', '.join(parts)})"

    def _alpha(self, step: int) -> float:
        return _check_step_size(self.step_size(step) if callable(self.step_size) else self.step_size)

    def _parameter_shapes(self) -> list[tuple[str, list[int]]]:
        return [(name, list(parameter.shape)) for name, parameter in self.observation.parameters.items()]

    def _compute(self, work: Callable[[], T]) -> T:
        """Return ``work()``, done on the module's present device and outside the caller's torch modes."""
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


def _check_prior(prior: object, prior_variance: object, units: object) -> None:
    if prior is not None and not isinstance(prior, Prior):
        raise TypeError(f"prior must be a kova.Prior such as kova.FanIn(), got {prior!r}")
    if prior is not None and prior_variance is not None:
        raise ValueError("prior and prior_variance both say what P starts as; give one of them")
    if not isinstance(units, Units):
        raise TypeError(f"units must be a kova.Units such as kova.LabelUnits() or kova.RawUnits(), got {units!r}")


def _check_step_size(value: object) -> float:
    alpha = _checks.number("step_size", value)
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"step_size must be in (0, 1], got {value!r}")
    return alpha
