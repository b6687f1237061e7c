"""DDPG with a Kalman critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import polyak_update
from torch import Tensor, nn

from kova.evolution import Memoryless
from kova.noise import ConstantNoise, Noise
from kova.sb3 import upstream
from kova.sb3.off_policy import OffPolicyCritic
from kova.sb3.signature import with_upstreams_arguments
from kova.sb3.value_functions import action_value

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.noise import ActionNoise
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.td3.policies import TD3Policy

    from kova.sb3.critic import Critic


@with_upstreams_arguments
class DDPG(OffPolicyCritic, stable_baselines3.DDPG):
    """Deep Deterministic Policy Gradient; the label is r + γ Q(s', π(s'); θ') with target networks (Table 1).

    ``stable_baselines3.DDPG`` plus ``critic_kwargs``. By default the filter keeps no covariance between steps, so that
    upstream's large critic stays fast and ``predict_value`` shows the prior's spread; for uncertainty that learns, take
    a smaller critic and a structure: ``policy_kwargs=dict(net_arch=[64, 64])``,
    ``critic_kwargs=dict(evolution=kova.FadingMemory(0.01))``.
    """

    action_spaces: ClassVar[tuple[type[spaces.Space[Any]], ...]] = (spaces.Box,)
    #: The products with a covariance matrix, 4dN² flops, would take a quarter of a second on upstream's 400-300
    #: critic and 256 samples. Without a matrix a step costs one and a half of Adam's.
    default_critic_kwargs: ClassVar[Mapping[str, Any]] = {"evolution": Memoryless(0.1)}
    #: What Pendulum was learned with on three seeds of three.
    default_noise_in_units: ClassVar[Noise | None] = ConstantNoise(0.1)

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[TD3Policy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 0.001,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 256,
            tau: float = 0.005,
            gamma: float = 0.99,
            train_freq: int | tuple[int, str] = 1,
            gradient_steps: int = 1,
            action_noise: ActionNoise | None = None,
            replay_buffer_class: type[ReplayBuffer] | None = None,
            replay_buffer_kwargs: dict[str, Any] | None = None,
            optimize_memory_usage: bool = False,
            n_steps: int = 1,
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

    def _separate_networks(self) -> None:
        if self._shared_parameters():
            self._unshare_checkpoint(stable_baselines3.DDPG)

    def _shared_parameters(self) -> int:
        """Return how many parameters serve both actor and critic."""
        actor = {id(parameter) for parameter in self.actor.parameters()}
        return sum(id(parameter) in actor for parameter in self.critic.parameters())

    def _setup_critic(self) -> None:
        if len(self.critic.q_networks) != 1:
            raise ValueError("policy_kwargs has n_critics != 1; the filter is over one Q-function")
        shared = self._shared_parameters()
        if shared:
            raise ValueError(
                f"the critic shares {shared} parameters with the policy; a Kalman critic needs its own: "
                "policy_kwargs=dict(share_features_extractor=False)"
            )
        self.critic_optimizer = self._make_critic_optimizer(self.critic, action_value)

    def _target_network(self) -> nn.Module:
        return self.critic_target

    def _in_own_shape(self, params: dict[str, Any]) -> dict[str, Any]:
        """Leave out a state of upstream's critic optimizer that does not fit; nothing here uses that optimizer."""
        params = super()._in_own_shape(params)
        own, saved = self.critic.optimizer.state_dict(), params.get("critic.optimizer")
        if saved and _sizes(saved) != _sizes(own):
            params["critic.optimizer"] = own
        return params

    def _next_value(self, batch: ReplayBufferSamples) -> Tensor:
        return action_value(self.critic_target, (batch.next_observations, self._next_actions(batch)))

    @torch.no_grad()
    def _next_actions(self, batch: ReplayBufferSamples) -> Tensor:
        actions: Tensor = self.actor_target(batch.next_observations)
        return actions.clamp(-1, 1)

    def _action_value(self, inputs: Any) -> Tensor:
        return action_value(self.critic, inputs)

    def _policy_value(self, observations: Any) -> Tensor:
        return action_value(self.critic, (observations, self.actor(observations)))

    def _follow(self, batch: ReplayBufferSamples) -> None:
        """Move the actor uphill on Q, and the target networks after both."""
        loss = -self.critic.q1_forward(batch.observations, self.actor(batch.observations)).mean()
        self._actor_losses.append(loss.item())
        self.actor.optimizer.zero_grad()
        loss.backward()
        self.actor.optimizer.step()
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)

    def _update_learning_rates(self) -> None:
        upstream.follow_schedule(self, self.actor.optimizer)
        self._actor_losses: list[float] = []

    def _record_loss(self, mean_squared: float) -> None:
        self.logger.record("train/actor_loss", np.mean(self._actor_losses))
        self.logger.record("train/policy_loss", np.mean(self._actor_losses))
        self.logger.record("train/critic_loss", mean_squared)

    def _stored_actions(self, action: np.ndarray) -> np.ndarray:
        # The buffer holds actions scaled to [-1, 1].
        scaled = np.asarray(self.policy.scale_action(action), dtype=np.float32)
        return scaled.reshape(-1, int(np.prod(self.action_space.shape or (1,))))


def _sizes(optimizer_state: dict[str, Any]) -> list[int]:
    return [len(group["params"]) for group in optimizer_state["param_groups"]]
