"""TD3 with Kalman critics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import stable_baselines3
import torch
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import polyak_update
from torch import Tensor

from kova.evolution import Memoryless
from kova.noise import ConstantNoise, Noise
from kova.sb3 import upstream
from kova.sb3.continuous import ContinuousCritics
from kova.sb3.off_policy import Following
from kova.sb3.signature import with_upstreams_arguments

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.noise import ActionNoise
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.td3.policies import TD3Policy

    from kova.sb3.critic import Critic


@with_upstreams_arguments
class TD3(ContinuousCritics, stable_baselines3.TD3):
    """Twin Delayed DDPG; the label is r + γ min_i Q_i(s', ã; θ'), ã the target policy's action with clipped noise.

    ``stable_baselines3.TD3`` plus ``critic_kwargs``. A filter over each of the twins: see
    :class:`~kova.sb3.continuous.ContinuousCritics`. ``predict_value`` is of the first, which the policy climbs.
    By default the filters keep no covariance between steps, so that upstream's large critics stay fast and
    ``predict_value`` shows the prior's spread; for uncertainty that learns, take smaller critics and a structure:
    ``policy_kwargs=dict(net_arch=[64, 64])``, ``critic_kwargs=dict(evolution=kova.FadingMemory(0.01))``.
    """

    #: With upstream's 400-300 critics and 256 samples a training step then takes 1.7 times upstream's, with "diagonal"
    #: 60 times. "last_layer" is as fast, and would leave the hidden layers as they were drawn.
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
            policy_delay: int = 2,
            target_policy_noise: float = 0.2,
            target_noise_clip: float = 0.5,
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

    @torch.no_grad()
    def _following(self, batch: ReplayBufferSamples) -> Following:
        noise = batch.actions.clone().normal_(0, self.target_policy_noise)
        noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
        actions = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
        return Following(self._smallest(self.critic_target, batch.next_observations, actions), actions)

    def _policy_value(self, observations: Any) -> Tensor:
        return self._action_value((observations, self.actor(observations)))

    def _follow(self, batch: ReplayBufferSamples) -> None:
        """Every ``policy_delay`` steps move the actor uphill on the first Q, and the target networks after all."""
        if upstream.updates(self) % self.policy_delay:
            return
        loss = -self.critic.q1_forward(batch.observations, self.actor(batch.observations)).mean()
        self._actor_losses.append(loss.item())
        self._move_actor(loss)
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)

    def _update_learning_rates(self) -> None:
        upstream.follow_schedule(self, self.actor.optimizer)
        self._actor_losses: list[float] = []

    def _record_loss(self, mean_squared: float) -> None:
        super()._record_loss(mean_squared)
        self._record_actor_losses(self._actor_losses)
