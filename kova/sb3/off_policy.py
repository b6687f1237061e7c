"""The Kalman critic of the off-policy algorithms: Q(s, a; θ) fitted to bootstrapped labels from a replay buffer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

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


class Following(NamedTuple):
    """What the labels of a batch bootstrap from.

    Attributes:
        values: Of s' under the target networks, (N, 1).
        actions: In s', whose values they are, (N, size).
    """

    values: Tensor
    actions: Tensor


class OffPolicyCritic(CriticMixin, OffPolicyAlgorithm):
    """One Kalman step per gradient step and Q-function, on the batch upstream would sample."""

    supplies: ClassVar[frozenset[str]] = frozenset({"next_variance"})

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Fit the critic to ``gradient_steps`` batches, the policy following each."""
        self._follow_frozen()
        self.policy.set_training_mode(True)
        self._update_learning_rates()
        self._update_critic_learning_rate()
        reports: list[StepReport | AdamReport] = []
        for _ in range(gradient_steps):
            assert self.replay_buffer is not None
            upstream.count_update(self)
            batch = self.replay_buffer.sample(batch_size, env=self.get_vec_normalize_env())
            reports.extend(self._update(batch))
        self.logger.record("train/n_updates", upstream.updates(self), exclude="tensorboard")
        if reports:
            self._record_loss(2.0 * self._record_reports(reports))

    def _labels_per_step(self) -> int:
        return self.batch_size

    def _update(self, batch: ReplayBufferSamples) -> Sequence[StepReport | AdamReport]:
        """Fit the critic to a batch, and let the policy follow."""
        reports = self._fit(batch, self._following(batch))
        self._follow(batch)
        return reports

    def _fit(self, batch: ReplayBufferSamples, following: Following) -> Sequence[StepReport | AdamReport]:
        """Take one step of every optimizer of the critic, all with the same labels; of filters all or none."""
        inputs: Any = (batch.observations, batch.actions)
        labels, begins, network = self._labels(batch, following), self._begins(), self._critic_network()
        if self.critic_type == "kova":
            if has_running_statistics(network):
                with torch.no_grad():
                    self._action_value(inputs)
            # h must be the same function for every sample of a batch.
            network.eval()

        def step(optimizers: Sequence[KOVA | AdamCritic]) -> list[StepReport | AdamReport]:
            if not optimizers:
                return []
            first, *others = optimizers
            if isinstance(first, AdamCritic):
                return [first.step(inputs, labels), *step(others)]
            # One inside the other: if one of them fails, none is taken.
            reports: list[StepReport | AdamReport] = []
            variance = self._next_variance(batch, following, first)
            own = first.step(inputs, labels, next_variance=variance, together_with=lambda: reports.extend(step(others)))
            return [own, *reports]

        reports = step(self.critic_optimizers)
        network.train()
        if begins:
            # The critic now has the units of the labels; values of an untrained target would have others.
            self._target_network().load_state_dict(network.state_dict())
        return reports

    @torch.no_grad()
    def _labels(self, batch: ReplayBufferSamples, following: Following) -> Tensor:
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
        return q_targets(batch.rewards, following.values, terminated, never, gamma=discounts)

    @abstractmethod
    def _critic_network(self) -> nn.Module:
        """Return the network with all Q-functions."""

    @abstractmethod
    def _target_network(self) -> nn.Module:
        """Return the network that follows the critic."""

    @abstractmethod
    def _following(self, batch: ReplayBufferSamples) -> Following:
        """Return what the labels bootstrap from. It may be drawn: ask once for every batch."""

    def _next_variance(self, batch: ReplayBufferSamples, following: Following, optimizer: KOVA) -> Tensor | None:
        """Return the filter's own variance of the value each label bootstraps from, (N,), if its noise model asks."""
        if "next_variance" not in optimizer.noise.needs:
            return None
        inputs: Any = (batch.next_observations, following.actions)
        variance: Tensor = optimizer.predict(inputs).variance
        return variance * (1 - batch.dones.flatten())

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
