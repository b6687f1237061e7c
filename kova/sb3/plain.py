"""Back to plain Stable-Baselines3: the same agent without a filter."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from torch import Tensor
from torch.optim import Optimizer

from kova.sb3 import upstream


def plain_copy(model: BaseAlgorithm, policy_kwargs: dict[str, Any], moved_by_filters: Collection[int]) -> BaseAlgorithm:
    """Return the model of upstream's class with the weights, settings and counters of one of ours.

    Args:
        model: The model.
        policy_kwargs: With which upstream's class builds the same networks.
        moved_by_filters: Ids of the parameters that the policy's optimizers did not move.
    """
    kind = upstream.plain_class(type(model))
    devices = [model.device] if model.device.type == "cuda" else []
    # New networks are drawn at random before they get their weights; whoever trains on must not notice.
    with torch.random.fork_rng(devices):
        plain = upstream.built_like(kind, model, policy_kwargs)
    pairs = _load_weights(plain, model)
    for own, theirs in _optimizers(model, plain):
        _load_optimizer(theirs, own, pairs, without=moved_by_filters)
    return plain


def _load_weights(plain: BaseAlgorithm, model: BaseAlgorithm) -> dict[int, Tensor]:
    """Give a plain model our weights, and return {id of ours: theirs}."""
    plain.policy.load_state_dict(model.policy.state_dict())
    pairs: dict[int, Tensor] = {}
    for own, theirs in zip(model.policy.parameters(), plain.policy.parameters(), strict=True):
        theirs.requires_grad_(own.requires_grad)
        pairs[id(own)] = theirs
    for name in upstream.variables(plain):
        variable, value = recursive_getattr(plain, name), recursive_getattr(model, name)
        variable.data.copy_(value.data)
        pairs[id(value)] = variable
    return pairs


def _optimizers(model: BaseAlgorithm, plain: BaseAlgorithm) -> Iterator[tuple[Optimizer, Optimizer]]:
    for name in upstream.entries(plain) - {"policy"}:
        own, theirs = recursive_getattr(model, name), recursive_getattr(plain, name)
        yield own, theirs


def _load_optimizer(theirs: Optimizer, own: Optimizer, pairs: dict[int, Tensor], without: Collection[int]) -> None:
    """Hand over momenta and the like, but for parameters that a filter moved: what is remembered of those is old."""
    for parameter, state in own.state.items():
        if id(parameter) not in without:
            theirs.state[pairs[id(parameter)]] = copy.deepcopy(state)
    for new, old in zip(theirs.param_groups, own.param_groups, strict=True):
        new.update({key: copy.deepcopy(value) for key, value in old.items() if key != "params"})
