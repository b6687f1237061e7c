"""The scale of the uncertainty, learned from how far labels fall from where they were expected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Larger standardised innovations are cut to this: one outlier must not widen every band.
CUT = 3.0
#: E[min(z², CUT²)] of a standard normal z: dividing by it makes up for the cut.
_CUT_MEAN = (
    math.erf(CUT / math.sqrt(2))
    - CUT * math.sqrt(2 / math.pi) * math.exp(-(CUT**2) / 2)
    + CUT**2 * math.erfc(CUT / math.sqrt(2))
)
#: The running estimate looks back on about this many batches.
MEMORY = 200


@dataclass(frozen=True)
class Calibration:
    """A running, robust estimate of s in Cov(innovations) = s · S.

    The gain P Jᵀ S⁻¹ does not change when P and R are multiplied by the same number, so a filter can be right about θ
    and wrong about its error bars by any factor. With e = L⁻¹δ, S = L Lᵀ, the mean of e² (the NIS) is that factor. It
    is only ever reported, never fed back: θ and P do not depend on it.

    Attributes:
        scale: s; 1 before the first batch.
        batches: How many batches were seen.
    """

    scale: float = 1.0
    batches: int = 0

    def updated(self, standardised: Tensor) -> Calibration:
        """Return the estimate after one more batch, whose e is (N,)."""
        batches = self.batches + 1
        rate = max(1.0 / batches, 1.0 / MEMORY)
        cut = float((standardised.square() / self.scale).clamp(max=CUT**2).mean()) / _CUT_MEAN
        # The floor keeps s positive when labels are predicted exactly.
        scale = self.scale * max(1.0 + rate * (cut - 1.0), 1e-3)
        return Calibration(min(max(scale, torch.finfo(torch.float32).tiny), torch.finfo(torch.float32).max), batches)

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot."""
        return {"scale": self.scale, "batches": self.batches}

    @classmethod
    def from_state_dict(cls, state: object) -> Calibration:
        """Return the estimate of a snapshot.

        Raises:
            ValueError: It is not one.
        """
        sound = isinstance(state, dict) and isinstance(state.get("batches"), int) and state["batches"] >= 0
        if not sound or not isinstance(state, dict) or not 0.0 < float(state.get("scale", 0.0)) < math.inf:
            raise ValueError(f"the checkpoint's calibration is {state!r}, expected a scale > 0 and a count")
        return cls(float(state["scale"]), state["batches"])
