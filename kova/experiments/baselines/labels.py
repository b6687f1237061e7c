"""The target labels that Adam's critic and KOVA's are both trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kova.experiments.problems.trajectory import Trajectory
from kova.targets import gae_targets


@torch.no_grad()
def lambda_labels(critic: nn.Module, trajectory: Trajectory, gamma: float, trace_decay: float) -> Tensor:
    """Return the λ-returns V(s_t) + Σ_i (γλ)ⁱ (r_{t+i} + γV(s_{t+i+1}) - V(s_{t+i})) under the critic, (T,).

    λ = 0 gives the labels of semi-gradient TD, λ = 1 on episodes that terminate the Monte-Carlo returns.
    """
    return gae_targets(
        trajectory.rewards,
        critic(trajectory.inputs).reshape(-1),
        critic(trajectory.next_inputs).reshape(-1),
        trajectory.terminated,
        trajectory.truncated,
        gamma=gamma,
        gae_lambda=trace_decay,
    )
