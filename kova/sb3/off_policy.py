"""The Kalman critic of the off-policy algorithms: Q(s, a; θ) fitted to bootstrapped labels from a replay buffer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor, nn
from torch.distributions import Normal

from kova.optimizer import KOVA
from kova.sb3 import upstream
from kova.sb3.adam import AdamCritic, AdamReport
from kova.sb3.critic import CriticMixin
from kova.sb3.returns import ReturnBand
from kova.sb3.reward_unit import as_paid
from kova.sb3.value_functions import has_running_statistics
from kova.step_report import StepReport
from kova.targets import q_targets


class OffPolicyCritic(CriticMixin, OffPolicyAlgorithm):
    """One Kalman step per gradient step, on the batch upstream would sample."""

    supplies: ClassVar[frozenset[str]] = frozenset({"next_variance"})

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Fit the critic to ``gradient_steps`` batches, the policy following each."""
        self._follow_frozen()
        self.policy.set_training_mode(True)
        self._update_learning_rates()
        self._update_critic_learning_rate()
        reports = []
        for _ in range(gradient_steps):
            assert self.replay_buffer is not None
            upstream.count_update(self)
            batch = self.replay_buffer.sample(batch_size, env=self.get_vec_normalize_env())
            inputs: Any = (batch.observations, batch.actions)
            reports.append(self._fit(inputs, batch))
            self._follow(batch)
        self.logger.record("train/n_updates", upstream.updates(self), exclude="tensorboard")
        if reports:
            self._record_loss(2.0 * self._record_reports(reports))

    def _labels_per_step(self) -> int:
        return self.batch_size

    def _fit(self, inputs: Any, batch: ReplayBufferSamples) -> StepReport | AdamReport:
        """Take one step of the critic's optimizer."""
        optimizer, labels = self.critic_optimizer, self._labels(batch)
        if isinstance(optimizer, AdamCritic):
            return optimizer.step(inputs, labels)
        critic, observation_fn = optimizer.observation.module, optimizer.observation.function
        if observation_fn is not None and has_running_statistics(critic):
            with torch.no_grad():
                observation_fn(critic, inputs)
        # h must be the same function for every sample of a batch.
        critic.eval()
        begins = optimizer.begins
        report = optimizer.step(inputs, labels, next_variance=self._next_variance(batch, optimizer))
        critic.train()
        if begins:
            # The critic now has the units of the labels; values of an untrained target would have others.
            self._target_network().load_state_dict(critic.state_dict())
        return report

    @torch.no_grad()
    def _labels(self, batch: ReplayBufferSamples) -> Tensor:
        """Return y = r + γ · (value of s' under the target network), (N, 1), or r where the task ended (Table 1).

        The very first labels are r: they set the filter's units, which the values of an untrained network would
        distort.
        The buffer's ``dones`` leave time limits out, and after n steps it gives a discount for every sample.
        """
        if self._begins():
            return batch.rewards
        terminated = batch.dones > 0
        discounts = self.gamma if batch.discounts is None else batch.discounts
        never = torch.zeros_like(terminated)
        return q_targets(batch.rewards, self._next_value(batch), terminated, never, gamma=discounts)

    @abstractmethod
    def _target_network(self) -> nn.Module:
        """Return the network that follows the critic."""

    @abstractmethod
    def _next_value(self, batch: ReplayBufferSamples) -> Tensor:
        """Return the value of s' under the target network, (N, 1)."""

    def _next_variance(self, batch: ReplayBufferSamples, optimizer: KOVA) -> Tensor | None:
        """Return the filter's own variance of the value each label bootstraps from, (N,), if its noise model asks."""
        if "next_variance" not in optimizer.noise.needs:
            return None
        following: Any = (batch.next_observations, self._next_actions(batch))
        variance: Tensor = optimizer.predict(following).variance
        return variance * (1 - batch.dones.flatten())

    @abstractmethod
    def _next_actions(self, batch: ReplayBufferSamples) -> Tensor:
        """Return the actions in s' whose value the labels bootstrap from, (N, size)."""

    @abstractmethod
    def _update_learning_rates(self) -> None:
        """Follow the schedule and log it."""

    @abstractmethod
    def _record_loss(self, mean_squared: float) -> None:
        """Log under upstream's tags."""

    def _follow(self, batch: ReplayBufferSamples) -> None:
        """Improve the policy on the critic just updated."""

    def predict_value(
        self, observation: np.ndarray | dict[str, np.ndarray], action: np.ndarray, *, calibrated: bool = False
    ) -> Normal:
        """Return the distribution of Q(s, a) under the posterior, one Normal of shape (N,).

        It is in the units in which the environment pays: where ``VecNormalize`` divides rewards, the value is
        multiplied by what they are divided by now, or, of a model without an environment, as ``load`` without ``env``
        gives it, by what they were divided by in its last training. ``critic_optimizer.predict`` is in the critic's own
        units.

        Args:
            observation: One or N observations, as ``predict`` takes them.
            action: One or N actions, as ``predict`` returns them.
            calibrated: Put the variance on the scale of the labels seen; see :meth:`kova.KOVA.predict`.

        Raises:
            TypeError: The critic is the Adam control, which keeps no uncertainty.
        """
        self.policy.set_training_mode(False)
        observations: Any = self.policy.obs_to_tensor(observation)[0]
        actions = torch.as_tensor(self._stored_actions(np.asarray(action)), device=self.device)
        value = self._filter().predict((observations, actions), calibrated=calibrated)
        return as_paid(value, self._unit())

    @torch.no_grad()
    def predict_return(
        self, observation: np.ndarray | dict[str, np.ndarray], action: np.ndarray, *, level: float = 0.9
    ) -> ReturnBand:
        """Return the band in which the discounted return after (s, a) will lie, for the policy as it explores.

        The level is kept by what followed earlier frames of the training, not by P: the control arm has the band too.
        See :class:`kova.conformal.ConformalBand` for what holds.

        Args:
            observation: One or N observations, as ``predict`` takes them.
            action: One or N actions, as ``predict`` returns them.
            level: Share of the returns that lie inside.

        Raises:
            TypeError: ``level`` is not a number.
            ValueError: It is not between 0 and 1.
        """
        self.policy.set_training_mode(False)
        return self._banded(self._chosen_value(observation, self._stored_actions(np.asarray(action))), level)

    @torch.no_grad()
    def _values_seen(self, seen: dict[str, Any]) -> Tensor:
        taken = np.asarray(seen["buffer_actions"])
        return self._chosen_value(upstream.last_observation(self), taken.reshape(len(taken), -1))

    @torch.no_grad()
    def _value_ahead(self, observation: Any) -> Tensor:
        return self._policy_value(self.policy.obs_to_tensor(observation)[0])

    def _chosen_value(self, observation: Any, stored_actions: np.ndarray) -> Tensor:
        observations = self.policy.obs_to_tensor(observation)[0]
        return self._action_value((observations, torch.as_tensor(stored_actions, device=self.device)))

    @abstractmethod
    def _action_value(self, inputs: Any) -> Tensor:
        """Return Q(s, a), (N, 1), of observations and actions as the replay buffer holds them."""

    @abstractmethod
    def _policy_value(self, observations: Any) -> Tensor:
        """Return Q(s, π(s)), (N, 1), of the policy without exploration."""

    @abstractmethod
    def _stored_actions(self, action: np.ndarray) -> np.ndarray:
        """Return actions as the replay buffer holds them, (N, size)."""
