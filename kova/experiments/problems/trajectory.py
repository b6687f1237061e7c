"""Transitions in the order in which a policy made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T transitions in order: one episode, a piece of one, or several one after another.

    What ``inputs`` hold is up to the learner: states, features φ(s) for linear methods, observations for a network;
    :meth:`through` turns one into another. After a last step that neither terminated nor was truncated the next
    trajectory goes on.

    Attributes:
        inputs: Of s_t, (T, k).
        rewards: r_t, (T,).
        next_inputs: Of the state that step t led to, (T, k); finite but meaningless where the task ended.
        terminated: Whether the task ended with step t (its value is 0), boolean (T,).
        truncated: Whether the episode was cut after step t (its value still counts), boolean (T,).

    Raises:
        ValueError: Shapes or dtypes do not fit together.
    """

    inputs: Tensor
    rewards: Tensor
    next_inputs: Tensor
    terminated: Tensor
    truncated: Tensor

    def __post_init__(self) -> None:
        """Check the shapes."""
        if self.inputs.dim() != 2 or self.next_inputs.shape != self.inputs.shape:
            shapes = f"{tuple(self.inputs.shape)} and {tuple(self.next_inputs.shape)}"
            raise ValueError(f"inputs and next_inputs must both be (T, k), got {shapes}")
        for name in ("rewards", "terminated", "truncated"):
            value: Tensor = getattr(self, name)
            if value.shape != self.inputs.shape[:1]:
                raise ValueError(f"{name} must be ({len(self)},), got {tuple(value.shape)}")
        if self.terminated.dtype != torch.bool or self.truncated.dtype != torch.bool:
            raise ValueError("terminated and truncated must be boolean")

    def __len__(self) -> int:
        return self.inputs.shape[0]

    @property
    def ends(self) -> Tensor:
        """Whether nothing flows from step t to step t+1, boolean (T,)."""
        return self.terminated | self.truncated

    def through(self, function: Callable[[Tensor], Tensor]) -> Trajectory:
        """Return the trajectory seen through a map (T, k) -> (T, k'), such as ``problem.features``."""
        return replace(self, inputs=function(self.inputs), next_inputs=function(self.next_inputs))

    def pieces(self, size: int) -> Iterator[Trajectory]:
        """Return it cut into pieces of at most ``size`` transitions, each of which ends as if a limit had cut it."""
        for places in torch.arange(len(self)).split(size):
            truncated = self.truncated[places]
            truncated[-1] = ~self.terminated[places[-1]]
            yield Trajectory(
                self.inputs[places],
                self.rewards[places],
                self.next_inputs[places],
                self.terminated[places],
                truncated,
            )

    def to(self, dtype: torch.dtype) -> Trajectory:
        """Return it with inputs and rewards of another floating dtype."""
        return replace(
            self,
            inputs=self.inputs.to(dtype),
            rewards=self.rewards.to(dtype),
            next_inputs=self.next_inputs.to(dtype),
        )


def joined(parts: Sequence[Trajectory]) -> Trajectory:
    """Return the transitions of all parts in order.

    Raises:
        ValueError: There is none.
    """
    if not parts:
        raise ValueError("joined needs at least one trajectory")
    return Trajectory(
        inputs=torch.cat([part.inputs for part in parts]),
        rewards=torch.cat([part.rewards for part in parts]),
        next_inputs=torch.cat([part.next_inputs for part in parts]),
        terminated=torch.cat([part.terminated for part in parts]),
        truncated=torch.cat([part.truncated for part in parts]),
    )
