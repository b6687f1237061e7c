"""Saving and restoring a filter: its state_dict, and what a snapshot of another version or precision means."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kova import checkpoint, defaults
from kova.assumptions import Assumptions
from kova.beliefs import Beliefs
from kova.covariance.choice import STRUCTURES, Choice, Settings, choose
from kova.evolution import Evolution
from kova.interrupts import HeldSignals
from kova.memories import Memories
from kova.noise import Noise
from kova.units import RawUnits, Units


class Restorable(Beliefs, torch.optim.Optimizer):
    """What :class:`kova.KOVA` keeps from one process to the next.

    Attributes:
        steps: How many were taken.
        evolution: P_v.
        noise: P_n.
        units: Of the labels.
        unnamed: Of the models those that the user has not named. A filter that was saved without units was learned with
            other defaults, and goes on with them.
    """

    evolution: Evolution
    noise: Noise
    units: Units
    unnamed: frozenset[str]
    _assumptions: Assumptions
    _memories: Memories
    _settings: Settings
    _reason: str
    _take: Callable[[Choice, Settings], None]

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot from which a filter over the same critic continues bit for bit.

        The critic's own weights are the module's, as with any optimizer. Unlike Adam's, the tensors are copies.
        """
        return {
            **super().state_dict(),
            "format": checkpoint.FORMAT,
            "steps": self.steps,
            "parameters": self._parameter_shapes(),
            "covariance": self.covariance.state_dict(),
            "calibration": self.calibration.state_dict(),
            **self._memories.state_dict(),
            **({"widened": True} if self.dtype != self._settings.dtype else {}),
            **self._assumptions.state_dict(),
            **self._replicas.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a snapshot of :meth:`state_dict`, on the device of the module.

        Raises:
            ValueError: It belongs to another optimizer or another critic; nothing was changed.
            CovarianceTooLarge: "auto" chose a structure then that does not fit in memory now; nothing was changed.
        """
        snapshot = checkpoint.checked(state_dict, self._parameter_shapes())
        choice = self._saved_choice(snapshot)
        (self.covariance if choice is None else choice.covariance).check_state(snapshot.covariance)
        replicas = self._replicas.checked(snapshot.replicas, self.covariance.dim)
        with HeldSignals():
            if choice is not None:
                self._take(choice, self._settings)
            super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
            self._compute(lambda: self.covariance.load_state_dict(snapshot.covariance))
            self.calibration, self._memories = snapshot.calibration, snapshot.memories
            self.steps, self._replicas = snapshot.steps, replicas
            self._restore_units(snapshot)

    def _restore_units(self, snapshot: checkpoint.Snapshot) -> None:
        if snapshot.units is None:
            if self.units.active:
                warnings.warn("the filter was saved without units of its labels and goes on without", stacklevel=4)
            # What was saved is P in the units it was saved in, learned with the models that were the defaults then.
            self.units = RawUnits()
            for name in self.unnamed:
                setattr(self, name, getattr(defaults.RAW, name))
            self._assumptions = Assumptions(self.units, self.covariance.scales, self._assumptions.names)
        else:
            self._assumptions = replace(self._assumptions, state=snapshot.units, output=snapshot.output)

    def _saved_choice(self, snapshot: checkpoint.Snapshot) -> Choice | None:
        """Return the structure of a snapshot if "auto" chose another one here; it depends on N and on the version."""
        saved, settings = checkpoint.structure(snapshot.covariance), self._settings
        if snapshot.widened and settings.dtype == torch.float32:
            settings = replace(settings, dtype=torch.float64)
        other = bool(self._reason) and saved != self.covariance.name
        if saved is None or self.covariance.name not in STRUCTURES or not (other or settings.dtype != self.dtype):
            return None
        choice = choose(self.observation.module, saved, self.evolution, settings)
        return replace(choice, reason=f"{saved} was chosen when it was saved" if self._reason else "")

    def __getstate__(self) -> dict[str, Any]:
        """Keep everything: the base class would drop θ's names, P and the models on deepcopy and pickle."""
        return self.__dict__.copy()

    def _parameter_shapes(self) -> list[tuple[str, list[int]]]:
        return [(name, list(parameter.shape)) for name, parameter in self.observation.parameters.items()]
