"""The lease of one member: what its source may send on its share, for how long, and how much it requests at a renewal.

A ``LeasedQuota`` replaces the source's limits on requests and on tokens, and a ``CappedLimit`` wraps its concurrency limit. Both read the
source's ``Lease``. Nothing may be sent before the first share, nor after the lease of the last one has run out, even if the process slept
meanwhile.

If shares cannot be renewed (the ledger does not answer, or is young), the member is *on its own*: it keeps to the share that it held last,
by a rate limit of its own. That rate is one request a minute lower, so that many such members together never send one request too many in
a minute. A member that never held a share takes an eighth of the limit.

``DemandTracker`` measures how much of its limits a source could use. It reads the source and does not change it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, inf
from typing import TYPE_CHECKING

from qreward.quota.messages import LEASE, LINGER, MINUTE, RENEW, Demand, Grant, RenewReply, RenewRequest
from qreward.scheduler.limits.rate import Gcra
from qreward.scheduler.limits.window import Changes, ConcurrencyLimit
from qreward.scheduler.request import BatchFeed

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source
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
        missed: ``call`` was called.
        until: when the lease runs out, or when being on its own must be confirmed again; -inf without a lease.
        permits: requests it may have in flight.
        own: it is on its own.
        members: number of members that share the key, by the last reply; 0 if it is not a member.
        news: description of an unusual state; empty otherwise.
        limited: requests per minute are limited.
        requests: quota of requests; always set. Without a limit on requests it allows any number.
        tokens: quota of tokens, or None.
        window: the concurrency limit, capped by ``permits``.
    """

    __slots__ = ("call", "limited", "members", "missed", "news", "own", "permits", "requests", "tokens", "until", "window")

    def __init__(self, limits: Limits, window: ConcurrencyLimit) -> None:
        self.call: Callable[[], object] = _nobody
        self.missed = self.own = False
        self.until = -inf
        self.members = 0
        self.news = "waiting for a first share"
        self.requests = LeasedQuota(self, whole=True)
        self.tokens = LeasedQuota(self, whole=False) if limits.tpm else None
        self.limited = limits.rpm is not None
        self.permits = 0.0 if limits.max_concurrency else inf
        self.window = CappedLimit(window, self)

    def may_send(self, now: float) -> bool:
        """Return whether the lease is valid and allows at least one request in flight. If not, request a renewal."""
        if self.permits >= 1 and now < self.until:
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
        return not self.own and (self.permits < 1 or any(ration.left < ration.least * (1 - HAIR) for ration in self._rations()))

    def lapse(self, now: float) -> bool:
        """Return whether there is no valid lease. If so, the unused amounts are dropped."""
        if now < self.until:
            return False
        for ration in self._rations():
            ration.left = 0.0
        return True

    def take_over(self, now: float, asked_at: float, share: RenewReply) -> None:
        """Apply a reply to a renewal that was sent at ``asked_at``."""
        if share.young and not self.own and not self._holds_any():  # it has no share to continue with
            self.until, self.members, self.news = -inf, share.members, "the ledger has just begun"
            return
        self.members, self.news = share.members, "on its last share: the ledger has just begun" if share.young else ""
        self._set_own(now, own=share.young)
        self.until = asked_at + share.lease
        if share.permits is not None:
            self.permits = share.permits.hold
        for ration, part in ((self.requests, share.requests), (self.tokens, share.tokens)):
            if ration is not None and part is not None:
                ration.given(now, part)

    def go_alone(self, now: float, ask: RenewRequest, why: str) -> None:
        """The ledger does not answer: continue with the last share for the time of one lease, within which this must be called again."""
        for ration, need in ((self.requests, ask.requests), (self.tokens, ask.tokens)):
            if ration is not None and need is not None and not ration.share:
                ration.share, ration.limit = need.limit / max(NEWCOMER, self.members), need.limit
        if ask.permits is not None and not self.members:
            self.permits = max(1, floor(ask.permits.limit / NEWCOMER))
        self.until, self.news = now + LEASE, why
        self._set_own(now, own=True)

    def end(self) -> None:
        """Give up all shares, because it is not a member any more."""
        self.until, self.own, self.members, self.news = -inf, False, 0, "idle"
        if self.permits < inf:
            self.permits = 0.0
        for ration in self._rations():
            ration.left = ration.share = 0.0

    def words(self, limits: Limits) -> str:
        """Describe the lease, for example ``one of 8 processes: 73.5 of 600 requests a minute``."""
        if not self.own and not self.members:
            return self.news
        held = []
        for unit, ration, limit in (("requests", self.requests, limits.rpm), ("tokens", self.tokens, limits.tpm)):
            if ration is not None and limit is not None:
                held.append(f"{_short(ration.share)} of {_short(min(limit, ration.limit))} {unit} a minute")
        if limits.max_concurrency is not None:
            held.append(f"{self.permits:g} of {limits.max_concurrency} in flight")
        who = self.news or ("the only process" if self.members == 1 else f"one of {self.members} processes")
        return f"{who}: {', '.join(held)}"

    def _set_own(self, now: float, *, own: bool) -> None:
        if own and not self.own:
            for ration in self._rations():
                ration.begin_own(now)
        self.own = own

    def _holds_any(self) -> bool:
        return any(ration.share for ration in self._rations()) or 0 < self.permits < inf

    def _rations(self) -> list[LeasedQuota]:
        return [ration for ration in (self.requests if self.limited else None, self.tokens) if ration is not None]


class LeasedQuota(Gcra):
    """A member's share of a limit per minute, with the interface of a ``Gcra``.

    Attributes:
        share: its share per minute; its own rate limit is derived from it while it is on its own.
        limit: limit per minute of all members together.
        left: amount granted and not used.
        spent, returned: as in ``Demand``.
        largest, mean: cost of the larger requests, and of all on average.
    """

    __slots__ = ("_spread", "_tenure", "_whole", "largest", "left", "limit", "mean", "returned", "share", "spent")

    def __init__(self, tenure: Lease, *, whole: bool) -> None:
        super().__init__(0.0)
        self._tenure = tenure
        self._whole = whole
        self._spread = inf
        self.left = self.spent = self.returned = self.share = 0.0
        self.limit = self.rate = inf
        self.largest = self.mean = 1.0 if whole else FIRST_TOKENS

    @property
    def least(self) -> float:
        """Amount that must be left for a request to be sent."""
        return 1.0 if self._whole else min(self.largest, self.limit)

    @property
    def ready_at(self) -> float:
        """Earliest time at which a request conforms, while the lease is valid; inf if that needs another grant."""
        tenure = self._tenure
        if self._whole and not tenure.limited:
            return -inf
        if tenure.own:
            return self._arrival - CATCH_UP
        if self.left < self.least * (1 - HAIR):
            tenure.miss()
            return inf
        return self._arrival - self.burst

    def take(self, now: float, cost: float = 1.0) -> None:
        if self._whole and not self._tenure.limited:
            return
        if not self._whole:
            self.largest = max(cost, FADE * self.largest)
            self.mean += 0.1 * (cost - self.mean)
        if self._tenure.own:
            self._arrival = max(self._arrival, now) + cost / self._own_rate()
            return
        self._arrival = max(self._arrival, now) + cost / self._spread
        self.left -= cost
        self.spent += cost

    def give_back(self, cost: float) -> None:
        """Correct an earlier charge. The unused part is returned to all members; an excess (negative ``cost``) is owed."""
        if self._tenure.own:
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
        if not self._tenure.own:
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
        if self.left < self.least * (1 - HAIR):
            self.left = min(self.left, 0.0)
        least = self.least - min(self.left, 0.0)
        return Demand(limit, want, hold, rate, least, self.spent, self.returned, self.left)

    def _own_rate(self) -> float:
        slower = SLOWER if self._whole else 0.0
        return max(self.share - slower, self.share / 2, HAIR) / 60


class CappedLimit:
    """A concurrency limit capped by the member's share of requests in flight. The wrapped limit adapts as usual.

    Attributes:
        inner: the wrapped limit.
        peak: most requests in flight since it was last set.
    """

    __slots__ = ("_tenure", "inner", "peak")

    def __init__(self, inner: ConcurrencyLimit, tenure: Lease) -> None:
        self.inner = inner
        self.peak = 0
        self._tenure = tenure

    @property
    def limit(self) -> int:
        """The capped limit, at least 1. ``Lease.may_send`` prevents sending if the share allows none."""
        return int(max(1, min(self.inner.limit, self._tenure.permits)))

    @limit.setter
    def limit(self, value: int) -> None:
        self.inner.limit = value

    @property
    def changes(self) -> Changes:
        found: Changes = getattr(self.inner, "changes", {})
        return found

    @property
    def reason(self) -> str:
        inner = str(getattr(self.inner, "reason", "fixed"))
        return "its share" if self._tenure.permits < self.inner.limit else inner

    def sent(self, now: float, inflight: int) -> None:
        self.peak = max(self.peak, inflight)
        self.inner.sent(now, inflight)

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int) -> None:
        self.inner.ok(now, sent_at, tokens, inflight)

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> bool:
        return self.inner.rejected(now, sent_at, hint, others)

    def ended(self) -> None:
        self.inner.ended()


def _short(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 1000 else f"{amount:.4g}"


def inner_of(window: ConcurrencyLimit) -> ConcurrencyLimit:
    """Return the concurrency limit itself, without the cap of a share."""
    return window.inner if isinstance(window, CappedLimit) else window


def _nobody() -> None:
    """Do nothing: no renewal thread is attached yet."""


AHEAD = 1.5
"""Requested amount as a multiple of the recent use, so that use may grow."""
SLOW = 2.0
"""Requests in flight are certainly over after this many times the 99th percentile latency."""
IDLE = 2.0
"""Seconds without work after which a source counts as idle."""


class DemandTracker:
    """Computes what one source needs from one renewal to the next.

    Attributes:
        hungry: work waited for the source at the last renewal.
    """

    def __init__(self, source: Source, tenure: Lease) -> None:
        self._source = source
        self._tenure = tenure
        self._sent = source.tally.sent
        self._at = -inf
        self._worked_at = -inf
        self.hungry = False

    def is_idle(self, now: float) -> bool:
        """Return whether nothing has been in flight or waiting for more than ``IDLE`` seconds."""
        if self._source.inflight or self.waiting(now):
            self._worked_at = now
        return now - self._worked_at > IDLE

    def waiting(self, now: float) -> float:
        """Return the number of tasks that wait for it, inf if they are many; 0 if it could not take them anyway."""
        source = self._source
        health = source.health
        if source.removed or health.down or source.gate.opens_at > now + RENEW or source.inflight >= health.allowed:
            return 0
        count = sum(len(pool.queue) for pool in source.pools)
        return inf if count >= BatchFeed.LOW else count

    def ask(self, now: float, limits: Limits) -> RenewRequest:
        """Return the renewal request for now."""
        source, tenure = self._source, self._tenure
        seconds, self._at = min(MINUTE, max(now - self._at, RENEW / 2)), now
        used, self._sent = source.tally.sent - self._sent, source.tally.sent
        peak, tenure.window.peak = max(tenure.window.peak, source.inflight), source.inflight
        if used:
            self._worked_at = now
        waiting = self.waiting(now)
        room = max(0, source.window.limit - source.inflight) + ceil(AHEAD * used * RENEW / seconds)
        want = min(waiting, room) if waiting else min(room, ceil(AHEAD * used * RENEW / seconds)) if used else 0
        want += 1 if waiting or used else 0
        rate = inf if waiting else (AHEAD * used / seconds * MINUTE + 1 if used else 0.0)
        lapsed = tenure.lapse(now)
        ask = RenewRequest()
        if limits.rpm is not None:
            ask.requests = tenure.requests.need(limits.rpm, lapsed=lapsed, want=want, rate=rate)
        if limits.tpm is not None and tenure.tokens is not None:
            mean = tenure.tokens.mean
            ask.tokens = tenure.tokens.need(limits.tpm, lapsed=lapsed, want=max(want * mean, tenure.tokens.least), rate=rate * mean)
        if limits.max_concurrency is not None:
            ask.permits = self._permits(limits.max_concurrency, waiting, peak, hold=0.0 if lapsed else tenure.permits)
        self.hungry = waiting > 0
        return ask

    def _permits(self, limit: int, waiting: float, peak: int, *, hold: float) -> Demand:
        source, inner = self._source, self._tenure.window.inner
        could = source.inflight + waiting if waiting else peak + 1 + peak // 5 if peak else 0
        slow = source.latency.slow
        lasts = LINGER if slow is None else min(LINGER, SLOW * slow)
        return Demand(limit, hold=hold, rate=min(inner.limit, could), using=source.inflight, lasts=lasts)
