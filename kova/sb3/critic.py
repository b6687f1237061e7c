"""What the five algorithms share: the critic's optimizer, its place in checkpoints, its log."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from torch import nn

from kova.linearisation.observation import ObservationFn
from kova.optimizer import KOVA
from kova.sb3.adam import AdamCritic, AdamReport
from kova.step_report import StepReport

Critic = Literal["kova", "adam"]

#: Under this name the filter is an attribute of the algorithm and an entry of its checkpoint.
ENTRY = "critic_optimizer"


class CriticMixin(BaseAlgorithm):
    """A Stable-Baselines3 algorithm whose value function is optimised by :class:`kova.KOVA`.

    When the policy changes, θ and P carry over: the filter lives as long as the algorithm.

    Args:
        args: As upstream.
        critic: ``"kova"``, or ``"adam"`` for the control arm: Adam, with a gradient clip of its own.
        critic_kwargs: For :class:`kova.KOVA`, over the class's defaults; the control arm ignores it.
        kwargs: As upstream.

    Attributes:
        critic_optimizer: The filter.
    """

    default_critic_kwargs: ClassVar[Mapping[str, Any]] = {}
    critic_optimizer: KOVA | AdamCritic

    def __init__(
        self,
        *args: Any,
        critic: Critic = "kova",
        critic_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        if critic not in ("kova", "adam"):
            raise ValueError(f'critic must be "kova" or "adam", got {critic!r}')
        self.critic_type = critic
        self.critic_kwargs = _checked(critic_kwargs or {})
        # ``load`` builds the model unset and then brings the attributes back; a plain checkpoint has none of ours.
        self._without_filter = not _init_setup_model
        super().__init__(*args, _init_setup_model=_init_setup_model, **kwargs)  # type: ignore[call-arg]

    def _make_critic_optimizer(
        self, module: nn.Module, observation_fn: ObservationFn | None = None, **adam: Any
    ) -> KOVA | AdamCritic:
        """Return the optimizer of the critic.

        Args:
            module: The critic.
            observation_fn: Its h.
            adam: Arguments of the control arm.
        """
        if self.critic_type == "adam":
            return AdamCritic(module, observation_fn, lr=self.lr_schedule(1.0), **adam)
        return KOVA(module, observation_fn, **{**self.default_critic_kwargs, **self.critic_kwargs})

    def _filter(self) -> KOVA:
        """Return the filter.

        Raises:
            TypeError: The control arm has none.
        """
        if not isinstance(self.critic_optimizer, KOVA):
            raise TypeError('critic="adam" keeps no uncertainty; predict_value needs critic="kova"')
        return self.critic_optimizer

    def _update_critic_learning_rate(self) -> None:
        """Let the control arm follow the schedule; a filter has no learning rate."""
        for group in self.critic_optimizer.param_groups:
            if "lr" in group:
                group["lr"] = self.lr_schedule(self._current_progress_remaining)

    def _record_reports(self, reports: Sequence[StepReport | AdamReport]) -> float:
        """Log the means of what the steps measured and return that of the loss, Σδ²/(2N)."""
        means = {
            field.name: torch.stack([getattr(report, field.name) for report in reports]).mean().item()
            for field in dataclasses.fields(reports[0])
            if field.name != "innovation"
        }
        loss = means.pop("loss")
        for name, mean in means.items():
            self.logger.record(f"kova/{name}", mean)
        return loss

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Self:
        """Load a model as upstream does; its critic is the one that was saved.

        Raises:
            ValueError: Another ``critic`` is asked for, or ``critic_kwargs`` make a filter the saved one does not fit.
        """
        if "critic" in kwargs:
            raise ValueError(
                "load keeps the critic that was saved; leave critic= out, or build a new model with it and give that "
                "the policy by set_parameters"
            )
        try:
            return super().load(*args, **kwargs)
        except KeyError as error:
            # Upstream answers a ValueError by a look into policy.optimizer, which DDPG does not have.
            if isinstance(error.__context__, ValueError):
                raise error.__context__ from None
            raise

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        """Load parameters as upstream does; a checkpoint of the plain algorithm starts the filter afresh.

        Raises:
            ValueError: Parts are missing or unknown.
        """
        params, plain = load_path_or_dict, self._without_filter
        if not isinstance(params, dict):
            _, params, _ = load_from_zip_file(params, device=device, load_data=False)
            plain = plain or ENTRY not in params
        if plain and ENTRY not in params:
            params = self._from_plain(params)
            self._setup_critic()
            params[ENTRY] = self.critic_optimizer.state_dict()
            warnings.warn(
                "the checkpoint is of a plain Stable-Baselines3 model and holds no filter: the covariance of the "
                "critic starts fresh at its prior",
                stacklevel=2,
            )
        self._without_filter = False
        super().set_parameters(params, exact_match=exact_match, device=device)

    def _from_plain(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of a plain checkpoint in the shape of this class."""
        return dict(params)

    def _setup_model(self) -> None:
        super()._setup_model()  # type: ignore[safe-super]
        self._setup_critic()

    def _setup_critic(self) -> None:
        """Build ``critic_optimizer`` for the networks there are now."""
        raise NotImplementedError

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), ENTRY]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, ENTRY], variables


def critic_generator(seed: int | None) -> np.random.Generator:
    """Return the source of the critic's minibatches: its own, so that the policy's random numbers stay upstream's."""
    return np.random.default_rng(torch.initial_seed() % 2**63 if seed is None else seed)


def _checked(critic_kwargs: dict[str, Any]) -> dict[str, Any]:
    known = [name for name in inspect.signature(cast(Callable[..., object], KOVA)).parameters if name != "critic"]
    for name in critic_kwargs:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(known)}"
            raise ValueError(f"critic_kwargs has {name!r}, which kova.KOVA does not take{hint}")
    return critic_kwargs
