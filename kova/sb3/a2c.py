"""A2C with a Kalman critic."""

from __future__ import annotations

import stable_baselines3

from kova.sb3.on_policy import OnPolicyCritic


class A2C(OnPolicyCritic, stable_baselines3.A2C):
    """Advantage Actor-Critic; the label is the k-step return, k = ``n_steps`` (Table 1).

    ``stable_baselines3.A2C`` plus ``critic_kwargs``, ``critic_epochs`` and ``critic_batch_size``; see
    :class:`OnPolicyCritic`. By default a rollout is one Kalman step.
    """
