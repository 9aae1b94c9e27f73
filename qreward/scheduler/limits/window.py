"""How many requests a source may have in flight.

The scheduler asks only for ``limit``, and tells what becomes of each request, so that a window may learn. A window also
judges rejects: whether one means "leave me alone" (the source's gate closes) or only "I am full".
"""

from __future__ import annotations

from math import inf
from typing import Protocol

DEFAULT_LIMIT = 64
"""Requests in flight at an endpoint of which nothing is known."""
PATIENCE = 100
"""Answers after which a source that was full is offered more again: bounds rejects to about one in so many."""


Changes = dict[tuple[str, str], int]
"""How often a limit changed: (``up`` or ``down``, why in a word) -> times."""


def count_change(changes: Changes, before: int, after: int, why: str) -> None:
    """Count a change of a limit, if it is one."""
    if after != before:
        key = ("up" if after > before else "down", why)
        changes[key] = changes.get(key, 0) + 1


class Window(Protocol):
    """A limit that may change with what it is told. ``inflight`` and ``others`` are as they are after the event."""

    limit: int

    def sent(self, now: float, inflight: int, /) -> None:
        """A request went out."""

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int, /) -> None:
        """An answer came, of so many output tokens, if the source tells."""

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int, /) -> bool:
        """Turned away while ``others`` are served, asked to wait ``hint`` seconds, if at all. True if the source wants to be left alone.

        A hint closes the gate in any case; if this is False, it is not taken for a rate limit.
        """

    def ended(self) -> None:
        """A request ended in any other way, which says nothing about room."""


class FixedLimit:
    """A limit that an operator has set, or the default.

    A source that turns away what goes beyond its own cap but serves the rest is not left alone: it holds what it holds. The
    limit falls to that for a hundred answers (fewer where it is small), and doubles from there. A lone reject amid good answers is noise.
    """

    __slots__ = ("_clean", "_closed_at", "_good", "_set", "changes", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self._set = self.limit = DEFAULT_LIMIT if limit is None else limit
        self._good = 0  # answers since the last reject
        self._clean = 0  # answers since the limit last changed
        self._closed_at = -inf
        self.changes: Changes = {}

    def sent(self, now: float, inflight: int) -> None:
        """A request went out."""

    def ok(self, _now: float, _sent_at: float, _tokens: int | None, _inflight: int) -> None:
        """An answer came."""
        self._good += 1
        if self.limit < self._set:
            self._clean += 1
            if self._clean >= min(PATIENCE, 4 * self.limit):
                before = self.limit
                self._clean, self.limit = 0, min(self._set, 2 * self.limit)
                count_change(self.changes, before, self.limit, "answers")

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> bool:
        """Turned away."""
        lone, self._good = self._good >= self._set / 2, 0
        before = self.limit
        if hint is not None or others == 0:  # away, or over a rate: that says nothing of how many it holds
            self.limit, self._closed_at = self._set, now
            count_change(self.changes, before, self.limit, "away")
            return True
        if not lone and sent_at >= self._closed_at:
            self._clean, self.limit = 0, max(1, min(self.limit, others))
            count_change(self.changes, before, self.limit, "rejected")
        return False

    def ended(self) -> None:
        """A request ended in any other way."""
