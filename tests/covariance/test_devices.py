"""No structure assumes the CPU. There is no GPU here, but ``meta`` tensors refuse to mix with CPU ones as well."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import batch, mlp, paper_filter

from kova.covariance import Block, Blockwise, Diagonal, Full, LastLayer, Layer, Layout, LowRank, Neuron, Spherical

META = torch.device("meta")
LAYOUT = Layout.of(mlp())
STRUCTURES = {
    "full": lambda device: Full(LAYOUT, device=device),
    "layer": lambda device: Layer(LAYOUT, device=device),
    "neuron": lambda device: Neuron(LAYOUT, device=device),
    "block": lambda device: Block(LAYOUT, 10, device=device),
    "diagonal": lambda device: Diagonal(LAYOUT, device=device),
    "low_rank": lambda device: LowRank(LAYOUT, 56, device=device),
}


def exercise(covariance: Blockwise) -> None:
    """Everything between the Jacobian and the stored P, without a number being read."""
    right = torch.empty(56, 8, device=META)
    assert covariance.product(right, 1.1, 0.1).device == META
    assert covariance.outer_product(right, right).device == META
    covariance.prepare(1.1, 0.1, right, 5, torch.empty(56, device=META))()
    for result in (covariance.diagonal(), covariance.dense(), covariance.mean_variance(), covariance.trace()):
        assert result.device == META
    assert covariance.to_theta(torch.empty(56, device=META)).device == META


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_made_on_another_device(name):
    exercise(STRUCTURES[name](META))


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_moved_to_another_device(name):
    covariance = STRUCTURES[name]("cpu")
    covariance.product(torch.randn(56, 8))
    covariance.to(META)
    assert covariance.device == META
    exercise(covariance)


def test_spherical_follows_too():
    covariance = Spherical(LAYOUT)
    covariance.to(META)
    assert covariance.diagonal().device == covariance.mean_variance().device == META


def test_last_layer_is_full_on_its_own_parameters():
    layout = Layout.of(LastLayer.parameters_of(mlp()))
    assert LastLayer(layout, device=META).dense().shape == (6, 6)


def test_an_optimizer_notices_that_its_critics_parameters_were_replaced():
    critic = mlp()
    optimizer = paper_filter(critic)
    optimizer.step(*batch())
    # Moving to meta makes new parameters, as assigning a layer does; moving to a GPU keeps them.
    critic.to(META)
    with pytest.raises(ValueError, match=r"'0\.weight' was replaced"):
        optimizer.step(*batch())


def test_the_workspace_is_not_copied():
    optimizer = paper_filter(mlp(), covariance="full")
    optimizer.step(*batch(64))
    assert optimizer.covariance._workspace._buffers
    assert not copy.deepcopy(optimizer).covariance._workspace._buffers
