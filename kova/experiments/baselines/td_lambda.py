"""TD(λ) with accumulating traces (Sutton, 1988)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kova.experiments.baselines.base import Learner, ValueEstimate, bellman_features
from kova.experiments.problems.trajectory import Trajectory


class TDLambda(Learner):
    """Linear semi-gradient TD: z ← γλz + φ_t and θ ← θ + α (r_t - (φ_t - γφ_{t+1})ᵀθ) z.

    On-policy it converges to the fixed point of :class:`LSTD` with the same λ; off-policy it may diverge.

    Args:
        dimension: d.
        gamma: γ.
        trace_decay: λ in [0, 1].
        step_size: α > 0, or a callable of the step number t = 1, 2, …
        initial: θ_0, (d,); zero by default.
    """

    def __init__(
        self,
        dimension: int,
        gamma: float,
        trace_decay: float,
        step_size: float | Callable[[int], float],
        initial: Tensor | None = None,
    ) -> None:
        self.gamma = gamma
        self.trace_decay = trace_decay
        self.step_size = step_size
        self.weights = torch.zeros(dimension, dtype=torch.float64) if initial is None else initial.double().clone()
        self.steps = 0
        self._trace = torch.zeros_like(self.weights)

    def update(self, trajectory: Trajectory) -> None:
        """Take one step per transition, in O(d)."""
        rows = zip(
            trajectory.inputs.double(),
            bellman_features(trajectory, self.gamma),
            trajectory.rewards.tolist(),
            trajectory.ends.tolist(),
            strict=True,
        )
        for phi, h, reward, ends in rows:
            self.steps += 1
            alpha = self.step_size(self.steps) if callable(self.step_size) else self.step_size
            self._trace.mul_(self.gamma * self.trace_decay).add_(phi)
            error = reward - float(h @ self.weights)
            self.weights.add_(self._trace, alpha=alpha * error)
            if ends:
                self._trace.zero_()

    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return φᵀθ."""
        return ValueEstimate(inputs.double() @ self.weights)
