"""The control arm: a critic trained by Adam where a filter would be, and nothing else changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kova._checks import Inputs
from kova.linearisation.observation import ObservationFn


@dataclass(frozen=True, eq=False)
class AdamReport:
    """What an Adam step says about itself.

    Attributes:
        loss: Σδ²/(2N) before the step.
    """

    loss: Tensor


class AdamCritic(torch.optim.Adam):
    """Adam on the squared error, with the interface of :class:`kova.KOVA`.

    Args:
        critic: The value function.
        observation_fn: h, as for KOVA.
        lr: Learning rate; the algorithm's schedule sets it before every round of updates.
        eps: Adam's ε.
        loss_weight: Factor of the mean squared error (matters only to the clip).
        max_grad_norm: Clip of the critic's own gradient.
    """

    def __init__(
        self,
        critic: nn.Module,
        observation_fn: ObservationFn | None = None,
        *,
        lr: float,
        eps: float = 1e-8,
        loss_weight: float = 1.0,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(critic.parameters(), lr=lr, eps=eps)
        self.critic, self.observation_fn = critic, observation_fn
        self.loss_weight, self.max_grad_norm = loss_weight, max_grad_norm

    def step(  # type: ignore[override]
        self, inputs: Inputs, targets: Tensor, ratio: Tensor | None = None
    ) -> AdamReport:
        """Take one step on a batch; ``ratio`` is accepted and ignored."""
        values = self.critic(inputs) if self.observation_fn is None else self.observation_fn(self.critic, inputs)
        mean_squared = nn.functional.mse_loss(values.flatten(), targets.flatten())
        self.zero_grad()
        (self.loss_weight * mean_squared).backward()
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.critic.parameters(), self.max_grad_norm)
        super().step()
        return AdamReport(loss=mean_squared.detach() / 2.0)

    def __getstate__(self) -> dict[str, Any]:
        """Keep everything; the base class would drop the critic on deepcopy."""
        return self.__dict__.copy()
