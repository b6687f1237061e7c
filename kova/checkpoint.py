"""The state_dict of a filter, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kova.calibration import Calibration
from kova.linearisation.output_layer import OutputLayer
from kova.memories import Memories
from kova.units import UnitState

FORMAT = 1
KEYS = {"state", "param_groups", "format", "steps", "parameters", "covariance"}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a state_dict holds beside what every torch optimizer has.

    Attributes:
        steps: How many were taken.
        covariance: State of P, which the structure itself checks.
        calibration: Scale of the uncertainty.
        memories: What the models remember.
        widened: Whether P went on in float64 because float32 did not resolve it.
        units: Of the labels; none where the filter was saved without.
        output: The output layer, once labels have been seen.
        replicas: Errors of the replicas, which they check themselves; none where the filter was saved without.
    """

    steps: int
    covariance: dict[str, Any]
    calibration: Calibration
    memories: Memories
    widened: bool
    units: UnitState | None
    output: OutputLayer | None
    replicas: object


def checked(state_dict: object, parameters: list[tuple[str, list[int]]]) -> Snapshot:
    """Return the content of a state_dict.

    Args:
        state_dict: As saved.
        parameters: Names and shapes of this critic's parameters.

    Raises:
        ValueError: It belongs to another optimizer or another critic, or is damaged.
    """
    if not isinstance(state_dict, Mapping) or not state_dict.keys() >= KEYS:
        raise ValueError(f"state_dict is not a KOVA's: it must have {', '.join(sorted(KEYS))}")
    if state_dict["format"] != FORMAT:
        raise ValueError(f"state_dict has format {state_dict['format']}, this version of kova reads {FORMAT}")
    if state_dict["parameters"] != parameters:
        raise ValueError(f"state_dict belongs to a critic with {state_dict['parameters']}, this one has {parameters}")
    if not isinstance(state_dict["steps"], int) or state_dict["steps"] < 0:
        raise ValueError(f"state_dict has steps = {state_dict['steps']!r}, expected a count")
    return Snapshot(
        state_dict["steps"],
        state_dict["covariance"],
        Calibration.from_state_dict(state_dict.get("calibration", Calibration().state_dict())),
        Memories.from_state_dict(state_dict),
        state_dict.get("widened") is True,
        UnitState.from_state_dict(state_dict["units"]) if "units" in state_dict else None,
        _output_layer(state_dict.get("output_layer"), [name for name, _ in parameters]),
        state_dict.get("replicas"),
    )


def _output_layer(names: object, known: list[str]) -> OutputLayer | None:
    if names is None:
        return None
    sound = isinstance(names, list) and len(names) == 3 and isinstance(names[2], bool)
    if sound and isinstance(names, list) and names[0] in known and names[1] in (None, *known):
        return OutputLayer(*names)
    raise ValueError(f"state_dict has output_layer = {names!r}, expected the names of a weight and a bias, and a flag")


def widened(value: Any) -> Any:
    """Return a covariance's state with every number in float64."""
    if isinstance(value, Mapping):
        return {key: widened(item) for key, item in value.items()} | (
            {"dtype": str(torch.float64)} if "dtype" in value else {}
        )
    if isinstance(value, list):
        return [widened(item) for item in value]
    return value.double() if isinstance(value, torch.Tensor) else value


def structure(state: object) -> str | None:
    """Return what ``covariance=`` calls the structure of a saved covariance, ``None`` if the state does not say."""
    if not isinstance(state, Mapping) or not isinstance(state.get("structure"), str):
        return None
    size = state.get("size", state.get("rank"))
    return str(state["structure"]) if size is None else f"{state['structure']}:{size}"
