"""DDPG with a Kalman critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import stable_baselines3

from kova.sb3.signature import with_upstreams_arguments
from kova.sb3.td3 import TD3

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.noise import ActionNoise
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.td3.policies import TD3Policy

    from kova.sb3.critic import Critic


@with_upstreams_arguments
class DDPG(TD3, stable_baselines3.DDPG):
    """Deep Deterministic Policy Gradient; the label is r + γ Q(s', π(s'); θ') with target networks (Table 1).

    ``stable_baselines3.DDPG`` plus ``critic_kwargs``: as upstream, :class:`~kova.sb3.TD3` with one Q-function, no noise
    in the labels and no delay. By default the filter keeps no covariance between steps, so that upstream's large critic
    stays fast and ``predict_value`` shows the prior's spread; for uncertainty that learns, take a smaller critic and a
    structure: ``policy_kwargs=dict(net_arch=[64, 64])``, ``critic_kwargs=dict(evolution=kova.FadingMemory(0.01))``.
    """

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
