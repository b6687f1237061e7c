"""What is searched: numbers of the filter's models, and settings of the algorithm, in ranges that make sense for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from kova.experiments.errors import UsageError
from kova.experiments.runs.config import RunConfig, settable, upstream_of
from kova.experiments.runs.expressions import resolve
from kova.experiments.tuning.ranges import Dimension, Doublings, Field, FromOne, Range, Rate, Real, Whole

#: Of a run's frames, the largest share that one rollout may have: a policy that is updated less often does not learn.
LARGEST_ROLLOUT = 0.1

DISCOUNT = FromOne(0.001, 0.1)
ENTROPY = Real(0.0, 0.02)
LAMBDA = Real(0.8, 1.0)

#: What is searched of an algorithm without an entry of its own; only what it has counts.
COMMON: Mapping[str, Range] = {
    "learning_rate": Rate(3e-5, 3e-3),
    "batch_size": Doublings(1, 2),
    "gamma": DISCOUNT,
    "gae_lambda": LAMBDA,
    "tau": Real(0.001, 0.05, log=True),
}

#: {algorithm: {argument of upstream's constructor: range}}
ALGORITHM: Mapping[str, Mapping[str, Range]] = {
    "a2c": {
        "learning_rate": Rate(1e-4, 5e-3),
        "n_steps": Doublings(0, 4),
        "gamma": DISCOUNT,
        "gae_lambda": LAMBDA,
        "ent_coef": ENTROPY,
        "max_grad_norm": Real(0.1, 5.0, log=True),
    },
    "ppo": {
        "learning_rate": Rate(3e-5, 3e-3),
        "n_steps": Doublings(3, 1),
        "batch_size": Doublings(1, 2),
        "n_epochs": Whole(3, 20),
        "gamma": DISCOUNT,
        "gae_lambda": LAMBDA,
        "clip_range": Rate(0.1, 0.4),
        "ent_coef": ENTROPY,
    },
    "trpo": {
        "n_steps": Doublings(3, 1),
        "gamma": DISCOUNT,
        "gae_lambda": LAMBDA,
        "target_kl": Real(0.001, 0.1, log=True),
        "cg_damping": Real(0.01, 1.0, log=True),
    },
    "ddpg": {
        "learning_rate": Rate(1e-4, 3e-3),
        "batch_size": Doublings(2, 1),
        "gamma": DISCOUNT,
        "tau": Real(0.001, 0.05, log=True),
        "action_noise": Real(0.02, 0.5, log=True),
    },
    "dqn": {
        "batch_size": Doublings(1, 3),
        "gamma": DISCOUNT,
        "train_freq": Whole(1, 16),
        "target_update_interval": Whole(100, 10_000),
        "exploration_fraction": Real(0.05, 0.5),
        "exploration_final_eps": Real(0.01, 0.2),
    },
}

#: Likewise, what only upstream's own critic feels: the rival is searched with the same care.
UPSTREAM: Mapping[str, Mapping[str, Range]] = {
    "a2c": {"vf_coef": Real(0.1, 1.0, log=True)},
    "ppo": {"vf_coef": Real(0.1, 1.0, log=True)},
    "trpo": {"learning_rate": Rate(1e-4, 1e-2), "n_critic_updates": Whole(1, 20)},
    "dqn": {"learning_rate": Rate(3e-5, 3e-3)},
}

#: {setting of the filter: {kind of model: range}}
MODELS: Mapping[str, Mapping[str, Range]] = {
    "evolution": {
        "PriorRelaxation": Field("eta", 1e-5, 0.1),
        "FadingMemory": Field("eta", 1e-4, 0.2),
        "DirectionalForgetting": Field("eta", 1e-4, 0.2),
        "Memoryless": Field("eta", 1e-3, 0.9),
        "RandomWalk": Field("variance", 1e-8, 1e-2),
        "EvidenceForgetting": Field("switching", 1e-4, 0.1),
    },
    "noise": {
        "ConstantNoise": Field("variance", 0.005, 5.0),
        "BatchSize": Field("scale", 0.01, 10.0),
        "MaxRatio": Field("scale", 0.01, 10.0),
        "InnovationNoise": Field("initial", 0.01, 10.0),
        "InverseVariance": Field("variance", 0.01, 10.0),
        "Robust": Field("c", 0.5, 10.0),
    },
    "prior": {"FanIn": Field("variance", 0.03, 30.0), "Isotropic": Field("variance", 0.03, 30.0)},
}

#: Of the control arm; passes over a rollout where there are rollouts.
ADAM: Mapping[str, Range] = {"learning_rate": Rate(1e-5, 1e-2), "epochs": Whole(1, 20)}


def dimensions(base: RunConfig, model: BaseAlgorithm, held: Collection[str] = ()) -> list[Dimension]:
    """Return what is searched.

    Args:
        base: Where the search begins.
        model: Built from it; it knows what was left to defaults.
        held: Settings that stay.

    Raises:
        UsageError: Nothing is left to search.
    """
    found = [
        *_arguments(base, ALGORITHM.get(base.algo, COMMON)),
        *CRITICS[base.critic["optimizer"]](base, model),
    ]
    left = [one for one in found if one.key not in held]
    if not left:
        raise UsageError(f"every setting that kova tune searches for {base.algo} is held by --set; leave one out")
    return left


def _arguments(base: RunConfig, ranges: Mapping[str, Range]) -> list[Dimension]:
    """Return the dimensions of those arguments that upstream's constructor has and whose values are numbers."""
    known = settable(base.algo)
    present = {name: _argument(base, name) for name in ranges if f"algorithm.{name}" in known}
    return [
        _limited(ranges[name], name, base).around(f"algorithm.{name}", value)
        for name, value in present.items()
        # Not null, which switches it off, nor [1, episode].
        if isinstance(value, int | float | LinearSchedule)
    ]


def _limited(span: Range, name: str, base: RunConfig) -> Range:
    if name != "n_steps" or not isinstance(span, Doublings):
        return span
    return span.at_most(_argument(base, name), LARGEST_ROLLOUT * base.steps / base.n_envs)


def _argument(base: RunConfig, name: str) -> Any:
    """Return an argument of upstream's constructor, as the run gives it or as upstream does."""
    if name in base.algorithm:
        return resolve(base.algorithm[name])
    return inspect.signature(upstream_of(base.algo)).parameters[name].default


def _of_the_filter(base: RunConfig, model: BaseAlgorithm) -> list[Dimension]:
    optimizer = getattr(model, "critic_optimizer", None)
    present = {name: getattr(optimizer, name) for name in MODELS}
    return [
        MODELS[name][type(own).__name__].around(f"critic.{name}", own)
        for name, own in present.items()
        if type(own).__name__ in MODELS[name]
    ]


def _of_adam(base: RunConfig, model: BaseAlgorithm) -> list[Dimension]:
    rate = base.critic.get("learning_rate", _argument(base, "learning_rate"))
    present = {
        # A rate of the critic's own is no schedule.
        "learning_rate": rate.start if isinstance(rate, LinearSchedule) else rate,
        "epochs": getattr(model, "critic_passes", None),
    }
    return [span.around(f"critic.{name}", present[name]) for name, span in ADAM.items() if present[name] is not None]


def _of_upstream(base: RunConfig, model: BaseAlgorithm) -> list[Dimension]:
    return _arguments(base, UPSTREAM.get(base.algo, {}))


#: By the critic's optimizer.
CRITICS: Mapping[str, Callable[[RunConfig, BaseAlgorithm], list[Dimension]]] = {
    "kova": _of_the_filter,
    "adam": _of_adam,
    "upstream": _of_upstream,
}
