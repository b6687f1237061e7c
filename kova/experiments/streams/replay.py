"""Replays: a critic learns from a recorded stream as it would inside an agent, and is asked before it learns.

Labels bootstrap from the critic that is replayed, as they would in an agent of its own; only the frames are common.
What is judged is not the labels but the Monte-Carlo returns, which no critic has a hand in.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from kova.experiments.streams.critics import action_network, chosen_value, joint_value, value_network
from kova.experiments.streams.stream import Stream
from kova.targets import gae_targets, q_targets

#: Windows of a stream in which the explained variance is taken; they are averaged.
WINDOWS = 10
#: An explained variance below this counts as this: worse than nothing is as bad at any size.
WORST = -1.0


class CriticOptimizer(Protocol):
    """What fits a critic: :class:`kova.KOVA` or the control arm."""

    def step(self, inputs: Any, targets: Tensor) -> Any:
        """Take one step on a batch."""


#: Makes the optimizer of a critic; the second argument is h.
MakeOptimizer = Callable[[nn.Module, Callable[[nn.Module, Any], Tensor] | None], CriticOptimizer]


@dataclass(frozen=True)
class Replayed:
    """How a critic did on a stream.

    Attributes:
        explained: Explained variance of the Monte-Carlo returns in every window, before learning from it.
        seconds: Spent on learning.
    """

    explained: tuple[float, ...]
    seconds: float

    @property
    def mean(self) -> float:
        """Over the windows, each at least −1."""
        return float(np.mean(np.maximum(self.explained, WORST)))

    def half(self, number: int) -> float:
        """Over the first or the second half of the windows."""
        middle = len(self.explained) // 2
        return float(np.mean(np.maximum(self.explained[:middle] if number == 0 else self.explained[middle:], WORST)))


@dataclass(frozen=True)
class Rollouts:
    """On-policy: the labels of a rollout, then passes over it (Table 1, GAE-λ).

    Attributes:
        n_steps: Steps of every environment in a rollout.
        gae_lambda: λ; 1 gives the k-step return.
        passes: Over every rollout.
        batch_size: N; ``None`` takes the rollout as one batch.
        gamma: γ.
        hidden: Layers of the critic.
        seed: Of the critic and of the order of minibatches.
    """

    n_steps: int
    gae_lambda: float
    passes: int = 1
    batch_size: int | None = None
    gamma: float = 0.99
    hidden: tuple[int, ...] = (64, 64)
    seed: int = 0

    def with_passes(self, passes: int) -> Rollouts:
        """Return the same labels with another number of passes."""
        return replace(self, passes=passes)

    def learner(self, inputs: int, make: MakeOptimizer) -> Learner:
        """Return a new critic for observations of this size, and what fits it."""
        critic = value_network(inputs, self.hidden, self.seed)
        return Learner(self, critic, make(critic, None))

    def replay(self, stream: Stream, make: MakeOptimizer) -> Replayed:
        """Let a critic learn from the stream."""
        learner = self.learner(stream.observations.shape[2], make)
        predicted = learner.learn(stream)
        return Replayed(explained(stream, predicted, self.gamma), learner.seconds)


class Learner:
    """A critic on its way through a stream.

    Args:
        scheme: Its labels and passes.
        critic: The critic.
        optimizer: What fits it.

    Attributes:
        seconds: Spent on learning.
    """

    def __init__(self, scheme: Rollouts, critic: nn.Module, optimizer: CriticOptimizer) -> None:
        self.scheme, self.critic, self.optimizer = scheme, critic, optimizer
        self.seconds = 0.0
        self._rng = np.random.default_rng(scheme.seed)

    def learn(self, stream: Stream) -> Tensor:
        """Learn from the frames that follow, and return what was said of them before, (T, E)."""
        n_steps = self.scheme.n_steps
        return torch.cat(
            [self._rollout(stream.part(start, start + n_steps)) for start in range(0, len(stream.rewards), n_steps)]
        )

    def labels(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """Return the labels of one rollout and the values that the critic gives it now, (T, E) both."""
        with torch.no_grad():
            values = self.critic(stream.observations).squeeze(-1)
            following = self.critic(stream.next_observations).squeeze(-1)
        found = gae_targets(
            stream.rewards,
            values,
            following,
            stream.terminated,
            stream.truncated,
            gamma=self.scheme.gamma,
            gae_lambda=self.scheme.gae_lambda,
        )
        return found, values

    def _rollout(self, rollout: Stream) -> Tensor:
        labels, values = self.labels(rollout)
        observations, flat, begun = rollout.observations.flatten(0, 1), labels.flatten(), time.perf_counter()
        for _ in range(self.scheme.passes):
            order = torch.from_numpy(self._rng.permutation(len(flat)))
            for batch in order.split(self.scheme.batch_size or len(flat)):
                self.optimizer.step(observations[batch], flat[batch])
        self.seconds += time.perf_counter() - begun
        return values


@dataclass(frozen=True)
class ReplayBuffer:
    """Off-policy: one-step labels of a target network, batches drawn from all frames so far (Table 1, Q).

    Discrete actions have one output each and the label takes the best of the next; continuous ones are an input, and
    the label takes the action that the agent took next.

    Attributes:
        every: Frames between two rounds of updates.
        updates: Of a round.
        batch_size: N.
        tau: Share by which the target network follows after every update.
        learning_starts: Frames before the first update.
        gamma: γ.
        hidden: Layers of the critic.
        seed: Of the critic and of the draws.
    """

    every: int
    updates: int
    batch_size: int
    tau: float
    learning_starts: int = 1000
    gamma: float = 0.99
    hidden: tuple[int, ...] = (64, 64)
    seed: int = 0

    def replay(self, stream: Stream, make: MakeOptimizer) -> Replayed:
        """Let a critic learn from the stream."""
        size = stream.observations.shape[2]
        discrete, taken = stream.choices > 0, stream.actions.shape[2]
        value = chosen_value if discrete else joint_value
        inputs, outputs = (size, stream.choices) if discrete else (size + taken, 1)
        critic = action_network(inputs, outputs, self.hidden, self.seed)
        target, optimizer = copy.deepcopy(critic), make(critic, value)
        rng = np.random.default_rng(self.seed)
        frames = _Frames(stream)
        predicted, spent = [], 0.0
        for start in range(0, len(frames), self.every):
            piece = slice(start, start + self.every)
            with torch.no_grad():
                predicted.append(value(critic, (frames.observations[piece], frames.actions[piece])).squeeze(1))
            if start + self.every < self.learning_starts:
                continue
            begun = time.perf_counter()
            seen = min(start + self.every, len(frames) - 1)
            for _ in range(self.updates):
                batch = torch.from_numpy(rng.integers(seen, size=self.batch_size))
                batch = batch[frames.usable[batch]] if not discrete else batch
                with torch.no_grad():
                    after = frames.next_observations[batch]
                    following = target(after) if discrete else value(target, (after, frames.actions[batch + 1]))
                    labels = q_targets(
                        frames.rewards[batch],
                        following if discrete else following.squeeze(1),
                        frames.terminated[batch],
                        torch.zeros_like(frames.terminated[batch]),
                        gamma=self.gamma,
                    )
                optimizer.step((frames.observations[batch], frames.actions[batch]), labels)
                with torch.no_grad():
                    for behind, ahead in zip(target.parameters(), critic.parameters(), strict=True):
                        behind.lerp_(ahead, self.tau)
            spent += time.perf_counter() - begun
        return Replayed(explained(stream, torch.cat(predicted)[:, None], self.gamma), spent)


class _Frames:
    """The frames of one environment as a replay buffer holds them."""

    def __init__(self, stream: Stream) -> None:
        self.observations, self.next_observations = stream.observations[:, 0], stream.next_observations[:, 0]
        self.actions, self.terminated = stream.actions[:, 0], stream.terminated[:, 0]
        self.rewards = stream.rewards[:, 0]
        #: Where the next action is known: a time limit is followed by another episode.
        self.usable = ~stream.truncated[:, 0]

    def __len__(self) -> int:
        return len(self.rewards)


def explained(stream: Stream, predicted: Tensor, gamma: float) -> tuple[float, ...]:
    """Return the explained variance of the returns by (T, E) predictions, window by window."""
    returns, known = stream.returns(gamma)
    found = []
    for values, truth, where in zip(
        predicted.tensor_split(WINDOWS), returns.tensor_split(WINDOWS), known.tensor_split(WINDOWS), strict=True
    ):
        if int(where.sum()) > 1:
            error, spread = (truth - values)[where].double().var(), truth[where].double().var()
            found.append(float(1.0 - error / spread) if float(spread) > 0.0 else 0.0)
    return tuple(found)
