"""Decides when batch items fail because no endpoint of their route is alive.

The ``timeout`` of a batch item starts when an endpoint takes the item, because otherwise a long batch would time out in its own queue. When
no endpoint of the route is alive, the timeout of all waiting items starts. ``timeout`` seconds later they fail, and items that are read
afterwards fail too, until an endpoint shows a sign of life: an answer, the first token of an answer, or a rejection of a request. An
endpoint is alive unless it is out of service, half-open or removed, or five requests in a row have timed out without a sign of life.
"""

from __future__ import annotations

from math import inf

from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed
from qreward.scheduler.timer_wheel import TimerWheel

LEAST = 0.25
"""Least share (0 to 1) of its timeout that an item has when a source takes it."""


class OutageTracker:
    """Tracks the pools without a live source. The timers of the batches that use these pools are kept in ``wheel``."""

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel
        self._down: dict[Pool, None] = {}

    def enter(self, now: float, feed: BatchFeed) -> None:
        feed.opened_at = now
        feed.pool.feeds[feed] = None
        self.check(now, feed.pool)
        self._set_due(feed)

    def leave(self, feed: BatchFeed) -> None:
        pool = feed.pool
        pool.feeds.pop(feed, None)
        self._wheel.remove(feed)
        if not pool.feeds and pool.down_since < inf:
            self._end(pool)

    def check(self, now: float, pool: Pool) -> None:
        """Begin an outage of a pool if batches use the pool and none of its sources is alive."""
        if pool.feeds and pool.down_since == inf and not pool.is_alive():
            pool.down_since = now
            self._down[pool] = None
            for feed in pool.feeds:
                self._set_due(feed)

    def look(self, now: float, attempt: Attempt, *, alive: bool) -> None:
        """Record that an attempt has ended, with or without a sign of life."""
        source = attempt.source
        if alive:
            self.end(source, attempt.sent_at)
        elif not source.is_alive():
            for pool in source.pools:
                self.check(now, pool)

    def end(self, source: Source, sent_at: float = inf) -> None:
        """End the outages of a source's pools, because a request sent at ``sent_at`` showed a sign of life.

        Does nothing if the health of the source has changed since the request was sent.
        """
        if self._down and sent_at >= source.health.since:
            for pool in source.pools:
                if pool.down_since < inf:
                    self._end(pool)

    def _end(self, pool: Pool) -> None:
        pool.down_since = inf
        self._down.pop(pool, None)
        for feed in pool.feeds:
            feed.failing = None
            self._wheel.remove(feed)

    def _set_due(self, feed: BatchFeed) -> None:
        if feed.timeout is not None and feed.pool.down_since < inf and feed.failing is None:
            self._wheel.move(feed, max(feed.pool.down_since, feed.opened_at) + feed.timeout)


def deadline(now: float, pool: Pool, timeout: float, since: float) -> float:
    """Return the deadline of a batch item that a source takes now.

    During an outage the item's timeout (seconds) started when the outage began, or when the batch began to use the pool (``since``), if
    that was later. The item gets at least a quarter of its timeout, so that a recovered source can answer it.
    """
    return min(now + timeout, max(pool.down_since + timeout, since + timeout, now + LEAST * timeout))
