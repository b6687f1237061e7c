"""What a step measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class StepReport:
    """By-products of one Kalman step, each a 0-dim tensor on the covariance's device except ``innovation``.

    With δ = y - h(u; θ), S = J P_{t|t-1} Jᵀ + P_n and Δθ the step taken:

    Attributes:
        loss: L_MLE before the step, Σδ²/(2N) (Eq. 1).
        nis: δᵀS⁻¹δ / N, the normalised innovation squared; 1 when the filter's uncertainty is right.
        log_likelihood: log N(δ; 0, S).
        information_gain: ½ log|I + P_n⁻¹ J P Jᵀ|, in nats.
        trust_region: ½ Δθᵀ P_{t|t-1}⁻¹ Δθ, the second term of L_EKF (Eq. 12) at the new parameters; where a large
            batch was taken in pieces, the sum of theirs.
        update_norm: |Δθ|.
        mean_variance: tr(P_{t|t}) / d.
        inflation: What was added to every variance to keep rounding from making P indefinite; usually 0.
        innovation: δ, (N,).
    """

    loss: Tensor
    nis: Tensor
    log_likelihood: Tensor
    information_gain: Tensor
    trust_region: Tensor
    update_norm: Tensor
    mean_variance: Tensor
    inflation: Tensor
    innovation: Tensor


def measure(
    explained: Tensor,
    noise_log_det: Tensor | float,
    L: Tensor,
    delta: Tensor,
    standardised: Tensor,
    weights: Tensor,
    alpha: float,
) -> dict[str, Tensor]:
    """Return the by-products of a step, all O(N) from L, L⁻¹δ, weights = S⁻¹δ and explained = J P Jᵀ S⁻¹δ."""
    size = delta.shape[0]
    squared = torch.dot(standardised, standardised).to(delta.dtype)
    # In float64: the information gain is a small difference of two large sums.
    log_det = 2.0 * L.diagonal().double().log().sum()
    energy = torch.dot(weights, explained).to(delta.dtype)
    return {
        "loss": torch.dot(delta, delta) / (2.0 * size),
        "nis": squared / size,
        "log_likelihood": (-0.5 * (squared + log_det + size * math.log(2.0 * math.pi))).to(delta.dtype),
        "information_gain": (0.5 * (log_det - noise_log_det)).clamp(min=0.0).to(delta.dtype),
        "trust_region": 0.5 * alpha**2 * energy,
    }


def total(pieces: Sequence[dict[str, Tensor]], delta: Tensor, standardised: Tensor) -> dict[str, Tensor]:
    """Return the by-products of a batch that was taken in pieces.

    Args:
        pieces: Those of each piece.
        delta: The innovation of the whole batch, (N,).
        standardised: L⁻¹δ of all pieces, (N,).
    """
    sums = {name: torch.stack([piece[name] for piece in pieces]).sum() for name in pieces[0]}
    loss, nis = (torch.dot(numbers, numbers) / len(numbers) for numbers in (delta, standardised))
    return {**sums, "loss": loss / 2.0, "nis": nis}
