"""The processes of one user on one machine share limits: ledgers in files of a private directory, changed under a lock. No daemon."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from pathlib import Path

from qreward.core.sharing.words import Ask, Share
from qreward.sharing.book import Book
from qreward.sharing.places import directory


class LocalCarrier:
    """The ledgers of this machine.

    Args:
        path: the directory; by default see :func:`~qreward.sharing.places.directory`.
        clock: seconds, the same for all processes of this machine.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._books: dict[str, Book] = {}
        self._finalizer = weakref.finalize(self, _close_all, self._books)

    def renew(self, key: str, member: str, ask: Ask) -> Share:
        """Raises ``OSError`` if the ledger cannot be had; ``Unsafe`` if others could have put it there."""
        with self._book(key).opened(member) as (now, ledger):
            return ledger.renew(now, member, ask)

    def leave(self, key: str, member: str, ask: Ask) -> None:
        """The member goes. Raises as ``renew`` does; its process' end will tell then."""
        book = self._book(key)
        try:
            with book.opened(member) as (now, ledger):
                ledger.leave(now, member, ask)
        finally:
            book.gone(member)

    def close(self) -> None:
        """Close all files."""
        _close_all(self._books)

    def _book(self, key: str) -> Book:
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = Book(directory() if self._path is None else self._path, key, self._clock)
        return book


def _close_all(books: dict[str, Book]) -> None:
    for book in list(books.values()):
        book.close()
    books.clear()
