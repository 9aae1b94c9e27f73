"""How soon and how steadily a source streams, and what is too long: for the first token, and between two.

First token: clamp(4 x p99, 5 s, 120 s), doubled each time the task has run into a limit before, for it may only be long.
Gap: clamp(20 x p99, 5 s, 60 s), and 60 s before anything is known. A first token has no limit here before 20 of them were
seen: the limit of the attempt holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from qreward.core.latency import Quantiles

KNOWN = 20
"""Values before a quantile is believed."""
MEMORY = 1000
FIRST_FACTOR, FIRST_LEAST, FIRST_MOST = 4.0, 5.0, 120.0
GAP_FACTOR, GAP_LEAST, GAP_MOST = 20.0, 5.0, 60.0
MOST_DOUBLINGS = 3


class Tempo:
    """Of one source.

    Example:
        >>> tempo = Tempo()
        >>> for _ in range(KNOWN):
        ...     tempo.began(2.0)
        >>> 7 < tempo.first_limit(0) < 9, tempo.gap_limit()
        (True, 60.0)
    """

    __slots__ = ("_first", "_gaps")

    def __init__(self) -> None:
        self._first = Quantiles(fade_after=MEMORY)
        self._gaps = Quantiles(fade_after=MEMORY)

    def began(self, seconds: float) -> None:
        """A first token came after so many seconds."""
        self._first.add(seconds)

    def went_on(self, gaps: Iterable[float]) -> None:
        """So many seconds passed between tokens."""
        for gap in gaps:
            self._gaps.add(gap)

    def first(self, quantile: float) -> float | None:
        """Seconds within which that share of first tokens came, None before enough is known."""
        return self._first.at(quantile) if self._first.count >= KNOWN else None

    def first_limit(self, overdue: int) -> float | None:
        """Seconds a first token may take of a task that has run into a limit so often; None if nothing is known."""
        slow = self.first(0.99)
        if slow is None:
            return None
        return min(FIRST_MOST, max(FIRST_LEAST, FIRST_FACTOR * slow) * 2.0 ** min(overdue, MOST_DOUBLINGS))

    def gap_limit(self) -> float:
        """Seconds that may pass between two tokens."""
        slow = self._gaps.at(0.99) if self._gaps.count >= KNOWN else None
        return GAP_MOST if slow is None else min(GAP_MOST, max(GAP_LEAST, GAP_FACTOR * slow))
