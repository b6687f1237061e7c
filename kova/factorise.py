"""Cholesky factors of matrices that rounding may have made indefinite."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kova.errors import NumericalError
from kova.observation_noise import ObservationNoise
from kova.prediction import Prediction

#: P resolves variances down to about this many rounding errors.
RESOLUTION = 16.0
#: S = J P Jᵀ + P_n has no pivot below P_n's unless P is indefinite; up to this share it is a rounding error of S.
PIVOT_TOLERANCE = 0.01
#: Further inflations that are tried: the resolution times these powers of 4, up to about P itself.
TRIES = 10


class InnovationFactor(NamedTuple):
    """S = J P Jᵀ + P_n in factors.

    Attributes:
        P: The prediction, inflated if it had to be.
        gram: J P Jᵀ.
        L: The lower Cholesky factor of S, in the precision that succeeded.
        inflation: What was added to every variance; usually 0.
    """

    P: Prediction
    gram: Tensor
    L: Tensor
    inflation: float


def factorise_innovation(P: Prediction, gram: Tensor, P_n: ObservationNoise) -> InnovationFactor:
    """Factorise S, after the least inflation of P without which rounding would decide the step.

    P is stored with rounding errors of eps times the largest number in it. A batch with large derivatives and little
    noise (inputs in the thousands, labels that are met exactly) would make it smaller than that along some directions:
    then P has negative eigenvalues, steps along them go the wrong way, and at last S cannot be factorised. With
    ε = 16 eps |P| such a batch is taken with P + ε·I and with the noise that goes with it, ε tr(J Jᵀ): P then stays
    about ε or above, after this step and any number of later ones. Where the noise is larger already, nothing changes.

    Args:
        P: P_{t|t-1}.
        gram: J P Jᵀ in P's precision.
        P_n: The observation noise.

    Raises:
        NumericalError: S is not finite, or nothing helped.
    """
    pivots = P_n.pivots()
    resolution = RESOLUTION * torch.finfo(gram.dtype).eps * P.magnitude()
    excitation = float(P.squared_norms().sum())
    if resolution * excitation <= float(torch.as_tensor(pivots).min()):
        L = _sound_factor(P_n.added_to(gram), pivots)
        if L is not None:
            return InnovationFactor(P, gram, L, 0.0)
    if not bool(torch.isfinite(gram).all()):
        raise NumericalError("S = J P Jᵀ + P_n is not finite; nothing was changed")
    for power in range(TRIES):
        inflation = resolution * 4.0**power
        inflated = P.shifted(inflation)
        wide = inflated.gram(torch.float64)
        S = P_n.added_to(wide)
        S.diagonal().add_(inflation * excitation)
        L = _sound_factor(S, pivots)
        if L is not None:
            return InnovationFactor(inflated, wide, L, inflation)
    raise NumericalError("S = J P Jᵀ + P_n cannot be factorised, however P is inflated; nothing was changed")


def _sound_factor(S: Tensor, pivots: Tensor | float) -> Tensor | None:
    """Return the Cholesky factor of S if it has one and none of its pivots is below the noise's."""
    factor: Tensor
    factor, status = torch.linalg.cholesky_ex(S)
    sound = factor.diagonal().square() >= (1.0 - PIVOT_TOLERANCE) * pivots
    return factor if int(status) == 0 and bool(sound.all()) else None


def cholesky_with_jitter(what: str, matrix: Tensor, jitter: float, tries: int = 6) -> Tensor:
    """Factorise positive semi-definite matrices with the least of jitter · {1, 10, 100, …} on the diagonal that works.

    Raises:
        NumericalError: None does.
    """
    for power in range(tries):
        regular = matrix.clone()
        regular.diagonal(dim1=-2, dim2=-1).add_(jitter * 10.0**power)
        factor: Tensor
        factor, status = torch.linalg.cholesky_ex(regular)
        if not bool(status.any()):
            return factor
    boosted = jitter * 10.0 ** (tries - 1)
    raise NumericalError(f"{what} is not positive semi-definite, even with {boosted:g} on its diagonal")
