"""DQN with a Kalman critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor, nn

from kova.evolution import PriorRelaxation
from kova.noise import ConstantNoise, Noise
from kova.sb3 import upstream
from kova.sb3.off_policy import Following, OffPolicyCritic
from kova.sb3.signature import with_upstreams_arguments
from kova.sb3.value_functions import chosen_value

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.dqn.policies import DQNPolicy

    from kova.sb3.critic import Critic


@with_upstreams_arguments
class DQN(OffPolicyCritic, stable_baselines3.DQN):
    """Deep Q-Network; the label is r + γ max_a' Q(s', a'; θ') with a target network (Table 1).

    ``stable_baselines3.DQN`` plus ``critic_kwargs``. The loss is the squared error, not Huber's, and no gradient is
    clipped: use a noise model such as :class:`kova.Robust` against outliers. ``learning_rate`` and ``max_grad_norm``
    are the control arm's; a filter has neither, and the learning rate is not logged.
    """

    action_spaces: ClassVar[tuple[type[spaces.Space[Any]], ...]] = (spaces.Discrete,)
    #: Labels move with every new target network. Returning to the prior faster than elsewhere keeps P from shrinking
    #: too far: with a fading memory of 0.01 CartPole ended at 373, not 500.
    default_critic_kwargs: ClassVar[Mapping[str, Any]] = {"evolution": PriorRelaxation(0.01)}
    #: A policy that is the argmax of values needs steady ones: with a tenth of it CartPole ended at 318 and 166 on two
    #: seeds of three.
    default_noise_in_units: ClassVar[Noise | None] = ConstantNoise(1.0)

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[DQNPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 0.0001,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 32,
            tau: float = 1.0,
            gamma: float = 0.99,
            train_freq: int | tuple[int, str] = 4,
            gradient_steps: int = 1,
            replay_buffer_class: type[ReplayBuffer] | None = None,
            replay_buffer_kwargs: dict[str, Any] | None = None,
            optimize_memory_usage: bool = False,
            n_steps: int = 1,
            target_update_interval: int = 10000,
            exploration_fraction: float = 0.1,
            exploration_initial_eps: float = 1.0,
            exploration_final_eps: float = 0.05,
            max_grad_norm: float = 10,
            stats_window_size: int = 100,
            tensorboard_log: str | None = None,
            policy_kwargs: dict[str, Any] | None = None,
            verbose: int = 0,
            seed: int | None = None,
            device: torch.device | str = "auto",
            _init_setup_model: bool = True,
            *,
            critic: Critic = "kova",
            critic_kwargs: dict[str, Any] | None = None,
            critic_learning_rate: float | None = None,
        ) -> None: ...

    def _setup_critic(self) -> None:
        self.critic_optimizer = self._make_critic_optimizer(self.q_net, chosen_value, max_grad_norm=self.max_grad_norm)

    def _critic_network(self) -> nn.Module:
        return self.q_net

    def _target_network(self) -> nn.Module:
        return self.q_net_target

    @torch.no_grad()
    def _following(self, batch: ReplayBufferSamples) -> Following:
        return Following(*self._next_values(batch).max(dim=1, keepdim=True))

    def _next_values(self, batch: ReplayBufferSamples) -> Tensor:
        """Return the values of all actions in s', (N, actions)."""
        values: Tensor = self.q_net_target(batch.next_observations)
        return values

    def _action_value(self, inputs: Any) -> Tensor:
        return chosen_value(self.q_net, inputs)

    def _policy_value(self, observations: Any) -> Tensor:
        values: Tensor = self.q_net(observations)
        return values.amax(dim=1, keepdim=True)

    def _update_learning_rates(self) -> None:
        if self.critic_type == "adam":
            upstream.follow_schedule(self, self.policy.optimizer)

    def _record_loss(self, mean_squared: float) -> None:
        self.logger.record("train/loss", mean_squared)

    def _stored_actions(self, action: np.ndarray) -> np.ndarray:
        return action.reshape(-1, 1)
