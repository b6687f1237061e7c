"""Policy-evaluation problems whose values are known."""

from __future__ import annotations

from collections.abc import Callable

from kova.experiments.problems.baird_star import BairdStar
from kova.experiments.problems.base import Evaluation, Problem
from kova.experiments.problems.boyan_chain import BoyanChain
from kova.experiments.problems.garnet import Garnet
from kova.experiments.problems.linear_gaussian import LinearGaussian
from kova.experiments.problems.lqr import LinearQuadratic
from kova.experiments.problems.mountain_car import MountainCar
from kova.experiments.problems.puddle_world import PuddleWorld
from kova.experiments.problems.random_walk import RandomWalkChain
from kova.experiments.problems.trajectory import Trajectory, joined

#: The standard instance of every family.
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "random walk": RandomWalkChain,
    "boyan chain": BoyanChain,
    "baird star": BairdStar,
    "garnet": Garnet,
    "lqr": LinearQuadratic,
    "linear-gaussian": LinearGaussian,
    "mountain car": MountainCar,
    "puddle world": PuddleWorld,
}

__all__ = [
    "PROBLEMS",
    "BairdStar",
    "BoyanChain",
    "Evaluation",
    "Garnet",
    "LinearGaussian",
    "LinearQuadratic",
    "MountainCar",
    "Problem",
    "PuddleWorld",
    "RandomWalkChain",
    "Trajectory",
    "joined",
]
