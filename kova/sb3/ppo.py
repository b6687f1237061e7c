"""PPO with a Kalman critic."""

from __future__ import annotations

from typing import ClassVar

import stable_baselines3

from kova.sb3.on_policy import OnPolicyCritic


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

    def train(self) -> None:
        """Update the policy as upstream does, then the critic."""
        super().train()
        self.logger.record("train/policy_loss", self.logger.name_to_value["train/policy_gradient_loss"])

    def _upstream_passes(self) -> tuple[int, int | None]:
        return self.n_epochs, self.batch_size
