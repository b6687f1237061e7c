"""One self-contained page about the runs below a directory."""

from kova.experiments.report.page import render

__all__ = ["render"]
