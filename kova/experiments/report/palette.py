"""A colour and a dash for every arm, on white paper and on a dark screen."""

from __future__ import annotations

from collections.abc import Sequence

#: The first six are safe for most kinds of colour vision (Okabe and Ito); their black is grey, to be seen in the dark.
#: Each of the others is as far from all before it as can be in OKLab, without glare and with a contrast of at least 2.6
#: on white and 3 on black.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A", "#9048A8", "#546C00", "#9084F0"),
    *("#90A800", "#B43C54", "#A89C84", "#FC786C", "#9C5400", "#00786C", "#908430", "#2490E4", "#609CA8", "#606CD8"),
)
DASHES = ("solid", "dash", "dot", "dashdot")
#: Colours that are told apart at a glance; lines of later arms are dashed as well.
AT_A_GLANCE = 7


class Palette:
    """A colour and a dash for every arm; no two of eighty have both in common.

    Args:
        arms: In order.
    """

    def __init__(self, arms: Sequence[str]) -> None:
        self._places = {arm: place for place, arm in enumerate(arms)}

    def colour(self, arm: str) -> str:
        """Return the arm's colour."""
        return COLOURS[self._places[arm] % len(COLOURS)]

    def dash(self, arm: str) -> str:
        """Return the arm's dash."""
        rounds, place = divmod(self._places[arm], len(COLOURS))
        return DASHES[(rounds + place // AT_A_GLANCE) % len(DASHES)]

    def faint(self, arm: str) -> str:
        """Return the arm's colour for a band."""
        red, green, blue = (int(self.colour(arm)[start : start + 2], 16) for start in (1, 3, 5))
        return f"rgba({red},{green},{blue},0.15)"
