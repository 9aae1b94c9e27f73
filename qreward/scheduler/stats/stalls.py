"""Detects a stalled source: it has requests in flight, and has answered none of them for far longer than ever before.

A dead endpoint with all slots in use shows no failure, only silence. The normal length of a silence is measured in answers that were due
meanwhile (requests in flight over the mean time of an answer, Little's law), since that number is about the same at any load. A server that
answers in batches shows long silences, which are learned as well.
"""

from __future__ import annotations

from math import inf

LEAST_INFLIGHT = 3
"""Requests in flight below which silence is no evidence."""
LEAST_ANSWERS = 20
LEAST_SECONDS = 2.5
FACTOR = 3.0
"""A stall is this many times the longest silence so far."""
LEAST_DUE = 24.0
"""Least number of answers that are overdue in a stall; the chance of that is e^-24 if answers arrive independently."""
_MEMORY = 0.9995


class StallDetector:
    """Tracks since when a source is silent, and its longest silence, in answers due.

    Attributes:
        since: when it last showed a sign of life under load; inf while it has too few requests in flight.
    """

    __slots__ = ("_answers", "_longest", "since")

    def __init__(self) -> None:
        self.since = inf
        self._longest = 0.0
        self._answers = 0

    def sent(self, now: float, inflight: int) -> None:
        """A request was sent."""
        if inflight == LEAST_INFLIGHT and self.since == inf:
            self.since = now

    def broken(self, now: float, inflight: int, mean: float) -> None:
        """The source showed a sign of life. ``inflight`` no longer counts that request; ``mean`` is the mean latency in seconds."""
        if self.since != inf and mean > 0:
            self._longest = max(_MEMORY * self._longest, (now - self.since) * (inflight + 1) / mean)
            self._answers += 1
        self.since = now if inflight >= LEAST_INFLIGHT else inf

    def ended(self, inflight: int) -> None:
        """A request ended without a sign of life."""
        if inflight < LEAST_INFLIGHT:
            self.since = inf

    def alarm_at(self, inflight: int, mean: float) -> float:
        """Return when the source counts as stalled if it stays silent; inf if it is not silent or too little is known."""
        if self.since == inf or self._answers < LEAST_ANSWERS or inflight < LEAST_INFLIGHT:
            return inf
        return self.since + max(LEAST_SECONDS, FACTOR * self._longest * mean / inflight, LEAST_DUE * mean / inflight)
