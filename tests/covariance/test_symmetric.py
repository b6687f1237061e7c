"""Lower panels behave as the square matrix they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kova.covariance.storage import symmetric
from kova.covariance.storage.symmetric import SymmetricMatrix


@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(1, 23),
    panel=st.integers(1, 30),
    columns=st.integers(1, 5),
    rank=st.integers(1, 7),
    seed=st.integers(0, 10_000),
)
def test_every_operation_equals_the_square(dim, panel, columns, rank, seed):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric, "PANEL_ROWS", panel)
        matrix = SymmetricMatrix(dim, torch.float64, torch.device("cpu"))
        assert matrix.nbytes == SymmetricMatrix.bytes_needed(dim, 8)
        scratch = matrix.scratch(rank)
    square = torch.zeros(dim, dim, dtype=torch.float64)
    for scale in (1.0, 0.5, 3.0):
        rows, signs = random(rank, dim), torch.sign(random(rank))
        matrix.rank_update(rows, signs, scale, scratch)
        square = scale * (square + rows.T @ torch.diag(signs) @ rows)
        matrix.add_to_diagonal(0.25)
        square += 0.25 * torch.eye(dim)
    torch.testing.assert_close(matrix.dense(), square)
    assert torch.equal(matrix.dense(), matrix.dense().T)
    torch.testing.assert_close(matrix.diagonal(out=torch.empty(dim, dtype=torch.float64)), square.diagonal())
    right, out = random(dim, columns), random(dim, columns)
    expected = out - 0.7 * square @ right
    matrix.add_product(out, right, -0.7)
    torch.testing.assert_close(out, expected)
    matrix.zero_()
    assert not matrix.dense().any()


def test_it_takes_about_half_the_memory_of_a_square():
    assert SymmetricMatrix.bytes_needed(5377, 4) < 0.56 * 4 * 5377**2
