"""Who is told when something changes, and the lock under which changes are made one after the other. Knows not what changes."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from qreward.engine import forks

logger = logging.getLogger("qreward.schedule")

OnChange = Callable[[Any, frozenset[str]], object]


class Changes:
    """The lock and the callbacks of one thing that changes.

    Attributes:
        lock: held while a change is made and told, so that all are told in their order. A callback may change the thing again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._callbacks: dict[object, OnChange] = {}
        forks.watch(self, Changes._begin_again)

    def _begin_again(self) -> object:
        """In a forked child: the lock may have been held by a thread that is not here."""
        inherited, self.lock = self.lock, threading.RLock()
        return inherited

    def add(self, callback: OnChange) -> Callable[[], None]:
        """Call ``callback(thing, names)`` after each change from now on. Returns what ends that; it may be called twice."""
        token = object()
        self._callbacks[token] = callback

        def remove() -> None:
            self._callbacks.pop(token, None)

        return remove

    def follow(self, method: OnChange) -> None:
        """As ``add``, for a method of an object that this does not keep alive."""

        def call(thing: object, names: frozenset[str]) -> None:
            found = weak()
            if found is not None:
                found(thing, names)

        remove = self.add(call)
        weak = weakref.WeakMethod(method, lambda _: remove())

    def tell(self, thing: object, names: frozenset[str]) -> None:
        """Call all; one that raises hinders nobody."""
        for token, callback in list(self._callbacks.items()):
            if token not in self._callbacks:  # removed by one before it
                continue
            try:
                callback(thing, names)
            except Exception:
                logger.exception("an on_change callback raised; the change of %s stands", ", ".join(sorted(names)))
