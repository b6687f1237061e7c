"""Measurements of the library beside its rivals, in one record format; ``kova bench`` runs them."""
