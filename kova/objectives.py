"""The objectives the filter minimises: L_MLE (Eq. 1), L_EKF (Theorem 1) and its two KL divergences (Theorem 2)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kova import _checks
from kova.covariance.base import Covariance


def mle_loss(innovation: Tensor) -> Tensor:
    """Return L_MLE = 1/(2N) Σ δ² (Eq. 1), differentiable.

    Args:
        innovation: δ = y - h(u; θ), (N,) or (N, 1).
    """
    _vector("innovation", innovation)
    return innovation.square().mean() / 2.0


def ekf_loss(
    innovation: Tensor, noise: float | Tensor, displacement: Tensor, covariance: Tensor | Covariance
) -> Tensor:
    """Return L_EKF = ½ δᵀ P_n⁻¹ δ + ½ Δθᵀ P_{t|t-1}⁻¹ Δθ (Eq. 12), differentiable in δ and Δθ.

    θ cannot move where P has no variance: any displacement there costs infinity, and none costs nothing. With P = 0,
    Δθ = 0 and P_n = N·I this is L_MLE (Corollary 1).

    Args:
        innovation: δ at θ, (N,) or (N, 1).
        noise: P_n: a variance, (N,) variances or an (N, N) covariance.
        displacement: Δθ = θ - θ_{t|t-1}, (d,).
        covariance: P_{t|t-1}, a (d, d) tensor or a :class:`kova.Covariance`.

    Raises:
        ValueError: Shapes do not fit or a number is not finite.
    """
    delta = _vector("innovation", innovation)
    dense = covariance.dense() if isinstance(covariance, Covariance) else _checks.tensor("covariance", covariance)
    step = _vector("displacement", displacement).to(dense.dtype)
    if dense.shape != (step.shape[0], step.shape[0]):
        raise ValueError(f"covariance must be ({step.shape[0]}, {step.shape[0]}), got {tuple(dense.shape)}")
    _checks.finite("covariance", dense)
    return 0.5 * _mahalanobis(delta, noise) + 0.5 * _quadratic(dense, step).to(delta.dtype)


class KLDecomposition(NamedTuple):
    """L_EKF = constant + fit + trust_region + O(|Δθ|³) (Theorem 2).

    Attributes:
        constant: C = -½ log|2π P_n|.
        fit: N E_u[KL(Q̂(y|u) ‖ P(y|u, θ))], the negative log-likelihood of the labels.
        trust_region: t · KL(P(u, y | θ̂) ‖ P(u, y | θ)).
    """

    constant: Tensor
    fit: Tensor
    trust_region: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of the three."""
        return self.constant + self.fit + self.trust_region


def kl_decomposition(
    innovation: Tensor,
    noise: float | Tensor,
    value_change: Tensor,
    value_noise: float | Tensor,
    observations: int | None = None,
) -> KLDecomposition:
    """Return the two KL divergences that L_EKF is made of (Theorem 2), computed exactly for Gaussian labels.

    The second divergence is between the joint distributions of inputs and labels under the predicted parameters θ̂ and
    under θ. It averages (h(u; θ) - h(u; θ̂))² / (2σ²) over inputs u the filter has seen, and counts t times because
    P_{t|t-1}⁻¹ = t F̂ is the information of all t observations.

    Args:
        innovation: δ = y - h(u; θ) on the present batch, (N,) or (N, 1).
        noise: P_n of the batch: a variance, (N,) variances or an (N, N) covariance.
        value_change: h(u; θ) - h(u; θ̂) on M inputs drawn from the training distribution, (M,).
        value_noise: Their label variances, a scalar or (M,).
        observations: t, the number of observations behind P_{t|t-1}; by default M.

    Raises:
        ValueError: Shapes do not fit or a number is out of range.
    """
    delta = _vector("innovation", innovation)
    change = _vector("value_change", value_change)
    size = delta.shape[0]
    constant = -0.5 * (_log_det(noise, delta) + size * math.log(2.0 * math.pi))
    fit = 0.5 * _mahalanobis(delta, noise) - constant
    t = change.shape[0] if observations is None else _checks.count("observations", observations)
    trust_region = t * (change.square() / (2.0 * _positive("value_noise", value_noise, change))).mean()
    return KLDecomposition(constant, fit, trust_region)


def _vector(name: str, value: Tensor) -> Tensor:
    _checks.tensor(name, value)
    if value.dim() not in (1, 2) or (value.dim() == 2 and value.shape[1] != 1) or value.numel() == 0:
        raise ValueError(f"{name} must be a non-empty vector, got shape {tuple(value.shape)}")
    return _checks.finite(name, value.reshape(-1))


def _positive(name: str, value: float | Tensor, like: Tensor) -> Tensor:
    variance = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if variance.shape not in (torch.Size([]), like.shape):
        raise ValueError(f"{name} must be a scalar or {tuple(like.shape)}, got {tuple(variance.shape)}")
    if not bool((_checks.finite(name, variance) > 0).all()):
        raise ValueError(f"{name} must be > 0")
    return variance.expand(like.shape)


def _noise_factor(noise: float | Tensor, delta: Tensor) -> Tensor | None:
    """Return the Cholesky factor of an (N, N) noise, or None if it is diagonal."""
    if not isinstance(noise, Tensor) or noise.dim() != 2:
        return None
    size = delta.shape[0]
    if noise.shape != (size, size):
        raise ValueError(f"noise must be a scalar, ({size},) or ({size}, {size}), got {tuple(noise.shape)}")
    if not torch.allclose(noise, noise.T, rtol=1e-4):
        raise ValueError("noise must be a symmetric covariance matrix, it is asymmetric")
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(_checks.finite("noise", noise.to(delta.dtype)))
    if int(info):
        raise ValueError("noise must be positive definite")
    return factor


def _mahalanobis(delta: Tensor, noise: float | Tensor) -> Tensor:
    """Return δᵀ P_n⁻¹ δ."""
    factor = _noise_factor(noise, delta)
    if factor is None:
        return (delta.square() / _positive("noise", noise, delta)).sum()
    return _whitened_norm(factor, delta)


def _log_det(noise: float | Tensor, delta: Tensor) -> Tensor:
    """Return log|P_n|."""
    factor = _noise_factor(noise, delta)
    if factor is None:
        return _positive("noise", noise, delta).log().sum()
    return 2.0 * factor.diagonal().log().sum()


def _whitened_norm(factor: Tensor, vector: Tensor) -> Tensor:
    """Return |L⁻¹ v|²."""
    whitened: Tensor = torch.linalg.solve_triangular(factor, vector[:, None], upper=False)
    return whitened.square().sum()


def _quadratic(covariance: Tensor, step: Tensor) -> Tensor:
    """Return Δθᵀ P⁻¹ Δθ, computed in the eigenbasis if P is singular."""
    factor, info = torch.linalg.cholesky_ex(covariance)
    if int(info) == 0:
        return _whitened_norm(factor, step)
    spectrum, basis = torch.linalg.eigh(covariance)
    resolution = len(step) * torch.finfo(step.dtype).eps
    known = spectrum > resolution * spectrum[-1].clamp(min=0.0)
    coordinates = basis.T @ step
    if bool((coordinates[~known].abs() > resolution * step.norm()).any()):
        return torch.full((), math.inf, dtype=step.dtype, device=step.device)
    cost: Tensor = (coordinates[known].square() / spectrum[known]).sum()
    return cost
