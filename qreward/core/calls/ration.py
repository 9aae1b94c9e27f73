"""A rate limit that holds in any window: the times of the last starts.

A bucket that refills lets twice its size through in a window that begins with the bucket full. This remembers each start of the last
window instead, so the next one may come as soon as the window allows and never sooner. O(1) a start, one float of memory each.
"""

from __future__ import annotations

from collections import deque
from math import inf


class Ration:
    """At most ``size`` starts in any half-open interval of ``window`` seconds."""

    __slots__ = ("_starts", "size", "window")

    def __init__(self, size: int, window: float) -> None:
        self.size = size
        self.window = window
        self._starts: deque[float] = deque()

    @property
    def ready_at(self) -> float:
        """The earliest time at which one more may start; a time in the past means now."""
        starts = self._starts
        return starts[len(starts) - self.size] + self.window if len(starts) >= self.size else -inf

    @property
    def clear_at(self) -> float:
        """From then on it is as if nothing had ever started."""
        return self._starts[-1] + self.window if self._starts else -inf

    def take(self, now: float) -> None:
        """One starts."""
        starts, window = self._starts, self.window
        starts.append(now)
        while starts[0] + window <= now:  # the sum that ``ready_at`` is: a difference would be rounded otherwise
            starts.popleft()

    def change(self, size: int, window: float) -> None:
        """Hold another limit from now on; what started counts under it."""
        self.size, self.window = size, window
