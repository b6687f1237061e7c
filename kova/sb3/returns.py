"""A band for the return that follows, kept at its level while the agent learns."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from torch import Tensor

from kova.conformal import ConformalBand
from kova.sb3.pending_returns import PendingReturns
from kova.sb3.reward_unit import reward_unit


@dataclass(frozen=True, eq=False)
class ReturnBand:
    """Where the discounted returns from N states will lie, in the environment's own units of reward.

    Attributes:
        value: What the critic expects, (N,).
        low: Lower end, (N,); -∞ as long as too few returns are known.
        high: Upper end, (N,); likewise.
        level: The share of returns inside.
    """

    value: Tensor
    low: Tensor
    high: Tensor
    level: float


class ReturnBands(BaseAlgorithm):
    """An algorithm that compares its critic with the returns that follow, while it learns.

    Some frames are followed until their return is known, see :class:`kova.sb3.pending_returns.PendingReturns`, with the
    rewards as the environment pays them. Nothing that is learned depends on it, and no random number is drawn. Frames
    that wait for their return are forgotten at the beginning of ``learn``: a checkpoint need not have them.

    Args:
        args: As upstream.
        kwargs: As upstream.

    Attributes:
        return_band: How far returns were from what the critic said; saved with the model.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.return_band = ConformalBand()
        #: Of the last training, for a model that is loaded without its environment.
        self._reward_unit = 1.0
        super().__init__(*args, **kwargs)

    @abstractmethod
    def _values_seen(self, seen: dict[str, Any]) -> Tensor:
        """Return the critic's values of the states that the last step left, E numbers.

        Args:
            seen: What a callback knows after the step.
        """

    @abstractmethod
    def _value_ahead(self, observation: Any) -> Tensor:
        """Return the critic's value of one state, in which no action was chosen yet."""

    def _banded(self, values: Tensor, level: float) -> ReturnBand:
        low, high = self.return_band.bounds(level)
        value = self._unit() * values.detach().flatten().double()
        return ReturnBand(value, value + low, value + high, float(level))

    def _unit(self) -> float:
        """Return what a reward that the critic sees is worth as the environment pays it, as far as is known."""
        normalised = self.get_vec_normalize_env()
        return self._reward_unit if normalised is None else reward_unit(normalised)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        theirs = callback if isinstance(callback, list) else [] if callback is None else [callback]
        as_objects = [each if isinstance(each, BaseCallback) else ConvertCallback(each) for each in theirs]
        return super()._init_callback([FollowReturns(self), *as_objects], progress_bar)


class FollowReturns(BaseCallback):
    """Feeds the band of a model during one ``learn``.

    Args:
        algorithm: The model.
    """

    def __init__(self, algorithm: ReturnBands) -> None:
        super().__init__()
        self._algorithm = algorithm

    def _on_training_start(self) -> None:
        algorithm = self._algorithm
        self._normalised = algorithm.get_vec_normalize_env()
        gamma: float = algorithm.gamma  # type: ignore[attr-defined]
        self._pending = PendingReturns(gamma, algorithm.n_envs)
        algorithm._reward_unit = reward_unit(self._normalised)

    def _on_step(self) -> bool:
        algorithm, pending, seen = self._algorithm, self._pending, self.locals
        if pending.due:
            values = algorithm._reward_unit * algorithm._values_seen(seen).flatten().double().cpu().numpy()
            algorithm.return_band.observe(*pending.news())
            pending.follow(values, *algorithm.return_band.bounds())
        pending.pay(seen["rewards"] if self._normalised is None else self._normalised.get_original_reward())
        for environment in np.flatnonzero(seen["dones"]).tolist():
            pending.end(environment, cut_value=self._cut_value(environment, seen["infos"][environment]))
        if pending.due:
            # Before the next step changes it: the value of the next frame is in the units of now.
            algorithm._reward_unit = reward_unit(self._normalised)
        return True

    def _cut_value(self, environment: int, info: dict[str, Any]) -> float | None:
        """Return the value of the state in which a time limit cut the episode, None if the task ended."""
        if not info.get("TimeLimit.truncated", False):
            return None
        last = info.get("terminal_observation")
        if last is None or not self._pending.waits_for(environment):
            return float("nan")
        return reward_unit(self._normalised) * float(self._algorithm._value_ahead(last))

    def _on_training_end(self) -> None:
        self._algorithm._reward_unit = reward_unit(self._normalised)

    def _on_rollout_end(self) -> None:
        coverage = self._algorithm.return_band.coverage
        if coverage is not None:
            self.logger.record("kova/return_coverage", coverage)
