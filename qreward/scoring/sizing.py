"""Choose how many items a merged request should have. The reasons are in ``docs/design/lists.md``."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf

from qreward.codecs.rewards.base import ALONE, MergeLimits
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source

MOST = 256  # maximum number of items per request, for servers that have no limit
LEAST = 8  # items of a request to an endpoint whose response times are unknown
GROWTH, AMPLE = 4, 16
"""``GROWTH``: factor by which requests become longer at most. ``AMPLE``: factor on the number of items whose time equals that of an empty
request. Longer requests gain hardly anything, and keep a slow endpoint busy for long."""
GUESS = 0.01  # seconds that an item is assumed to take at first, at an endpoint with a limited rate of requests
RAREST = 1 / 3600  # requests per second; a lower limit counts as this one
WEIGHT = 0.9  # factor by which the weight of all older requests is multiplied for each new request
PORTION = 1.5  # number of requests per slot into which the waiting items of an endpoint are divided
LONE_REJECTS = 2
"""Number of successive rejections after which shorter requests are tried at an endpoint. A rejection counts if the endpoint has no other
request of this client."""
MOST_PATIENCE = 64  # maximum number of requests that must be answered after a rejection before a longer request is tried
FAILURES = 3
"""Number of failures of lists that were longer than all that were answered between them, after which such lists are too long. In an outage,
lists of any length fail."""
REFUSED_PATIENCE = 1000  # minimum number of requests that must be answered after a refusal before a longer request is tried


class ServiceTimeModel:
    """Models the response time of the latest requests to an endpoint as ``a + b * n`` for ``n`` items."""

    __slots__ = ("_busy", "_ended", "_last", "_n", "_nn", "_nt", "_t", "_w")

    def __init__(self) -> None:
        self._w = self._n = self._t = self._nn = self._nt = self._busy = 0.0
        self._last, self._ended = 0, -inf

    def add(self, now: float, items: int, seconds: float) -> None:
        self._w = WEIGHT * self._w + 1
        self._n = WEIGHT * self._n + items
        self._t = WEIGHT * self._t + seconds
        self._nn = WEIGHT * self._nn + items * items
        self._nt = WEIGHT * self._nt + items * seconds
        self._busy = WEIGHT * self._busy + min(seconds, now - self._ended)
        self._last, self._ended = items, now

    @property
    def pace(self) -> float:
        """Seconds per item while the endpoint has requests; 0 before the first answer."""
        return self._busy / self._n if self._n else 0.0

    def bounds(self) -> tuple[int, int, int]:
        """Return the least items of the next request, the number after which more gain nothing, and the most, after the first answer. With
        the least, a request takes twice as long as an empty one. While that is unknown, longer requests show it."""
        most = ceil(min(MOST, max(LEAST, GROWTH * self._last, GROWTH * self._n / self._w)))
        spread = self._w * self._nn - self._n * self._n
        if self._w < 3 or spread <= 0.01 * self._n * self._n:  # too few requests, or lengths that are too similar, to determine the slope
            return most, most, most
        slope = (self._w * self._nt - self._n * self._t) / spread
        fixed = (self._t - slope * self._n) / self._w
        least = most if slope <= 0 else max(1, ceil(min(most, fixed / slope)))
        return least, min(most, AMPLE * max(least, 2)), most


def length(now: float, pool: Pool, waiting: float, at: Source, known: Mapping[Source, EndpointLimits]) -> int:
    """Return the maximum number of items of the next request to ``at``, if ``waiting`` items wait or have not been read."""
    service = known[at].service
    slots = {source: _slots(now, source) for source in pool.sources}
    if sum(slots.values()) <= 1:  # nothing else can take the items
        return ceil(waiting)
    interval = 1 / max(at.rate_limit(), RAREST)  # seconds between two requests, for which the source should have items
    if not service.pace:
        return max(LEAST, ceil(interval / GUESS))
    paces = [known[source].service.pace if source in known else 0.0 for source in slots]
    sources = sum(service.pace / (pace or service.pace) for pace in paces)  # how many sources as fast as this one equal all sources
    sent = {source: sum(attempt.task.size for attempt in source.attempts) for source in slots}
    share = max(LEAST, ceil((waiting + sum(sent.values())) / sources) - sent[at])
    least, ample, most = service.bounds()
    least = max(least, min(most, ceil(interval / service.pace)))
    taken = min(share, max(least, min(ample, ceil(waiting / (PORTION * max(1, slots[at]) * sources)))))
    return taken if waiting - taken > least / 4 else ceil(waiting)  # a few items are not worth another request


def _slots(now: float, source: Source) -> int:
    """Return how many requests a source has in flight or could have: a rate limit allows its rate times the mean response time."""
    if source.ready_at(now) > now:
        return source.inflight
    rate, seconds, slots = source.rate_limit(), source.latency.mean, source.window.limit
    return max(source.inflight, min(slots, 1 + int(rate * seconds)) if rate < inf and seconds else slots)


def pause(pool: Pool) -> float:
    """Return the seconds after a request during which single items wait for other items, even if a slot is free."""
    sources = list(pool.sources)
    slots, busy = sum(source.window.limit for source in sources), sum(source.inflight for source in sources)
    return max((source.latency.mean for source in sources), default=0.0) * busy / slots**2 if slots else 0.0


class EndpointLimits:
    """Learns how long requests to one endpoint may be, for items of one kind. ``cap`` is the maximum number of items that the client sets.

    Text Embeddings Inference has a queue slot for each item, and rejects a longer request as if it had no capacity: shorter requests are
    then tried. A request was also too long if it was refused and both of its halves were accepted, or if the server failed with such
    requests several times, and answered shorter ones in between. A longer request is tried again later, and each time that it fails, twice
    as many requests must be answered before the next one.
    """

    __slots__ = (
        "_answered", "_answers", "_cap", "_failed", "_failures", "_patience", "_rejections", "_reported", "_usual", "limits", "service",
    )  # fmt: skip

    def __init__(self, usual: MergeLimits, cap: int | None) -> None:
        self._cap, self._reported = cap, usual.items
        self._patience = 1  # number of answers before a longer request is tried
        self._rejections = self._answers = 0
        self._failures, self._failed = 0, MOST + 1  # failures in a row of longer lists than were answered, and the shortest of these lists
        self._answered = 0  # items of the longest list that was answered since the last failure
        self.limits = self._usual = usual.with_items(cap)
        self.service = ServiceTimeModel()

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

    def record_failure(self, items: int) -> None:
        """Record that the server failed (a status of 5xx) with a list. A longer list than it has memory for makes some servers fail."""
        if self._failures and not 0 < self._answered < items:
            return
        self._failures, self._failed = self._failures + 1, min(self._failed, items)
        if self._failures >= FAILURES and self._answered:
            self._patience, self._answers = min(max(MOST_PATIENCE, 2 * self._patience), REFUSED_PATIENCE), 0
            self.limits = self.limits.with_items(self._answered)
        self._answered = 0

    def record_answer(self, now: float, items: int, seconds: float) -> None:
        self.service.add(now, items, seconds)
        self._rejections = 0
        self._answered = max(self._answered, items)
        if items >= self._failed:
            self._failures, self._failed = 0, MOST + 1
        if self.limits is not self._usual:
            self._answers += 1
            if self._answers >= self._patience:
                self._answers = 0
                self.limits = self._usual.with_items(2 * (self.limits.items or 1))


class LearnedLimits:
    """Holds the learned limits of all endpoints of a client. The limits of an endpoint are kept until the endpoint is removed."""

    def __init__(self) -> None:
        self._known: dict[tuple[Source, MergeLimits, int | None], EndpointLimits] = {}
        self._reported: dict[Source, int] = {}

    def at(self, source: Source, usual: MergeLimits, cap: int | None) -> EndpointLimits:
        """Return the limits of requests to an endpoint."""
        key = source, usual, cap
        if key not in self._known:
            self._known = {each: limits for each, limits in self._known.items() if not each[0].removed}
            self._reported = {each: items for each, items in self._reported.items() if not each.removed}
            known = self._known[key] = EndpointLimits(usual, cap)
            if source in self._reported:
                known.report(self._reported[source])
        return self._known[key]

    def apply_probe(self, source: Source, result: ProbeResult) -> None:
        if result.items is not None:
            self._reported[source] = result.items
            for (known_at, *_), known in self._known.items():
                if known_at is source:
                    known.report(result.items)
