"""When the items of batches fail that wait for a route of which no endpoint is alive.

An item of a batch has its ``timeout`` from when an endpoint takes it. While it waits for that, its time does not run, for
otherwise a long batch would time out in its own queue. This holds as long as the route has an endpoint that is alive, however
busy or rate limited it is. When none is alive, the time of all items that wait runs: ``timeout`` seconds later they fail, those that
are read from the input afterwards as well, until an endpoint gives a sign of life.

An endpoint is alive unless it is out of service, on trial after that, removed, or has let five requests in a row run out of
their time without a sign of life. Signs of life are an answer, the first token of one, and a rejection of the request.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.request import Attempt, BatchFeed
from qreward.scheduler.timer_wheel import TimerWheel

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source
    from qreward.scheduler.pool import Pool

UNKNOWN = 0.25
"""Share of the timeout in which a source that has shown no speed is expected to answer."""


class Outages:
    """The pools that are down, and the feeds that wait for them.

    Args:
        wheel: where feeds are due while their pool is down.
    """

    __slots__ = ("_down", "_wheel")

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel
        self._down: dict[Pool, None] = {}

    def enter(self, now: float, feed: BatchFeed) -> None:
        """A batch begins to wait for a pool, which may be down already."""
        feed.opened_at = now
        feed.pool.feeds[feed] = None
        self.check(now, feed.pool)
        self._set_due(feed)

    def leave(self, feed: BatchFeed) -> None:
        """A batch waits no more."""
        pool = feed.pool
        pool.feeds.pop(feed, None)
        self._wheel.remove(feed)
        if not pool.feeds and pool.down_since < inf:
            self._end(pool)

    def check(self, now: float, pool: Pool) -> None:
        """Find out whether any source of a pool is alive, if batches wait for it."""
        if pool.feeds and pool.down_since == inf and not pool.is_alive():
            pool.down_since = now
            self._down[pool] = None
            for feed in pool.feeds:
                self._set_due(feed)

    def look(self, now: float, attempt: Attempt, *, alive: bool) -> None:
        """An attempt has ended, which shows that its source is alive, or may show that it is not."""
        source = attempt.source
        if alive:
            self.end(source, attempt.sent_at)
        elif not source.is_alive():
            for pool in source.pools:
                self.check(now, pool)

    def end(self, source: Source, sent_at: float = inf) -> None:
        """A source has given a sign of life, to a request sent then. One sent before it went out of service says nothing of the present."""
        if self._down and sent_at >= source.health.since:
            for pool in source.pools:
                if pool.down_since < inf:
                    self._end(pool)

    def postpone(self, now: float, feed: BatchFeed) -> bool:
        """A feed is due. True if it is put off, once, because of a request under way that may yet be answered."""
        assert feed.timeout is not None
        attempts = [(source, each) for source in feed.pool.sources for each in source.attempts if each.why is None]
        until = max((each.sent_at + _usual(source, feed.timeout) for source, each in attempts), default=now)
        if feed.postponed or until <= now:
            return False
        feed.postponed = True
        self._wheel.add(feed, until)
        return True

    def _end(self, pool: Pool) -> None:
        pool.down_since = inf
        self._down.pop(pool, None)
        for feed in pool.feeds:
            feed.failing, feed.postponed = None, False
            self._wheel.remove(feed)

    def _set_due(self, feed: BatchFeed) -> None:
        ends_at = _ends_at(feed)
        if ends_at < inf and feed.failing is None:
            self._wheel.move(feed, ends_at)


def deadline(now: float, source: Source, pool: Pool, timeout: float, since: float) -> float:
    """The deadline of an item of a batch that a source takes now.

    In an outage its time began before. It has at least the time in which nearly all answers of the source come, so that one that is
    back can show it.

    Args:
        timeout: of the item, in seconds.
        since: since when the item's batch waits.
    """
    if pool.down_since == inf:
        return now + timeout
    return min(now + timeout, max(pool.down_since + timeout, since + timeout, now + _usual(source, timeout)))


def _ends_at(feed: BatchFeed) -> float:
    """When the items of a feed fail that wait by then; inf while its pool is not down."""
    return inf if feed.timeout is None else max(feed.pool.down_since, feed.opened_at) + feed.timeout


def _usual(source: Source, timeout: float) -> float:
    """Seconds in which nearly all answers of a source come."""
    return min(timeout, UNKNOWN * timeout if source.latency.slow is None else source.latency.slow)
