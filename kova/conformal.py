"""Bands that hold at their level though the predictions drift: online conformal correction."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from kova import _checks

#: Scores that the band looks back on. Of returns, whose neighbours share most of their rewards, these are some seventy
#: independent ones. With more, bands were wider; with fewer, those of eight environments too narrow.
WINDOW = 700
#: η: a score outside widens its side of the band by a hundredth.
RATE = 0.01
#: Without so many scores there is no band: its ends are infinite.
LEAST = 50
#: Most that log(widening) may come to be, either way: a factor of four and a half. After a sudden change every return
#: that was promised before it is missed, and what was missed is made up for later: in replayed runs of A2C, with 2,
#: bands held 94 % from 20,000 to 40,000 frames after rewards had tripled, with 1.5 they held 92 and 93.
LIMIT = 1.5
#: What a checkpoint may hold.
LARGEST = 2.0


class ConformalBand:
    r"""Lower and upper end of a band around predictions, such that the share ``level`` of outcomes falls inside.

    An outcome that was predicted with v has the score z = outcome - v. With the quantiles q of the last ``window``
    scores and their median m, the band of the next prediction is

        [v + m - e^{c₋} (m - q_{α/2}),  v + m + e^{c₊} (q_{1-α/2} - m)],    α = 1 - level.

    The quantiles follow the errors where they are new; they lag behind a drift, because an outcome is known late.
    What is then missing is made up for by c, which moves with every outcome that is judged, for each end on its own:

        c ← c + η (1[outcome beyond that end] - α/2).

    This is adaptive conformal inference (Gibbs and Candès, arXiv:2106.00170) as a tracker of the quantile itself
    (Angelopoulos, Candès and Tibshirani, arXiv:2307.16895). Corrected levels in place of ends, as in the first of the
    two, saturate at the largest score of the window, and did worse under the delay of returns.

    **What holds.** Summing the recursion over N judged outcomes,

        |share beyond an end - α/2| = |c_N - c_0| / (η N) ≤ 2 LIMIT / (η N),

    for any outcomes, dependent or drifting, however late they come, as long as c has not come to ± ``LIMIT``. An
    outcome is judged by the band of the time when it was predicted.

    **What does not.** It is a share over time and over whatever states were visited, not a probability in every single
    state, and over few outcomes it says little: c moves by one in some hundred of them. At ``LIMIT`` c stays, so that a
    sudden change is forgotten again, and what is missed meanwhile is not made up for. Other levels than the tracked
    one take its c and their own quantiles; nothing watches over them.

    Args:
        level: The share that is tracked.
        window: Scores that the quantiles are of.
        rate: η.
    """

    def __init__(self, level: float = 0.9, *, window: int = WINDOW, rate: float = RATE) -> None:
        self.level = share("level", level)
        self.window, self.rate = _checks.count("window", window), _checks.positive("rate", rate)
        #: log of the widening below and above.
        self.widening = (0.0, 0.0)
        self._scores: deque[float] = deque()
        self._sorted: list[float] = []
        #: -1 below the band, 1 above it, 0 inside.
        self._sides: deque[int] = deque()
        self._inside = 0

    def __len__(self) -> int:
        """Return how many scores the quantiles are of."""
        return len(self._scores)

    @property
    def coverage(self) -> float | None:
        """The share inside, of the last ``window`` outcomes that were judged; none if none was."""
        return self._inside / len(self._sides) if self._sides else None

    def bounds(self, level: float | None = None) -> tuple[float, float]:
        """Return what to add to a prediction for the lower and the upper end.

        Args:
            level: By default the tracked one.

        Returns:
            Both infinite as long as there are too few scores to know.

        Raises:
            TypeError: ``level`` is not a number.
            ValueError: It is not between 0 and 1.
        """
        tail = (1.0 - (self.level if level is None else share("level", level))) / 2.0
        if len(self) < LEAST or (len(self) + 1) * tail < 1.0:
            return -math.inf, math.inf
        median = self._quantile(0.5)
        below, above = (math.exp(log) for log in self.widening)
        return (
            median - below * (median - self._quantile(tail)),
            median + above * (self._quantile(1.0 - tail) - median),
        )

    def observe(self, scores: Iterable[float], lows: Iterable[float], highs: Iterable[float]) -> None:
        """Take scores in the order in which they became known.

        Args:
            scores: z.
            lows: What :meth:`bounds` gave for each when it was predicted. Infinite ones promised nothing: their scores
                are remembered, and not judged.
            highs: Likewise.

        Raises:
            ValueError: A score is not finite, or there are not as many bounds; nothing was changed.
        """
        taken = list(zip(scores, lows, highs, strict=True))
        if not all(math.isfinite(score) for score, _, _ in taken):
            raise ValueError("scores has non-finite entries")
        for score, low, high in taken:
            if math.isfinite(low) and math.isfinite(high):
                self._judge((score > high) - (score < low))
            self._remember(score)

    def _judge(self, side: int) -> None:
        tail = (1.0 - self.level) / 2.0
        moved = (c + self.rate * (float(side == end) - tail) for c, end in zip(self.widening, (-1, 1), strict=True))
        below, above = map(_cut, moved)
        self.widening = below, above
        self._sides.append(side)
        self._inside += side == 0
        if len(self._sides) > self.window:
            self._inside -= self._sides.popleft() == 0

    def _remember(self, score: float) -> None:
        # A sorted list beside the queue: sorting for every band would cost more than all the rest.
        self._scores.append(score)
        bisect.insort(self._sorted, score)
        if len(self._scores) > self.window:
            del self._sorted[bisect.bisect_left(self._sorted, self._scores.popleft())]

    def _quantile(self, probability: float) -> float:
        """Return the quantile such that one more score falls below it with that probability, were all alike."""
        size = len(self._sorted)
        place = min(max(probability * (size + 1) - 1.0, 0.0), size - 1.0)
        index = min(int(place), size - 2)
        lower, upper = self._sorted[index : index + 2]
        return lower + (place - index) * (upper - lower)

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot."""
        return {
            "level": self.level,
            "window": self.window,
            "rate": self.rate,
            "widening": list(self.widening),
            "scores": list(self._scores),
            "sides": list(self._sides),
        }

    @classmethod
    def from_state_dict(cls, state: object) -> ConformalBand:
        """Return the band of a snapshot.

        Raises:
            ValueError: It is not one.
        """
        try:
            if not isinstance(state, dict):
                raise TypeError("it is not a mapping")
            band = cls(state["level"], window=state["window"], rate=state["rate"])
            below, above = (_cut(_within("widening", c, LARGEST)) for c in state["widening"])
            scores = [_within("scores", score, math.inf) for score in state["scores"]]
            sides = [int(_within("sides", side, 1.0)) for side in state["sides"]]
            if max(len(scores), len(sides)) > band.window:
                raise ValueError(f"there are more scores than its window of {band.window}")
        except (KeyError, TypeError, ValueError) as error:
            missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"the checkpoint's conformal band is damaged: {missing}") from None
        band.widening = below, above
        band._scores, band._sorted = deque(scores), sorted(scores)
        band._sides, band._inside = deque(sides), sides.count(0)
        return band

    def __reduce__(self) -> tuple[Callable[[object], ConformalBand], tuple[dict[str, Any]]]:
        """Let pickles, which are part of agents' checkpoints, be snapshots too, checked when they are read."""
        return ConformalBand.from_state_dict, (self.state_dict(),)


def share(name: str, value: object) -> float:
    """Return a number between 0 and 1, both excluded."""
    result = _checks.number(name, value)
    if not 0.0 < result < 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
    return result


def _cut(c: float) -> float:
    return min(max(c, -LIMIT), LIMIT)


def _within(name: str, value: object, most: float) -> float:
    result = _checks.number(name, value)
    if math.isinf(result) or abs(result) > most:
        raise ValueError(f"{name} has {value!r}")
    return result
