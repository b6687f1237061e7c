"""The frames of a training run, in the order in which the agent saw them."""

from __future__ import annotations

import dataclasses
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kova.experiments.errors import UsageError, one_line
from kova.experiments.files import replacing
from kova.targets import gae_targets


@dataclass(frozen=True, eq=False)
class Stream:
    """T steps of E environments.

    Attributes:
        observations: (T, E, size), as the agent saw them.
        next_observations: What followed, (T, E, size): at the end of an episode its last observation.
        actions: (T, E, size), or (T, E, 1) numbers of actions.
        rewards: As the environment paid them, (T, E).
        terminated: Whether the task ended with the step, (T, E).
        truncated: Whether the time limit ended the episode, (T, E).
        choices: How many actions there are to choose from, 0 where actions are continuous.
    """

    observations: Tensor
    next_observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    choices: int = 0

    @property
    def frames(self) -> int:
        """T·E."""
        return self.rewards.numel()

    @property
    def done(self) -> Tensor:
        """Whether an episode ended with the step, (T, E)."""
        return self.terminated | self.truncated

    def returns(self, gamma: float) -> tuple[Tensor, Tensor]:
        """Return what a critic should have said, and where that is known: the discounted returns, (T, E) both.

        A return that a time limit or the end of the stream cuts short within 1/(1-γ) steps is not known: too much of
        it is missing.
        """
        last = torch.zeros_like(self.terminated)
        last[-1] = True
        cut = self.truncated | (last & ~self.terminated)
        nothing = torch.zeros_like(self.rewards)
        returns = gae_targets(self.rewards, nothing, nothing, self.terminated, cut, gamma=gamma, gae_lambda=1.0)
        known = torch.ones_like(self.terminated)
        horizon = round(1.0 / (1.0 - gamma))
        left = torch.full((self.rewards.shape[1],), horizon)
        for step in range(len(self.rewards) - 1, -1, -1):
            left = torch.where(cut[step], 0, left + 1)
            left = torch.where(self.terminated[step], horizon, left)
            known[step] = left >= horizon
        return returns, known

    def part(self, start: int, stop: int | None) -> Stream:
        """Return some of the steps, of all environments."""
        return self._cut_to(slice(start, stop), slice(None))

    def of(self, environments: slice) -> Stream:
        """Return all steps of some of the environments."""
        return self._cut_to(slice(None), environments)

    def _cut_to(self, steps: slice, environments: slice) -> Stream:
        names = ("observations", "next_observations", "actions", "rewards", "terminated", "truncated")
        return dataclasses.replace(self, **{name: getattr(self, name)[steps, environments] for name in names})

    def paid(self, factor: float, bonus: float = 0.0) -> Stream:
        """Return the same frames with other rewards: each multiplied by a factor, plus a bonus."""
        return dataclasses.replace(self, rewards=factor * self.rewards + bonus)

    def save(self, path: Path) -> None:
        """Write a compressed NumPy file; of what followed only what is not the next observation."""
        names = ("observations", "actions", "rewards", "terminated", "truncated", "choices")
        arrays = {name: np.asarray(getattr(self, name)) for name in names}
        arrays["last_observations"] = self.next_observations[self._cut()].numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            np.savez_compressed(draft, allow_pickle=False, **arrays)

    def _cut(self) -> Tensor:
        """Return where the next row does not hold what followed, (T, E)."""
        cut = self.done.clone()
        cut[-1] = True
        return cut

    @classmethod
    def load(cls, path: Path) -> Stream:
        """Read what :meth:`save` wrote.

        Raises:
            UsageError: It is another file.
        """
        names = ("observations", "actions", "rewards", "terminated", "truncated", "choices", "last_observations")
        try:
            with np.load(path, allow_pickle=False) as content:
                arrays = {name: torch.from_numpy(content[name]) for name in names}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"{path} is not a recorded stream: {one_line(error)}; move it away") from None
        last, choices = arrays.pop("last_observations"), int(arrays.pop("choices"))
        stream = cls(next_observations=arrays["observations"].roll(-1, 0), choices=choices, **arrays)
        stream.next_observations[stream._cut()] = last
        return stream
