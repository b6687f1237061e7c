"""Covariance structures, one per file, and the choice between them by name."""

from __future__ import annotations

import torch

from kova import memory
from kova.covariance.base import Covariance
from kova.covariance.full import Full
from kova.covariance.spherical import Spherical, SphericalPrediction
from kova.errors import CovarianceTooLarge
from kova.evolution import Evolution

__all__ = ["Covariance", "Full", "Spherical", "build"]

#: What ``covariance=`` may name.
NAMES = ("auto", "full", "memoryless")


def build(
    structure: str | Covariance,
    evolution: Evolution,
    *,
    dim: int,
    prior_variance: float,
    dtype: torch.dtype,
    device: torch.device,
    budget: int | None,
) -> Covariance:
    """Return the covariance ``structure`` names, or check the one given.

    Args:
        structure: A name or an instance.
        evolution: Decides whether any matrix is needed.
        dim: Number of optimised parameters d.
        prior_variance: p₀.
        dtype: Precision.
        device: Where the critic is.
        budget: Bytes the covariance may take; ``None`` asks the machine.

    Raises:
        TypeError: ``structure`` is neither a name nor an instance.
        ValueError: Unknown name, an instance of another size, or one that does not go with ``evolution``.
        CovarianceTooLarge: The structure does not fit; nothing was allocated.
    """
    # Trying the model on the prior finds a bad bound or a wrong return type before anything is allocated.
    trial = evolution.predict(SphericalPrediction(prior_variance, prior_variance))
    if not isinstance(trial, SphericalPrediction):
        raise TypeError(f"evolution.predict must return the prediction it builds from P, got {type(trial).__name__}")
    if isinstance(structure, Covariance):
        return _check_instance(structure, evolution, dim, device)
    if not isinstance(structure, str):
        raise TypeError(f"covariance must be a name or a kova.covariance.Covariance, got {structure!r}")
    if structure not in NAMES:
        raise ValueError(f"covariance must be one of {', '.join(NAMES)}, got {structure!r}")
    if not evolution.keeps_memory:
        return Spherical(dim, prior_variance, trial.variance, dtype, device)
    if structure == "memoryless":
        raise ValueError(f'covariance="memoryless" goes with evolution=Memoryless(eta), not with {evolution!r}')
    wanted = Full.bytes_needed(dim, dtype)
    available = memory.available_bytes(device) if budget is None else budget
    if wanted > available:
        raise CovarianceTooLarge(
            f"the full covariance of {dim:,} parameters needs {memory.human(wanted)}, "
            f"{memory.human(available)} may be used; evolution=kova.Memoryless(eta) needs no matrix",
            wanted=wanted,
            available=available,
        )
    return Full(dim, prior_variance, dtype, device)


def _check_instance(structure: Covariance, evolution: Evolution, dim: int, device: torch.device) -> Covariance:
    if structure.dim != dim:
        raise ValueError(f"covariance is over {structure.dim} parameters, the critic has {dim}")
    if structure.device != device:
        raise ValueError(f"covariance is on {structure.device}, the critic on {device}")
    if evolution.keeps_memory == isinstance(structure, Spherical):
        raise ValueError(f"covariance {type(structure).__name__} does not go with evolution {evolution!r}")
    return structure
