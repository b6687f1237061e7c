"""What one step says about itself."""

from __future__ import annotations

from dataclasses import dataclass

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
        trust_region: ½ Δθᵀ P_{t|t-1}⁻¹ Δθ, the second term of L_EKF (Eq. 12) at the new parameters.
        update_norm: |Δθ|.
        mean_variance: tr(P_{t|t}) / d.
        innovation: δ, (N,).
    """

    loss: Tensor
    nis: Tensor
    log_likelihood: Tensor
    information_gain: Tensor
    trust_region: Tensor
    update_norm: Tensor
    mean_variance: Tensor
    innovation: Tensor
