"""Least-squares TD(λ) (Bradtke & Barto, 1996; Boyan, 2002)."""

from __future__ import annotations

import torch
from torch import Tensor

from kova.experiments.baselines.base import Learner, ValueEstimate, bellman_features
from kova.experiments.problems.trajectory import Trajectory


class LSTD(Learner):
    """Solves (A + ridge·I) θ = b with A = Σ z_t (φ_t - γφ_{t+1})ᵀ, b = Σ z_t r_t and z_t = γλz_{t-1} + φ_t.

    At λ = 1, on episodes that terminate, A = ΦᵀΦ and b = ΦᵀG with the Monte-Carlo returns G: ridge regression. A
    singular system (features never seen, or more than states) is solved with the smallest θ.

    Args:
        dimension: d.
        gamma: γ.
        trace_decay: λ in [0, 1].
        ridge: >= 0.
    """

    def __init__(self, dimension: int, gamma: float, trace_decay: float, ridge: float = 0.0) -> None:
        self.gamma = gamma
        self.trace_decay = trace_decay
        self.ridge = ridge
        self.A = torch.zeros(dimension, dimension, dtype=torch.float64)
        self.b = torch.zeros(dimension, dtype=torch.float64)
        self._trace = torch.zeros_like(self.b)
        self._solution: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        """θ, (d,); solved when first asked for after an update."""
        if self._solution is None:
            system = self.A + self.ridge * torch.eye(len(self.b), dtype=torch.float64)
            self._solution = torch.linalg.lstsq(system, self.b[:, None], driver="gelsd").solution.squeeze(1)
        return self._solution

    def update(self, trajectory: Trajectory) -> None:
        """Add the transitions to A and b, in O(d²) each."""
        traces = torch.empty_like(trajectory.inputs, dtype=torch.float64)
        for step, (phi, ends) in enumerate(zip(trajectory.inputs, trajectory.ends.tolist(), strict=True)):
            self._trace.mul_(self.gamma * self.trace_decay).add_(phi)
            traces[step] = self._trace
            if ends:
                self._trace.zero_()
        self.A += traces.T @ bellman_features(trajectory, self.gamma)
        self.b += traces.T @ trajectory.rewards.double()
        self._solution = None

    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return φᵀθ."""
        return ValueEstimate(inputs.double() @ self.weights)
