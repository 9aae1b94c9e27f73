"""Decides when batch items fail because no endpoint of their route is alive.

The ``timeout`` of a batch item starts when an endpoint takes the item. Time in the queue does not count, because otherwise a long batch
would time out in its own queue. This holds as long as one endpoint of the route is alive, even if that endpoint is busy or rate limited.
When no endpoint is alive, the timeout of all waiting items starts. ``timeout`` seconds later the waiting items fail. Items that are read
from the input afterwards fail too, until an endpoint shows a sign of life.

An endpoint is alive unless it is out of service, half-open or removed, or five requests in a row have timed out without a sign of life.
An answer, the first token of an answer and a rejection of a request are signs of life.
"""

from __future__ import annotations

from math import inf

from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed
from qreward.scheduler.timer_wheel import TimerWheel

UNKNOWN = 0.25
"""Share (0 to 1) of the timeout within which a source of unknown latency is expected to answer."""


class OutageTracker:
    """Tracks the pools without a live source. The timers of the batches that use these pools are kept in ``wheel``."""

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel
        self.down: dict[Pool, None] = {}  # the pools in an outage

    def enter(self, now: float, feed: BatchFeed) -> None:
        feed.opened_at = now
        feed.pool.feeds[feed] = None
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
            self.down[pool] = None
            for feed in pool.feeds:
                self._set_due(feed)

    def end(self, source: Source, sent_at: float = inf) -> None:
        """End the outages of a source's pools, because a request sent at ``sent_at`` showed a sign of life.

        Does nothing if the health of the source has changed since the request was sent.
        """
        if self.down and sent_at >= source.health.since:
            for pool in source.pools:
                if pool.down_since < inf:
                    self._end(pool)

    def postpone(self, now: float, feed: BatchFeed) -> bool:
        """Postpone the failure of a batch's waiting items, once, until the requests in flight should have been answered.

        Returns False if the failure was postponed before, or if no answer is expected.
        """
        assert feed.timeout is not None
        attempts = [(source, each) for source in feed.pool.sources for each in source.attempts if each.cancel_reason is None]
        until = max((each.sent_at + _usual(source, feed.timeout) for source, each in attempts), default=now)
        if feed.postponed or until <= now:
            return False
        feed.postponed = True
        self._wheel.add(feed, until)
        return True

    def _end(self, pool: Pool) -> None:
        pool.down_since = inf
        self.down.pop(pool, None)
        for feed in pool.feeds:
            feed.make_error, feed.postponed = None, False
            self._wheel.remove(feed)

    def _set_due(self, feed: BatchFeed) -> None:
        if feed.timeout is not None and feed.pool.down_since < inf and feed.make_error is None:
            self._wheel.move(feed, max(feed.pool.down_since, feed.opened_at) + feed.timeout)


def deadline(now: float, source: Source, pool: Pool, timeout: float, since: float) -> float:
    """Return the deadline of a batch item that a source takes now.

    During an outage the item's timeout (seconds) started when the outage began, or when the batch began to use the pool (``since``), if
    that was later. The item gets at least the 99th percentile latency of the source, so that a recovered source can answer it.
    """
    return min(now + timeout, max(pool.down_since + timeout, since + timeout, now + _usual(source, timeout)))


def _usual(source: Source, timeout: float) -> float:
    """Return the 99th percentile latency of a source, or a guess if it is unknown; at most ``timeout``."""
    return min(timeout, UNKNOWN * timeout if source.latency.p99 is None else source.latency.p99)
