"""Whether a source has gone silent: it holds requests, and does not answer one of them for far longer than ever before.

A dead endpoint with a full window shows no failure, only nothing. How long nothing is normal follows from how many
answers were due meanwhile (requests in flight over the mean time of an answer, Little's law): that number is about the
same at any load. A server that answers in batches shows long silences, which are learned as well.
"""

from __future__ import annotations

from math import inf

LEAST_INFLIGHT = 3
"""Requests in flight below which silence says nothing."""
LEAST_ANSWERS = 20
LEAST_SECONDS = 2.5
FACTOR = 3.0
"""Times the longest silence so far."""
LEAST_DUE = 24.0
"""Answers that must be missing: by chance e^-24, if they come independently."""
_MEMORY = 0.9995


class StallDetector:
    """Since when a source is silent, and how long that was at most, in answers due.

    Attributes:
        since: when it last gave a sign of life under load, inf while it holds too little.
    """

    __slots__ = ("_answers", "_longest", "since")

    def __init__(self) -> None:
        self.since = inf
        self._longest = 0.0
        self._answers = 0

    def sent(self, now: float, inflight: int) -> None:
        """A request went out."""
        if inflight == LEAST_INFLIGHT and self.since == inf:
            self.since = now

    def broken(self, now: float, inflight: int, mean: float) -> None:
        """A sign of life; ``inflight`` is without it, ``mean`` the seconds of an answer."""
        if self.since != inf and mean > 0:
            self._longest = max(_MEMORY * self._longest, (now - self.since) * (inflight + 1) / mean)
            self._answers += 1
        self.since = now if inflight >= LEAST_INFLIGHT else inf

    def ended(self, inflight: int) -> None:
        """A request ended without a sign of life."""
        if inflight < LEAST_INFLIGHT:
            self.since = inf

    def alarm_at(self, inflight: int, mean: float) -> float:
        """When it is to be called stuck, if it stays silent; inf if it is not silent or too little is known."""
        if self.since == inf or self._answers < LEAST_ANSWERS or inflight < LEAST_INFLIGHT:
            return inf
        return self.since + max(LEAST_SECONDS, FACTOR * self._longest * mean / inflight, LEAST_DUE * mean / inflight)
