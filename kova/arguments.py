"""The arguments of :class:`kova.KOVA`, checked before anything is made."""

from __future__ import annotations

import torch
from torch import nn

from kova import _checks
from kova.evolution import Evolution
from kova.noise import Noise
from kova.prior import Prior
from kova.trust import Trust
from kova.units import Units


def check_kinds(critic: object, observation_fn: object, evolution: object, noise: object, dtype: object) -> None:
    """Raise ``TypeError`` or ``ValueError`` for an argument of the wrong kind."""
    if not isinstance(critic, nn.Module):
        raise TypeError(f"critic must be a torch.nn.Module, got {type(critic).__name__}")
    if observation_fn is not None and not callable(observation_fn):
        raise TypeError(f"observation_fn must be a callable (module, inputs) -> (N,), got {observation_fn!r}")
    if not isinstance(evolution, Evolution):
        raise TypeError(f"evolution must be a kova.Evolution such as kova.FadingMemory(0.01), got {evolution!r}")
    if not isinstance(noise, Noise):
        raise TypeError(f"noise must be a kova.Noise such as kova.BatchSize(), got {noise!r}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype of the covariance must be torch.float32 or torch.float64, got {dtype}")


def check_trust(trust: object) -> None:
    """Raise ``TypeError`` unless it is a way to check steps."""
    if not isinstance(trust, Trust):
        raise TypeError(f"trust must be a kova.Trust such as kova.GainRatio() or kova.Unchecked(), got {trust!r}")


def check_prior(prior: object, prior_variance: object, units: object) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless these say once what P starts as."""
    if prior is not None and not isinstance(prior, Prior):
        raise TypeError(f"prior must be a kova.Prior such as kova.FanIn(), got {prior!r}")
    if prior is not None and prior_variance is not None:
        raise ValueError("prior and prior_variance both say what P starts as; give one of them")
    if not isinstance(units, Units):
        raise TypeError(f"units must be a kova.Units such as kova.LabelUnits() or kova.RawUnits(), got {units!r}")


def check_step_size(value: object) -> float:
    """Return α.

    Raises:
        ValueError: It is not in (0, 1].
    """
    alpha = _checks.number("step_size", value)
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"step_size must be in (0, 1], got {value!r}")
    return alpha
