"""Replicas of the critic: how far the noise of its labels has carried it.

P is the error of θ if labels scatter independently, with the variance P_n. Labels of one episode do neither: they share
rewards, and each scatters as it does. The error e of a filter's estimate, whatever its labels are, obeys

    e ← (I - K J) e + K ε,

with the gains K that the filter has computed anyway and the noise ε of the labels. A replica is one draw of that error:
it starts from the prior, e ~ N(0, P₀), and is carried along by the same gains with noise drawn for it. If every label
gets noise of its own, δ times a standard normal number, the replicas scatter as the heteroscedastic ("sandwich")
covariance of a regression says. If every *reward* does, its TD error times such a number, and every replica labels with
its own values, then labels that overlap or bootstrap are accounted for too: :func:`kova.targets.replica_targets`. θ and
P know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kova import _checks
from kova.covariance.base import Covariance
from kova.linearisation.jacobian import Jacobian

#: The draws of a step follow from its number, so that a restored filter goes on bit for bit; this keeps them apart from
#: those of a user who seeds with small numbers too.
SEED = 0x4B4F5641


@dataclass(frozen=True, eq=False)
class Replicas:
    """m draws of the error of θ.

    Attributes:
        count: m; 0 for none.
        errors: E, (m, d), in the order of θ; none before the first step.
    """

    count: int
    errors: Tensor | None = None

    def begun(self, covariance: Covariance) -> Replicas:
        """Return them drawn from N(0, P), if they are not yet, where P is and in its precision."""
        if not self.count:
            return self
        if self.errors is None:
            generator = torch.Generator(covariance.device).manual_seed(SEED)
            return replace(self, errors=covariance.sample(self.count, generator))
        return replace(self, errors=self.errors.to(covariance.device, covariance.dtype))

    def noise(self, size: int, step: int) -> Tensor:
        """Return standard normal numbers, (size, m), the same whenever they are asked for at this step."""
        # Drawn on the CPU: other devices have other generators, and a filter may move.
        return torch.randn(size, self.count, generator=torch.Generator().manual_seed(SEED + 1 + step))

    def spread(self, jacobian: Jacobian) -> Tensor:
        """Return J Eᵀ, (N, m): how far the value of each replica is from that of the critic."""
        assert self.errors is not None, "the replicas have not begun"
        return jacobian.product(self.errors)

    def labels(self, targets: Tensor | None, y: Tensor, like: Tensor) -> Tensor | None:
        """Return how far the labels of the replicas are from those of the critic, (N, m), checked.

        Args:
            targets: As the user gave them.
            y: Labels of the critic, (N,).
            like: A tensor of the precision and on the device of P.

        Raises:
            TypeError: They are not a tensor.
            ValueError: There are no replicas, or shape, device or numbers do not fit.
        """
        if targets is None:
            return None
        if not self.count:
            raise ValueError("replica_targets were given to a filter without replicas; make it with replicas=16")
        _checks.tensor("replica_targets", targets)
        if tuple(targets.shape) != (len(y), self.count) or not targets.is_floating_point():
            found = f"{tuple(targets.shape)} in {targets.dtype}"
            raise ValueError(f"replica_targets must be {(len(y), self.count)} floating numbers, got {found}")
        if targets.device != like.device:
            raise ValueError(f"replica_targets is on {targets.device}, the critic on {like.device}")
        return _checks.finite("replica_targets", (targets.detach() - y[:, None]).to(like.dtype))

    def innovations(self, jacobian: Jacobian, delta: Tensor, labels: Tensor | None, step: int) -> Tensor | None:
        """Return the innovations of the replicas minus that of the critic, (N, m).

        Args:
            jacobian: J.
            delta: δ = y - h, (N,).
            labels: Of the replicas, minus those of the critic, (N, m); by default δ times standard normal numbers, as
                for labels that scatter independently.
            step: How many were taken before.
        """
        return self.innovations_in_pieces([jacobian], delta, labels, step)

    def innovations_in_pieces(
        self, jacobians: Iterable[Jacobian], delta: Tensor, labels: Tensor | None, step: int
    ) -> Tensor | None:
        """Return the same where J comes piece by piece."""
        if not self.count:
            return None
        if labels is None:
            labels = delta[:, None] * self.noise(len(delta), step).to(delta)
        return labels.to(delta) - torch.cat([self.spread(jacobian) for jacobian in jacobians])

    def moved(self, change: Tensor | None) -> Replicas:
        """Return them after a step that changes the errors by (m, d)."""
        return self if change is None or self.errors is None else replace(self, errors=self.errors + change)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a snapshot."""
        return {} if self.errors is None else {"replicas": self.errors.clone()}

    def checked(self, saved: object, dim: int) -> Replicas:
        """Return the replicas of a snapshot over d parameters; new ones if it has none, or none are wanted here.

        Raises:
            ValueError: It has another number of them, or is damaged.
        """
        if saved is None or not self.count:
            return Replicas(self.count)
        if not isinstance(saved, Tensor) or tuple(saved.shape) != (self.count, dim) or not saved.is_floating_point():
            found = tuple(saved.shape) if isinstance(saved, Tensor) else saved
            raise ValueError(f"the checkpoint's replicas are {found!r}, expected a tensor of {(self.count, dim)}")
        return Replicas(self.count, _checks.finite("the checkpoint's replicas", saved).clone())
