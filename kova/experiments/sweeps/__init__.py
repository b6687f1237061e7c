"""Grids of runs: their definition, their scheduling, and the engines that execute them."""
