"""Which values a setting takes. Upstream does not check: it would train with a discount of 7."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from kova.evolution import Evolution
from kova.experiments.runs.expressions import NAMES, resolve
from kova.noise import Noise
from kova.prior import Prior
from kova.trust import Trust
from kova.units import Units


class Check(NamedTuple):
    """What a value must be, in words and as a test."""

    wanted: str
    holds: Callable[[Any], bool]

    def or_none(self) -> Check:
        """Also take ``null``."""
        return Check(f"{self.wanted}, or null", lambda value: value is None or self.holds(value))

    def or_linear(self) -> Check:
        """Also take a schedule that begins inside."""
        return Check(f"{self.wanted}, or linear(…) from one", self._begins_inside)

    def _begins_inside(self, value: Any) -> bool:
        if not isinstance(value, LinearSchedule):
            return self.holds(value)
        return self.holds(value.start) and _is_number(value.end) and value.end >= 0


def integer(low: int, *others: int) -> Check:
    """Return the check of an integer >= ``low``, or one of the others."""
    words = "".join(f", or {other}" for other in others)
    return Check(f"an integer >= {low}{words}", lambda value: _is_integer(value) and (value >= low or value in others))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and all(_is_integer(width) and width >= 1 for width in value)


def _is_net_arch(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and set(value) <= {"pi", "vf", "qf"} and all(_is_layers(part) for part in value.values())
    return _is_layers(value)


def _is_train_freq(value: Any) -> bool:
    if isinstance(value, list) and len(value) == 2 and value[1] in ("step", "episode"):
        value = value[0]
    return _is_integer(value) and value >= 1


def _is_entropy_weight(value: Any) -> bool:
    if not isinstance(value, str):
        return _is_number(value) and value >= 0
    learned = re.fullmatch(r"auto(?:_(\d*\.?\d+))?", value)
    return learned is not None and (learned[1] is None or float(learned[1]) > 0)


#: What no setting reaches; numpy and torch do not take much more.
LARGEST = 2**53

NUMBER = Check("a number", _is_number)
POSITIVE = Check("a number > 0", lambda value: _is_number(value) and value > 0)
NOT_NEGATIVE = Check("a number >= 0", lambda value: _is_number(value) and value >= 0)
FRACTION = Check("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
STEP = Check("a number > 0 and <= 1", lambda value: _is_number(value) and 0 < value <= 1)
COUNT = integer(1)
FLAG = Check("true or false", lambda value: isinstance(value, bool))
TEXT = Check("a name", lambda value: isinstance(value, str))
MAPPING = Check("a mapping, as in {eps: 1.0e-5}", lambda value: isinstance(value, dict))

CHECKS: Mapping[str, Check] = {
    "algorithm.action_noise": Check("the noise's standard deviation, a number >= 0", NOT_NEGATIVE.holds).or_none(),
    "algorithm.batch_size": COUNT,
    "algorithm.buffer_size": COUNT,
    "algorithm.cg_damping": NOT_NEGATIVE,
    "algorithm.cg_max_steps": COUNT,
    "algorithm.clip_range": POSITIVE.or_linear(),
    "algorithm.clip_range_vf": POSITIVE.or_linear().or_none(),
    "algorithm.device": TEXT,
    "algorithm.ent_coef": NUMBER,
    "algorithm.exploration_final_eps": FRACTION,
    "algorithm.exploration_fraction": STEP,
    "algorithm.exploration_initial_eps": FRACTION,
    "algorithm.gae_lambda": FRACTION,
    "algorithm.gamma": FRACTION,
    "algorithm.gradient_steps": integer(1, -1),
    "algorithm.learning_rate": POSITIVE.or_linear(),
    "algorithm.learning_starts": integer(0),
    "algorithm.line_search_max_iter": COUNT,
    "algorithm.line_search_shrinking_factor": STEP,
    "algorithm.max_grad_norm": POSITIVE,
    "algorithm.n_critic_updates": COUNT,
    "algorithm.n_epochs": COUNT,
    "algorithm.n_steps": COUNT,
    "algorithm.normalize_advantage": FLAG,
    "algorithm.policy_delay": COUNT,
    "algorithm.rms_prop_eps": POSITIVE,
    "algorithm.sde_sample_freq": integer(1, -1),
    "algorithm.stats_window_size": COUNT,
    "algorithm.sub_sampling_factor": COUNT,
    "algorithm.target_entropy": Check("a number, or auto", lambda value: value == "auto" or _is_number(value)),
    "algorithm.target_kl": POSITIVE.or_none(),
    "algorithm.target_noise_clip": NOT_NEGATIVE,
    "algorithm.target_policy_noise": NOT_NEGATIVE,
    "algorithm.target_update_interval": COUNT,
    "algorithm.tau": FRACTION,
    "algorithm.train_freq": Check("an integer >= 1, or [1, episode]", _is_train_freq),
    "algorithm.use_rms_prop": FLAG,
    "algorithm.use_sde": FLAG,
    "algorithm.use_sde_at_warmup": FLAG,
    "algorithm.vf_coef": NOT_NEGATIVE,
    "critic.batch_size": COUNT.or_none(),
    "critic.covariance": TEXT,
    "critic.epochs": integer(0).or_none(),
    "critic.evolution": Check(
        "a model of P_v, as in FadingMemory(0.01) or PriorRelaxation(0.02)", lambda value: isinstance(value, Evolution)
    ),
    "critic.learning_rate": POSITIVE,
    "critic.noise": Check(
        "a model of P_n, as in BatchSize(), MaxRatio() or ConstantNoise(1.0)", lambda value: isinstance(value, Noise)
    ),
    "critic.prior": Check("a prior, as in FanIn() or Isotropic(1.0)", lambda value: isinstance(value, Prior)),
    "critic.replicas": integer(0),
    "critic.step_size": STEP,
    "critic.trust": Check("how steps are checked, GainRatio() or Unchecked()", lambda value: isinstance(value, Trust)),
    "critic.units": Check("units of the labels, LabelUnits() or RawUnits()", lambda value: isinstance(value, Units)),
    "policy.activation_fn": Check(
        f"one of {', '.join(name for name, value in NAMES.items() if isinstance(value, type))}",
        lambda value: isinstance(value, type) and issubclass(value, nn.Module),
    ),
    "policy.clip_mean": NOT_NEGATIVE,
    "policy.features_extractor_kwargs": MAPPING.or_none(),
    "policy.full_std": FLAG,
    "policy.log_std_init": NUMBER,
    "policy.n_critics": integer(1),
    "policy.net_arch": Check("widths, as in [64, 64] or {pi: [64, 64], vf: [64, 64]}", _is_net_arch).or_none(),
    "policy.normalize_images": FLAG,
    "policy.optimizer_kwargs": MAPPING.or_none(),
    "policy.ortho_init": FLAG,
    "policy.share_features_extractor": FLAG,
    "policy.squash_output": FLAG,
    "policy.use_expln": FLAG,
    "policy.use_sde": FLAG,
}


#: Settings that an algorithm takes otherwise.
OWN_CHECKS: Mapping[str, Mapping[str, Check]] = {
    "sac": {"algorithm.ent_coef": Check("a number >= 0, auto, or auto_0.1 to begin with", _is_entropy_weight)},
}


def check(key: str, value: Any, algo: str) -> None:
    """Refuse what a setting does not take; a setting without an entry is checked where it is used.

    Args:
        key: The setting.
        value: As it was written.
        algo: Of the run.

    Raises:
        ValueError: The value cannot be read, or is not one that the setting takes.
    """
    try:
        meant = resolve(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if _is_integer(meant) and abs(meant) > LARGEST:
        raise ValueError(f"{key} must be at most {LARGEST}, got {value!r}")
    wanted = OWN_CHECKS.get(algo, CHECKS).get(key, CHECKS.get(key))
    if wanted is not None and not wanted.holds(meant):
        raise ValueError(f"{key} must be {wanted.wanted}, got {value!r}")
