"""What all algorithms share: the critic's optimizer, its place in checkpoints, its log."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from torch import nn

from kova import _checks
from kova.linearisation.observation import ObservationFn
from kova.noise import Noise
from kova.optimizer import KOVA
from kova.sb3 import upstream
from kova.sb3.adam import AdamCritic, AdamReport
from kova.sb3.plain import plain_copy
from kova.sb3.restore import unchanged_on_error
from kova.sb3.returns import ReturnBands
from kova.step_report import StepReport
from kova.suggest import suggestion
from kova.units import LabelUnits, RawUnits

Critic = Literal["kova", "adam"]

#: Under this name the filter, or the first of several, is an attribute of the algorithm and an entry of its checkpoint.
ENTRY = "critic_optimizer"


class CriticMixin(ReturnBands):
    """A Stable-Baselines3 algorithm whose value function is optimised by :class:`kova.KOVA`.

    When the policy changes, θ and P carry over: the filter lives as long as the algorithm.

    Args:
        args: As upstream.
        critic: ``"kova"``, or ``"adam"`` for the control arm: Adam, with a gradient clip of its own.
        critic_kwargs: For :class:`kova.KOVA`, over the class's defaults; the control arm ignores it.
        critic_learning_rate: Of the control arm; by default it follows ``learning_rate``. A filter has none.
        kwargs: As upstream.

    Attributes:
        critic_optimizer: The filter; of the first Q-function if there are several.
        action_spaces: Kinds of action spaces that the algorithm takes.
        supplies: Keyword arguments of :meth:`kova.KOVA.step` that the algorithm can give; a noise model may need them.
        default_critic_kwargs: Where the class differs from the defaults of :class:`kova.KOVA`.
        default_noise_in_units: Likewise, for a filter in units of its labels whose user names no noise.
        only_for_adam: Arguments of upstream's constructor that have no effect on a Kalman critic.
    """

    action_spaces: ClassVar[tuple[type[spaces.Space[Any]], ...]] = ()
    supplies: ClassVar[frozenset[str]] = frozenset()
    default_critic_kwargs: ClassVar[Mapping[str, Any]] = {}
    default_noise_in_units: ClassVar[Noise | None] = None
    only_for_adam: ClassVar[tuple[str, ...]] = ()
    critic_optimizer: KOVA | AdamCritic
    _trainable_then: list[bool]
    #: Whether the critic's weights are those it was built with.
    _critic_is_new = False

    def __init__(
        self,
        *args: Any,
        critic: Critic = "kova",
        critic_kwargs: dict[str, Any] | None = None,
        critic_learning_rate: float | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        if critic not in ("kova", "adam"):
            raise ValueError(f'critic must be "kova" or "adam", got {critic!r}')
        if critic_learning_rate is not None:
            _checks.positive("critic_learning_rate", critic_learning_rate)
            if critic == "kova":
                raise ValueError('critic_learning_rate is for critic="adam"; a Kalman critic has no learning rate')
        self.critic_type, self.critic_learning_rate = critic, critic_learning_rate
        self.critic_kwargs = _checked(critic_kwargs or {})
        # ``load`` builds the model unset and then brings the attributes back; a plain checkpoint has none of ours.
        self._without_filter = not _init_setup_model
        super().__init__(*args, _init_setup_model=_init_setup_model, **kwargs)

    @property
    def critic_optimizers(self) -> tuple[KOVA | AdamCritic, ...]:
        """The filters of all value functions, ``critic_optimizer`` first."""
        return tuple(getattr(self, name) for name in self._critic_entries())

    def _critic_entries(self) -> tuple[str, ...]:
        """Return the names of the filters: attributes of the algorithm and entries of its checkpoint."""
        return (ENTRY,)

    @classmethod
    def check_noise(cls, name: str, noise: Noise) -> None:
        """Check that a noise model needs nothing that this algorithm does not know.

        Args:
            name: What the error calls the argument.
            noise: The model.

        Raises:
            ValueError: It needs more.
        """
        missing = ", ".join(sorted(noise.needs - cls.supplies))
        if missing:
            raise ValueError(
                f"{name}={noise!r} needs {missing}, which {cls.__name__} cannot give; use a model without it, such as "
                "BatchSize(), ConstantNoise(variance) or InnovationNoise()"
            )

    def _make_critic_optimizer(
        self, module: nn.Module, observation_fn: ObservationFn | None = None, **adam: Any
    ) -> KOVA | AdamCritic:
        """Return the optimizer of the critic.

        Args:
            module: The critic.
            observation_fn: Its h.
            adam: Arguments of the control arm.

        Raises:
            ValueError: ``critic_kwargs`` do not fit the algorithm.
        """
        if self.critic_type == "adam":
            return AdamCritic(module, observation_fn, lr=self._critic_rate(1.0), **adam)
        size = {"batch_size": self._labels_per_step()}
        settings = {**size, **self.default_critic_kwargs, **self.critic_kwargs}
        by_numbers = not {"prior_variance", "units"}.isdisjoint(settings)
        if not by_numbers and _is_frozen(self._output_layer(module)):
            warnings.warn(
                "the output layer of the critic is frozen and cannot take the units of its labels: the filter begins "
                "with units=RawUnits(), the paper's",
                stacklevel=2,
            )
            settings["units"] = RawUnits()
        elif not by_numbers and not self._critic_is_new:
            # Its values are in the units of the labels already.
            settings["units"] = LabelUnits(start=False)
        optimizer = KOVA(module, observation_fn, **settings)
        if optimizer.units.active and "noise" in optimizer.unnamed and self.default_noise_in_units is not None:
            optimizer.noise = self.default_noise_in_units
        self.check_noise("critic_kwargs: noise", optimizer.noise)
        if self.verbose >= 1:
            # As upstream says which device it uses.
            print(f"Critic: {optimizer!r}")
        return optimizer

    def _output_layer(self, module: nn.Module) -> nn.Module | None:
        """Return the layer whose outputs are the values of a critic, if there is one to be told by its place."""
        linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        return linear[-1] if linear else None

    def _begins(self) -> bool:
        """Return whether the next labels set the filter's units: an untrained critic's values must not be in them."""
        return any(isinstance(optimizer, KOVA) and optimizer.begins for optimizer in self.critic_optimizers)

    def _labels_per_step(self) -> int:
        """Return N of the filter's steps, by which it chooses a covariance structure."""
        raise NotImplementedError

    def _filter(self) -> KOVA:
        """Return the filter.

        Raises:
            TypeError: The control arm has none.
        """
        self._follow_frozen()
        if not isinstance(self.critic_optimizer, KOVA):
            raise TypeError('critic="adam" keeps no uncertainty; predict_value needs critic="kova"')
        return self.critic_optimizer

    def _follow_frozen(self) -> None:
        """Begin a new filter if the user has frozen or freed parameters of the critic since this one was made.

        P is over the parameters that were trainable then. As upstream, what is frozen now stays as it is.
        """
        trainable = _trainable(self.policy)
        if trainable == self._trainable_then:
            return
        old = self.critic_optimizers
        self._setup_critic()
        self._trainable_then = trainable
        if list(map(_optimised, self.critic_optimizers)) == list(map(_optimised, old)):
            for name, optimizer in zip(self._critic_entries(), old, strict=True):
                setattr(self, name, optimizer)
        else:
            warnings.warn(
                "parameters of the critic were frozen or freed after its optimizer was made: a new one begins, without "
                "what the old one knew",
                stacklevel=3,
            )

    def _update_critic_learning_rate(self) -> None:
        """Let the control arm follow the schedule; a filter has no learning rate."""
        for group in (group for optimizer in self.critic_optimizers for group in optimizer.param_groups):
            if "lr" in group:
                group["lr"] = self._critic_rate(upstream.remaining_progress(self))

    def _critic_rate(self, remaining: float) -> float:
        own: float | None = getattr(self, "critic_learning_rate", None)  # models of 0.1.0 were saved without
        return self.lr_schedule(remaining) if own is None else own

    def _record_reports(self, reports: Sequence[StepReport | AdamReport]) -> float:
        """Log the means of what the steps measured and return that of the loss, Σδ²/(2N)."""
        names = [field.name for field in dataclasses.fields(reports[0]) if field.name != "innovation"]
        # One transfer for all numbers: each on its own would take a tenth of a small step.
        rows = torch.stack([torch.stack([getattr(report, name) for name in names]) for report in reports])
        means: dict[str, float] = dict(zip(names, rows.mean(0).tolist(), strict=True))
        loss = means.pop("loss")
        for name, mean in means.items():
            self.logger.record(f"kova/{name}", mean)
        return loss

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Self:
        """Load a model as upstream does; its critic is the one that was saved.

        A checkpoint of the plain algorithm gets a new filter. If policy and value share a features extractor there,
        the value gets a copy of its own, and ``policy_kwargs`` say so from then on. Which parameters are frozen is
        not saved: if some were frozen after the model was built, build it again, freeze them, and use
        :meth:`set_parameters`.

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

    def to_sb3(self) -> BaseAlgorithm:
        """Return this agent as a model of plain Stable-Baselines3 (TRPO: sb3-contrib), without a filter.

        It has the same weights, settings, counters and momenta of the policy, and new ones for the critic. What it
        saves can be loaded where this library is not installed. It has this model's environment, ``VecNormalize``
        included, and replay buffer, not copies of them: go on with one of the two.
        """
        filtered = {parameter for optimizer in self.critic_optimizers for parameter in _optimised(optimizer)}
        return plain_copy(self, self._plain_policy_kwargs(), filtered)

    def _plain_policy_kwargs(self) -> dict[str, Any]:
        """Return the arguments with which upstream's class builds the same networks."""
        return self.policy_kwargs

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        """Load parameters as upstream does, or, if any of them does not fit, none.

        Parameters of the plain algorithm, complete but for the filter, start the filter afresh. Only some of them, with
        ``exact_match=False``, leave it as it is.

        Raises:
            ValueError: Parts are missing or unknown, or the filter is another; nothing was changed.
            RuntimeError: A network is another; nothing was changed.
        """
        self._follow_frozen()
        params = load_path_or_dict
        if not isinstance(params, dict):
            _, params, _ = load_from_zip_file(params, device=device, load_data=False)
        expected, filters = upstream.entries(self), self._critic_entries()
        plain = params.keys().isdisjoint(filters) and params.keys() >= expected - set(filters)
        # A filter comes last: it changes completely or not at all, so that its P need not be copied.
        params = {**self._in_own_shape(params), **{name: params[name] for name in filters if name in params}}
        with unchanged_on_error(self, params.keys() - {filters[-1]}):
            own = {name: getattr(self, name).state_dict() for name in filters}
            given = {**params, **own} if plain else params
            if exact_match and given.keys() != expected:
                raise ValueError(
                    f"Names of parameters do not match agents' parameters: expected {expected}, got {set(params)}"
                )
            super().set_parameters(given, exact_match=exact_match, device=device)
            if plain:
                self._setup_critic()
        self._without_filter = False
        if plain:
            warnings.warn(
                "this is of a plain Stable-Baselines3 model and holds no filter: the covariance of the critic starts "
                "fresh at its prior",
                stacklevel=2,
            )

    def _in_own_shape(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return all but the filter's parameters, with those of a plain model in the shape of this class."""
        return {name: state for name, state in params.items() if name not in self._critic_entries()}

    def _setup_model(self) -> None:
        super()._setup_model()  # type: ignore[safe-super]
        self._separate_networks()
        self._trainable_then = _trainable(self.policy)
        self._critic_is_new = True
        self._setup_critic()
        self._critic_is_new = False

    def _separate_networks(self) -> None:
        """Give the critic layers of its own where upstream's defaults or a plain checkpoint would share the actor's."""

    def _unshare_checkpoint(self, builder: type[BaseAlgorithm]) -> None:
        """Build the networks of a plain checkpoint again, with separate features extractors.

        Args:
            builder: Upstream's class that builds them.
        """
        if self._without_filter and self.policy_kwargs.get("share_features_extractor"):
            warnings.warn(
                "policy and value of the checkpoint share a features extractor; a Kalman critic needs its own, so it "
                "begins with a copy, and policy_kwargs now have share_features_extractor=False",
                stacklevel=6,
            )
            self.policy_kwargs = {**self.policy_kwargs, "share_features_extractor": False}
            upstream.build_networks(self, builder)

    def _setup_critic(self) -> None:
        """Build ``critic_optimizers`` for the networks there are now."""
        raise NotImplementedError

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *self._critic_entries(), "_trainable_then"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, *self._critic_entries()], variables


def critic_generator(seed: int | None) -> np.random.Generator:
    """Return the source of the critic's minibatches: its own, so that the policy's random numbers stay upstream's."""
    return np.random.default_rng(torch.initial_seed() % 2**63 if seed is None else seed)


def _is_frozen(layer: nn.Module | None) -> bool:
    return layer is not None and not all(parameter.requires_grad for parameter in layer.parameters())


def _trainable(policy: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in policy.parameters()]


def _optimised(optimizer: torch.optim.Optimizer) -> list[int]:
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def _checked(critic_kwargs: dict[str, Any]) -> dict[str, Any]:
    known = [name for name in inspect.signature(cast(Callable[..., object], KOVA)).parameters if name != "critic"]
    for name in critic_kwargs:
        if name not in known:
            raise ValueError(f"critic_kwargs has {name!r}, which kova.KOVA does not take{suggestion(name, known)}")
    return critic_kwargs
