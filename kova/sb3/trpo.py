"""TRPO with a Kalman critic."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import sb3_contrib
import torch

from kova.sb3.on_policy import OnPolicyCritic
from kova.sb3.value_functions import has_running_statistics


class TRPO(OnPolicyCritic, sb3_contrib.TRPO):
    """Trust Region Policy Optimization; the label is the GAE-λ return (Table 1).

    ``sb3_contrib.TRPO`` plus ``critic_kwargs``, ``critic_epochs`` and ``critic_batch_size``; see
    :class:`OnPolicyCritic`. ``n_critic_updates`` is the number of passes of the control arm.
    """

    default_critic_passes: ClassVar[tuple[int, int | None]] = (1, 64)

    def train(self) -> None:
        """Update the policy as upstream does, then the critic."""
        super().train()
        self.logger.record("train/policy_loss", -self.logger.name_to_value["train/policy_objective"])

    def _fit_critic(self) -> None:
        if has_running_statistics(self.value_function):
            # Upstream's critic updates, left out, are where a batch norm of the critic sees the rollout.
            everything = np.arange(self.rollout_buffer.buffer_size * self.rollout_buffer.n_envs)
            with torch.no_grad():
                self.value_function(self.rollout_buffer._get_samples(everything).observations)
        super()._fit_critic()

    @contextmanager
    def _without_value_term(self) -> Iterator[None]:
        updates, self.n_critic_updates = self.n_critic_updates, 0
        try:
            with warnings.catch_warnings():
                # Upstream takes the mean of no losses; the critic's are logged after it.
                warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
                warnings.filterwarnings("ignore", "invalid value encountered", RuntimeWarning)
                yield
        finally:
            self.n_critic_updates = updates

    def _adam_kwargs(self) -> dict[str, Any]:
        """Upstream's critic has neither a weight nor a clip."""
        return {"eps": (self.policy.optimizer_kwargs or {}).get("eps", 1e-8)}

    def _upstream_passes(self) -> tuple[int, int | None]:
        return self.n_critic_updates, self.batch_size
