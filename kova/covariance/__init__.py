"""Covariance structures, one per file; :mod:`kova.covariance.choice` picks one by name."""

from kova.covariance.base import Covariance
from kova.covariance.block import Block
from kova.covariance.blockwise import Blockwise
from kova.covariance.cost import Cost
from kova.covariance.diagonal import Diagonal
from kova.covariance.full import Full
from kova.covariance.last_layer import LastLayer
from kova.covariance.layer import Layer
from kova.covariance.layout import Layout
from kova.covariance.low_rank import LowRank
from kova.covariance.neuron import Neuron
from kova.covariance.spherical import Spherical

__all__ = [
    "Block",
    "Blockwise",
    "Cost",
    "Covariance",
    "Diagonal",
    "Full",
    "LastLayer",
    "Layer",
    "Layout",
    "LowRank",
    "Neuron",
    "Spherical",
]
