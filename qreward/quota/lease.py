"""The lease of one member."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf

from qreward.quota.ledger import LEASE, RENEW, Demand, Grant, RenewReply, RenewRequest
from qreward.scheduler.limits.concurrency import ConcurrencyLimit
from qreward.scheduler.limits.rate import Gcra
from qreward.settings.policies import Limits

FADE = 0.95
"""Factor by which each request multiplies the largest recent cost. So this cost halves in 14 requests."""
HAIR = 1e-9
NEWCOMER = 8
"""Number by which a process divides the limit if it starts while the ledger does not answer: the usual number of reward workers."""
SLOWER = 1.0
"""Number of requests a minute by which a member on its own stays below its share. If this number is more than half of the share, half of
the share is used instead."""
CATCH_UP = 1 / 32  # seconds by which a member on its own may send a request early, because the scheduler wakes in steps of 1/64 s
FIRST_TOKENS = 256.0  # number of tokens that each of the first requests is expected to use


class Lease:
    """Holds the shares of one process in the limits of one key, and says until when they are valid."""

    def __init__(self, limits: Limits, window: ConcurrencyLimit) -> None:
        self.call: Callable[[], object] = lambda: None
        self.missed = False  # True after ``call``
        self.own = False  # True if the member is on its own
        self.until = -inf  # when the lease, or the time on its own, ends unless it is renewed; -inf without a lease
        self.members = 0  # number of members that share the key, according to the last reply; 0 if this process is not a member
        self.news = "waiting for a first share"  # description of an unusual state; empty in the usual state
        self.requests = LeasedQuota(self, 1.0) if limits.rpm else None
        self.tokens = LeasedQuota(self, FIRST_TOKENS) if limits.tpm else None
        self.quotas = [quota for quota in (self.requests, self.tokens) if quota is not None]
        self.permits = 0.0 if limits.max_concurrency else inf  # requests that may be in flight
        self.window = CappedLimit(window, self.permits)  # the concurrency limit, capped by ``permits``

    def is_valid(self, now: float) -> bool:
        return self.permits >= 1 and now < self.until

    def may_send(self, now: float) -> bool:
        """Return whether the lease is valid. If not, request a renewal."""
        if self.is_valid(now):
            return True
        self.miss()
        return False

    def miss(self) -> None:
        if not self.missed:
            self.missed = True
            self.call()

    def is_short(self) -> bool:
        """Return whether the last renewal left too little for a request, so that an early renewal would not help."""
        return not self.own and (self.permits < 1 or any(quota.is_used_up() for quota in self.quotas))

    def lapse(self, now: float) -> bool:
        """Return whether the lease has expired. If so, drop the amounts that are left."""
        if now < self.until:
            return False
        for quota in self.quotas:
            quota.left = 0.0
        return True

    def take_over(self, now: float, sent_at: float, reply: RenewReply) -> None:
        self.members, self.news, self.own = reply.members, "", False
        self.until = sent_at + reply.lease
        if reply.permits is not None:
            self._permit(reply.permits.hold)
        for quota, part in ((self.requests, reply.requests), (self.tokens, reply.tokens)):
            if quota is not None and part is not None:
                quota.given(now, part)

    def go_alone(self, now: float, request: RenewRequest, reason: str) -> None:
        """Continue with the last share, because the ledger does not answer. Call this again before ``LEASE`` seconds have passed."""
        for quota, need in ((self.requests, request.requests), (self.tokens, request.tokens)):
            if quota is not None and need is not None and not quota.share:
                quota.share, quota.limit = need.limit / max(NEWCOMER, self.members), need.limit
        if request.permits is not None and not self.members:
            self._permit(max(1, floor(request.permits.limit / NEWCOMER)))
        self.until, self.news = now + LEASE, reason
        if not self.own:
            for quota in self.quotas:
                quota.begin_own(now)
        self.own = True

    def end(self) -> None:
        self.until, self.own, self.members, self.news = -inf, False, 0, "idle"
        if self.permits < inf:
            self._permit(0.0)
        for quota in self.quotas:
            quota.left = quota.share = 0.0

    def words(self, limits: Limits) -> str:
        """Describe the lease, for example ``one of 8 processes: 73.5 of 600 requests a minute``."""
        if not self.own and not self.members:
            return self.news
        held = []
        for unit, quota, limit in (("requests", self.requests, limits.rpm), ("tokens", self.tokens, limits.tpm)):
            if quota is not None and limit is not None:
                held.append(f"{_short(quota.share)} of {_short(min(limit, quota.limit))} {unit} a minute")
        if limits.max_concurrency is not None:
            held.append(f"{self.permits:g} of {limits.max_concurrency} in flight")
        sharers = self.news or ("the only process" if self.members == 1 else f"one of {self.members} processes")
        return f"{sharers}: {', '.join(held)}"

    def _permit(self, permits: float) -> None:
        self.permits = permits
        self.window.cap(permits)


class LeasedQuota(Gcra):
    """Holds a member's share of a limit per minute. It has the interface of a ``Gcra``."""

    def __init__(self, lease: Lease, cost: float) -> None:
        super().__init__(inf)
        self._lease = lease
        self._whole = cost == 1
        self._spread = inf
        self.left = self.spent = self.returned = self.share = 0.0  # ``left``: granted and not used; ``share``: per minute
        self.limit = inf  # limit per minute for all members together
        self.largest = self.mean = cost  # the highest recent cost of a request, which fades, and the average

    @property
    def least(self) -> float:
        """The amount that must be left before a request is sent: the cost of a large request, or the whole limit if that is less."""
        return min(self.largest, max(1.0, self.limit))

    def is_used_up(self) -> bool:
        """Return whether too little is left for a request."""
        return self.left < self.least * (1 - HAIR)

    @property
    def ready_at(self) -> float:
        """The earliest time at which a request may be sent, if the lease is still valid then; inf if another grant is needed first."""
        lease = self._lease
        if lease.own:
            return self._arrival - CATCH_UP
        if self.is_used_up():
            lease.miss()
            return inf
        return self._arrival - self.burst

    def take(self, now: float, cost: float = 1.0) -> None:
        if not self._whole:
            self.largest = max(cost, FADE * self.largest)
            self.mean += 0.1 * (cost - self.mean)
        if self._lease.own:
            self._arrival = max(self._arrival, now) + cost / self._own_rate()
            return
        self._arrival = max(self._arrival, now) + cost / self._spread
        self.left -= cost
        self.spent += cost

    def give_back(self, cost: float) -> None:
        """Correct an earlier charge. A positive ``cost`` was not used and goes back to all members. A negative ``cost`` is charged too."""
        if self._lease.own:
            self._arrival -= cost / self._own_rate()
        elif cost > 0:
            self.returned += cost
        else:
            self.spent -= cost
            self.left += cost

    def given(self, now: float, part: Grant) -> None:
        self.share, self.limit, self.rate = part.hold, part.limit, max(part.hold, HAIR) / 60
        self.left += part.grant
        self._spread = max(self.left / RENEW, self.rate)
        self._arrival = min(self._arrival, now + RENEW)  # earlier large requests must not delay the use of this grant

    def begin_own(self, now: float) -> None:
        self.left = 0.0
        self.rate = self._own_rate()
        self._arrival = now + self.least / self.rate

    def need(self, limit: float, *, want: float, rate: float) -> Demand:
        """Return the demand for a renewal. If too little is left for a request, that amount goes back to all members."""
        if self.is_used_up():
            self.left = min(self.left, 0.0)
        least = self.least - min(self.left, 0.0)
        return Demand(limit, want, rate=rate, least=least, spent=self.spent, returned=self.returned, left=self.left)

    def _own_rate(self) -> float:
        slower = SLOWER if self._whole else 0.0
        return max(self.share - slower, self.share / 2, HAIR) / 60


class CappedLimit(ConcurrencyLimit):
    """Caps a concurrency limit by the member's share of requests in flight. The wrapped limit adapts as usual."""

    def __init__(self, inner: ConcurrencyLimit, permits: float) -> None:
        self.peak = 0  # largest number of requests in flight since ``peak`` was last set
        self._permits = permits
        self.inner = inner

    @property
    def inner(self) -> ConcurrencyLimit:
        return self._inner

    @inner.setter
    def inner(self, inner: ConcurrencyLimit) -> None:
        self._inner, self.changes = inner, inner.changes
        self.cap(self._permits)

    def cap(self, permits: float) -> None:
        self._permits = permits
        self.limit = int(max(1, min(self._inner.limit, permits)))
        self.reason = "its share" if permits < self._inner.limit else self._inner.reason

    def sent(self, now: float, inflight: int) -> None:
        self.peak = max(self.peak, inflight)
        self._inner.sent(now, inflight)

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int) -> None:
        self._inner.ok(now, sent_at, tokens, inflight)
        self.cap(self._permits)

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> bool:
        away = self._inner.rejected(now, sent_at, hint, others)
        self.cap(self._permits)
        return away

    def returned(self, now: float, inflight: int) -> None:
        self._inner.returned(now, inflight)
        self.cap(self._permits)

    def crowd(self, until: float) -> None:
        self._inner.crowd(until)


def _short(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 1000 else f"{amount:.4g}"
