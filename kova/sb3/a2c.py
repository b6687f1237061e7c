"""A2C with a Kalman critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
class A2C(OnPolicyCritic, stable_baselines3.A2C):
    """Advantage Actor-Critic; the label is the k-step return, k = ``n_steps`` (Table 1).

    ``stable_baselines3.A2C`` plus ``critic_kwargs``, ``critic_epochs`` and ``critic_batch_size``; see
    :class:`OnPolicyCritic`. By default a rollout is one Kalman step. ``vf_coef`` has no effect on a Kalman critic.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[ActorCriticPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 0.0007,
            n_steps: int = 5,
            gamma: float = 0.99,
            gae_lambda: float = 1.0,
            ent_coef: float = 0.0,
            vf_coef: float = 0.5,
            max_grad_norm: float = 0.5,
            rms_prop_eps: float = 1e-5,
            use_rms_prop: bool = True,
            use_sde: bool = False,
            sde_sample_freq: int = -1,
            rollout_buffer_class: type[RolloutBuffer] | None = None,
            rollout_buffer_kwargs: dict[str, Any] | None = None,
            normalize_advantage: bool = False,
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
