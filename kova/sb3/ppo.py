"""PPO with a Kalman critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import stable_baselines3

from kova.sb3.on_policy import OnPolicyCritic
from kova.sb3.signature import with_upstreams_arguments

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.type_aliases import GymEnv, Schedule

    from kova.sb3.critic import Critic


@with_upstreams_arguments
class PPO(OnPolicyCritic, stable_baselines3.PPO):
    """Proximal Policy Optimization; the label is the GAE-λ return (Table 1).

    ``stable_baselines3.PPO`` plus ``critic_kwargs``, ``critic_epochs`` and ``critic_batch_size``; see
    :class:`OnPolicyCritic`. ``vf_coef`` and ``clip_range_vf`` have no effect on a Kalman critic: its trust region is P.

    Example:
        >>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0)
        >>> value = model.learn(64).predict_value(model.observation_space.sample())
        >>> value.mean.shape, bool(value.stddev > 0)
        (torch.Size([1]), True)
    """

    default_critic_passes: ClassVar[tuple[int, int | None]] = (1, 64)

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[ActorCriticPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 0.0003,
            n_steps: int = 2048,
            batch_size: int = 64,
            n_epochs: int = 10,
            gamma: float = 0.99,
            gae_lambda: float = 0.95,
            clip_range: float | Schedule = 0.2,
            clip_range_vf: float | Schedule | None = None,
            normalize_advantage: bool = True,
            ent_coef: float = 0.0,
            vf_coef: float = 0.5,
            max_grad_norm: float = 0.5,
            use_sde: bool = False,
            sde_sample_freq: int = -1,
            rollout_buffer_class: type[RolloutBuffer] | None = None,
            rollout_buffer_kwargs: dict[str, Any] | None = None,
            target_kl: float | None = None,
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
            critic_epochs: int | None = None,
            critic_batch_size: int | None = None,
        ) -> None: ...

    def train(self) -> None:
        """Update the policy as upstream does, then the critic."""
        super().train()
        self.logger.record("train/policy_loss", self.logger.name_to_value["train/policy_gradient_loss"])

    def _upstream_passes(self) -> tuple[int, int | None]:
        return self.n_epochs, self.batch_size
