"""Conditioning N(θ, P) on the labels of a batch: lines 6 to 9 of Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kova import _checks
from kova.errors import NumericalError
from kova.factorise import factorise_innovation
from kova.linearisation.jacobian import Jacobian
from kova.observation_noise import ObservationNoise
from kova.prediction import Prediction
from kova.step_report import measure, total


@dataclass(frozen=True, eq=False)
class Conditioned:
    """The update of θ and P by one batch, before it is stored.

    Attributes:
        update: α K δ, (d,).
        store: Stores P_{t|t}; it cannot fail.
        standardised: L⁻¹ δ, (N,).
        remaining: δ - J α K δ, (N,): what the linearised critic leaves of the innovation.
        replicas: α K applied to the innovations of the replicas, (m, d), if there are any.
        measured: By-products, see :func:`kova.step_report.measure`.
        inflation: What was added to every variance because of rounding.
    """

    update: Tensor
    store: Callable[[], None]
    standardised: Tensor
    remaining: Tensor
    replicas: Tensor | None
    measured: dict[str, Tensor]
    inflation: float


def condition(
    P: Prediction,
    gram: Tensor,
    delta: Tensor,
    P_n: ObservationNoise,
    alpha: float,
    replicas: Tensor | None = None,
    may_widen: bool = False,
) -> Conditioned:
    """Return θ's update and P_{t|t} for the innovation δ.

    Args:
        P: P_{t|t-1}.
        gram: J P Jᵀ.
        delta: δ, (N,).
        P_n: The observation noise.
        alpha: The step size.
        replicas: Innovations of the replicas, apart from δ, (N, m), if there are any.
        may_widen: Whether the caller can go on in float64.

    Raises:
        TooNarrow: P's precision does not do, and the caller can go on in float64.
        NumericalError: S cannot be factorised, or the result is not finite.
    """
    P, gram, L, inflation = factorise_innovation(P, gram, P_n, may_widen)
    # Where S needed float64, S⁻¹δ does too: large terms cancel in the gain.
    standardised = torch.linalg.solve_triangular(L, delta.to(L.dtype)[:, None], upper=False)
    weights = torch.linalg.solve_triangular(L.mT, standardised, upper=True).squeeze(1)
    update = P.gain(weights).to(delta.dtype).mul_(alpha)
    if not _checks.all_finite(update):
        raise NumericalError("the parameter update is not finite; nothing was changed")
    standardised = standardised.squeeze(1)
    explained = gram.to(weights.dtype) @ weights
    measured = measure(explained, P_n.log_det, L, delta, standardised, weights, alpha)
    remaining = delta - alpha * explained.to(delta.dtype)
    carried = None if replicas is None else _carried(P, L, replicas, alpha)
    return Conditioned(update, P.condition(L, alpha), standardised, remaining, carried, measured, inflation)


def _carried(P: Prediction, L: Tensor, innovations: Tensor, alpha: float) -> Tensor:
    """Return α K times the innovations of the replicas, (m, d)."""
    carried = P.gains(torch.cholesky_solve(innovations.to(L.dtype), L)).to(innovations.dtype).mul_(alpha)
    if not _checks.all_finite(carried):
        raise NumericalError("the update of the replicas is not finite; nothing was changed")
    return carried


def innovation_log_likelihood(gram: Tensor, delta: Tensor, P_n: ObservationNoise, scale: float) -> float:
    """Return log N(δ; 0, s·S) up to a constant, minus infinity where S is not positive definite.

    Args:
        gram: J P Jᵀ.
        delta: δ, (N,).
        P_n: The observation noise.
        scale: s, by which innovations are known to scatter more or less than S says.
    """
    L, status = torch.linalg.cholesky_ex(P_n.added_to(gram).double())
    if int(status):
        return -math.inf
    standardised = torch.linalg.solve_triangular(L, delta.double()[:, None], upper=False)
    return float(-0.5 / scale * standardised.square().sum() - L.diagonal().log().sum())


def condition_in_pieces(
    predictions: Iterable[tuple[Prediction, Jacobian]],
    pieces: Sequence[slice],
    delta: Tensor,
    P_n: ObservationNoise,
    replicas: Tensor | None = None,
    may_widen: bool = False,
) -> Conditioned:
    """Condition on one piece of the batch after the other, all linearised at the same θ.

    With a full P, α = 1 and labels whose noise is independent, this is the step of the whole batch: each piece sees P
    and the innovation as the pieces before it left them. It needs memory and time in proportion to N, where the whole
    batch needs N² and N³. Sparser structures drop the covariances that they do not keep after every piece, so their
    result differs a little from that of the whole batch.

    P is stored piece by piece: the caller passes predictions of a draft.

    Args:
        predictions: P and J of each piece, made when its turn comes.
        pieces: Which samples.
        delta: δ of the whole batch, (N,).
        P_n: The observation noise of the whole batch, not a matrix.
        replicas: Innovations of the replicas of the whole batch, (N, m), if there are any.
        may_widen: Whether the caller can go on in float64.

    Raises:
        NumericalError: A piece failed.
    """
    # Of each piece only small results are kept: what it would store is as large as its J.
    innovations: list[Tensor] = []
    measured: list[dict[str, Tensor]] = []
    remaining: list[Tensor] = []
    inflation = 0.0
    update = delta.new_zeros(0)
    carried: Tensor | None = None
    for (P, jacobian), piece in zip(predictions, pieces, strict=True):
        innovation, own = delta[piece], None if replicas is None else replicas[piece]
        if innovations:
            innovation = innovation - jacobian.product(update[None]).squeeze(1)
        if own is not None and carried is not None:
            own = own - jacobian.product(carried)
        found = condition(P, P.gram(delta.dtype), innovation, P_n.part(piece), 1.0, own, may_widen)
        found.store()
        update = update + found.update if innovations else found.update
        carried = found.replicas if carried is None or found.replicas is None else carried + found.replicas
        innovations.append(found.standardised.to(delta.dtype))
        measured.append(found.measured)
        remaining.append(found.remaining)
        inflation = max(inflation, found.inflation)
    standardised = torch.cat(innovations)
    measures = total(measured, delta, standardised)
    return Conditioned(update, _nothing, standardised, torch.cat(remaining), carried, measures, inflation)


def _nothing() -> None:
    """Do nothing: the pieces are stored already."""
