"""A run: its settings, its environment, its training, and the files it leaves."""
