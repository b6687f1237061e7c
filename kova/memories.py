"""What the models remember from batch to batch, kept by the filter because the models themselves never change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: Numbers that a model keeps, by name.
Memory = Mapping[str, float]


@dataclass(frozen=True)
class Memories:
    """One memory for every model that learns; a step exchanges all of them at once.

    Attributes:
        noise: Of the noise model.
        evolution: Of the evolution model.
        trust: Of what checks the steps.
    """

    noise: Memory = field(default_factory=dict)
    evolution: Memory = field(default_factory=dict)
    trust: Memory = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot: one entry for each."""
        return {f"{entry.name}_memory": dict(getattr(self, entry.name)) for entry in fields(self)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Memories:
        """Return the memories of a snapshot; where there are none, as of a model that does not learn, empty ones.

        Raises:
            ValueError: One of them is not a mapping of numbers.
        """
        return cls(**{entry.name: _checked(f"{entry.name}_memory", state) for entry in fields(cls)})


def _checked(name: str, state: Mapping[str, Any]) -> Memory:
    memory = state.get(name, {})
    numbers = isinstance(memory, Mapping) and all(isinstance(value, int | float) for value in memory.values())
    if not numbers:
        raise ValueError(f"state_dict has {name} = {memory!r}, expected numbers by name")
    return dict(memory)
