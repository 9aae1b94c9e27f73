"""The lease of one member: what its source may send on its share, and for how long.

A ``LeasedQuota`` replaces the source's limits on requests and on tokens, and a ``CappedLimit`` wraps its concurrency limit. Both read the
source's ``Lease``. Nothing may be sent before the first share, nor after the lease of the last one has run out, even if the process slept
meanwhile.

If shares cannot be renewed (the ledger does not answer, or is young), the member is *on its own*: it keeps to the share that it held last,
by a rate limit of its own. That rate is one request a minute lower, so that many such members together never send one request too many in
a minute. A member that never held a share takes an eighth of the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf

from qreward.quota.messages import LEASE, RENEW, Demand, Grant, RenewReply, RenewRequest
from qreward.scheduler.limits.concurrency import ConcurrencyLimit
from qreward.scheduler.limits.rate import Gcra
from qreward.settings.policies import Limits

FADE = 0.95
"""Factor on the largest cost with each request: half after 14."""
HAIR = 1e-9
NEWCOMER = 8
"""A process that starts while the ledger does not answer takes one part in this many of the limit: the usual number of reward workers."""
SLOWER = 1.0
"""Requests a minute by which a member on its own stays below its share; at most half of the share."""
CATCH_UP = 1 / 32
"""Seconds by which a member on its own may send early, since the scheduler wakes in steps of half of that."""
FIRST_TOKENS = 256.0
"""Tokens assumed for the first requests."""


class Lease:
    """The shares of one process in the limits of one key.

    Attributes:
        call: called when a request has to wait for the lease; once, until ``missed`` is reset. It must not block.
        requests, tokens: quotas of what is limited per minute, else None; ``quotas`` are those that there are.
    """

    def __init__(self, limits: Limits, window: ConcurrencyLimit) -> None:
        self.call: Callable[[], object] = lambda: None
        self.missed = self.own = False  # ``call`` was called
        self.until = -inf  # when the lease runs out, or when being on its own must be confirmed again; -inf without a lease
        self.members = 0  # number of members that share the key, by the last reply; 0 if it is not a member
        self.news = "waiting for a first share"  # description of an unusual state; empty otherwise
        self.requests = LeasedQuota(self, 1.0) if limits.rpm else None
        self.tokens = LeasedQuota(self, FIRST_TOKENS) if limits.tpm else None
        self.quotas = [quota for quota in (self.requests, self.tokens) if quota is not None]
        self.permits = 0.0 if limits.max_concurrency else inf  # requests it may have in flight
        self.window = CappedLimit(window, self.permits)  # the concurrency limit, capped by ``permits``

    def is_valid(self, now: float) -> bool:
        """Return whether it has not run out and allows at least one request in flight."""
        return self.permits >= 1 and now < self.until

    def may_send(self, now: float) -> bool:
        """Return whether it is valid. If not, request a renewal."""
        if self.is_valid(now):
            return True
        self.miss()
        return False

    def miss(self) -> None:
        """Record that a request has to wait for the lease."""
        if not self.missed:
            self.missed = True
            self.call()

    def is_short(self) -> bool:
        """Return whether the share is too small for a request even after a renewal, so that an early renewal would not help."""
        return not self.own and (self.permits < 1 or any(quota.is_used_up() for quota in self.quotas))

    def lapse(self, now: float) -> bool:
        """Return whether there is no valid lease. If so, the unused amounts are dropped."""
        if now < self.until:
            return False
        for quota in self.quotas:
            quota.left = 0.0
        return True

    def take_over(self, now: float, sent_at: float, reply: RenewReply) -> None:
        """Apply a reply to a renewal that was sent at ``sent_at``."""
        holds_any = any(quota.share for quota in self.quotas) or 0 < self.permits < inf
        if reply.young and not self.own and not holds_any:  # it has no share to continue with
            self.until, self.members, self.news = -inf, reply.members, "the ledger has just begun"
            return
        self.members, self.news = reply.members, "on its last share: the ledger has just begun" if reply.young else ""
        self._set_own(now, own=reply.young)
        self.until = sent_at + reply.lease
        if reply.permits is not None:
            self._permit(reply.permits.hold)
        for quota, part in ((self.requests, reply.requests), (self.tokens, reply.tokens)):
            if quota is not None and part is not None:
                quota.given(now, part)

    def go_alone(self, now: float, request: RenewRequest, reason: str) -> None:
        """The ledger does not answer: continue with the last share for the time of one lease, within which this must be called again."""
        for quota, need in ((self.requests, request.requests), (self.tokens, request.tokens)):
            if quota is not None and need is not None and not quota.share:
                quota.share, quota.limit = need.limit / max(NEWCOMER, self.members), need.limit
        if request.permits is not None and not self.members:
            self._permit(max(1, floor(request.permits.limit / NEWCOMER)))
        self.until, self.news = now + LEASE, reason
        self._set_own(now, own=True)

    def end(self) -> None:
        """Give up all shares, because it is not a member any more."""
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

    def _set_own(self, now: float, *, own: bool) -> None:
        if own and not self.own:
            for quota in self.quotas:
                quota.begin_own(now)
        self.own = own  # it is on its own


class LeasedQuota(Gcra):
    """A member's share of a limit per minute, with the interface of a ``Gcra``.

    Args:
        lease: the lease it belongs to.
        cost: expected cost of a request. If it is 1, requests are counted, and all cost the same.

    Attributes:
        share: its share per minute; its own rate limit is derived from it while it is on its own.
        spent, returned: as in ``Demand``.
        largest, mean: cost of the larger requests, and of all on average.
    """

    def __init__(self, lease: Lease, cost: float) -> None:
        super().__init__(inf)
        self._lease = lease
        self._whole = cost == 1
        self._spread = inf
        self.left = self.spent = self.returned = self.share = 0.0  # amount granted and not used
        self.limit = inf  # limit per minute of all members together
        self.largest = self.mean = cost

    @property
    def least(self) -> float:
        """Amount that must be left for a request to be sent."""
        return min(self.largest, max(1.0, self.limit))

    def is_used_up(self) -> bool:
        """Return whether too little is left for a request."""
        return self.left < self.least * (1 - HAIR)

    @property
    def ready_at(self) -> float:
        """Earliest time at which a request conforms, while the lease is valid; inf if that needs another grant."""
        lease = self._lease
        if lease.own:
            return self._arrival - CATCH_UP
        if self.is_used_up():
            lease.miss()
            return inf
        return self._arrival - self.burst

    def take(self, now: float, cost: float = 1.0, _plain: float | None = None) -> None:
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
        """Correct an earlier charge. The unused part is returned to all members; an excess (negative ``cost``) is owed."""
        if self._lease.own:
            self._arrival -= cost / self._own_rate()
        elif cost > 0:
            self.returned += cost
        else:
            self.spent -= cost
            self.left += cost

    def given(self, now: float, part: Grant) -> None:
        """Apply the ledger's grant."""
        self.share, self.limit, self.rate = part.hold, part.limit, max(part.hold, HAIR) / 60
        self.left += part.grant
        if not self._lease.own:
            self._spread = max(self.left / RENEW, self.rate)
            self._arrival = min(self._arrival, now + RENEW)  # old debt must not delay the use of this grant

    def begin_own(self, now: float) -> None:
        """Start to use a rate limit of its own."""
        self.left = 0.0
        self.rate = self._own_rate()
        self._arrival = now + self.least / self.rate

    def need(self, limit: float, *, lapsed: bool, want: float, rate: float) -> Demand:
        """Return its demand for a renewal. An amount left that is too small for a request is returned."""
        hold = 0.0 if lapsed else self.share
        if self.is_used_up():
            self.left = min(self.left, 0.0)
        least = self.least - min(self.left, 0.0)
        return Demand(limit, want, hold, rate, least, self.spent, self.returned, self.left)

    def _own_rate(self) -> float:
        slower = SLOWER if self._whole else 0.0
        return max(self.share - slower, self.share / 2, HAIR) / 60


class CappedLimit(ConcurrencyLimit):
    """A concurrency limit capped by the member's share of requests in flight. The wrapped limit adapts as usual.

    ``limit`` is at least 1: ``Lease.may_send`` prevents sending if the share allows none.
    """

    def __init__(self, inner: ConcurrencyLimit, permits: float) -> None:
        self.peak = 0  # most requests in flight since it was last set
        self._permits = permits
        self.inner = inner

    @property
    def inner(self) -> ConcurrencyLimit:
        """The wrapped limit."""
        return self._inner

    @inner.setter
    def inner(self, inner: ConcurrencyLimit) -> None:
        self._inner, self.changes = inner, inner.changes
        self.cap(self._permits)

    def cap(self, permits: float) -> None:
        """Set the share of requests in flight, or follow a change of the wrapped limit."""
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
