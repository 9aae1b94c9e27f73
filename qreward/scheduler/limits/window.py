"""Concurrency limits: how many requests a source may have in flight.

The scheduler reads only ``limit``, and reports the outcome of each request so that a limit can adapt. A limit also classifies rejects:
either the source is unavailable or over a rate (its cooldown starts), or it is only full.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

DEFAULT_LIMIT = 64
"""Requests in flight at an endpoint whose capacity is unknown."""
PATIENCE = 100
"""Answers after which a lowered limit is raised again. This bounds rejects to about one in so many requests."""


Changes = dict[tuple[str, str], int]
"""How often a limit changed: (``up`` or ``down``, reason in one word) -> count."""


def count_change(changes: Changes, before: int, after: int, why: str) -> None:
    """Count a change of a limit; equal values are not counted."""
    if after != before:
        key = ("up" if after > before else "down", why)
        changes[key] = changes.get(key, 0) + 1


class ConcurrencyLimit(Protocol):
    """A concurrency limit that may adapt to events. ``inflight`` and ``others`` are counted after the event."""

    limit: int

    def sent(self, now: float, inflight: int, /) -> None:
        """A request was sent."""

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int, /) -> None:
        """An answer arrived, of ``tokens`` output tokens, or None if the source does not report them."""

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int, /) -> bool:
        """A request was rejected while ``others`` are in flight, with a wait of ``hint`` seconds or None. True if a cooldown must start.

        A hint starts a cooldown in any case. If this returns False, the hint is not treated as a sign of a rate limit.
        """

    def ended(self) -> None:
        """A request ended in any other way, which says nothing about capacity."""


class FixedLimit:
    """A configured limit, or the default.

    A source that rejects requests beyond its own capacity but serves the rest gets no cooldown. The limit falls to the number it still
    serves for a hundred answers (fewer where it is small), and doubles from there. A single reject among good answers is noise.
    """

    __slots__ = ("_clean", "_closed_at", "_good", "_set", "changes", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self._set = self.limit = DEFAULT_LIMIT if limit is None else limit
        self._good = 0  # answers since the last reject
        self._clean = 0  # answers since the limit last changed
        self._closed_at = -inf
        self.changes: Changes = {}

    def sent(self, now: float, inflight: int) -> None:
        """A request was sent."""

    def ok(self, _now: float, _sent_at: float, _tokens: int | None, _inflight: int) -> None:
        """An answer arrived."""
        self._good += 1
        if self.limit < self._set:
            self._clean += 1
            if self._clean >= min(PATIENCE, 4 * self.limit):
                before = self.limit
                self._clean, self.limit = 0, min(self._set, 2 * self.limit)
                count_change(self.changes, before, self.limit, "answers")

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> bool:
        """A request was rejected."""
        lone, self._good = self._good >= self._set / 2, 0
        before = self.limit
        if hint is not None or others == 0:  # unavailable, or over a rate: no evidence of its capacity
            self.limit, self._closed_at = self._set, now
            count_change(self.changes, before, self.limit, "away")
            return True
        if not lone and sent_at >= self._closed_at:
            self._clean, self.limit = 0, max(1, min(self.limit, others))
            count_change(self.changes, before, self.limit, "rejected")
        return False

    def ended(self) -> None:
        """A request ended in any other way."""
