"""What the filter assumes before it sees a label, in the units of the labels: the prior and the noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from kova.covariance.scales import Scales
from kova.linearisation.output_layer import OutputLayer
from kova.memories import Memory
from kova.noise import Batch, Noise
from kova.units import Units, UnitState


@dataclass(frozen=True, eq=False)
class Assumptions:
    """Prior and noise in the units of the labels; immutable, so that a step exchanges them as a whole.

    Attributes:
        units: How the units are learned.
        prior_scales: Of the prior, for labels of unit deviation.
        names: Of the parameters, in order.
        state: The units now.
        output: The output layer, once labels have been seen.
        counted: Whether the batch of the step under way is in the units already: it has set them.
    """

    units: Units
    prior_scales: Scales
    names: tuple[str, ...]
    state: UnitState = field(default_factory=UnitState)
    output: OutputLayer | None = None
    counted: bool = False

    @property
    def waiting(self) -> bool:
        """Whether labels that differ from each other are still to set the units."""
        return self.units.active and not self.state.known

    @property
    def scales(self) -> Scales:
        """The prior's scales in the units of the labels: those of the output layer times s."""
        own = () if self.output is None else self.output.names
        return self.prior_scales.times([self.state.scale if name in own else 1.0 for name in self.names])

    def begun(self, output: OutputLayer, labels: Tensor) -> Assumptions:
        """Return the assumptions in the units of the first batch."""
        return replace(replace(self, output=output)._after(labels), counted=True)

    def after(self, labels: Tensor) -> Assumptions:
        """Return the assumptions once a batch has been conditioned on."""
        if self.counted:
            return replace(self, counted=False)
        return self._after(labels) if self.units.active else self

    def _after(self, labels: Tensor) -> Assumptions:
        centred = self.output is not None and self.output.centred
        return replace(self, state=self.units.updated(self.state, labels, centred=centred))

    def start(self, parameters: dict[str, nn.Parameter], before: UnitState) -> None:
        """Set the output layer to s·w and μ + s·b, from the units before; where it cannot hold a mean, μ is 0."""
        assert self.output is not None
        if not self.units.start:
            return
        ratio, now = self.state.scale / before.scale, self.state
        for name in self.output.names:
            mean = (before.mean, now.mean) if name == self.output.bias else (0.0, 0.0)
            parameters[name].sub_(mean[0]).mul_(ratio).add_(mean[1])

    def noise(
        self, model: Noise, delta: Tensor, predicted: Tensor | None, known: dict[str, Tensor], memory: Memory
    ) -> tuple[Tensor | float, Memory]:
        """Return P_n and what the model will remember; it sees labels of unit deviation, and speaks of them.

        Args:
            model: Of P_n.
            delta: δ, (N,).
            predicted: diag(J P Jᵀ), (N,), or J P Jᵀ for a model that correlates labels; ``None`` if nothing looks.
            known: What else the caller gave.
            memory: What the model remembered last.
        """
        square = self.state.scale**2
        if "next_variance" in known:
            known = {**known, "next_variance": known["next_variance"] / square}
        seen = None if predicted is None else predicted / square
        gram = seen if seen is not None and seen.dim() == 2 else None
        seen = seen if gram is None else gram.diagonal()
        batch = Batch(delta / self.state.scale, predicted=seen, memory=memory, gram=gram, **known)
        P_n = model.covariance(batch)
        return (P_n if square == 1.0 else P_n * square), model.remember(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot; without units there is nothing to keep."""
        if not self.units.active:
            return {}
        layer = None if self.output is None else [self.output.weight, self.output.bias, self.output.centred]
        return {"units": self.state.state_dict(), "output_layer": layer}
