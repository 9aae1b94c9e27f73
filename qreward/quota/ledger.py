"""The ledger of the limits of one key: its members, and how much each of them may use per minute and have in flight.

The ledger is pure. ``now`` is passed in, in seconds of any clock that all processes of a ledger share. Between two calls it may be stored
anywhere.

A new ledger may replace a lost one, of which members still hold shares. While it is *young*, for the time of one lease, it grants nothing:
a member that reports a share keeps it, all others wait. Where it is known that no member can hold a share (``Ledger()``), none has to wait.

Shares are max-min fair: small demands are met in full, and the rest is divided equally (water filling; Bertsekas and Gallager, Data
Networks, 6.5.2).

``WindowQuota`` is a limit on the use in any minute, granted to the members in small amounts.

M1  A granted amount counts from the grant until a minute (and ``MARGIN``) after it was reported as used. The sum never exceeds the limit.
    So no minute has more use, whichever members join, leave, stall or die: an amount that is never reported counts as used.
M2  Amounts are granted evenly, at the limit divided by ``PERIOD``, with about one second's worth at once.
M3  Members that want more than there is get equal parts over time, by start-time fair queueing (Goyal, Vin and Cheng 1996): each has a
    clock that advances by its grants; the one furthest behind goes first. A member that is new or returns starts at the common clock.
M4  A grant is at least the smallest useful amount of its member. The first in order may get more than the credit, if there is no debt.

``PermitPool`` is a limit on what is held at once (requests in flight), divided by lease among the members that want some.

P1  Each member should have its max-min fair part. But it gets at most what no other member may still believe to hold. So a share grows by
    what others have given up and reported, lost with their lease, or left behind when they died.
P2  Until its next report, a member is assumed to hold what it reported last or was granted since, whichever is more, and at least its
    requests in flight.
P3  Where parts are whole numbers, the remainder goes round the members, one ``TURN`` after another, so that none starves where there are
    too few.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, inf

import msgspec

from qreward.quota.messages import FRESH, LEASE, MARGIN, MINUTE, PERIOD, RENEW, STEP, Demand, Grant, RenewReply, RenewRequest


def water_level(amount: float, vessels: Iterable[tuple[float, float]]) -> float:
    """Return the water level of an amount poured into connected vessels, inf if they hold less than the amount.

    Args:
        amount: the amount that is poured in.
        vessels: (height of the bottom, capacity) of each vessel; a vessel holds one unit per unit of height.

    Example:
        >>> water_level(10.0, [(0.0, 2.0), (0.0, 9.0), (0.0, 9.0)])
        4.0
        >>> water_level(2.0, [(0.0, 9.0), (5.0, 9.0)])
        2.0
        >>> water_level(30.0, [(0.0, 2.0), (0.0, 9.0)])
        inf
    """
    edges = sorted(edge for bottom, room in vessels if room > 0 for edge in ((bottom, 1), (bottom + room, -1)))
    height, open_ones = 0.0, 0
    for at, change in edges:
        if open_ones:
            if (at - height) * open_ones >= amount:
                return height + amount / open_ones
            amount -= (at - height) * open_ones
        height, open_ones = at, open_ones + change
    return inf


AT_ONCE = 1.0
"""Credit, in seconds of the rate, that is enough for a larger grant. At most twice as much credit accumulates for tokens."""
LEAST_WAITING = 2.0
"""Credit of requests that accumulates at most, if one second's worth is less."""
HAIR = 1e-9
"""Relative tolerance for rounding of float sums."""


class Account(msgspec.Struct, array_like=True):
    """One member's use of a limit per minute.

    Attributes:
        spent, returned: totals of its last report, see ``Demand``.
    """

    at: float  # time of its last report
    spent: float
    returned: float
    served: float = 0.0  # its clock for fair queueing
    out: float = 0.0  # amount granted and not reported as used
    want: float = 0.0  # amount that it wants in addition to ``out``
    least: float = 1.0  # the smallest useful amount


class WindowQuota(msgspec.Struct, array_like=True):
    """A limit per minute; rules M1 to M4."""

    whole: bool  # it is granted in whole numbers
    limit: float = inf  # amount per minute
    accounts: dict[str, Account] = {}  # account of each member
    used: dict[int, float] = {}  # time step -> amount reported as used in it
    credit: float = 0.0  # amount that may be granted now, as of ``since``
    since: float = -inf
    clock: float = 0.0  # the common clock of the members that want more than they get

    @property
    def rate(self) -> float:
        """Amount granted per second."""
        return self.limit / PERIOD

    @property
    def most(self) -> float:
        """Largest credit."""
        return max(LEAST_WAITING, AT_ONCE * self.rate) if self.whole else 2 * AT_ONCE * self.rate

    def advance(self, now: float, *, young: bool) -> None:
        """Add credit up to ``now``, drop use older than a minute, and close the accounts of members whose lease has run out."""
        self.credit = 0.0 if young else min(self.most, self.credit + (now - max(self.since, now - MINUTE)) * self.rate)
        self.since = now
        oldest = (now - MINUTE - MARGIN) / STEP - 1
        for step in [step for step in self.used if step <= oldest]:
            del self.used[step]
        for member in [member for member, account in self.accounts.items() if now > account.at + LEASE]:
            self.close(self.accounts[member].at + LEASE, member)

    def close(self, now: float, member: str) -> None:
        """Close a member's account. Its outstanding amount counts as used."""
        account = self.accounts.pop(member, None)
        if account is not None:
            self._use(now, account.out)

    def report(self, now: float, member: str, need: Demand) -> None:
        """Apply a member's report of what it used, has left, and wants."""
        account = self.accounts.get(member)
        if account is None:
            account = self.accounts[member] = Account(now, need.spent, need.returned, self.clock)
        used, returned = max(0.0, need.spent - account.spent), max(0.0, need.returned - account.returned)
        self._use(now, used)
        self._refund(returned)
        left = max(0.0, need.left)
        back = account.out - left - used + returned  # unused part of its grants; negative if it used more
        self.credit = min(self.most, self.credit + back)
        account.served -= back
        wanted = account.want > 0  # a member that was slow, but within its lease, may catch up
        account.at, account.spent, account.returned, account.out = now, need.spent, need.returned, left
        account.want, account.least = max(0.0, need.want - left), need.least
        if account.want and not wanted:
            account.served = max(account.served, self.clock)

    def grant(self, now: float, member: str) -> float:
        """Grant a member its part of the credit, and return the amount."""
        account = self.accounts[member]
        if account.want <= 0:
            return 0.0
        hungry = {name: other for name, other in self.accounts.items() if other.want > 0 and now <= other.at + FRESH}
        self.clock = max(self.clock, min(other.served for other in hungry.values()))
        room = self.limit - self.counted()
        given = min(self._fair_part(account, hungry, min(self.credit, room)) or self._piece(member, hungry, room), account.want)
        account.out += given
        account.want -= given
        account.served += given
        self.credit -= given
        return given

    def counted(self) -> float:
        """Return the amount that counts now: used within the last minute, or granted and outstanding."""
        return sum(self.used.values()) + sum(account.out for account in self.accounts.values())

    def _fair_part(self, account: Account, hungry: dict[str, Account], amount: float) -> float:
        """Return the fair part of an amount, 0 if it is too small to be useful."""
        if amount <= 0:
            return 0.0
        height = water_level(amount, ((other.served, other.want) for other in hungry.values()))
        part = min(account.want, max(0.0, height - account.served))
        if self.whole:
            part = floor(part + HAIR)
        return part if part >= min(account.least, account.want) else 0.0

    def _piece(self, member: str, hungry: dict[str, Account], room: float) -> float:
        """Return the smallest useful amount if all members ahead of this one could get theirs as well, else 0."""
        left, enough = self.credit, 1.0 if self.whole else AT_ONCE * self.rate
        for name, other in sorted(hungry.items(), key=lambda item: (item[1].served, item[0])):
            least = min(other.least, other.want, self.limit)
            if left + HAIR * least < min(least, enough) or room + HAIR * self.limit < least:
                return 0.0
            if name == member:
                return least
            left, room = left - least, room - least
        return 0.0

    def _use(self, now: float, amount: float) -> None:
        if amount > 0:
            step = floor(now / STEP)
            self.used[step] = self.used.get(step, 0.0) + amount

    def _refund(self, amount: float) -> None:
        """Take back an amount that was not used, from the oldest steps, so that the rest counts at least as long as it must."""
        for step in sorted(self.used) if amount > 0 else ():
            taken = min(amount, self.used[step])
            self.used[step] -= taken
            amount -= taken
            if amount <= 0:
                return


assert RENEW < FRESH < LEASE


TURN = 15.0
"""Seconds after which the remainder goes to the next members. Each handover costs about half a second of its use."""


class Holder(msgspec.Struct, array_like=True):
    """One member's part of a ``PermitPool``."""

    at: float  # time of its last renewal
    want: float = 0.0  # the share that it wants
    held: float = 0.0  # the share that it may believe to hold
    using: int = 0  # requests in flight
    lasts: float = 0.0  # seconds after which its requests in flight are certainly over

    def holds(self, now: float) -> float:
        """Return what it may hold, until ``PermitPool.advance`` drops it."""
        return max(self.held, self.using) if now <= self.at + LEASE else float(self.using)


class PermitPool(msgspec.Struct, array_like=True):
    """A limit on what is held at once; rules P1 to P3. ``total`` is the limit; ``whole``: it is divided in whole numbers."""

    whole: bool
    total: float = inf
    holders: dict[str, Holder] = {}

    def advance(self, now: float) -> None:
        """Drop members whose lease has run out, once their requests in flight must be over."""
        for name, holder in list(self.holders.items()):
            if now > holder.at + max(LEASE, holder.lasts if holder.using else 0.0):
                del self.holders[name]

    def held(self, now: float) -> float:
        """Return the sum of what all members may believe to hold."""
        return sum(holder.holds(now) for holder in self.holders.values())

    def renew(self, now: float, member: str, need: Demand, *, young: bool) -> float:
        """Apply a member's demand, and return its share."""
        self.holders.pop(member, None)
        others = self.held(now)
        holder = self.holders[member] = Holder(now, min(need.rate, self.total), 0.0, need.using, need.lasts)
        share = min(need.hold, self.total) if young else max(0.0, min(self._fair(now, member), self.total - others))
        share = floor(share) if self.whole else share
        holder.held = max(need.hold, share)
        return share

    def _fair(self, now: float, member: str) -> float:
        wants = {name: holder.want for name, holder in self.holders.items() if now <= holder.at + LEASE}
        height = water_level(self.total, ((0.0, want) for want in wants.values()))
        if self.whole and height < inf:
            height = floor(height + HAIR)
        if not self.whole or wants[member] <= height:
            return min(height, wants[member])
        short = sorted(name for name, want in wants.items() if want > height)
        left = int(self.total - sum(min(height, want) for want in wants.values()))
        place = short.index(member) - left * floor(now / TURN)
        return height + (place % len(short) < left)


BACKWARDS = 1.0
"""Seconds by which the clocks of members may differ. A clock further behind is another clock, as after a restart of the machine."""


class Member(msgspec.Struct, array_like=True):
    """A member: when it last renewed, and its configured limits."""

    at: float
    requests: float = inf
    tokens: float = inf
    permits: float = inf


class Ledger(msgspec.Struct, array_like=True):
    """The limits of one key and its members. The module docstring lists the rules.

    Args:
        begun: when it was created; -inf if no earlier ledger can have granted shares.

    Example:
        >>> ledger, request = Ledger(), RenewRequest(permits=Demand(limit=8, rate=20))
        >>> ledger.renew(0.0, "a", request).permits.hold
        8
        >>> ledger.renew(0.1, "b", request).permits.hold  # it gets half once the other member has reported that it holds less
        0
        >>> ledger.renew(0.5, "a", RenewRequest(permits=Demand(limit=8, rate=20, hold=8))).permits.hold
        4
    """

    begun: float = -inf
    now: float = -inf
    members: dict[str, Member] = {}
    requests: WindowQuota = msgspec.field(default_factory=lambda: WindowQuota(whole=True))
    tokens: WindowQuota = msgspec.field(default_factory=lambda: WindowQuota(whole=False))
    permits: PermitPool = msgspec.field(default_factory=lambda: PermitPool(whole=True))
    request_shares: PermitPool = msgspec.field(default_factory=lambda: PermitPool(whole=False))
    token_shares: PermitPool = msgspec.field(default_factory=lambda: PermitPool(whole=False))

    def renew(self, now: float, member: str, request: RenewRequest) -> RenewReply:
        """Apply a member's demand and return its shares. The renewals of a member must arrive in order; a late one may be lost."""
        limits = [inf if need is None else need.limit for need in (request.requests, request.tokens, request.permits)]
        self.members[member] = Member(max(self.now, now), *limits)
        now = self._advance(now)
        young = now < self.begun + LEASE
        reply = RenewReply(len(self.members), young)
        if request.requests is not None:
            reply.requests = self._grant(now, member, request.requests, self.requests, self.request_shares, young=young)
        if request.tokens is not None:
            reply.tokens = self._grant(now, member, request.tokens, self.tokens, self.token_shares, young=young)
        if request.permits is not None:
            held = self.permits.renew(now, member, request.permits, young=young)
            reply.permits = Grant(self.permits.total, held)
        return reply

    @staticmethod
    def _grant(now: float, member: str, need: Demand, quota: WindowQuota, shares: PermitPool, *, young: bool) -> Grant:
        hold = shares.renew(now, member, need, young=young)
        quota.report(now, member, need)
        return Grant(quota.limit, hold, 0.0 if young else quota.grant(now, member))

    def leave(self, now: float, member: str, request: RenewRequest) -> None:
        """Remove a member that leaves in order: it reports what it used, and returns the rest."""
        for need, quota in ((request.requests, self.requests), (request.tokens, self.tokens)):
            if need is not None and member in quota.accounts:
                quota.report(max(self.now, now), member, msgspec.structs.replace(need, left=0.0, want=0.0))
        self.remove_dead(now, member)

    def remove_dead(self, now: float, member: str) -> None:
        """Remove a member. Its outstanding amounts count as used, its shares become free."""
        self.members.pop(member, None)
        for quota in (self.requests, self.tokens):
            quota.close(max(self.now, now), member)
        for pool in (self.permits, self.request_shares, self.token_shares):
            pool.holders.pop(member, None)
        self._advance(now)

    def silent(self, now: float) -> list[str]:
        """Return the members whose renewal is late, and which may have died."""
        return [name for name, member in self.members.items() if now > member.at + FRESH]

    def is_of(self, now: float) -> bool:
        """Return whether the ledger's times can come from this clock."""
        return now >= self.now - BACKWARDS

    def _advance(self, now: float) -> float:
        """Bring everything up to the time, and return it. Each limit is the smallest that a member has configured."""
        now = self.now = max(self.now, now)
        self.members = {name: member for name, member in self.members.items() if now <= member.at + LEASE}
        if members := self.members.values():  # without members the last limits stay
            self.requests.limit, self.tokens.limit = min(each.requests for each in members), min(each.tokens for each in members)
            self.permits.total = min(each.permits for each in members)
            self.request_shares.total, self.token_shares.total = (each.limit * MINUTE / PERIOD for each in (self.requests, self.tokens))
        for quota in (self.requests, self.tokens):
            if quota.limit < inf:
                quota.advance(now, young=now < self.begun + LEASE)
        for pool in (self.permits, self.request_shares, self.token_shares):
            pool.advance(now)
        return now
