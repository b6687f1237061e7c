"""DQN with a Kalman critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import stable_baselines3
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

from kova.evolution import PriorRelaxation
from kova.sb3.off_policy import OffPolicyCritic
from kova.sb3.value_functions import chosen_value


class DQN(OffPolicyCritic, stable_baselines3.DQN):
    """Deep Q-Network; the label is r + γ max_a' Q(s', a'; θ') with a target network (Table 1).

    ``stable_baselines3.DQN`` plus ``critic_kwargs``. The loss is the squared error, not Huber's, and no gradient is
    clipped: what an outlier may do is the business of the filter's noise model.
    """

    #: Labels move with every new target network. Returning to the prior keeps a floor under P; under a fading memory it
    #: shrinks where there are data, and the filter follows too slowly: 500 against 373 on CartPole.
    default_critic_kwargs: ClassVar[Mapping[str, Any]] = {"evolution": PriorRelaxation(0.01)}

    def _setup_critic(self) -> None:
        self.critic_optimizer = self._make_critic_optimizer(self.q_net, chosen_value, max_grad_norm=self.max_grad_norm)

    def _next_value(self, batch: ReplayBufferSamples) -> Tensor:
        values: Tensor = self.q_net_target(batch.next_observations)
        return values.amax(dim=1, keepdim=True)

    def _next_actions(self, batch: ReplayBufferSamples) -> Tensor:
        values: Tensor = self.q_net_target(batch.next_observations)
        return values.argmax(dim=1, keepdim=True)

    def _update_learning_rates(self) -> None:
        self._update_learning_rate(self.policy.optimizer)

    def _record_loss(self, mean_squared: float) -> None:
        self.logger.record("train/loss", mean_squared)

    def _stored_actions(self, action: np.ndarray) -> np.ndarray:
        return action.reshape(-1, 1)
