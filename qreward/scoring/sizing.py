"""How many items a merged request should hold: enough to be worth a request, few enough that no slot idles while another has all the work.

Arithmetic only. This module knows no items.
"""

from __future__ import annotations

from math import ceil, inf

from qreward.scheduler.state import Pool, Source

MOST = 256
"""Maximum number of items per request at servers without a limit of their own."""
LEAST = 8
"""While response times are unknown, requests are not shortened below this number of items."""
WEIGHT = 0.95
"""Factor on the weight of older requests with each new one."""
PORTION = 1.5
"""The remaining items are divided into this many requests per slot, so that a slow endpoint does not finish last with its share.
Of 1, 1.5, 2 and 3, measured on servers of 20 ms + 1.5 ms an item, of a flat 100 ms, of equal and of unequal speed, 1.5 loses least."""


class ServiceTimeModel:
    """Response time in seconds as a linear function ``a + b * n`` of the number of items.

    Fitted by weighted least squares over about the last twenty requests.

    Example:
        >>> service = ServiceTimeModel()
        >>> for items in (1, 50, 100, 150):
        ...     service.add(items, 0.02 + 0.0015 * items)
        >>> service.least()
        14
    """

    __slots__ = ("_n", "_nn", "_nt", "_t", "_w")

    def __init__(self) -> None:
        self._w = self._n = self._t = self._nn = self._nt = 0.0

    def add(self, items: int, seconds: float) -> None:
        """Record the response time of a request."""
        self._w = WEIGHT * self._w + 1
        self._n = WEIGHT * self._n + items
        self._t = WEIGHT * self._t + seconds
        self._nn = WEIGHT * self._nn + items * items
        self._nt = WEIGHT * self._nt + items * seconds

    def least(self) -> int:
        """Number of items for which a request takes twice as long as an empty one. A shorter request would be mostly overhead."""
        spread = self._w * self._nn - self._n * self._n
        if self._w < 3 or spread <= 0.01 * self._n * self._n:  # lengths too similar to determine the slope
            return LEAST
        slope = (self._w * self._nt - self._n * self._t) / spread
        fixed = (self._t - slope * self._n) / self._w
        if slope <= 0:
            return MOST
        return max(1, min(MOST, ceil(fixed / slope)))


def places(now: float, pool: Pool) -> int:
    """Number of requests that the pool has in flight or could send now, at least 1."""
    found = sum(source.inflight for source in pool.sources)
    found += sum(max(0, _capacity(source) - source.inflight) for source in pool.sources if source.ready_at(now) <= now)
    return max(1, found)


def _capacity(source: Source) -> int:
    """Number of concurrent requests that an endpoint's concurrency limit and, by Little's law, its rate limit allow."""
    rates = [pace.rate for pace in (source.requests, source.learned) if pace is not None]
    rate = min((rate for rate in rates if rate is not None), default=inf)
    return source.window.limit if rate == inf else min(source.window.limit, 1 + int(rate * source.latency.mean))


def length(now: float, pool: Pool, waiting: float, service: ServiceTimeModel) -> int:
    """Maximum number of items for the next request.

    Args:
        waiting: items that wait or are still to be read; inf if unknown.
    """
    if waiting == inf:
        return MOST
    among = places(now, pool)
    return max(service.least(), min(MOST, ceil(waiting / (PORTION * among if among > 1 else 1))))


def pause(pool: Pool) -> float:
    """Seconds after a request for which single items wait for others, although a slot is free.

    With all slots in use, one becomes free every ``latency / slots`` seconds. Without a pause, items would take the last slots one by one,
    and the next item would wait for a whole response. The pause is this interval times the share of slots in use; it is 0 if the pool is
    idle.
    """
    sources = list(pool.sources)
    slots, busy = sum(source.window.limit for source in sources), sum(source.inflight for source in sources)
    return max((source.latency.mean for source in sources), default=0.0) * busy / slots**2 if slots else 0.0
