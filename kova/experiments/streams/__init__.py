"""Streams of experience: recorded once, so that every critic can learn from the very same frames."""
