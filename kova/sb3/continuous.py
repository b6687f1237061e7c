"""What DDPG, TD3 and SAC share: one or more Q-functions of a continuous action, with a filter each."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ContinuousCritic
from torch import Tensor, nn
from torch.optim import Optimizer

from kova.sb3 import upstream
from kova.sb3.critic import ENTRY
from kova.sb3.off_policy import OffPolicyCritic
from kova.sb3.value_functions import ActionValue


class ContinuousCritics(OffPolicyCritic):
    """A filter for every Q-function of upstream's critic, all with the same labels.

    ``critic_optimizer`` is the filter of the first, which ``predict_value`` and ``predict_return`` ask; the second is
    ``critic_optimizer_2``, and ``critic_optimizers`` has all. The labels bootstrap from the smallest of the target
    values, as upstream's do.
    """

    action_spaces: ClassVar[tuple[type[spaces.Space[Any]], ...]] = (spaces.Box,)
    #: Factor of the squared error in upstream's loss of one Q-function.
    loss_weight: ClassVar[float] = 1.0
    critic: ContinuousCritic
    critic_target: ContinuousCritic

    def _critic_entries(self) -> tuple[str, ...]:
        return (ENTRY, *(f"{ENTRY}_{number}" for number in range(2, len(self.critic.q_networks) + 1)))

    def _separate_networks(self) -> None:
        if self._shared_parameters():
            self._unshare_checkpoint(upstream.plain_class(type(self)))

    def _shared_parameters(self) -> int:
        """Return how many parameters serve both actor and critic."""
        actor = {id(parameter) for parameter in self.actor.parameters()}
        return sum(id(parameter) in actor for parameter in self.critic.parameters())

    def _setup_critic(self) -> None:
        shared = self._shared_parameters()
        if shared:
            raise ValueError(
                f"the critic shares {shared} parameters with the policy; a Kalman critic needs its own: "
                "policy_kwargs=dict(share_features_extractor=False)"
            )
        entries = self._critic_entries()
        # All are made before the first is replaced: one of them may be refused.
        made = [
            self._make_critic_optimizer(ActionValue(self.critic, index), loss_weight=self.loss_weight)
            for index in range(len(entries))
        ]
        for name, optimizer in zip(entries, made, strict=True):
            setattr(self, name, optimizer)

    def _critic_network(self) -> nn.Module:
        return self.critic

    def _target_network(self) -> nn.Module:
        return self.critic_target

    def _in_own_shape(self, params: dict[str, Any]) -> dict[str, Any]:
        """Leave out a state of upstream's critic optimizer that does not fit; nothing here uses that optimizer."""
        params = super()._in_own_shape(params)
        own, saved = self.critic.optimizer.state_dict(), params.get("critic.optimizer")
        if saved and _sizes(saved) != _sizes(own):
            params["critic.optimizer"] = own
        return params

    def _smallest(self, critic: ContinuousCritic, observations: Any, actions: Tensor) -> Tensor:
        """Return the smallest of a critic's values for every sample, (N, 1)."""
        values = torch.cat(critic(observations, actions), dim=1)
        return values.min(dim=1, keepdim=True).values

    def _move_actor(self, loss: Tensor) -> None:
        """Take upstream's step of the actor."""
        optimizer = cast(Optimizer, self.actor.optimizer)
        optimizer.zero_grad()
        # Upstream's backward pass also makes gradients of the critic, which nobody uses.
        loss.backward(inputs=[parameter for parameter in self.actor.parameters() if parameter.requires_grad])
        optimizer.step()

    def _action_value(self, inputs: Any) -> Tensor:
        values: tuple[Tensor, ...] = self.critic(*inputs)
        return values[0]

    def _record_loss(self, mean_squared: float) -> None:
        self.logger.record("train/critic_loss", self.loss_weight * len(self.critic_optimizers) * mean_squared)

    def _record_actor_losses(self, losses: list[float]) -> None:
        if losses:
            self.logger.record("train/actor_loss", np.mean(losses))
            self.logger.record("train/policy_loss", np.mean(losses))

    def _stored_actions(self, action: np.ndarray) -> np.ndarray:
        # The buffer holds actions scaled to [-1, 1].
        scaled = np.asarray(self.policy.scale_action(action), dtype=np.float32)
        return scaled.reshape(-1, int(np.prod(self.action_space.shape or (1,))))


def _sizes(optimizer_state: dict[str, Any]) -> list[int]:
    return [len(group["params"]) for group in optimizer_state["param_groups"]]
