"""The limits of one key, divided among processes: the ledger of all members, and the lease of one. See ``docs/design/sharing.md``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from math import floor, inf
from typing import Any

import msgspec

from qreward.scheduler.limits.concurrency import ConcurrencyLimit
from qreward.scheduler.limits.rate import Gcra
from qreward.settings.policies import Limits

LEASE = 4.0
"""Seconds for which a lease is valid. A member that does not renew its lease within this time loses its share and stops using the share."""
RENEW = 0.5  # seconds between two renewals of an active member
FRESH = 1.5
"""Seconds without a renewal after which a member counts as slow. Nothing is reserved for a slow member."""
LINGER = 60.0
"""Seconds after which the requests of a process that stopped renewing are assumed to have ended, if the latency of its source is
unknown."""
MINUTE = 60.0
MARGIN = 0.5
"""Maximum number of seconds by which two requests may arrive closer together than they were sent (loaded machines, new connections)."""
STEP = 0.25  # length in seconds of the steps in which the ledger records the use of the last minute
PERIOD = MINUTE + MARGIN + STEP + RENEW
"""Seconds over which the amount of a limit per minute is granted. This is longer than a minute, because a request counts until a minute
after its report."""


class Demand(msgspec.Struct, array_like=True, gc=False):
    limit: float  # the configured limit
    want: float = 0.0  # amount that the member could use until its next renewal, including ``left``
    hold: float = 0.0  # the share that the member holds, of the requests in flight
    rate: float = 0.0  # the share that the member could use; inf for any share
    least: float = 1.0  # the smallest amount that is useful to the member
    spent: float = 0.0  # total of the granted amounts that the member has used since it started
    returned: float = 0.0  # total of the amounts in ``spent`` that turned out to be unused, such as tokens that an answer did not need
    left: float = 0.0  # granted amount that the member has not used yet
    using: int = 0  # requests in flight
    lasts: float = LINGER  # seconds after which the requests in flight have certainly ended


class RenewRequest(msgspec.Struct, array_like=True):
    requests: Demand | None = None
    tokens: Demand | None = None
    permits: Demand | None = None


class Grant(msgspec.Struct, array_like=True):
    limit: float = inf  # the limit for all members together: the smallest limit that a member has configured
    hold: float = 0.0  # the member's share: per minute for a rate limit, in flight for a concurrency limit
    grant: float = 0.0  # amount that the member may use in addition to ``left``, while its lease is valid


class RenewReply(msgspec.Struct, array_like=True):
    members: int  # number of members
    lease: float = LEASE  # seconds for which the reply is valid, from when the member sent its request
    requests: Grant | None = None
    tokens: Grant | None = None
    permits: Grant | None = None


def water_level(amount: float, vessels: list[tuple[float, float]]) -> float:
    """Return the level of an amount of water poured into connected vessels, or inf if the vessels cannot hold this amount.

    Each vessel has the height of its bottom, and the height of its walls. With all bottoms at 0, and walls as high as what each member
    wants, the level is the largest share by max-min fairness.
    """
    bottoms, tops = sorted([bottom for bottom, _ in vessels]), sorted([bottom + room for bottom, room in vessels])
    for height, above in pairwise(sorted({*bottoms, *tops})):
        width = bisect_right(bottoms, height) - bisect_right(tops, height)
        room = (above - height) * width
        if room >= amount:
            return height + amount / width
        amount -= room
    return inf


LEAST_WAITING = 2.0
"""Number of requests. The credit for requests may accumulate to the credit of one second, or to this number if that is more."""
HAIR = 1e-9  # tolerance for rounding errors in sums of floats


class Account(msgspec.Struct, array_like=True, gc=False):
    """What a member was granted of one limit."""

    at: float  # time of the member's last report
    need: Demand  # this report
    out: float = 0.0  # amount that was granted and has not been reported as used; for slots, the number that the member may use
    served: float = 0.0  # the member's clock for fair queueing

    @property
    def want(self) -> float:
        """The amount that the member wants in addition to ``out``."""
        return max(0.0, self.need.want - self.out)


class Quota(msgspec.Struct, array_like=True):
    limit: float = inf  # the smallest limit that a member has configured
    accounts: dict[str, Account] = {}  # account of each member

    def _limit(self, member: str, need: Demand) -> None:
        self.limit = min([need.limit, *[each.need.limit for name, each in self.accounts.items() if name != member]])


class WindowQuota(Quota, array_like=True):
    """Limits the use of all members per minute: grants them credit, and counts it until a minute after its use was reported."""

    whole: bool = True  # True if only whole numbers are granted
    used: dict[int, float] = {}  # number of the time step -> amount reported as used in this step
    credit: float = 0.0  # amount that may be granted at the time ``since``
    since: float = -inf
    clock: float = 0.0  # the common clock: the clock of the member furthest behind, of all members that want a grant

    @property
    def rate(self) -> float:
        return self.limit / PERIOD

    @property
    def most(self) -> float:
        return max(LEAST_WAITING, self.rate) if self.whole else 2 * self.rate

    def renew(self, now: float, begun: float, member: str, need: Demand) -> Grant:
        self._limit(member, need)
        self._advance(now, begun)
        self.report(now, member, need)
        total = self.rate * MINUTE
        share = water_level(total, [(0.0, account.need.rate) for account in self.accounts.values()])
        return Grant(self.limit, min(total, need.rate, share), self.grant(now, member))

    def _advance(self, now: float, begun: float) -> None:
        """Add credit up to ``now``, and drop use older than a minute."""
        if self.since < begun:  # the ledger before this one may have granted as much in advance
            self.since, self.credit = begun, -self.most
        self.credit = min(self.most, self.credit + (now - max(self.since, now - MINUTE)) * self.rate)
        self.since = now
        oldest = (now - MINUTE - MARGIN) / STEP - 1
        for step in [step for step in self.used if step <= oldest]:
            del self.used[step]

    def close(self, now: float, member: str) -> None:
        """Close a member's account. The amount that the member has not reported counts as used."""
        account = self.accounts.pop(member, None)
        if account is not None:
            self._use(now, account.out)

    def report(self, now: float, member: str, need: Demand) -> None:
        """Apply a member's report: the amounts that it used, has left, and wants."""
        account = self.accounts.get(member)
        if account is None:
            account = self.accounts[member] = Account(now, need, served=self.clock)
        waited, last = account.want > 0, account.need
        used, returned = max(0.0, need.spent - last.spent), max(0.0, need.returned - last.returned)
        self._use(now, used)
        refund = returned
        for step in sorted(self.used) if refund else ():  # the oldest steps first, so that no amount that was used is dropped too early
            taken = min(refund, self.used[step])
            self.used[step] -= taken
            refund -= taken
        left = max(0.0, need.left)
        back = account.out - left - used + returned  # the unused part of the grants; negative if the member used more than its grants
        self.credit = min(self.most, self.credit + back)
        account.served -= back
        account.at, account.need, account.out = now, need, left
        if account.want and not waited:  # if it waited, its clock stays behind, and it is served first
            account.served = max(account.served, self.clock)

    def grant(self, now: float, member: str) -> float:
        """Grant a member its fair part of the credit, or the smallest amount that is useful to it. Returns this amount."""
        account = self.accounts[member]
        want = account.want
        if not want:
            return 0.0
        waiting = [
            (other.served, name, other.want, other.need.least)
            for name, other in self.accounts.items()
            if other.need.want > other.out and now <= other.at + FRESH
        ]
        self.clock = max(self.clock, min(waiting)[0])
        credit, room, least = self.credit, self.limit - self.counted(), min(account.need.least, want, self.limit)
        level = water_level(min(credit, room), [(served, wanted) for served, _, wanted, _ in waiting])
        part = min(want, max(0.0, level - account.served))
        if self.whole:
            part = floor(part + HAIR)
        if part < least:
            turn = account.served, member
            ahead = sum(min(useful, wanted, self.limit) for served, name, wanted, useful in waiting if (served, name) < turn)
            enough = min(least, 1.0 if self.whole else self.rate)  # a large amount is granted in advance
            is_there = credit - ahead >= enough - HAIR * least and room - ahead >= least - HAIR * self.limit
            part = least if is_there else 0.0
        account.out += part
        account.served += part
        self.credit -= part
        return part

    def counted(self) -> float:
        """Return the sum of the amounts that count now. It never exceeds the limit."""
        return sum(self.used.values()) + sum(account.out for account in self.accounts.values())

    def _use(self, now: float, amount: float) -> None:
        step = floor(now / STEP)
        self.used[step] = self.used.get(step, 0.0) + amount


TURN = 15.0
"""Seconds after which the slots that cannot be divided evenly go to the next members. After each change these slots are unused for about
half a second."""


class PermitPool(Quota, array_like=True):
    """Limits the requests in flight of all members. A share grows only by what other members have given up."""

    in_flight: dict[str, tuple[int, float]] = {}  # member whose lease has ended -> its requests in flight, and when they have ended

    def renew(self, now: float, begun: float, member: str, need: Demand) -> Grant:
        self._limit(member, need)
        self.in_flight = {name: held for name, held in self.in_flight.items() if now <= held[1] and name != member}
        account = self.accounts[member] = Account(now, need)
        if now < begun + LEASE:  # other members may hold shares of the ledger before
            share = floor(min(need.hold, self.limit))
        else:
            held = sum(max(other.out, other.need.using) for other in self.accounts.values() if other is not account)
            free = self.limit - held - sum(count for count, _ in self.in_flight.values())
            share = floor(max(0.0, min(self._fair(now, member), free)))
        account.out = max(need.hold, share)
        return Grant(self.limit, share)

    def close(self, _now: float, member: str) -> None:
        self.accounts.pop(member, None)

    def _fair(self, now: float, member: str) -> float:
        wants = {name: min(account.need.rate, self.limit) for name, account in self.accounts.items()}
        level = water_level(self.limit, [(0.0, want) for want in wants.values()])
        if wants[member] <= level:
            return wants[member]
        level = floor(level + HAIR)
        short = sorted(name for name, want in wants.items() if want > level)
        left = int(self.limit - sum(min(level, want) for want in wants.values()))
        place = short.index(member) - left * floor(now / TURN)
        return level + (place % len(short) < left)


BACKWARDS = 1.0
"""Maximum number of seconds by which the clocks of members may differ. A time that is earlier by more than this comes from another clock,
for example from the clock after a restart of the machine."""
SETTINGS = {"requests": "rpm", "tokens": "tpm", "permits": "max_concurrency"}
"""Kind of limit, which is its name in the messages and in the ledger -> its name in ``Limits``."""


class Ledger(msgspec.Struct, array_like=True):
    """The ledger of one key. It records the limits of the key and the shares of its members."""

    begun: float = -inf
    now: float = -inf
    members: dict[str, float] = {}  # member -> time of its last renewal
    requests: WindowQuota = msgspec.field(default_factory=WindowQuota)
    tokens: WindowQuota = msgspec.field(default_factory=lambda: WindowQuota(whole=False))
    permits: PermitPool = msgspec.field(default_factory=PermitPool)

    def renew(self, now: float, member: str, request: RenewRequest) -> RenewReply:
        now = self._end_leases(now)
        self.members[member] = now
        grants = {}
        for kind in SETTINGS:
            quota, need = getattr(self, kind), getattr(request, kind)
            if need is None:
                quota.close(now, member)
            else:
                grants[kind] = quota.renew(now, self.begun, member, need)
        return RenewReply(len(self.members), **grants)

    def leave(self, now: float, member: str, request: RenewRequest) -> None:
        now = self._end_leases(now)
        for need, quota in ((request.requests, self.requests), (request.tokens, self.tokens)):
            if need is not None and member in quota.accounts:
                quota.report(now, member, msgspec.structs.replace(need, left=0.0, want=0.0))
        self.remove_dead(now, member)

    def remove_dead(self, now: float, member: str) -> None:
        """Remove a member that has died. Amounts that the member has not reported count as used, and its shares become free."""
        now = min(max(self.now, now), self.members.pop(member, inf) + LEASE)
        for kind in SETTINGS:
            getattr(self, kind).close(now, member)

    def silent(self, now: float) -> list[str]:
        """Return the members that may have died, because their renewals are late."""
        return [name for name, at in self.members.items() if now > at + FRESH]

    def is_of(self, now: float) -> bool:
        """Return whether the times in the ledger and ``now`` can come from the same clock."""
        return now >= self.now - BACKWARDS

    def _end_leases(self, now: float) -> float:
        """Remove the members whose lease has ended. Their requests in flight still count. Returns the time, which never goes back."""
        now = self.now = max(self.now, now)
        for name in [name for name, at in self.members.items() if now > at + LEASE]:
            account = self.permits.accounts.get(name)
            if account is not None and account.need.using:
                self.permits.in_flight[name] = account.need.using, account.at + max(LEASE, account.need.lasts)
            self.remove_dead(now, name)
        return now


FADE = 0.95
"""Factor by which each request multiplies the largest recent cost. So this cost halves in 14 requests."""
NEWCOMER = 8
"""Number by which a process divides the limit if it starts while the ledger does not answer: the usual number of reward workers."""
FIRST_TOKENS = 256.0  # number of tokens that each of the first requests is expected to use


class Lease:
    """Holds the shares of one process in the limits of one key, and says until when they are valid."""

    def __init__(self, limits: Limits, window: ConcurrencyLimit) -> None:
        self.call: Callable[[], object] = lambda: None
        self.missed = False  # True after ``call``
        self.until = -inf  # when the lease ends unless it is renewed; -inf without a lease
        self.members = 0  # number of members that share the key, according to the last reply; 0 if this process is not a member
        self.news = "waiting for a first share"  # description of an unusual state; empty in the usual state
        costs = {"requests": 1.0, "tokens": FIRST_TOKENS}
        self.quotas = {kind: LeasedQuota(self, cost) for kind, cost in costs.items() if getattr(limits, SETTINGS[kind])}
        self.window = CappedLimit(window, 0.0 if limits.max_concurrency else inf)

    def is_valid(self, now: float) -> bool:
        return self.window.permits >= 1 and now < self.until

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
        return self.window.permits < 1 or any(quota.is_used_up() for quota in self.quotas.values())

    def lapse(self, now: float) -> bool:
        """Return whether the lease has expired. If so, drop the amounts that are left."""
        if now < self.until:
            return False
        for quota in self.quotas.values():
            quota.left = 0.0
        return True

    def take_over(self, now: float, sent_at: float, reply: RenewReply) -> None:
        self.members, self.news = reply.members, ""
        self.until = sent_at + reply.lease
        if reply.permits is not None:
            self.window.permits = reply.permits.hold
        for kind, quota in self.quotas.items():
            quota.own = None
            if (part := getattr(reply, kind)) is not None:
                quota.given(now, part)

    def go_alone(self, now: float, request: RenewRequest, reason: str) -> None:
        """Continue with the last share, because the ledger does not answer. Call this again before ``LEASE`` seconds have passed."""
        others = max(NEWCOMER, self.members)
        for kind, quota in self.quotas.items():
            if (need := getattr(request, kind)) is not None:
                quota.renew_alone(now, need, others)
        if request.permits is not None and not self.members:
            self.window.permits = max(1, floor(request.permits.limit / NEWCOMER))
        self.until, self.news = now + LEASE, reason

    def end(self) -> None:
        self.until, self.members, self.news = -inf, 0, "idle"
        if self.window.permits < inf:
            self.window.permits = 0.0
        for quota in self.quotas.values():
            quota.left = quota.share = 0.0
            quota.own = None

    def words(self, limits: Limits) -> str:
        """Describe the lease, for example ``one of 8 processes: 73.5 of 600 requests a minute``."""
        if self.until == -inf:
            return self.news
        held = []
        for kind, quota in self.quotas.items():
            if (limit := getattr(limits, SETTINGS[kind])) is not None:
                held.append(f"{_short(quota.share)} of {_short(min(limit, quota.limit))} {kind} a minute")
        if limits.max_concurrency is not None:
            held.append(f"{self.window.permits:g} of {limits.max_concurrency} in flight")
        sharers = self.news or ("the only process" if self.members == 1 else f"one of {self.members} processes")
        return f"{sharers}: {', '.join(held)}"


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
        self.own: WindowQuota | None = None  # divides the last share over the time while the ledger does not answer

    @property
    def least(self) -> float:
        """The amount that must be left before a request is sent: the cost of a large request, or the whole limit if that is less."""
        return min(self.largest, max(1.0, self.limit if self.own is None else self.own.limit))

    def is_used_up(self) -> bool:
        """Return whether too little is left for a request."""
        return self.left < self.least * (1 - HAIR)

    @property
    def ready_at(self) -> float:
        """The earliest time at which a request may be sent, if the lease is still valid then; inf if another grant is needed first."""
        if self.is_used_up():
            self._lease.miss()
            return inf
        return self._arrival - self.burst

    def take(self, now: float, cost: float = 1.0) -> None:
        if not self._whole:
            self.largest = max(cost, FADE * self.largest)
            self.mean += 0.1 * (cost - self.mean)
        self._arrival = max(self._arrival, now) + cost / self._spread
        self.left -= cost
        self.spent += cost

    def give_back(self, cost: float) -> None:
        """Correct an earlier charge. A positive ``cost`` was not used and goes back to all members. A negative ``cost`` is charged too."""
        if cost > 0:
            self.returned += cost
        else:
            self.spent -= cost
            self.left += cost

    def given(self, now: float, part: Grant) -> None:
        self.share, self.limit, self.rate = part.hold, part.limit, max(part.hold, HAIR) / 60
        self.left += part.grant
        self._spread = max(self.left / RENEW, self.rate)
        self._arrival = min(self._arrival, now + RENEW)  # earlier large requests must not delay the use of this grant

    def renew_alone(self, now: float, need: Demand, others: int) -> None:
        """Renew at a quota of this member alone, whose limit is the last share, or the part of one of ``others`` that has had none."""
        if not self.share:
            self.share, self.limit = need.limit / others, need.limit
        if self.own is None:
            self.own = WindowQuota(max(1.0, self.share * PERIOD / MINUTE), whole=self._whole, since=now)
            self.own.credit = -self.least  # the ledger may have granted as much in advance
            self.left = need.left = 0.0  # another member may get it
        grant = self.own.renew(now, -inf, "", msgspec.structs.replace(need, limit=self.own.limit))
        self.given(now, Grant(self.limit, self.share, grant.grant))

    def need(self, limit: float, want: float, rate: float) -> Demand:
        """Return the demand for a renewal, for ``want`` requests until the next one, and ``rate`` requests a minute.

        If too little is left for a request, that amount goes back to all members.
        """
        if not self._whole:
            want, rate = max(want * self.mean, self.least), rate * self.mean
        if self.is_used_up():
            self.left = min(self.left, 0.0)
        least = self.least - min(self.left, 0.0)
        return Demand(limit, want, rate=rate, least=least, spent=self.spent, returned=self.returned, left=self.left)


class CappedLimit:
    """Caps a concurrency limit by the member's share of requests in flight. The wrapped limit adapts as usual.

    It takes the place of a ``ConcurrencyLimit``; what is not here is that of the wrapped limit.
    """

    def __init__(self, inner: ConcurrencyLimit, permits: float) -> None:
        self.inner = inner
        self.permits = permits  # requests that may be in flight
        self.peak = 0  # largest number of requests in flight since ``peak`` was last set

    @property
    def limit(self) -> int:
        return int(max(1, min(self.inner.limit, self.permits)))

    @property
    def reason(self) -> str:
        return "its share" if self.permits < self.inner.limit else self.inner.reason

    def sent(self, now: float, inflight: int) -> None:
        self.peak = max(self.peak, inflight)
        self.inner.sent(now, inflight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _short(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 1000 else f"{amount:.4g}"
