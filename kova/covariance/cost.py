"""What a step costs, in time and memory, before anything is allocated.

The times are a model in milliseconds, fitted to ``kova bench step`` on two cores (benchmarks/results/step.json). Only
their ratios matter: how many steps of Adam a step of the filter is worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Per step, whatever its size: Python, kernels on small matrices, the report.
FIXED = 1.4
#: Per parameter and sample: J, P Jᵀ and P Jᵀ L⁻ᵀ are written and read.
TRAFFIC = 3e-6
#: Operations in a millisecond: products of J with itself, and products with P, whose shapes are less favourable.
GRAM_RATE, PRODUCT_RATE = 1.7e8, 1.1e8
#: Arrays of d·N numbers that a step holds at once: J, P Jᵀ, P Jᵀ L⁻ᵀ, and one for what linearising allocates.
ARRAYS = 4
#: The smallest and the largest piece of a batch.
PIECES = (16, 256)


@dataclass(frozen=True)
class Cost:
    """What a structure takes, known before it is allocated.

    Attributes:
        numbers: Entries it stores.
        flops: Floating-point operations of a step, per sample of the batch, spent on P.
    """

    numbers: int
    flops: int

    def milliseconds(self, dim: int, batch: int) -> float:
        """Return about how long a step of ``batch`` samples takes with ``dim`` parameters."""
        piece = min(batch, piece_size(dim))
        samples = batch * (TRAFFIC * dim + 4.0 * dim * piece / GRAM_RATE + self.flops / PRODUCT_RATE)
        return FIXED * math.ceil(batch / piece) + samples


def adam_milliseconds(dim: int, batch: int) -> float:
    """Return about how long a step of Adam takes: forward, backward, update."""
    return 0.85 + dim * (1e-5 + 1e-7 * batch)


def piece_size(dim: int) -> int:
    """Return how many samples to take at a time.

    In a piece of N every sample costs 4·d·N operations, so large ones are slow; small ones pay FIXED more often.
    """
    best = math.sqrt(FIXED * GRAM_RATE / (4.0 * dim))
    smallest, largest = PIECES
    return int(min(max(2 ** round(math.log2(best)), smallest), largest))


def workspace_bytes(dim: int, batch: int, itemsize: int) -> int:
    """Return the bytes that one step of ``batch`` samples needs beside P."""
    return (ARRAYS * dim + 3 * batch) * batch * itemsize
