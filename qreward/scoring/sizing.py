"""How long a list should be: long enough to be worth a request, short enough that no slot idles while another has all the work.

Arithmetic; knows no items.
"""

from __future__ import annotations

from math import ceil, inf

from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.pool import Pool

MOST = 256
"""Items of one list at servers that name no limit."""
LEAST = 8
"""Items below which a list is not shortened while nothing is known of what a list costs."""
WEIGHT = 0.95
"""What older lists count with each new one."""
PORTION = 1.5
"""Times as many lists as there are places for them that the rest is cut into, so that a slow endpoint does not end last with its share.
Of 1, 1.5, 2 and 3, measured on servers of 20 ms + 1.5 ms an item, of a flat 100 ms, of equal and of unequal speed, it loses least."""


class ServiceTimeModel:
    """Seconds of a list as a line over its length, ``a + b * n``: weighted least squares over about the last twenty lists.

    Example:
        >>> service = Service()
        >>> for items in (1, 50, 100, 150):
        ...     service.add(items, 0.02 + 0.0015 * items)
        >>> service.least()
        14
    """

    __slots__ = ("_n", "_nn", "_nt", "_t", "_w")

    def __init__(self) -> None:
        self._w = self._n = self._t = self._nn = self._nt = 0.0

    def add(self, items: int, seconds: float) -> None:
        """A list of so many items took so long."""
        self._w = WEIGHT * self._w + 1
        self._n = WEIGHT * self._n + items
        self._t = WEIGHT * self._t + seconds
        self._nn = WEIGHT * self._nn + items * items
        self._nt = WEIGHT * self._nt + items * seconds

    def least(self) -> int:
        """Items in which a list takes twice as long as an empty one would: a shorter one would be mostly overhead."""
        spread = self._w * self._nn - self._n * self._n
        if self._w < 3 or spread <= 0.01 * self._n * self._n:  # all of one length: the line could lie in any way
            return LEAST
        slope = (self._w * self._nt - self._n * self._t) / spread
        fixed = (self._t - slope * self._n) / self._w
        if slope <= 0:
            return MOST
        return max(1, min(MOST, ceil(fixed / slope)))


def places(now: float, pool: Pool) -> int:
    """Requests that the pool has under way or could send at this moment, at least 1."""
    found = sum(source.inflight for source in pool.sources)
    found += sum(max(0, _capacity(source) - source.inflight) for source in pool.sources if source.ready_at(now) <= now)
    return max(1, found)


def _capacity(source: Source) -> int:
    """Requests that it can have under way: as its window says, or as its rate of requests allows while one lasts (Little's law)."""
    rates = [pace.rate for pace in (source.requests, source.learned) if pace is not None]
    rate = min((rate for rate in rates if rate is not None), default=inf)
    return source.window.limit if rate == inf else min(source.window.limit, 1 + int(rate * source.latency.mean))


def length(now: float, pool: Pool, waiting: float, service: ServiceTimeModel) -> int:
    """Items that the next list should have at most, when so many wait or are still to be read (inf: nobody knows)."""
    if waiting == inf:
        return MOST
    among = places(now, pool)
    return max(service.least(), min(MOST, ceil(waiting / (PORTION * among if among > 1 else 1))))


def pause(pool: Pool) -> float:
    """Seconds after a list that single items wait for others, though there is room, while the pool is busy.

    If all slots were in use, one would be free every ``latency / slots``; sent sooner, items would take the last slots one by one, and the
    next would wait for a whole answer. The fuller the pool the more of that it waits, so that an idle one is asked at once.
    """
    sources = list(pool.sources)
    slots, busy = sum(source.window.limit for source in sources), sum(source.inflight for source in sources)
    return max((source.latency.mean for source in sources), default=0.0) * busy / slots**2 if slots else 0.0
