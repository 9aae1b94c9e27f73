"""A member's side: what it may send on the share that it was told, and for how long.

In the place of a source's limits of requests and tokens is a ``LeasedQuota``, around its window a ``CappedLimit``; both ask the source's
``Lease``. Nothing may be sent before the first share, nor after the lease of the last one has run out, whoever slept meanwhile.

Where shares cannot be renewed (nobody answers, or the ledger is young) the member is *on its own*: it keeps to the share that it held last,
by a pace of its own, which is one request a minute slower, so that many such paces together never put one more into a minute.
One that never held a share takes an eighth of the limit.

How much of its limits a source could use: what a member asks for at a renewal. Reads the source, and changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, inf
from typing import TYPE_CHECKING

from qreward.quota.messages import LEASE, LINGER, MINUTE, RENEW, Demand, Grant, RenewReply, RenewRequest
from qreward.scheduler.limits.rate import Gcra
from qreward.scheduler.limits.window import Changes, Window
from qreward.scheduler.request import BatchFeed

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source
    from qreward.settings.policies import Limits

FADE = 0.95
"""What is left of the largest cost with each send: half after 14."""
HAIR = 1e-9
NEWCOMER = 8
"""Part of a limit, one in so many, for a process that comes while nobody answers: reward workers usually are that many."""
SLOWER = 1.0
"""Requests a minute by which a member on its own is slower than its share; at most half of it."""
CATCH_UP = 1 / 32
"""Seconds by which a member on its own may be early: the scheduler wakes in steps of half of that."""
FIRST_TOKENS = 256.0
"""Tokens of a request of which nothing is known."""


class Lease:
    """What one process may do at one key.

    Attributes:
        call: called when somebody wants to send and may not; once, until ``missed`` is taken back. It must not block.
        until: when its lease runs out, or what it knows of being on its own is old; -inf while it has none.
        permits: how many it may have in flight.
        own: it is on its own.
        members: how many share the key, as it was told last; 0 if it is none of them.
        news: what is unusual, in words.
        limited: requests a minute are shared.
        requests: always there; if they are not limited it only keeps to the lease.
        tokens, window: what else is shared, or None.
    """

    __slots__ = ("call", "limited", "members", "missed", "news", "own", "permits", "requests", "tokens", "until", "window")

    def __init__(self, limits: Limits, window: Window) -> None:
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
        """Its lease holds, and allows anything in flight at all."""
        if self.permits >= 1 and now < self.until:
            return True
        self.miss()
        return False

    def miss(self) -> None:
        """Somebody wants to send, and may not."""
        if not self.missed:
            self.missed = True
            self.call()

    def is_short(self) -> bool:
        """Whether more is wanted than there was: it is no use to call for more at once."""
        return not self.own and (self.permits < 1 or any(ration.left < ration.least * (1 - HAIR) for ration in self._rations()))

    def lapse(self, now: float) -> bool:
        """Whether there is no lease (any more); nothing is in hand then."""
        if now < self.until:
            return False
        for ration in self._rations():
            ration.left = 0.0
        return True

    def take_over(self, now: float, asked_at: float, share: RenewReply) -> None:
        """Keep to a share from now on, which was asked for then."""
        if share.young and not self.own and not self._holds_any():  # it has nothing to go on with
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
        """Nobody answers: go on with the last share for another lease, within which this must be said again."""
        for ration, need in ((self.requests, ask.requests), (self.tokens, ask.tokens)):
            if ration is not None and need is not None and not ration.share:
                ration.share, ration.limit = need.limit / max(NEWCOMER, self.members), need.limit
        if ask.permits is not None and not self.members:
            self.permits = max(1, floor(ask.permits.limit / NEWCOMER))
        self.until, self.news = now + LEASE, why
        self._set_own(now, own=True)

    def end(self) -> None:
        """Give up what it has: it is no member any more."""
        self.until, self.own, self.members, self.news = -inf, False, 0, "idle"
        if self.permits < inf:
            self.permits = 0.0
        for ration in self._rations():
            ration.left = ration.share = 0.0

    def words(self, limits: Limits) -> str:
        """Where it stands, in words, such as ``one of 8 processes: 73.5 of 600 requests a minute``."""
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
    """What a member may use of a limit a minute, in the place of a pace.

    Attributes:
        share: a minute; what it is paced by while it is on its own.
        limit: of all members together.
        left: given and not used.
        spent, returned: as in ``Demand``.
        largest, mean: cost of a request: of the larger ones, and of all.
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
        """What must be left for a send."""
        return 1.0 if self._whole else min(self.largest, self.limit)

    @property
    def ready_at(self) -> float:
        """The earliest time at which a send conforms, while the lease holds; inf if that takes another share."""
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
        """What was not used is everybody's; what was used beyond its payment is owed."""
        if self._tenure.own:
            self._arrival -= cost / self._own_rate()
        elif cost > 0:
            self.returned += cost
        else:
            self.spent -= cost
            self.left += cost

    def given(self, now: float, part: Grant) -> None:
        """Take over a part."""
        self.share, self.limit, self.rate = part.hold, part.limit, max(part.hold, HAIR) / 60
        self.left += part.grant
        if not self._tenure.own:
            self._spread = max(self.left / RENEW, self.rate)
            self._arrival = min(self._arrival, now + RENEW)  # no debt of another time holds up what was given now

    def begin_own(self, now: float) -> None:
        """From now on its own pace counts."""
        self.left = 0.0
        self.rate = self._own_rate()
        self._arrival = now + self.least / self.rate

    def need(self, limit: float, *, lapsed: bool, want: float, rate: float) -> Demand:
        """What it says of itself at a renewal. What is left and too little for a request it gives back."""
        hold = 0.0 if lapsed else self.share
        if self.left < self.least * (1 - HAIR):
            self.left = min(self.left, 0.0)
        least = self.least - min(self.left, 0.0)
        return Demand(limit, want, hold, rate, least, self.spent, self.returned, self.left)

    def _own_rate(self) -> float:
        slower = SLOWER if self._whole else 0.0
        return max(self.share - slower, self.share / 2, HAIR) / 60


class CappedLimit:
    """A window within a member's share of what may be in flight. What it learns it learns as ever.

    Attributes:
        inner: the window.
        peak: most in flight since that was last set.
    """

    __slots__ = ("_tenure", "inner", "peak")

    def __init__(self, inner: Window, tenure: Lease) -> None:
        self.inner = inner
        self.peak = 0
        self._tenure = tenure

    @property
    def limit(self) -> int:
        """At least 1: that nothing at all may be sent the ration says."""
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


def inner_of(window: Window) -> Window:
    """The window itself, whatever share of it there is."""
    return window.inner if isinstance(window, CappedLimit) else window


def _nobody() -> None:
    """Nobody is there to renew yet."""


AHEAD = 1.5
"""What is used is asked for again, and half as much, so that use may grow."""
SLOW = 2.0
"""What is in flight is surely over after so many times what the slowest percent of answers takes."""
IDLE = 2.0
"""Seconds without work after which a source wants nothing."""


class DemandTracker:
    """What one source needs, from one renewal to the next.

    Attributes:
        hungry: at the last look, work waited that its share held up.
    """

    def __init__(self, source: Source, tenure: Lease) -> None:
        self._source = source
        self._tenure = tenure
        self._sent = source.tally.sent
        self._at = -inf
        self._worked_at = -inf
        self.hungry = False

    def is_idle(self, now: float) -> bool:
        """Whether nothing is under way or waits, for a while now."""
        if self._source.inflight or self.waiting(now):
            self._worked_at = now
        return now - self._worked_at > IDLE

    def waiting(self, now: float) -> float:
        """Tasks that wait for it, inf if that is many; 0 if it could not take them anyhow."""
        source = self._source
        health = source.health
        if source.removed or health.down or source.gate.opens_at > now + RENEW or source.inflight >= health.allowed:
            return 0
        count = sum(len(pool.queue) for pool in source.pools)
        return inf if count >= BatchFeed.LOW else count

    def ask(self, now: float, limits: Limits) -> RenewRequest:
        """What it is to say now."""
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
