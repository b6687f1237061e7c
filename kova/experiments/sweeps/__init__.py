"""Grids of runs: what they are, who does what next, and where the processes run."""
