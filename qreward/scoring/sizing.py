"""Choose how many items a merged request should have."""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil, inf

from qreward.codecs.rewards.base import ALONE, MergeLimits
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source

MOST = 256  # maximum number of items per request, for servers that have no limit
LEAST = 8  # minimum number of items per request while response times are unknown, if at least this number of items waits
WEIGHT = 0.95  # factor by which the weight of all older requests is multiplied for each new request
PORTION = 1.5
"""Number of requests per slot into which the remaining items are divided. With more requests than slots, a slow endpoint gets fewer items.
The values 1, 1.5, 2 and 3 were measured on servers that take 20 ms + 1.5 ms per item or 100 ms per request, with equal and with different
speeds. The value 1.5 was the best."""

LONE_REJECTS = 2
"""Number of successive rejections after which shorter requests are tried at an endpoint. A rejection counts if the endpoint has no other
request of this client."""
MOST_PATIENCE = 64  # maximum number of requests that must be answered after a rejection before a longer request is tried
REFUSED_PATIENCE = 1000  # minimum number of requests that must be answered after a refusal before a longer request is tried


class ServiceTimeModel:
    """Models the response time in seconds as a linear function ``a + b * n`` of the number of items ``n``."""

    __slots__ = ("_n", "_nn", "_nt", "_t", "_w")

    def __init__(self) -> None:
        self._w = self._n = self._t = self._nn = self._nt = 0.0

    def add(self, items: int, seconds: float) -> None:
        self._w = WEIGHT * self._w + 1
        self._n = WEIGHT * self._n + items
        self._t = WEIGHT * self._t + seconds
        self._nn = WEIGHT * self._nn + items * items
        self._nt = WEIGHT * self._nt + items * seconds

    def least(self) -> int:
        """Return the number of items for which a request takes twice as long as an empty request."""
        spread = self._w * self._nn - self._n * self._n
        if self._w < 3 or spread <= 0.01 * self._n * self._n:  # too few requests, or lengths that are too similar, to determine the slope
            return LEAST
        slope = (self._w * self._nt - self._n * self._t) / spread
        fixed = (self._t - slope * self._n) / self._w
        return MOST if slope <= 0 else max(1, min(MOST, ceil(fixed / slope)))


def places(now: float, pool: Pool) -> int:
    found = sum(source.inflight for source in pool.sources)
    found += sum(max(0, _capacity(source) - source.inflight) for source in pool.sources if source.ready_at(now) <= now)
    return max(1, found)


def _capacity(source: Source) -> int:
    """Return the number of concurrent requests that the limits allow. A rate limit allows its rate times the mean response time (Little's
    law)."""
    rates = [pace.rate for pace in (source.requests, source.learned) if pace is not None]
    rate = min((rate for rate in rates if rate is not None), default=inf)
    return source.window.limit if rate == inf else min(source.window.limit, 1 + int(rate * source.latency.mean))


def length(now: float, pool: Pool, waiting: float, service: ServiceTimeModel) -> int:
    """Return the maximum number of items for the next request, if ``waiting`` items wait or have not been read; inf if unknown."""
    if waiting == inf:
        return MOST
    among = places(now, pool)
    return max(service.least(), min(MOST, ceil(waiting / (PORTION * among if among > 1 else 1))))


def pause(pool: Pool) -> float:
    """Return the seconds after a request during which single items wait for other items, even if a slot is free."""
    sources = list(pool.sources)
    slots, busy = sum(source.window.limit for source in sources), sum(source.inflight for source in sources)
    return max((source.latency.mean for source in sources), default=0.0) * busy / slots**2 if slots else 0.0


class EndpointLimits:
    """Learns how long requests to one endpoint may be, for items of one kind. ``cap`` is the maximum number of items that the client sets.

    Text Embeddings Inference has a queue slot for each item, and rejects a longer request as if it had no capacity: shorter requests are
    then tried. A request was also too long if it was refused and both of its halves were accepted. A longer request is tried again later,
    and each time that it fails, twice as many requests must be answered before the next one.
    """

    __slots__ = ("_answers", "_cap", "_patience", "_rejections", "_reported", "_usual", "limits")

    def __init__(self, usual: MergeLimits, cap: int | None) -> None:
        self._cap, self._reported = cap, usual.items
        self._patience = 1  # number of answers before a longer request is tried
        self._rejections = self._answers = 0
        self.limits = self._usual = usual.with_items(cap)

    def report(self, items: int) -> None:
        if self._reported is not None and self._usual != ALONE and items != self._reported:
            self._reported, self._patience = items, 1
            self._rejections = self._answers = 0
            self.limits = self._usual = self._usual.of_items(items).with_items(self._cap)

    def record_refusal(self, most: int) -> None:
        """Limit requests to ``most`` items, because a longer request was refused and its halves were accepted."""
        self._patience = max(REFUSED_PATIENCE, 2 * self._patience)
        self._answers = 0
        self.limits = self.limits.with_items(most)

    def record_rejection(self, items: int) -> None:
        """Record that a request was rejected for lack of capacity, although the endpoint had no other request of this client."""
        self._rejections += 1
        if self._reported is None or self._rejections < LONE_REJECTS:
            return
        if self._rejections == LONE_REJECTS and not self._answers:
            self._patience *= 2
        self._patience = min(self._patience, MOST_PATIENCE)
        if items > 1:
            self.limits = self._usual.with_items(items // 2)
        else:  # the length was not the cause
            self.limits, self._rejections = self._usual, 0

    def record_answer(self) -> None:
        self._rejections = 0
        if self.limits is not self._usual:
            self._answers += 1
            if self._answers >= self._patience:
                self._answers = 0
                self.limits = self._usual.with_items(2 * (self.limits.items or 1))


class LearnedLimits:
    """Holds the learned limits of all endpoints of a client. The limits of an endpoint are kept until the endpoint is removed."""

    def __init__(self) -> None:
        self._known: dict[Source, dict[Hashable, EndpointLimits]] = {}
        self._reported: dict[Source, int] = {}

    def at(self, source: Source, usual: MergeLimits, cap: int | None) -> EndpointLimits:
        """Return the limits of requests to an endpoint."""
        if source not in self._known:
            for removed in [each for each in (*self._known, *self._reported) if each.removed]:
                self._known.pop(removed, None)
                self._reported.pop(removed, None)
        kinds = self._known.setdefault(source, {})
        known = kinds.get((usual, cap))
        if known is None:
            known = kinds[usual, cap] = EndpointLimits(usual, cap)
            if source in self._reported:
                known.report(self._reported[source])
        return known

    def apply_probe(self, source: Source, result: ProbeResult) -> None:
        if result.items is not None:
            self._reported[source] = result.items
            for known in self._known.get(source, {}).values():
                known.report(result.items)
