"""The Kalman critic of the on-policy algorithms: V(s; θ) fitted to the returns of a rollout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch import Tensor, nn
from torch.distributions import Normal

from kova import _checks
from kova.optimizer import KOVA
from kova.sb3 import extractors, replica_labels, upstream
from kova.sb3.critic import CriticMixin, critic_generator
from kova.sb3.returns import ReturnBand
from kova.sb3.reward_unit import as_paid
from kova.sb3.value_functions import StateValue, shares_with_actor

#: exp(±this) is far outside what a ratio of probabilities means, and inside float32.
MAX_LOG_RATIO = 20.0


class OnPolicyCritic(CriticMixin, OnPolicyAlgorithm):
    """Upstream's policy update, then ``critic_epochs`` passes of the filter over the rollout.

    The label y is the return in upstream's rollout buffer: GAE-λ, or with λ = 1 the k-step return of A2C (Table 1).
    :mod:`kova.targets` does not compute it again. The policy's advantages are these very returns minus V, and labels
    from elsewhere might differ from what the policy learns from. Nor does the buffer know time limits: upstream has
    added the value of the state that was cut off to the last reward. The tests compare the two, on transitions noted
    outside. Returns and advantages are computed before the policy moves, so the order of the two updates changes
    nothing.

    The critic's first labels leave the values out: they set the filter's units, which the values of an untrained
    network would distort.

    Args:
        args: As upstream.
        critic_epochs: Passes over each rollout; 0 leaves the critic alone. By default the class's, or upstream's for
            the control arm.
        critic_batch_size: N, the labels of one Kalman step; by default likewise.
        kwargs: As upstream, and those of :class:`CriticMixin`.
    """

    action_spaces: ClassVar[tuple[type[spaces.Space[Any]], ...]] = (
        spaces.Box,
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
    )
    supplies: ClassVar[frozenset[str]] = frozenset({"ratio"})
    #: Passes and N of the filter; the control arm's are upstream's.
    default_critic_passes: ClassVar[tuple[int, int | None]] = (1, None)
    only_for_adam: ClassVar[tuple[str, ...]] = ("vf_coef", "clip_range_vf")

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
        unused = [name for name in self.only_for_adam if kwargs.get(name) is not None]
        if unused and self.critic_type == "kova":
            warnings.warn(f"no effect on a Kalman critic: {', '.join(unused)}; its trust region is P", stacklevel=3)

    def train(self) -> None:
        """Update the policy as upstream does, then the critic."""
        self._follow_frozen()
        ended = upstream.last_episode_starts(self)
        first = upstream.returns_without_values(self.rollout_buffer, ended) if self._begins() else None
        replicas = self._replica_labels(ended) if first is None else None
        with self._without_value_term():
            super().train()
        self._fit_critic(first, replicas)
        self._forget_graph()

    def _forget_graph(self) -> None:
        """Let go of the graph that upstream's distribution holds of its last batch: it cannot be copied."""
        self.policy.action_dist.distribution = None  # type: ignore[assignment]  # as in a new policy

    @contextmanager
    def _without_value_term(self) -> Iterator[None]:
        """Leave the policy's loss in upstream's ``train``, bit for bit.

        Zero gradients instead of none keep the number of terms in the gradient's norm, hence its rounding.
        """
        weight, self.vf_coef = self.vf_coef, 0.0
        parameters = self._critic_parameters()
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

    def _critic_parameters(self) -> list[nn.Parameter]:
        """Return what is trained of the value; frozen parameters may stand beside it in a layer."""
        return [parameter for parameter in self.value_function.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def _replica_labels(self, ended: np.ndarray) -> Tensor | None:
        """Return labels for the filter's replicas, if it has any: before the critic or the buffer changes."""
        optimizer = self.critic_optimizer
        if not isinstance(optimizer, KOVA) or not optimizer.replicas:
            return None
        self.policy.set_training_mode(False)
        last: Any = self.policy.obs_to_tensor(upstream.last_observation(self))[0]
        return replica_labels.of_rollout(
            optimizer, self.rollout_buffer, last, self.policy.predict_values(last).flatten(), ended
        )

    def _fit_critic(self, first: np.ndarray | None, replicas: Tensor | None) -> None:
        """Fit the critic to the rollout.

        Args:
            first: Labels to take in place of the buffer's.
            replicas: Labels of the replicas, (T · envs, m).
        """
        # h must be the same function for every sample of a batch.
        self.policy.set_training_mode(False)
        self._update_critic_learning_rate()
        ratios = self._ratios()
        reports = []
        for indices in self._critic_batches():
            batch = upstream.samples(self.rollout_buffer, indices)
            labels = batch.returns if first is None else torch.as_tensor(first[indices], device=self.device)
            ratio = None if ratios is None else ratios[indices]
            own: dict[str, Any] = {} if replicas is None else {"replica_targets": replicas[indices]}
            reports.append(self.critic_optimizer.step(batch.observations, labels, ratio=ratio, **own))
        if reports:
            self.logger.record("train/value_loss", 2.0 * self._record_reports(reports))
            entropy = self._entropy()
            if entropy is not None:
                self.logger.record("train/entropy", entropy)

    def _critic_batches(self) -> Iterator[np.ndarray]:
        assert self._critic_rng is not None
        total, size = self._rollout_size(), self._labels_per_step()
        for _ in range(self.critic_passes):
            order = self._critic_rng.permutation(total)
            for start in range(0, total, size):
                yield order[start : start + size]

    @property
    def critic_passes(self) -> int:
        """How often the critic is fitted to a rollout: as asked, or by default."""
        return self._passes()[0] if self.critic_epochs is None else self.critic_epochs

    def _passes(self) -> tuple[int, int | None]:
        return self.default_critic_passes if self.critic_type == "kova" else self._upstream_passes()

    def _rollout_size(self) -> int:
        return self.rollout_buffer.buffer_size * self.rollout_buffer.n_envs

    def _labels_per_step(self) -> int:
        return min(self.critic_batch_size or self._passes()[1] or self._rollout_size(), self._rollout_size())

    def _upstream_passes(self) -> tuple[int, int | None]:
        """Return how often upstream fits the critic to a rollout, and with how many samples at a time."""
        return 1, None

    @torch.no_grad()
    def _ratios(self) -> Tensor | None:
        """Return π_old(a|s)/π_new(a|s) of every frame of the rollout, at the policy just updated.

        The policy stands still while the critic is fitted, so once is enough for all passes. A forward pass of the
        policy is something that most noise models have no use for: for them there is none.
        """
        if not isinstance(self.critic_optimizer, KOVA) or "ratio" not in self.critic_optimizer.noise.needs:
            return None
        total, size = self._rollout_size(), self._labels_per_step()
        ratios = []
        for piece in np.split(np.arange(total), range(size, total, size)):
            batch = upstream.samples(self.rollout_buffer, piece)
            log_prob, _ = self._of_policy(batch)
            ratios.append((batch.old_log_prob - log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp())
        return torch.cat(ratios)

    def _entropy(self) -> float | None:
        """Return the mean entropy of the policy over the rollout, as upstream took it during its update, if it did."""
        found = self.logger.name_to_value.get("train/entropy_loss")
        return None if found is None else -float(found)

    def _of_policy(self, batch: RolloutBufferSamples) -> tuple[Tensor, Tensor]:
        """Return log π(a|s) and the entropy of π(·|s), (N,) both; where it has no closed form, -log π stands for it."""
        actions = batch.actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else batch.actions
        distribution = self.policy.get_distribution(batch.observations)
        log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        return log_prob, -log_prob if entropy is None else entropy

    def predict_value(self, observation: np.ndarray | dict[str, np.ndarray], *, calibrated: bool = False) -> Normal:
        """Return the distribution of V(s) under the posterior, one Normal of shape (N,).

        It is in the units in which the environment pays: where ``VecNormalize`` divides rewards, the value is
        multiplied by what they are divided by now, or, of a model without an environment, as ``load`` without ``env``
        gives it, by what they were divided by in its last training. ``critic_optimizer.predict`` is in the critic's own
        units.

        Args:
            observation: One or N observations, as ``predict`` takes them.
            calibrated: Put the variance on the scale of the labels seen; see :meth:`kova.KOVA.predict`.

        Raises:
            TypeError: The critic is the Adam control, which keeps no uncertainty.
        """
        self.policy.set_training_mode(False)
        inputs: Any = self.policy.obs_to_tensor(observation)[0]
        value = self._filter().predict(inputs, calibrated=calibrated)
        return as_paid(value, self._unit())

    @torch.no_grad()
    def predict_return(self, observation: np.ndarray | dict[str, np.ndarray], *, level: float = 0.9) -> ReturnBand:
        """Return the band in which the discounted return from s on will lie, for the policy as it behaves in training.

        The level is kept by what followed earlier frames of the training, not by P: the control arm has the band too.
        See :class:`kova.conformal.ConformalBand` for what holds.

        Args:
            observation: One or N observations, as ``predict`` takes them.
            level: Share of the returns that lie inside.

        Raises:
            TypeError: ``level`` is not a number.
            ValueError: It is not between 0 and 1.
        """
        self.policy.set_training_mode(False)
        return self._banded(self.policy.predict_values(self.policy.obs_to_tensor(observation)[0]), level)

    def _values_seen(self, seen: dict[str, Any]) -> Tensor:
        values: Tensor = seen["values"]
        return values

    @torch.no_grad()
    def _value_ahead(self, observation: Any) -> Tensor:
        return self.policy.predict_values(self.policy.obs_to_tensor(observation)[0])

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed everything upstream seeds, and the order of the critic's minibatches."""
        super().set_random_seed(seed)
        if seed is not None or self._critic_rng is None:
            self._critic_rng = critic_generator(seed)

    def _separate_networks(self) -> None:
        given = self.policy_kwargs
        if shares_with_actor(self.policy):
            # P over layers that the policy moves too would mean nothing.
            if "share_features_extractor" not in given:
                self.policy_kwargs = {**given, "share_features_extractor": False}
                upstream.build_networks(self, OnPolicyAlgorithm)
                # ``load`` compares what the user gives then with what the user gave now.
                self.policy_kwargs = given
            else:
                self._unshare_checkpoint(OnPolicyAlgorithm)
        if not self.policy.share_features_extractor:
            upstream.save_as_separate(self.policy)
            extractors.accept_own_name(self.policy)

    def _setup_critic(self) -> None:
        value_function = StateValue(self.policy)
        self.critic_optimizer = self._make_critic_optimizer(value_function, **self._adam_kwargs())
        self.value_function = value_function
        self._detach_policy_optimizer()
        self._forget_graph()

    def _output_layer(self, module: nn.Module) -> nn.Module | None:
        # A frozen one is not part of the value function that the filter sees.
        layer: nn.Module | None = getattr(self.policy, "value_net", None)
        return layer

    def _adam_kwargs(self) -> dict[str, Any]:
        """Return what the control arm takes over from upstream's joint optimizer."""
        eps = (self.policy.optimizer_kwargs or {}).get("eps", 1e-8)
        return {"eps": eps, "loss_weight": self.vf_coef, "max_grad_norm": self.max_grad_norm}

    def _detach_policy_optimizer(self) -> None:
        """Take the critic's parameters out of the policy's optimizer, momentum and weight decay included."""
        optimizer = self.policy.optimizer
        critic = {id(parameter) for parameter in self._critic_parameters()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in critic:
                    optimizer.state.pop(parameter, None)
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in critic]

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """Return the parameters as upstream does, and the filter; see :mod:`kova.sb3.extractors` for the names."""
        params = super().get_parameters()
        if not self.policy.share_features_extractor and "share_features_extractor" not in self.policy_kwargs:
            params["policy"] = extractors.under_own_name(params["policy"])
        return params

    def _plain_policy_kwargs(self) -> dict[str, Any]:
        if self.policy.share_features_extractor:
            return self.policy_kwargs
        return {**self.policy_kwargs, "share_features_extractor": False}

    def _in_own_shape(self, params: dict[str, Any]) -> dict[str, Any]:
        """Keep the policy's part of an optimizer state that covers policy and value."""
        params = super()._in_own_shape(params)
        saved = params.get("policy.optimizer")
        if not saved:
            return params
        own = {id(parameter) for group in self.policy.optimizer.param_groups for parameter in group["params"]}
        named = list(self.policy.named_parameters())
        count = sum(len(group["params"]) for group in saved["param_groups"])
        if count not in (len(named), len(own)):
            # It was trained with one features extractor for both; its copy for the critic is new here.
            named = [(name, p) for name, p in named if not name.startswith(extractors.UPSTREAMS)]
        if count == len(named) and len(saved["param_groups"]) == 1:
            kept = [index for index, (_, parameter) in enumerate(named) if id(parameter) in own]
            group = {**saved["param_groups"][0], "params": list(range(len(kept)))}
            state = {new: saved["state"][old] for new, old in enumerate(kept) if old in saved["state"]}
            params["policy.optimizer"] = {"state": state, "param_groups": [group]}
        return params

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "value_function"]
