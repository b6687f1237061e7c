"""The KOVA optimizer, Algorithm 1 of "Trust Region Value Optimization using Kalman Filtering"."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kova import _checks, arguments, checkpoint, defaults
from kova._checks import Inputs
from kova.assumptions import Assumptions
from kova.beliefs import PREDICT_CHUNK
from kova.calibration import Calibration
from kova.conditioning import Conditioned, condition, condition_in_pieces, innovation_log_likelihood
from kova.covariance.base import Covariance
from kova.covariance.choice import STRUCTURES, Choice, Settings, choose
from kova.covariance.layout import Layout
from kova.covariance.scales import Scales
from kova.errors import CovarianceTooLarge, NumericalError
from kova.evolution import Evidence, Evolution
from kova.factorise import TooNarrow
from kova.interrupts import HeldSignals
from kova.linearisation.jacobian import Jacobian
from kova.linearisation.observation import Observation, ObservationFn
from kova.linearisation.output_layer import find_output_layer
from kova.memories import Memories, Memory
from kova.noise import BatchSize, ConstantNoise, MaxRatio, Noise
from kova.observation_noise import ObservationNoise
from kova.overlap import Overlapping
from kova.persistence import Restorable
from kova.prediction import Prediction
from kova.prior import Isotropic, Prior
from kova.replicas import Replicas
from kova.step_report import StepReport
from kova.trust import Outcome, Trust, Unchecked, trusted
from kova.units import LabelUnits, RawUnits, Units


class KOVA(Restorable):
    """An Extended Kalman Filter over the weights of a value function.

    It keeps a Gaussian N(θ, P) over the parameters and, for every batch of N target labels y, takes the step that
    minimises the linearised L_EKF (Eq. 12): the squared error under the observation noise P_n, plus a trust region in
    the metric P_{t|t-1}⁻¹.

    There is nothing to tune: prior and noise follow the labels, and the defaults were chosen by how well they predict
    returns on recorded streams of experience (``kova bench streams``). ``units=RawUnits()`` is the paper's filter.

    Args:
        critic: Any module; its parameters that require grad are optimised, the others left alone.
        observation_fn: h, ``(module, inputs) -> (N,)``; by default ``module(inputs)``, (N,) or (N, 1).
        covariance: Structure of P: a name or an instance from :mod:`kova.covariance`.
        prior_variance: P_{0|0} = prior_variance · I in the labels' own units, short for
            ``prior=kova.Isotropic(prior_variance)`` and ``units=kova.RawUnits()``.
        evolution: P_v, how the parameters may move between batches; by default ``kova.PriorRelaxation(0.0003)``, in raw
            units ``kova.FadingMemory(0.01)``.
        noise: P_n, how the target labels scatter around the value; by default ``kova.ConstantNoise(0.05)``, a
            twentieth of the labels' variance, in raw units ``kova.BatchSize()``.
        step_size: α in (0, 1], or a callable of the step number t = 1, 2, …
        dtype: Of the covariance. A float32 P goes on in float64 from the first batch that it could not resolve: large
            derivatives and little noise, as with raw observations in the thousands.
        prior: P_{0|0}; by default ``kova.FanIn()``, under which a value varies as much at every width, in raw units
            ``kova.Isotropic(1.0)``.
        units: Of the labels. ``kova.LabelUnits()``, the default unless P_{0|0} is given in numbers, takes noise and
            prior to be those of labels with mean 0 and deviation 1, whatever the labels are; the output layer starts at
            their mean and deviation with the first batch. It needs an output layer, a Linear layer with h = w·φ + b, or
            at least one that h is proportional to (then the labels' mean counts as 0), and raises ``ValueError`` at the
            first step if there is none. ``kova.RawUnits()`` takes noise and prior as they are, and by default those of
            the paper.
        trust: Whether steps are checked after they are computed, and P_n is adapted to what is found.
        batch_size: N of a typical step. ``covariance="auto"`` takes the most faithful structure that then costs at most
            five steps of Adam. A step may have any number of samples; a large batch is taken in pieces, which for a
            full P give what the whole batch gives (see :func:`kova.conditioning.condition_in_pieces`).
        memory_budget: Bytes that the covariance and a step together may take. By default the covariance may take four
            fifths of what is free, and a step is not limited.
        flop_budget: Operations that a step of ``batch_size`` samples may spend on P before ``covariance="auto"`` takes
            a sparser structure, in place of the comparison with Adam.
        replicas: m draws of the error of θ that are carried along (:mod:`kova.replicas`), for error bars that hold
            where labels share rewards or do not scatter as P_n says: ``predict(..., calibrated=True)``. Sixteen are
            enough for a deviation to within a fifth. θ and P do not depend on them.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is out of range, or the module has nothing to optimise.
        CovarianceTooLarge: P does not fit in memory.

    Example:
        >>> critic = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> optimizer = KOVA(critic)
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
        evolution: Evolution | None = None,
        noise: Noise | None = None,
        step_size: float | Callable[[int], float] = 1.0,
        dtype: torch.dtype = torch.float32,
        *,
        prior: Prior | None = None,
        units: Units | None = None,
        trust: Trust = Unchecked(),
        batch_size: int = 64,
        memory_budget: int | None = None,
        flop_budget: float | None = None,
        replicas: int = 0,
    ) -> None:
        if units is None:
            # Numbers that are given for P are in the labels' own units.
            units = LabelUnits() if prior_variance is None and isinstance(covariance, str) else RawUnits()
        arguments.check_prior(prior, prior_variance, units)
        arguments.check_trust(trust)
        chosen = defaults.of(units)
        self.unnamed = frozenset(name for name, model in (("evolution", evolution), ("noise", noise)) if model is None)
        evolution = chosen.evolution if evolution is None else evolution
        noise = chosen.noise if noise is None else noise
        arguments.check_kinds(critic, observation_fn, evolution, noise, dtype)
        if not callable(step_size):
            arguments.check_step_size(step_size)
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
        self.prior = chosen.prior if prior is None and isinstance(covariance, str) else prior
        self.units = units
        choice = choose(critic, covariance, evolution, settings)
        self.observation = Observation(critic, observation_fn, choice.parameters)
        # An instance comes with a precision of its own too.
        self._take(choice, replace(settings, dtype=choice.covariance.dtype))
        self.evolution = evolution
        self.noise = noise
        self.trust = trust
        self.step_size = step_size
        self.steps = 0
        self.calibration = Calibration()
        self._memories = Memories()
        self._replicas = Replicas(_checks.count("replicas", replicas) if replicas != 0 else 0)
        self._no_room = False
        self._together_with: Callable[[], object] | None = None
        super().__init__(list(choice.parameters.values()), {})

    def _take(self, choice: Choice, settings: Settings) -> None:
        self.covariance, self._reason, self._piece = choice.covariance, choice.reason, choice.piece
        self._settings = settings
        scales, layout = self.covariance.scales, Layout.of(choice.parameters)
        if self.prior is not None:
            scales = Scales.of_prior(layout, self.prior.variances(layout), self.covariance.prior_variance)
        self._assumptions = Assumptions(self.units, scales, tuple(choice.parameters))
        self.covariance.scales = scales

    def step(  # type: ignore[override]
        self,
        inputs: Inputs,
        targets: Tensor,
        ratio: Tensor | None = None,
        noise: float | Tensor | None = None,
        next_variance: Tensor | None = None,
        trajectory: Tensor | None = None,
        remaining: Tensor | None = None,
        replica_targets: Tensor | None = None,
        together_with: Callable[[], object] | None = None,
    ) -> StepReport:
        """Condition N(θ, P) on one batch of target labels (one pass of Algorithm 1's loop).

        Args:
            inputs: u, a tensor or a tuple/dict of tensors whose first dimension is N.
            targets: y, (N,) or (N, 1).
            ratio: π_old(a|s)/π_new(a|s), (N,); ``MaxRatio`` needs it.
            noise: P_n of this step instead of the model's: a variance, (N,) variances or an (N, N) covariance.
            next_variance: Variance of the value each label bootstraps from, (N,); ``InverseVariance`` needs it.
            trajectory: Which trajectory each label is of, (N,) numbers >= 0; ``Overlapping`` needs it.
            remaining: How many steps each label looks ahead, (N,), from 1; ``Overlapping`` needs it.
            replica_targets: A label for every replica, (N, m), see :func:`kova.targets.replica_targets`; by default y
                plus noise as large as its innovation, as for labels that scatter independently.
            together_with: Is called once everything is computed and before anything is stored; if it raises, this step
                is not taken. With a step of another filter in it, both are taken or neither.

        Returns:
            What the step measured; see :class:`StepReport`.

        Raises:
            TypeError: An argument is not a tensor.
            ValueError: Wrong shape, dtype or device, non-finite or out-of-range numbers.
            NumericalError: S has no Cholesky factor, or the update is not finite.

        After any of them θ, P and the counters are bit-identical to before the call.
        """
        given = {"ratio": ratio, "next_variance": next_variance, "trajectory": trajectory, "remaining": remaining}
        self._together_with = together_with
        try:
            return self._compute(lambda: self._step(inputs, targets, noise, given, replica_targets))
        finally:
            self._together_with = None

    def _step(
        self,
        inputs: Inputs,
        targets: Tensor,
        noise: float | Tensor | None,
        given: Mapping[str, Tensor | None],
        replica_targets: Tensor | None,
    ) -> StepReport:
        size = _checks.inputs(inputs, self.observation.device)
        like = torch.empty(0, dtype=self.dtype, device=self.covariance.device)
        y = _checks.per_sample("targets", targets, like, size=size)
        known = {
            name: _checks.not_below_zero(
                name, _checks.per_sample(name, value, like, size=size, whole=name in Overlapping.needs)
            )
            for name, value in given.items()
            if value is not None
        }
        replica_labels = self._replicas.labels(replica_targets, y, like)
        if self._assumptions.waiting:
            return self._begin(inputs, y, lambda: self._filter(inputs, y, known, noise, replica_labels))
        return self._filter(inputs, y, known, noise, replica_labels)

    def _begin(self, inputs: Inputs, y: Tensor, step: Callable[[], StepReport]) -> StepReport:
        """Take a step in the units of its labels, which were not known before; if it fails, nothing was changed."""
        few = min(len(y), self._piece, PREDICT_CHUNK)
        part = _checks.map_inputs(operator.itemgetter(slice(0, few)), inputs)
        jacobian = self.observation.linearise(part, few, self.dtype)
        parameters = self.observation.parameters
        output = find_output_layer(self.observation.module, parameters, jacobian)
        if output is None:
            raise ValueError(
                "the critic has no output layer that is optimised, a Linear layer to which its values are "
                "proportional, so it cannot take the units of its labels; pass units=kova.RawUnits() and labels of "
                "about unit scale"
            )
        before, assumptions = {name: parameters[name].detach().clone() for name in output.names}, self._assumptions
        begun, steps = assumptions.begun(output, y), self.steps
        try:
            with HeldSignals():
                self._assumptions, self.covariance.scales = begun, begun.scales
                # P, too, is in units that nothing was known about: it keeps its numbers and takes the new ones.
                begun.start(parameters, assumptions.state)
            return step()
        except BaseException:
            if self.steps == steps:
                with HeldSignals():
                    self._assumptions, self.covariance.scales = assumptions, assumptions.scales
                    for name, value in before.items():
                        parameters[name].copy_(value)
            raise

    @property
    def begins(self) -> bool:
        """Whether the next labels set the units of an untrained critic, whose own values had better not be in them."""
        return not self.steps and self._assumptions.waiting and self.units.start

    def _filter(
        self,
        inputs: Inputs,
        y: Tensor,
        known: dict[str, Tensor],
        noise: float | Tensor | None,
        replica_labels: Tensor | None,
    ) -> StepReport:
        size = len(y)
        alpha = self._alpha(self.steps + 1)
        matrix = self.noise.correlates if noise is None else isinstance(noise, Tensor) and noise.dim() == 2
        if size > self._piece and alpha == 1.0 and not matrix:
            report = self._step_in_pieces(inputs, y, known, noise, replica_labels)
            if report is not None:
                return report
        jacobian = self.observation.linearise(inputs, size, self.dtype)
        try:
            return self._step_at_once(inputs, jacobian, y, known, noise, replica_labels, alpha)
        except NumericalError:
            # Usually a derivative is not finite, and an error that says so is clearer.
            jacobian.check_finite()
            raise
        except TooNarrow:
            # Once more, in float64 or, where that does not fit in memory, with an inflated P.
            wide = self._widened()
        jacobian = self.observation.linearise(inputs, size, self.dtype if wide is None else wide.dtype)
        return self._step_at_once(inputs, jacobian, y, known, noise, replica_labels, alpha, wide)

    def _step_at_once(
        self,
        inputs: Inputs,
        jacobian: Jacobian,
        y: Tensor,
        known: dict[str, Tensor],
        noise: float | Tensor | None,
        replica_labels: Tensor | None,
        alpha: float,
        draft: Covariance | None = None,
    ) -> StepReport:
        """Predict P, weigh the innovation, and update θ and P (lines 2 and 6 to 9 of Algorithm 1)."""
        covariance = self.covariance if draft is None else draft
        # Subtracted in the wider of the two types: in float32 a small difference of large values would be lost.
        delta = (y - jacobian.values).to(covariance.dtype)
        before = covariance.seen_by(jacobian)
        before = before.shared() if self.evolution.judges else before
        evolution, moved = self._evolution_of(before, delta, known, noise)
        P = evolution.predict(before)
        gram = P.gram(covariance.dtype)
        P_n, scatter = self._weigh(delta, self._looked_at(gram), known, noise)
        may_widen = draft is None and self._may_widen
        memories = Memories(scatter, moved, self._memories.trust)
        replicas = self._replicas.begun(covariance)
        apart = replicas.innovations(jacobian, delta, replica_labels, self.steps)
        if noise is not None or not self.trust.checks:
            conditioned = condition(P, gram, delta, P_n, alpha, apart, may_widen)
        else:

            def attempt(inflation: float) -> tuple[Conditioned, Outcome]:
                found = condition(P, gram, delta, P_n.times(inflation), alpha, apart, may_widen)
                return found, self._outcome(found, inputs, y, delta, P_n)

            conditioned, trust = trusted(self.trust, self._memories.trust, attempt)
            memories = replace(memories, trust=trust)
        self._commit(conditioned, memories, replicas, y, draft)
        return self._report(conditioned, delta)

    def _evolution_of(
        self, P: Prediction, delta: Tensor, known: dict[str, Tensor], noise: float | Tensor | None
    ) -> tuple[Evolution, Memory]:
        """Return the evolution model that makes this step, and what the model will remember of the batch."""

        def log_likelihood(evolution: Evolution) -> float:
            gram = evolution.predict(P).gram(delta.dtype)
            P_n, _ = self._weigh(delta, self._looked_at(gram), known, noise)
            return innovation_log_likelihood(gram, delta, P_n, self.calibration.scale)

        return self.evolution.adapted(Evidence(len(delta), log_likelihood, self._memories.evolution))

    def _outcome(
        self, conditioned: Conditioned, inputs: Inputs, y: Tensor, delta: Tensor, P_n: ObservationNoise
    ) -> Outcome:
        """Return what would come of a step: one forward pass with the weights that it proposes."""
        moved = dict(zip(self.observation.parameters, self._moved(conditioned.update), strict=True))
        after = (y - self.observation.values_at(moved, inputs, len(y))).to(delta.dtype)
        loss = P_n.squared_norm(delta)
        predicted = loss - P_n.squared_norm(conditioned.remaining)
        # Where nothing was to be gained, nothing can have gone wrong.
        ratio = (loss - P_n.squared_norm(after)) / predicted if predicted > 0.0 else 1.0
        return Outcome(ratio, float(conditioned.measured["nis"]), P_n.mean() / self._assumptions.state.scale**2)

    def _step_in_pieces(
        self,
        inputs: Inputs,
        y: Tensor,
        known: dict[str, Tensor],
        noise: float | Tensor | None,
        replica_labels: Tensor | None,
        wide: Covariance | None = None,
    ) -> StepReport | None:
        """Take a large batch one piece after the other; return ``None`` if it must be taken as a whole.

        The pieces work on a draft of P, which takes its place when all are done.
        """
        draft, may_widen = copy.deepcopy(self.covariance) if wide is None else wide, self._may_widen and wide is None
        size = len(y)
        pieces = [slice(start, min(start + self._piece, size)) for start in range(0, size, self._piece)]

        def linearise(piece: slice) -> Jacobian:
            part = _checks.map_inputs(operator.itemgetter(piece), inputs)
            return self.observation.linearise(part, piece.stop - piece.start, draft.dtype)

        first = linearise(pieces[0])
        delta = (y - self.observation.values(inputs, size)).to(draft.dtype)
        # How the weights moved is judged by the first piece: the others see a P that it has changed.
        seen = {name: values[pieces[0]] for name, values in known.items()}
        evolution, moved = self._evolution_of(draft.seen_by(first), delta[pieces[0]], seen, noise)
        if evolution.predict(draft.seen_by(first)).depends_on_batch:
            return None
        # What a model of the user's own looks at is not known, so it is computed unless the model is known not to look.
        blind = noise is not None or isinstance(self.noise, BatchSize | MaxRatio | ConstantNoise)
        grams = (evolution.predict(draft.seen_by(linearise(piece))).gram(draft.dtype) for piece in pieces)
        predicted = None if blind else torch.cat([gram.diagonal() for gram in grams])
        P_n, scatter = self._weigh(delta, predicted, known, noise)
        if P_n.correlated:
            return None
        if noise is None:
            P_n = P_n.times(self.trust.inflation(self._memories.trust))

        def predictions() -> Iterator[tuple[Prediction, Jacobian]]:
            # Made again: linearising the other pieces for ``predicted`` has overwritten the workspace.
            yield evolution.predict(draft.seen_by(first)), first
            for piece in pieces[1:]:
                jacobian = linearise(piece)
                yield draft.seen_by(jacobian), jacobian

        replicas = self._replicas.begun(draft)
        apart = replicas.innovations_in_pieces(map(linearise, pieces), delta, replica_labels, self.steps)
        try:
            conditioned = condition_in_pieces(predictions(), pieces, delta, P_n, apart, may_widen)
        except TooNarrow:
            conditioned = None
        if conditioned is None:
            return self._step_in_pieces(inputs, y, known, noise, replica_labels, self._widened())
        self._commit(conditioned, Memories(scatter, moved, self._memories.trust), replicas, y, draft)
        return self._report(conditioned, delta)

    @property
    def _may_widen(self) -> bool:
        """Whether P can go on in float64: a structure of ours, in float32, with room for it."""
        return self.dtype == torch.float32 and self.covariance.name in STRUCTURES and not self._no_room

    def _widened(self) -> Covariance | None:
        """Return a copy of P in float64, or ``None`` if it does not fit in memory, which then is not tried again."""
        state = self.covariance.state_dict()
        name = checkpoint.structure(state)
        assert name is not None
        try:
            settings = replace(self._settings, dtype=torch.float64)
            wide = choose(self.observation.module, name, self.evolution, settings).covariance
        except CovarianceTooLarge:
            self._no_room = True
            return None
        wide.load_state_dict(checkpoint.widened(state))
        return wide

    def _looked_at(self, gram: Tensor) -> Tensor:
        """Return what of J P Jᵀ the noise model looks at."""
        return gram if self.noise.correlates else gram.diagonal()

    def _weigh(
        self, delta: Tensor, predicted: Tensor | None, known: dict[str, Tensor], noise: float | Tensor | None
    ) -> tuple[ObservationNoise, Memory]:
        """Return P_n and what the noise model will remember of the batch."""
        if noise is not None:
            return ObservationNoise.of(noise, like=delta), self._memories.noise
        P_n, memory = self._assumptions.noise(self.noise, delta, predicted, known, self._memories.noise)
        return ObservationNoise.of(P_n, like=delta), memory

    def _commit(
        self, conditioned: Conditioned, memories: Memories, replicas: Replicas, y: Tensor, draft: Covariance | None
    ) -> None:
        """Store θ, P and the counters together, when nothing can fail any more; a draft takes the place of P."""
        moved = self._moved(conditioned.update)
        calibration, replicas = self.calibration.updated(conditioned.standardised), replicas.moved(conditioned.replicas)
        assumptions, rescale = self._assumptions.after(y), None
        if assumptions.state.scale != self._assumptions.state.scale:
            rescale = (self.covariance if draft is None else draft).rescale(assumptions.scales)
        # Signals wait until both θ and P are stored, and those of the filters that step with this one.
        with HeldSignals():
            if self._together_with is not None:
                self._together_with()
            conditioned.store()
            if rescale is not None:
                rescale()
            if draft is not None:
                self.covariance.become(draft)
            self._assumptions = assumptions
            for parameter, value in zip(self.observation.parameters.values(), moved, strict=True):
                parameter.copy_(value)
            self.calibration, self._memories, self._replicas = calibration, memories, replicas
            self.steps += 1

    def _report(self, conditioned: Conditioned, delta: Tensor) -> StepReport:
        return StepReport(
            **conditioned.measured,
            update_norm=conditioned.update.norm(),
            mean_variance=self.covariance.mean_variance(),
            inflation=delta.new_tensor(conditioned.inflation),
            innovation=delta,
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the critic's parameters, once.

        Raises:
            ValueError: Called by a user: P is over the parameters the critic had at construction.
        """
        if self.param_groups:
            raise ValueError("KOVA optimises the critic it was made for; parameters cannot be added")
        super().add_param_group(param_group)

    def __repr__(self) -> str:
        """Say what the filter is made of."""
        chosen = f" (auto: {self._reason})" if self._reason else ""
        parts = (
            f"{self.covariance.name} P over {self.covariance.dim} parameters in {self.dtype}{chosen}",
            f"evolution={self.evolution!r}",
            f"noise={self.noise!r}",
            f"prior={self.prior!r}",
            f"units={self.units!r}",
            *([f"trust={self.trust!r}"] if self.trust.checks else []),
            f"steps={self.steps}",
        )
        return f"KOVA({', '.join(parts)})"

    def _alpha(self, step: int) -> float:
        return arguments.check_step_size(self.step_size(step) if callable(self.step_size) else self.step_size)

    def _moved(self, update: Tensor) -> list[Tensor]:
        """Return the parameters plus the update, checked in their own dtype."""
        parameters = list(self.observation.parameters.values())
        parts = update.split([parameter.numel() for parameter in parameters])
        moved = [p + part.view_as(p).to(p.dtype) for p, part in zip(parameters, parts, strict=True)]
        # In its own dtype the update is finite; only a cast to another can make it overflow.
        if any(value.dtype != self.dtype and not _checks.all_finite(value) for value in moved):
            raise NumericalError("the updated parameters are not finite; nothing was changed")
        return moved
