"""Benchmarks of the library beside other methods, in one record format; ``kova bench`` runs them."""
