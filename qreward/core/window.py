"""How many requests a source may have in flight.

The scheduler asks only for ``limit`` and tells what became of each request, so that a window may learn.
"""

from __future__ import annotations

from typing import Protocol

DEFAULT_LIMIT = 64
"""Requests in flight at an endpoint of which nothing is known."""


class Window(Protocol):
    """A limit that may change with what it is told."""

    limit: int

    def ok(self, now: float, sent_at: float, tokens: int | None) -> None: ...
    def rejected(self, now: float, sent_at: float, hint: float | None) -> None: ...
    def ended(self) -> None: ...


class FixedWindow:
    """A limit that an operator has set, or the default."""

    __slots__ = ("limit",)

    def __init__(self, limit: int | None = None) -> None:
        self.limit = DEFAULT_LIMIT if limit is None else limit

    def ok(self, now: float, sent_at: float, tokens: int | None) -> None:
        """An answer came."""

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        """The source said it has no room; ``hint`` is the wait in seconds it asks for."""

    def ended(self) -> None:
        """A request ended in any other way, which says nothing about room."""
