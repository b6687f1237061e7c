"""Random MDPs without structure (Archibald et al., 1995), under a random policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kova.experiments.problems.finite import Array, Chain, FiniteProblem, stationary_distribution


class Decisions(NamedTuple):
    """π(a|s), (n, a); P(s'|s, a), (n, a, n); r(s, a), (n, a)."""

    policy: Array
    transitions: Array
    rewards: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Garnet(FiniteProblem):
    """A chain averaged over a random policy: P(s'|s) = Σ_a π(a|s) P(s'|s, a), r(s) = Σ_a π(a|s) r(s, a).

    Each (s, a) leads to ``branching`` random states with chances cut uniformly from [0, 1], and has r(s, a) ~ N(0, 1);
    π(·|s) is cut likewise. Episodes start from the stationary distribution, which also weighs the states.

    Args:
        states: n.
        actions: Per state.
        branching: Successors of an action, at most n.
        seed: Of everything random.
        random_features: d standard-normal features (V is then outside their span), or ``None`` for one-hot ones.

    Raises:
        ValueError: ``branching`` is not in [1, n], or the chain falls into separate classes.
    """

    gamma: float = 0.95
    length: int = 200
    states: int = 30
    actions: int = 4
    branching: int = 3
    seed: int = 0
    random_features: int | None = None

    def __post_init__(self) -> None:
        """Check the branching."""
        if not 1 <= self.branching <= self.states:
            raise ValueError(f"branching must be in [1, {self.states}], got {self.branching}")

    @cached_property
    def decisions(self) -> Decisions:
        """The MDP and the policy."""
        rng = np.random.default_rng([self.seed, 0])
        transitions = np.zeros((self.states, self.actions, self.states))
        for state, action in np.ndindex(self.states, self.actions):
            successors = rng.choice(self.states, self.branching, replace=False)
            transitions[state, action, successors] = _cut(self.branching, rng)
        policy = np.stack([_cut(self.actions, rng) for _ in range(self.states)])
        return Decisions(policy, transitions, rng.normal(size=(self.states, self.actions)))

    @cached_property
    def chain(self) -> Chain:
        """The averaged chain."""
        policy, transitions, rewards = self.decisions
        n = self.states
        averaged = np.pad(np.einsum("sa,sat->st", policy, transitions), ((0, 0), (0, 1)))
        rewarded = np.repeat((policy * rewards).sum(1, keepdims=True), n + 1, axis=1)
        rng = np.random.default_rng([self.seed, 1])
        features = np.eye(n) if self.random_features is None else rng.normal(size=(n, self.random_features))
        stationary = stationary_distribution(averaged)
        return Chain(averaged, rewarded, stationary, features, stationary)


def _cut(parts: int, rng: np.random.Generator) -> Array:
    """Return the lengths of ``parts`` pieces of [0, 1], cut at uniform points."""
    return np.diff(np.sort(rng.random(parts - 1)), prepend=0.0, append=1.0)
