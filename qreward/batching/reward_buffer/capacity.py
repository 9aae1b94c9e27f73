"""Limits how many completions may wait, and estimates when there is capacity again. Counts over all event loops; knows no queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from qreward.errors import BadRequest, QueueFull

_SMOOTHING = 0.2
_WHOLE = frozenset({str, int, float, bool, bytes, type(None)})
_UNKNOWN = 1.0
"""Seconds that are assumed as long as nothing has been scored."""


class Entry:
    """A completion on its way to the scorer. ``waits`` is true until a batch takes the completion or its caller leaves."""

    __slots__ = ("completion", "metadata", "waits")

    def __init__(self, completion: str, metadata: Mapping[str, Any]) -> None:
        self.completion = completion
        self.metadata = own_copy(metadata)
        self.waits = False


def own_copy(value: Any) -> Any:
    """A copy that shares no mapping, list, set or bytearray with the original, at any depth. Other objects are shared, for example a model
    or a named tuple.

    Example:
        >>> metadata = {"tests": [{"input": "1"}]}
        >>> own_copy(metadata)["tests"][0].clear()
        >>> metadata
        {'tests': [{'input': '1'}]}
    """
    kind = type(value)
    if kind in _WHOLE:
        return value
    if isinstance(value, Mapping):
        made = {key: own_copy(each) for key, each in value.items()}
        return made if kind is dict or not isinstance(value, dict) else _refilled(value, made)
    if kind is list or kind is tuple:
        return kind(map(own_copy, value))
    if isinstance(value, list):
        return _refilled(value, {at: own_copy(each) for at, each in enumerate(value)})
    if isinstance(value, set | bytearray):
        return copy(value)
    return value


def _refilled(value: Any, parts: Mapping[Any, Any]) -> Any:
    """A copy of an instance of a dict or list subclass, of the same type, with copied values."""
    made = copy(value)
    for key, part in parts.items():
        made[key] = part
    return made


class Places:
    """Counts the waiting completions and enforces their maximum.

    Args:
        most: maximum number of waiting completions.
        soon: returns, for a number of running batches, how many more completions the scorer's free slots are about to take. With it, an
            idle scorer rejects no completion.

    Attributes:
        waiting: number of waiting completions.
        refused: number of rejected completions.
    """

    def __init__(self, most: int, soon: Callable[[int], int] = lambda _: 0) -> None:
        self.most = most
        self._soon = soon
        self.waiting = 0
        self.refused = 0
        self._running = 0
        self._seconds_each: float | None = None
        self._lock = threading.Lock()

    def take(self, entries: Sequence[Entry]) -> None:
        """Admit all entries or none.

        Raises:
            BadRequest: there are more entries than may ever wait.
            QueueFull: there is no capacity for all of them now.
        """
        count = len(entries)
        if count > self.most:
            raise BadRequest(f"{count} completions can never wait together; {self.most} may; send fewer at once, or raise max_queue_size")
        with self._lock:
            if self.waiting + count > self.most + self._soon(self._running):
                self.refused += count
                raise QueueFull(
                    f"{self.waiting} completions wait to be scored, and {self.most} may; there is no room for {count} more; try again later"
                )
            self.waiting += count
            for entry in entries:
                entry.waits = True

    def leave(self, entry: Entry) -> None:
        """Record that an entry waits no longer. A second call does nothing."""
        with self._lock:
            self.waiting -= entry.waits
            entry.waits = False

    @contextmanager
    def batch(self, entries: Sequence[Entry]) -> Iterator[None]:
        """Count a batch as running inside the ``with`` block. Its entries wait no longer."""
        with self._lock:
            self._running += 1
        for entry in entries:
            self.leave(entry)
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def scored(self, count: int, seconds: float, slots: int) -> None:
        """Record that a batch of ``count`` completions took ``seconds``, while ``slots`` batches could run at once."""
        each = seconds / count / slots
        known = self._seconds_each
        self._seconds_each = each if known is None else known + _SMOOTHING * (each - known)

    def room_in(self, count: int) -> float:
        """Estimated seconds until ``count`` completions can be admitted if no others arrive.

        This is the number of completions in excess, times the recent seconds per completion.
        """
        in_the_way = self.waiting + min(count, self.most) - self.most - self._soon(self._running)
        if in_the_way <= 0:
            return 0.0
        return _UNKNOWN if self._seconds_each is None else in_the_way * self._seconds_each
