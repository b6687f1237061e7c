"""A critic trained by Adam on the squared error to its labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kova.experiments.baselines.base import Learner, ValueEstimate
from kova.experiments.baselines.labels import lambda_labels
from kova.experiments.problems.trajectory import Trajectory


class AdamLearner(Learner):
    """Minimises mean (y - V(s; θ))² over each trajectory, with labels y fixed at the weights before it.

    Args:
        critic: Maps inputs (N, k) to (N,) or (N, 1); trained in place.
        gamma: γ.
        trace_decay: λ of the labels: 0 for semi-gradient TD, 1 for Monte-Carlo returns.
        learning_rate: Of Adam.
        passes: Steps on each trajectory.
    """

    def __init__(
        self, critic: nn.Module, gamma: float, trace_decay: float, learning_rate: float = 1e-3, passes: int = 1
    ) -> None:
        self.critic = critic
        self.gamma = gamma
        self.trace_decay = trace_decay
        self.passes = passes
        self.optimizer = torch.optim.Adam(critic.parameters(), lr=learning_rate)

    def update(self, trajectory: Trajectory) -> None:
        """Label the trajectory and take ``passes`` steps towards the labels."""
        labels = lambda_labels(self.critic, trajectory, self.gamma, self.trace_decay)
        for _ in range(self.passes):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.critic(trajectory.inputs).reshape(-1), labels)
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> ValueEstimate:
        """Return V(s; θ)."""
        return ValueEstimate(self.critic(inputs).reshape(-1))
