"""Target labels y(u) of Table 1, on (T,) or (T, envs) tensors.

Everywhere ``next_values[t]`` is the value of the state that step t led to: the true successor, also where the episode
ended (not the first state after a reset). ``terminated`` means the task ended there, so its value is 0; ``truncated``
that a time limit cut it, so its value still counts. Either way no label uses rewards from beyond the boundary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kova import _checks


def n_step_targets(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    n: int | None = None,
) -> Tensor:
    """Return k-step labels (A2C, A3C): Σ_{i<k} γⁱ r_{t+i} + γᵏ V(s_{t+k}; θ').

    k is ``n``, or less where the episode or the rollout ends earlier.

    Args:
        rewards: r, (T,) or (T, envs).
        next_values: V(s_{t+1}; θ'), like rewards.
        terminated: Whether the task ended with step t, boolean.
        truncated: Whether a limit cut the episode after step t, boolean.
        gamma: γ in [0, 1].
        n: k; by default as far as the rollout goes.

    Raises:
        ValueError: Shapes, dtypes or ranges do not fit.
    """
    _fraction("gamma", gamma)
    ends, bootstrap = _prepare(rewards, next_values, terminated, truncated)
    one_step = rewards + gamma * bootstrap
    if n is None or _checks.count("n", n) >= len(rewards):
        return _accumulate(rewards, one_step, ends, gamma)
    labels = one_step
    for _ in range(n - 1):
        # Each pass looks one step further, except over a boundary.
        further = torch.where(ends[:-1], one_step[:-1], rewards[:-1] + gamma * labels[1:])
        labels = torch.cat([further, one_step[-1:]])
    return labels


def gae_targets(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return GAE labels (PPO, TRPO): V(s_t; θ') + Σ_i (γλ)ⁱ (r_{t+i} + γ V(s_{t+i+1}; θ') - V(s_{t+i}; θ')).

    Args:
        rewards: r, (T,) or (T, envs).
        values: V(s_t; θ'), like rewards.
        next_values: V(s_{t+1}; θ'), like rewards.
        terminated: Whether the task ended with step t, boolean.
        truncated: Whether a limit cut the episode after step t, boolean.
        gamma: γ in [0, 1].
        gae_lambda: λ in [0, 1].

    Raises:
        ValueError: Shapes, dtypes or ranges do not fit.
    """
    _fraction("gamma", gamma)
    ends, bootstrap = _prepare(rewards, next_values, terminated, truncated)
    _same_shape("values", values, rewards)
    _checks.finite("values", values)
    decay = gamma * _fraction("gae_lambda", gae_lambda)
    errors = rewards + gamma * bootstrap - values
    return values + _accumulate(errors, errors, ends, decay)


def replica_targets(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    replica_values: Tensor,
    replica_next_values: Tensor,
    noise: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return GAE labels for every replica of a critic, for :meth:`kova.KOVA.step`'s ``replica_targets``.

    With the TD error ε_t = r_t + γ V(s_{t+1}) - V(s_t), which is how one step scatters, replica b lives in a world with
    the rewards r_t + ξ_bt ε_t, ξ ~ N(0, 1), and labels with its own values V_b. Labels of one trajectory then differ
    between replicas as they differ between worlds: overlapping ones together, and those that bootstrap by what the
    replica does not know.

    Args:
        rewards: r, (T,) or (T, envs).
        values: V(s_t; θ'), like rewards.
        next_values: V(s_{t+1}; θ'), like rewards.
        replica_values: V_b(s_t), like rewards and then m: :meth:`kova.KOVA.replica_values`.
        replica_next_values: V_b(s_{t+1}), likewise.
        noise: ξ, likewise: :meth:`kova.KOVA.replica_noise`.
        terminated: Whether the task ended with step t, boolean.
        truncated: Whether a limit cut the episode after step t, boolean.
        gamma: γ in [0, 1].
        gae_lambda: λ in [0, 1]; with 1 and episodes that terminate the labels are returns.

    Returns:
        Labels like ``replica_values``.

    Raises:
        ValueError: Shapes, dtypes or ranges do not fit.
    """
    _, bootstrap = _prepare(rewards, next_values, terminated, truncated)
    _same_shape("values", values, rewards)
    errors = rewards + _fraction("gamma", gamma) * bootstrap - values
    given = {"replica_values": replica_values, "replica_next_values": replica_next_values, "noise": noise}
    for name, value in given.items():
        _checks.tensor(name, value)
        if value.dim() != rewards.dim() + 1 or value.shape[:-1] != rewards.shape or value.shape != noise.shape:
            expected = ", ".join(map(str, rewards.shape))
            raise ValueError(f"{name} must be ({expected}, m), the same m for all, got {tuple(value.shape)}")
    worlds = rewards[..., None] + noise.to(rewards) * errors[..., None]
    flags = (flag[..., None].expand_as(worlds).flatten(1) for flag in (terminated, truncated))
    own = (value.to(rewards).flatten(1) for value in (replica_values, replica_next_values))
    return gae_targets(worlds.flatten(1), *own, *flags, gamma=gamma, gae_lambda=gae_lambda).view_as(worlds)


def q_targets(
    rewards: Tensor, next_q: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float | Tensor
) -> Tensor:
    """Return 1-step action-value labels: r + γ Q(s', π(s'); θ') (DDPG) or r + γ max_a' Q(s', a'; θ') (DQN).

    Args:
        rewards: r, (T,) or (T, envs).
        next_q: Q(s', π(s'); θ'), like rewards; or, with one dimension more, Q(s', ·; θ') for all actions.
        terminated: Whether the task ended with step t, boolean.
        truncated: Whether a limit cut the episode after step t, boolean; one step ahead it changes nothing.
        gamma: γ in [0, 1]; or one per label, like rewards: γᵏ where ``rewards`` are sums over k steps.

    Raises:
        ValueError: Shapes, dtypes or ranges do not fit.
    """
    _checks.tensor("next_q", next_q)
    best = next_q.amax(-1) if next_q.dim() == _checks.tensor("rewards", rewards).dim() + 1 else next_q
    _, bootstrap = _prepare(rewards, best, terminated, truncated, name="next_q")
    return rewards + _discount(gamma, rewards) * bootstrap


def _accumulate(terms: Tensor, last: Tensor, ends: Tensor, decay: float) -> Tensor:
    """Return x with x_t = terms_t + decay · x_{t+1}, and x_t = last_t where an episode or the rollout ends."""
    result = last.clone()
    for step in reversed(range(len(terms) - 1)):
        result[step] = torch.where(ends[step], last[step], terms[step] + decay * result[step + 1])
    return result


def _prepare(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    name: str = "next_values",
) -> tuple[Tensor, Tensor]:
    """Check the arguments; return where an episode ended, and the value to bootstrap from."""
    _checks.tensor("rewards", rewards)
    if rewards.dim() not in (1, 2) or rewards.numel() == 0:
        raise ValueError(f"rewards must be (T,) or (T, envs) and not empty, got {tuple(rewards.shape)}")
    _same_shape(name, next_values, rewards)
    for flag_name, flag in (("terminated", terminated), ("truncated", truncated)):
        _same_shape(flag_name, flag, rewards)
        if flag.dtype != torch.bool:
            raise ValueError(f"{flag_name} must be boolean, got {flag.dtype}")
    _checks.finite("rewards", rewards)
    # A critic's value of a terminal state means nothing and may be anything, even NaN.
    bootstrap = torch.where(terminated, torch.zeros_like(next_values), next_values)
    return terminated | truncated, _checks.finite(name, bootstrap)


def _same_shape(name: str, value: Tensor, rewards: Tensor) -> None:
    _checks.tensor(name, value)
    if value.shape != rewards.shape:
        raise ValueError(f"{name} must have the shape of rewards, {tuple(rewards.shape)}, got {tuple(value.shape)}")


def _discount(gamma: float | Tensor, rewards: Tensor) -> float | Tensor:
    """Check one γ for all labels, or one for each."""
    if not isinstance(gamma, Tensor) or not gamma.dim():
        return _fraction("gamma", gamma)
    _same_shape("gamma", gamma, rewards)
    outside = int((~((gamma >= 0.0) & (gamma <= 1.0))).sum())
    if outside:
        raise ValueError(f"gamma must be in [0, 1], {outside} of {gamma.numel()} entries are not")
    return gamma


def _fraction(name: str, value: object) -> float:
    result = _checks.number(name, value)
    if not 0.0 <= result <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")
    return result
