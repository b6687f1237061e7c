"""Forgetting by evidence: how far the weights moved is chosen, batch by batch, by how well it explains the labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kova import _checks
from kova.evolution import Evidence, Evolution, PriorRelaxation
from kova.memories import Memory
from kova.prediction import Prediction


@dataclass(frozen=True)
class EvidenceForgetting(Evolution):
    """One of several evolution models for every batch: the one under which its labels are most likely.

    A filter computes log N(δ; 0, J P_{t|t-1} Jᵀ + P_n) anyway, and P_{t|t-1} is the only thing in it that depends on η.
    The models are the states of a hidden Markov chain: the posterior of each, given all batches so far, is its
    likelihood times what it had before, and with every batch a share ``switching`` of it moves to the others. So
    evidence of long ago is forgotten, and a jump of the target is answered in the very batch that shows it. The
    likeliest model makes the step.

    Labels of a large batch are not independent, so it counts as ``labels`` of them at most. The likelihood is that of
    innovations on the scale they are known to have (:class:`kova.calibration.Calibration`), because noise such as
    ``BatchSize`` is a weight rather than a level.

    Args:
        candidates: The models, at least two, each with a memory.
        switching: Share of the posterior that moves with every batch, in (0, 1).
        labels: How many independent labels a batch counts as at most, > 0.
    """

    judges: ClassVar[bool] = True
    candidates: tuple[Evolution, ...] = (
        PriorRelaxation(1e-4),
        PriorRelaxation(1e-3),
        PriorRelaxation(1e-2),
        PriorRelaxation(1e-1),
    )
    switching: float = 0.01
    labels: float = 64.0

    def __post_init__(self) -> None:
        """Check the kinds and ranges."""
        object.__setattr__(self, "candidates", tuple(self.candidates))
        if len(self.candidates) < 2 or not all(isinstance(model, Evolution) for model in self.candidates):
            raise ValueError(f"candidates must be two or more evolution models, got {self.candidates!r}")
        if not all(model.keeps_memory for model in self.candidates):
            raise ValueError(f"candidates must keep a memory, Memoryless does not, got {self.candidates!r}")
        object.__setattr__(self, "switching", _checks.positive("switching", self.switching))
        if self.switching >= 1.0:
            raise ValueError(f"switching must be in (0, 1), got {self.switching!r}")
        object.__setattr__(self, "labels", _checks.positive("labels", self.labels))

    def predict(self, P: Prediction) -> Prediction:
        """Return the first candidate's prediction, which is used where there are no labels to judge by."""
        return self.candidates[0].predict(P)

    def adapted(self, evidence: Evidence) -> tuple[Evolution, Memory]:
        """Return the likeliest candidate, and the posterior of each."""
        count = len(self.candidates)
        share = min(1.0, self.labels / evidence.size)
        before = [evidence.memory.get(str(number), 1.0 / count) for number in range(count)]
        logs = [
            math.log((1.0 - self.switching) * weight + self.switching / count)
            + share * evidence.log_likelihood(candidate)
            for candidate, weight in zip(self.candidates, before, strict=True)
        ]
        largest = max(logs)
        if largest == -math.inf:
            # No S is positive definite: the batch says nothing about how the weights moved.
            return self.candidates[before.index(max(before))], evidence.memory
        weights = [math.exp(value - largest) for value in logs]
        total = sum(weights)
        return self.candidates[logs.index(largest)], {str(k): w / total for k, w in enumerate(weights)}
