"""SAC with Kalman critics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import polyak_update
from torch import Tensor

from kova.evolution import Memoryless
from kova.noise import ConstantNoise, Noise
from kova.sb3 import upstream
from kova.sb3.adam import AdamReport
from kova.sb3.continuous import ContinuousCritics
from kova.sb3.off_policy import Following
from kova.sb3.signature import with_upstreams_arguments
from kova.step_report import StepReport

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.noise import ActionNoise
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.sac.policies import SACPolicy

    from kova.sb3.critic import Critic


@with_upstreams_arguments
class SAC(ContinuousCritics, stable_baselines3.SAC):
    """Soft Actor-Critic; the label is r + γ (min_i Q_i(s', a'; θ') - α log π(a'|s')), a' drawn from the policy.

    ``stable_baselines3.SAC`` plus ``critic_kwargs``. A filter over each of the twins: see
    :class:`~kova.sb3.continuous.ContinuousCritics`. ``predict_value`` is of the first. Its values are soft: what is
    still to be earned, and α times the entropy of the actions to come. ``predict_return`` is about what is earned: its
    band lies where returns fell relative to that value. By default the filters keep no covariance between steps: see
    :class:`~kova.sb3.TD3`.
    """

    loss_weight: ClassVar[float] = 0.5
    #: As TD3's, for the same reasons; a training step takes 1.5 times upstream's.
    default_critic_kwargs: ClassVar[Mapping[str, Any]] = {"evolution": Memoryless(0.1)}
    #: What Pendulum was learned with on three seeds of three.
    default_noise_in_units: ClassVar[Noise | None] = ConstantNoise(0.1)

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[SACPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 0.0003,
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
            ent_coef: str | float = "auto",
            target_update_interval: int = 1,
            target_entropy: str | float = "auto",
            use_sde: bool = False,
            sde_sample_freq: int = -1,
            use_sde_at_warmup: bool = False,
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

    def _update(self, batch: ReplayBufferSamples) -> Sequence[StepReport | AdamReport]:
        """Adapt α, fit the critics and move the actor, all by the α there was before: upstream's order."""
        if self.use_sde:
            self.actor.reset_noise()
        actions, log_prob = self.actor.action_log_prob(batch.observations)
        log_prob, weight = log_prob.reshape(-1, 1), self._entropy_weight()
        following = self._following(batch)
        self._adapt_entropy_weight(log_prob)
        reports = self._fit(batch, following)
        loss = (weight * log_prob - self._smallest(self.critic, batch.observations, actions)).mean()
        self._move_actor(loss)
        # As upstream, the interval is counted anew in every call of ``train``.
        if len(self._actor_losses) % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        self._actor_losses.append(loss.item())
        self._entropy_weights.append(weight.item())
        return reports

    @torch.no_grad()
    def _following(self, batch: ReplayBufferSamples) -> Following:
        actions, log_prob = self.actor.action_log_prob(batch.next_observations)
        values = self._smallest(self.critic_target, batch.next_observations, actions)
        return Following(values - self._entropy_weight() * log_prob.reshape(-1, 1), actions)

    def _entropy_weight(self) -> Tensor:
        """Return α."""
        return self.ent_coef_tensor if self.log_ent_coef is None else self.log_ent_coef.detach().exp()

    def _adapt_entropy_weight(self, log_prob: Tensor) -> None:
        """Let α follow ``target_entropy``, if it is learned."""
        if self.log_ent_coef is None or self.ent_coef_optimizer is None:
            return
        loss = -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()
        self._entropy_losses.append(loss.item())
        self.ent_coef_optimizer.zero_grad()
        loss.backward()
        self.ent_coef_optimizer.step()

    def _policy_value(self, observations: Any) -> Tensor:
        return self._action_value((observations, self.actor(observations, deterministic=True)))

    def _update_learning_rates(self) -> None:
        learned = [] if self.ent_coef_optimizer is None else [self.ent_coef_optimizer]
        upstream.follow_schedule(self, self.actor.optimizer, *learned)
        self._actor_losses: list[float] = []
        self._entropy_weights: list[float] = []
        self._entropy_losses: list[float] = []

    def _record_loss(self, mean_squared: float) -> None:
        super()._record_loss(mean_squared)
        self._record_actor_losses(self._actor_losses)
        self.logger.record("train/ent_coef", np.mean(self._entropy_weights))
        if self._entropy_losses:
            self.logger.record("train/ent_coef_loss", np.mean(self._entropy_losses))
