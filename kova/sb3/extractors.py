"""The critic's own features extractor, where upstream's default is one for policy and value.

Upstream names an actor-critic policy's extractors ``features_extractor``, ``pi_features_extractor`` and
``vf_features_extractor``, all three in every state dict. A policy that shares one extractor puts them into the same
place, one after the other, and ends with the critic's: its actions would no longer be those that were saved. So a model
whose extractors were separated here and not by the user hands out its critic's extractor under a name of its own.
Upstream then loads the actor's features, or, where it is asked for an exact match, refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

UPSTREAMS = "vf_features_extractor."
OURS = "kova_features_extractor."


def under_own_name(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of a policy with the critic's extractor under a name that upstream does not know."""
    return {_renamed(name, UPSTREAMS, OURS): value for name, value in state.items()}


def accept_own_name(policy: ActorCriticPolicy) -> None:
    """Let a policy load state dicts with either name, also those of 0.1.0, which had upstream's."""
    policy.register_load_state_dict_pre_hook(_under_upstreams_name)  # type: ignore[no-untyped-call]


def _under_upstreams_name(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in [name for name in state if name.startswith(prefix + OURS)]:
        state[prefix + _renamed(name.removeprefix(prefix), OURS, UPSTREAMS)] = state.pop(name)


def _renamed(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else name
