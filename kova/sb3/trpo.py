"""TRPO with a Kalman critic."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sb3_contrib
import torch
from torch import Tensor

from kova.sb3 import upstream
from kova.sb3.on_policy import OnPolicyCritic
from kova.sb3.signature import with_upstreams_arguments
from kova.sb3.value_functions import has_running_statistics

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.type_aliases import GymEnv, Schedule

    from kova.sb3.critic import Critic

#: Samples of a rollout that the policy looks at together.
ENTROPY_CHUNK = 512


@with_upstreams_arguments
class TRPO(OnPolicyCritic, sb3_contrib.TRPO):
    """Trust Region Policy Optimization; the label is the GAE-λ return (Table 1).

    ``sb3_contrib.TRPO`` plus ``critic_kwargs``, ``critic_epochs`` and ``critic_batch_size``; see
    :class:`OnPolicyCritic`. ``n_critic_updates`` is the number of passes of the control arm; it has no effect on a
    Kalman critic.
    """

    default_critic_passes: ClassVar[tuple[int, int | None]] = (1, 64)
    only_for_adam: ClassVar[tuple[str, ...]] = ("n_critic_updates",)

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[ActorCriticPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 0.001,
            n_steps: int = 2048,
            batch_size: int = 128,
            gamma: float = 0.99,
            cg_max_steps: int = 15,
            cg_damping: float = 0.1,
            line_search_shrinking_factor: float = 0.8,
            line_search_max_iter: int = 10,
            n_critic_updates: int = 10,
            gae_lambda: float = 0.95,
            use_sde: bool = False,
            sde_sample_freq: int = -1,
            rollout_buffer_class: type[RolloutBuffer] | None = None,
            rollout_buffer_kwargs: dict[str, Any] | None = None,
            normalize_advantage: bool = True,
            target_kl: float = 0.01,
            sub_sampling_factor: int = 1,
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
        self.logger.record("train/policy_loss", -self.logger.name_to_value["train/policy_objective"])

    def _fit_critic(self, first: np.ndarray | None, replicas: Tensor | None) -> None:
        if has_running_statistics(self.value_function):
            # Upstream's critic updates, left out, are where a batch norm of the critic sees the rollout.
            everything = np.arange(self._rollout_size())
            with torch.no_grad():
                self.value_function(upstream.samples(self.rollout_buffer, everything).observations)
        super()._fit_critic(first, replicas)

    @torch.no_grad()
    def _entropy(self) -> float:
        """Return the mean entropy of the policy just updated; upstream takes none."""
        everything = np.arange(self._rollout_size())
        pieces = np.split(everything, range(ENTROPY_CHUNK, len(everything), ENTROPY_CHUNK))
        found = [self._of_policy(upstream.samples(self.rollout_buffer, piece))[1] for piece in pieces]
        return torch.cat(found).mean().item()

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
        """Return upstream's ε; its critic has neither a weight nor a clip."""
        return {"eps": (self.policy.optimizer_kwargs or {}).get("eps", 1e-8)}

    def _upstream_passes(self) -> tuple[int, int | None]:
        return self.n_critic_updates, self.batch_size
