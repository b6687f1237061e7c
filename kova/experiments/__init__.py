"""Experiments that show what the filter does; they need the ``experiments`` extra."""
