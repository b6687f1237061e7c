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
#: Per number of P: a small batch does not amortise reading and writing the matrix.
MATRIX = 5e-7
#: Operations in a millisecond: products of J with itself, and products with P, whose shapes are less favourable.
GRAM_RATE, PRODUCT_RATE = 1.7e8, 1.1e8
#: Arrays of d·N numbers that a step holds at once: J, P Jᵀ, P Jᵀ L⁻ᵀ, and one for what linearising allocates.
ARRAYS = 4
#: The smallest and the largest piece of a batch where pieces are exact, and the piece where they are not.
PIECES, LARGE_PIECE = (16, 512), 512
#: Bytes that a step takes without being asked: 4 arrays of 16 samples of a critic of two million weights.
WORKSPACE = 2**30


@dataclass(frozen=True)
class Cost:
    """What a structure takes, known before it is allocated.

    Attributes:
        numbers: Entries it stores.
        flops: Floating-point operations of a step, per sample of the batch, spent on P.
        arrays: Arrays of d·N numbers that a step holds at once.
        scratch: Other numbers that a step holds.
        exact: Whether the pieces of a batch give what the whole batch gives.
    """

    numbers: int
    flops: int
    arrays: int = ARRAYS
    scratch: int = 0
    exact: bool = False

    def milliseconds(self, dim: int, batch: int) -> float:
        """Return about how long a step of ``batch`` samples takes with ``dim`` parameters."""
        piece = min(batch, self.piece(dim))
        samples = batch * (TRAFFIC * dim + 4.0 * dim * piece / GRAM_RATE + self.flops / PRODUCT_RATE)
        return (FIXED + MATRIX * self.numbers) * math.ceil(batch / piece) + samples

    def piece(self, dim: int, itemsize: int = 4, budget: int | None = None) -> int:
        """Return how many samples a step takes at a time.

        Where pieces are exact, as many as are fastest: more cost 4·d operations for every pair of samples, fewer pay
        for more pieces. Elsewhere P becomes surer than it should with every piece, so that only very large batches are
        cut, and what memory demands.

        Args:
            dim: d.
            itemsize: Bytes of a number.
            budget: Bytes that P and a step may take together.
        """
        fastest = 2 ** round(math.log2(math.sqrt(FIXED * GRAM_RATE / (4.0 * dim))))
        smallest, largest = PIECES
        piece = int(min(max(fastest, smallest), largest)) if self.exact else LARGE_PIECE
        # Taking a batch in pieces works on a copy of P.
        room = WORKSPACE if budget is None else budget - 2 * self.numbers * itemsize
        room -= self.scratch * itemsize
        # Where that is too much already, smaller pieces would not help, and take longer.
        fewest = 1 if room > 0 else smallest
        while piece > fewest and (self.arrays * dim + 3 * piece) * piece * itemsize > room:
            piece //= 2
        return piece


def adam_milliseconds(dim: int, batch: int) -> float:
    """Return about how long a step of Adam takes: forward, backward, update."""
    return 0.85 + dim * (1e-5 + 1e-7 * batch)
