"""The Kalman critic of the on-policy algorithms: V(s; θ) fitted to the returns of a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch import Tensor
from torch.distributions import Normal

from kova import _checks
from kova.sb3.critic import CriticMixin, critic_generator
from kova.sb3.value_functions import StateValue, save_as_separate, shares_with_actor

#: exp(±this) is far outside what a ratio of probabilities means, and inside float32.
MAX_LOG_RATIO = 20.0


class OnPolicyCritic(CriticMixin, OnPolicyAlgorithm):
    """Upstream's policy update, then ``critic_epochs`` passes of the filter over the rollout.

    The label y is the buffer's return: GAE-λ, or with λ = 1 the k-step return of A2C (Table 1). It was computed before
    the policy moved, and so were the advantages: the order of the two updates does not change the policy's.

    Args:
        args: As upstream.
        critic_epochs: Passes over each rollout; 0 leaves the critic alone. By default the class's, or upstream's for
            the control arm.
        critic_batch_size: N, the labels of one Kalman step; by default likewise.
        kwargs: As upstream, and those of :class:`CriticMixin`.
    """

    #: Passes and N of the filter; the control arm's are upstream's.
    default_critic_passes: ClassVar[tuple[int, int | None]] = (1, None)

    def __init__(
        self,
        *args: Any,
        critic_epochs: int | None = None,
        critic_batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if critic_epochs != 0 and critic_epochs is not None:
            _checks.count("critic_epochs", critic_epochs)
        if critic_batch_size is not None:
            _checks.count("critic_batch_size", critic_batch_size)
        self.critic_epochs, self.critic_batch_size = critic_epochs, critic_batch_size
        self._critic_rng: np.random.Generator | None = None
        super().__init__(*args, **kwargs)

    def train(self) -> None:
        """Update the policy as upstream does, then the critic."""
        with self._without_value_term():
            super().train()
        self._fit_critic()

    @contextmanager
    def _without_value_term(self) -> Iterator[None]:
        """Leave the policy's loss in upstream's ``train``, bit for bit.

        Zero gradients instead of none keep the number of terms in the gradient's norm, hence its rounding.
        """
        weight, self.vf_coef = self.vf_coef, 0.0
        parameters = list(self.value_function.parameters())
        for parameter in parameters:
            parameter.requires_grad_(False)
            parameter.grad = torch.zeros_like(parameter)
        try:
            yield
        finally:
            self.vf_coef = weight
            for parameter in parameters:
                parameter.requires_grad_(True)
                parameter.grad = None

    def _fit_critic(self) -> None:
        # h must be the same function for every sample of a batch.
        self.policy.set_training_mode(False)
        self._update_critic_learning_rate()
        reports, entropies = [], []
        for batch in self._critic_batches():
            ratio, entropy = self._policy_terms(batch)
            reports.append(self.critic_optimizer.step(batch.observations, batch.returns, ratio=ratio))
            entropies.append(entropy)
        if reports:
            self.logger.record("train/value_loss", 2.0 * self._record_reports(reports))
            self.logger.record("train/entropy", torch.stack(entropies).mean().item())

    def _critic_batches(self) -> Iterator[RolloutBufferSamples]:
        assert self._critic_rng is not None
        total = self.rollout_buffer.buffer_size * self.rollout_buffer.n_envs
        passes = self.default_critic_passes if self.critic_type == "kova" else self._upstream_passes()
        epochs = passes[0] if self.critic_epochs is None else self.critic_epochs
        size = self.critic_batch_size or passes[1] or total
        for _ in range(epochs):
            order = self._critic_rng.permutation(total)
            for start in range(0, total, size):
                yield self.rollout_buffer._get_samples(order[start : start + size])

    def _upstream_passes(self) -> tuple[int, int | None]:
        """Return how often upstream fits the critic to a rollout, and with how many samples at a time."""
        return 1, None

    @torch.no_grad()
    def _policy_terms(self, batch: RolloutBufferSamples) -> tuple[Tensor, Tensor]:
        """Return π_old(a|s)/π_new(a|s), (N,), and the mean entropy, at the policy just updated."""
        actions = batch.actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else batch.actions
        distribution = self.policy.get_distribution(batch.observations)
        log_prob = distribution.log_prob(actions)
        entropy = distribution.entropy()
        difference = (batch.old_log_prob - log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return difference.exp(), (-log_prob if entropy is None else entropy).mean()

    def predict_value(self, observation: np.ndarray | dict[str, np.ndarray], *, calibrated: bool = False) -> Normal:
        """Return the distribution of V(s) under the posterior, one Normal of shape (N,).

        Args:
            observation: One or N observations, as ``predict`` takes them.
            calibrated: Put the variance on the scale of the labels seen; see :meth:`kova.KOVA.predict`.

        Raises:
            TypeError: The critic is the Adam control, which keeps no uncertainty.
        """
        self.policy.set_training_mode(False)
        inputs: Any = self.policy.obs_to_tensor(observation)[0]
        return self._filter().predict(inputs, calibrated=calibrated)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed everything upstream seeds, and the order of the critic's minibatches."""
        super().set_random_seed(seed)
        if seed is not None or self._critic_rng is None:
            self._critic_rng = critic_generator(seed)

    def _setup_model(self) -> None:
        super()._setup_model()
        self._detach_policy_optimizer()

    def _setup_critic(self) -> None:
        given = self.policy_kwargs
        if "share_features_extractor" not in given and shares_with_actor(self.policy):
            # Upstream shares by default. P over layers that the policy moves too would mean nothing.
            self.policy_kwargs = {**given, "share_features_extractor": False}
            OnPolicyAlgorithm._setup_model(self)
        if self.policy_kwargs.get("share_features_extractor") is False:
            save_as_separate(self.policy)
        # ``load`` compares what the user gives then with what the user gave now.
        self.policy_kwargs = given
        self.value_function = StateValue(self.policy)
        self.critic_optimizer = self._make_critic_optimizer(self.value_function, **self._adam_kwargs())

    def _adam_kwargs(self) -> dict[str, Any]:
        """Return what the control arm takes over from upstream's joint optimizer."""
        eps = (self.policy.optimizer_kwargs or {}).get("eps", 1e-8)
        return {"eps": eps, "loss_weight": self.vf_coef, "max_grad_norm": self.max_grad_norm}

    def _detach_policy_optimizer(self) -> None:
        """Take the critic's parameters out of the policy's optimizer, momentum and weight decay included."""
        critic = {id(parameter) for parameter in self.value_function.parameters()}
        rest = [parameter for parameter in self.policy.parameters() if id(parameter) not in critic]
        kwargs = self.policy.optimizer_kwargs
        self.policy.optimizer = self.policy.optimizer_class(rest, lr=self.lr_schedule(1), **kwargs)  # type: ignore[call-arg]

    def _from_plain(self, params: dict[str, Any]) -> dict[str, Any]:
        """Keep the policy's part of an optimizer state that covers policy and value."""
        params = dict(params)
        saved = params.get("policy.optimizer")
        if not saved:
            return params
        critic = {id(parameter) for parameter in self.value_function.parameters()}
        named = list(self.policy.named_parameters())
        count = sum(len(group["params"]) for group in saved["param_groups"])
        if count != len(named):
            # It was trained with one features extractor for both; its copy for the critic is new here.
            named = [(name, p) for name, p in named if not name.startswith("vf_features_extractor.")]
        if count == len(named) and len(saved["param_groups"]) == 1:
            kept = [index for index, (_, parameter) in enumerate(named) if id(parameter) not in critic]
            group = {**saved["param_groups"][0], "params": list(range(len(kept)))}
            state = {new: saved["state"][old] for new, old in enumerate(kept) if old in saved["state"]}
            params["policy.optimizer"] = {"state": state, "param_groups": [group]}
        return params

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "value_function"]
