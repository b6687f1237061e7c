"""Cholesky factors of matrices that rounding may have made indefinite."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kova.errors import NumericalError
from kova.observation_noise import ObservationNoise
from kova.prediction import Prediction

#: Variances below this many rounding errors of P's largest number cannot be told from rounding.
RESOLUTION = 16.0
#: How negative rounding errors may make J P Jᵀ, as a share of the noise that is added for them.
ROUNDING = 0.2
#: No pivot of S = J P Jᵀ + P_n is below P_n's unless P is indefinite; a shortfall of this share is rounding in S.
PIVOT_TOLERANCE = 0.01
#: Inflations that are tried: the resolution times powers of 4, far beyond P itself. A P that was saved when it was
#: indefinite has to be brought back too.
TRIES = 40


class InnovationFactor(NamedTuple):
    """S = J P Jᵀ + P_n, factorised.

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


class TooNarrow(Exception):
    """P's precision does not resolve what the batch makes of it, and the caller can go on in a wider one."""


def factorise_innovation(
    P: Prediction, gram: Tensor, P_n: ObservationNoise, may_widen: bool = False
) -> InnovationFactor:
    """Factorise S, and keep rounding errors from deciding the step.

    P has rounding errors of about eps times its largest number. A batch with large derivatives and little noise, such
    as one with inputs in the thousands, would make P smaller than these errors along some directions. P then has
    negative eigenvalues, steps along them go the wrong way, and in the end S cannot be factorised. Such a batch wants
    a wider precision. Where there is none, it is taken with P + ε·I in place of P, ε = 16 eps |P|, and with ε tr(J Jᵀ)
    more noise: P then stays at about ε or above. Where the noise is that large already, nothing changes. A P that is
    one number has no rounding errors: for it, J P Jᵀ in float64 is enough.

    Args:
        P: P_{t|t-1}.
        gram: J P Jᵀ in P's precision.
        P_n: The observation noise.
        may_widen: Whether the caller can go on in float64.

    Raises:
        TooNarrow: The caller can, and should.
        NumericalError: S is not finite.
    """
    pivots = P_n.pivots()
    # S is factorised in float64: there errors of a narrower P are its own, those of a float64 P grow with N besides.
    errors = RESOLUTION * (len(gram) if gram.dtype == torch.float64 else 1)
    resolution = errors * torch.finfo(gram.dtype).eps * P.magnitude()
    excitation = float(P.squared_norms().sum())
    if resolution * excitation <= float(torch.as_tensor(pivots).min()):
        L = _sound_factor(P_n.added_to(gram), pivots)
        if L is not None:
            return InnovationFactor(P, gram, L, 0.0)
    if not bool(torch.isfinite(gram).all()):
        raise NumericalError("S = J P Jᵀ + P_n is not finite; nothing was changed")
    if P.exact:
        # Then only the sums of J P Jᵀ were too narrow, and nothing has to be added to P.
        wide = P.gram(torch.float64)
        L = _sound_factor(P_n.added_to(wide), pivots)
        if L is not None:
            return InnovationFactor(P, wide, L, 0.0)
    if may_widen:
        raise TooNarrow
    for power in range(TRIES):
        inflation = resolution * 4.0**power
        inflated = P.shifted(inflation)
        wide = inflated.gram(torch.float64)
        # The noise that is added covers rounding errors of J P Jᵀ; more than that is an indefinite P.
        if float(torch.linalg.eigvalsh(wide)[0]) < -ROUNDING * inflation * excitation:
            continue
        S = P_n.added_to(wide)
        S.diagonal().add_(inflation * excitation)
        L, status = torch.linalg.cholesky_ex(S)
        if int(status) == 0:
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
        NumericalError: None of them works.
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
