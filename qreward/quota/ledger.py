"""The ledger of one key: its members, and what each of them may use and hold. Pure: ``now`` comes in, in seconds of any clock that all
who write into one ledger share; it may be kept anywhere between two calls.

A ledger that has just begun may have had a predecessor, of which members still hold shares. While it is *young*, for one lease, it
gives nothing: whoever says that it holds a share goes on with that, all others wait. Where it is known that nobody can hold anything
(``Ledger()``) nobody need wait.

Max-min fairness: whoever wants least gets it, and the rest is equal (water filling; Bertsekas and Gallager, Data Networks, 6.5.2).

A limit on what may be used in any minute, handed out in small pieces to many.

M1  What was given out counts from when it is given until a minute (and ``MARGIN``) after it was reported as used; the sum never
    exceeds the limit. So no minute holds more, whoever comes, goes, stops or dies: a piece that is not heard of any more counts as used.
M2  It is given out evenly, at the limit by ``PERIOD``, with about a second's worth at once.
M3  Who wants more than there is gets equal parts over time, by start-time fair queueing (Goyal, Vin and Cheng 1996): each has a
    clock that moves by what it is given; whoever is behind goes first, and who comes or comes back starts at the common time.
M4  A piece is at least what is of use to its taker. Who is first in line may be given one larger than what is there, if there is no debt.

A limit on what is held at once, divided by lease among those who want of it.

P1  Each is to have its max-min fair part. Nobody is given more than what no other may still believe to hold; so a share grows by what
    others gave up and have said so, or lost with their lease, or left behind when they died.
P2  A member may hold, until it says otherwise, what it said last or what it was told since, whichever is more, and what it has in flight.
P3  Where parts are whole numbers, those that are left over go round, each for a ``TURN``: nobody starves where there are too few for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, inf

import msgspec

from qreward.quota.messages import FRESH, LEASE, MARGIN, MINUTE, PERIOD, RENEW, STEP, Demand, Grant, RenewReply, RenewRequest


def level(amount: float, vessels: Iterable[tuple[float, float]]) -> float:
    """How high an amount stands in connected vessels, inf if they hold less.

    Args:
        amount: what is poured in.
        vessels: (height of the bottom, how much it holds) of each; a vessel holds one unit for each unit of height.

    Example:
        >>> level(10.0, [(0.0, 2.0), (0.0, 9.0), (0.0, 9.0)])
        4.0
        >>> level(2.0, [(0.0, 9.0), (5.0, 9.0)])
        2.0
        >>> level(30.0, [(0.0, 2.0), (0.0, 9.0)])
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


def part(height: float, bottom: float, room: float) -> float:
    """What stands in one of the vessels."""
    return min(room, max(0.0, height - bottom))


AT_ONCE = 1.0
"""Seconds of a rate that are enough for a piece that is larger; twice as many tokens wait at most for whoever comes to take them."""
LEAST_WAITING = 2.0
"""Requests that wait at most, where a second's worth is less."""
HAIR = 1e-9
"""Share of an amount by which sums of floats may be off."""


class Account(msgspec.Struct, array_like=True):
    """What one member has and wants. ``out`` was given and not reported as used; ``want`` is beyond that; ``served`` is its clock."""

    at: float
    spent: float
    returned: float
    served: float = 0.0
    out: float = 0.0
    want: float = 0.0
    least: float = 1.0

    def hungers(self, now: float) -> bool:
        return self.want > 0 and now <= self.at + FRESH


class Minute(msgspec.Struct, array_like=True):
    """The limit of one key.

    Attributes:
        whole: it is handed out in whole numbers.
        limit: a minute.
        accounts: by member.
        used: step of time -> what was reported as used in it.
        credit: what may be given out now, ``since`` when it was last reckoned.
        clock: the common time of those who want more than they get.
    """

    whole: bool
    limit: float = inf
    accounts: dict[str, Account] = {}
    used: dict[int, float] = {}
    credit: float = 0.0
    since: float = -inf
    clock: float = 0.0

    @property
    def rate(self) -> float:
        """What is given out a second."""
        return self.limit / PERIOD

    @property
    def most(self) -> float:
        """What may wait to be taken."""
        return max(LEAST_WAITING, AT_ONCE * self.rate) if self.whole else 2 * AT_ONCE * self.rate

    def advance(self, now: float, *, young: bool) -> None:
        """Let time pass: credit comes in, what was used long ago is forgotten, and who was not heard of is taken to have used all."""
        self.credit = 0.0 if young else min(self.most, self.credit + (now - max(self.since, now - MINUTE)) * self.rate)
        self.since = now
        oldest = (now - MINUTE - MARGIN) / STEP - 1
        for step in [step for step in self.used if step <= oldest]:
            del self.used[step]
        for member in [member for member, account in self.accounts.items() if now > account.at + LEASE]:
            self.close(self.accounts[member].at + LEASE, member)

    def close(self, now: float, member: str) -> None:
        """A member is gone; what it had in hand counts as used."""
        account = self.accounts.pop(member, None)
        if account is not None:
            self._use(now, account.out)

    def report(self, now: float, member: str, need: Demand) -> Account:
        """Take in what a member used, has left, and wants."""
        account = self.accounts.get(member)
        if account is None:
            account = self.accounts[member] = Account(now, need.spent, need.returned, self.clock)
        used, returned = max(0.0, need.spent - account.spent), max(0.0, need.returned - account.returned)
        self._use(now, used)
        self._refund(returned)
        left = max(0.0, need.left)
        back = account.out - left - used + returned  # of what it was given; negative is what it used beyond
        self.credit = min(self.most, self.credit + back)
        account.served -= back
        wanted = account.want > 0  # and who was slow, but within its lease, may make up for it
        account.at, account.spent, account.returned, account.out = now, need.spent, need.returned, left
        account.want, account.least = max(0.0, need.want - left), need.least
        if account.want and not wanted:
            account.served = max(account.served, self.clock)
        return account

    def grant(self, now: float, member: str) -> float:
        """Give a member its part of what is there."""
        account = self.accounts[member]
        if account.want <= 0:
            return 0.0
        hungry = {name: other for name, other in self.accounts.items() if other.hungers(now)}
        self.clock = max(self.clock, min(other.served for other in hungry.values()))
        room = self.limit - self.counted()
        given = min(self._part(account, hungry, min(self.credit, room)) or self._piece(member, hungry, room), account.want)
        account.out += given
        account.want -= given
        account.served += given
        self.credit -= given
        return given

    def counted(self) -> float:
        """What counts now: used within the minute, or in somebody's hand."""
        return sum(self.used.values()) + sum(account.out for account in self.accounts.values())

    def _part(self, account: Account, hungry: dict[str, Account], amount: float) -> float:
        """A fair part, 0 if it is too small to be of use."""
        if amount <= 0:
            return 0.0
        height = level(amount, ((other.served, other.want) for other in hungry.values()))
        mine = part(height, account.served, account.want)
        if self.whole:
            mine = floor(mine + HAIR)
        return mine if mine >= min(account.least, account.want) else 0.0

    def _piece(self, member: str, hungry: dict[str, Account], room: float) -> float:
        """The smallest useful piece, if all who are before it in line could have theirs as well."""
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
        """Take back what was not used after all: from the oldest, for what stays then counts at least as long as it should."""
        for step in sorted(self.used) if amount > 0 else ():
            taken = min(amount, self.used[step])
            self.used[step] -= taken
            amount -= taken
            if amount <= 0:
                return


assert RENEW < FRESH < LEASE


TURN = 15.0
"""Seconds for which an odd one is kept while others wait for it. Each change of hands costs about half a second of its use."""
"""By how much a level may be off for its floats."""


class Holder(msgspec.Struct, array_like=True):
    """One member. ``odd`` is since when it has one of those that are left over, or None; ``rested`` when it last had one."""

    at: float
    want: float = 0.0
    held: float = 0.0
    using: int = 0
    lasts: float = 0.0
    odd: float | None = None
    rested: float = -inf

    def holds(self, now: float) -> float:
        if now <= self.at + LEASE:
            return max(self.held, self.using)
        return float(self.using) if now <= self.at + self.lasts else 0.0


class Pot(msgspec.Struct, array_like=True):
    """The limit of one key: ``total`` at once, in ``whole`` numbers or not."""

    whole: bool
    total: float = inf
    holders: dict[str, Holder] = {}

    def advance(self, now: float) -> None:
        """Forget those whose lease has run out, and what they had in flight when that must be over."""
        for name, holder in list(self.holders.items()):
            if now > holder.at + max(LEASE, holder.lasts if holder.using else 0.0):
                del self.holders[name]

    def close(self, member: str) -> None:
        """A member is gone, and holds nothing."""
        self.holders.pop(member, None)

    def held(self, now: float) -> float:
        """What all together may believe to hold."""
        return sum(holder.holds(now) for holder in self.holders.values())

    def renew(self, now: float, member: str, need: Demand, *, young: bool) -> float:
        """Tell a member its share."""
        holder = self.holders.get(member)
        if holder is None:
            holder = self.holders[member] = Holder(now)
        holder.at, holder.want, holder.using, holder.held = now, min(need.rate, self.total), need.using, 0.0
        holder.lasts = need.lasts
        free = self.total - (self.held(now) - holder.holds(now))
        fair = min(need.hold, self.total) if young else self._fair(now, holder)
        share = max(0.0, min(fair, free if not young else inf))
        share = floor(share) if self.whole else share
        holder.held = max(need.hold, share)
        return share

    def _fair(self, now: float, holder: Holder) -> float:
        alive = [other for other in self.holders.values() if now <= other.at + LEASE]
        height = level(self.total, ((0.0, other.want) for other in alive))
        if not self.whole or height == inf:
            holder.odd = None
            return min(height, holder.want)
        height = floor(height + HAIR)
        left = self.total - sum(min(height, other.want) for other in alive)
        if holder.want <= height:
            holder.odd = None
            return holder.want
        wanting = [other for other in alive if other.want > height]
        return height + self._has_odd(now, holder, wanting, int(left))

    def _has_odd(self, now: float, holder: Holder, wanting: list[Holder], left: int) -> bool:
        """Whether it is to have one of those that are left over."""
        having = [other for other in wanting if other.odd is not None]
        waiting = len(wanting) > len(having)
        if holder.odd is not None:
            if len(having) <= left and not (waiting and now >= holder.odd + TURN):
                return True
            holder.odd, holder.rested = None, now
            return False
        ahead = sum(other.odd is None and other.rested < holder.rested for other in wanting)
        if len(having) + ahead < left:
            holder.odd = now
            return True
        return False


BACKWARDS = 1.0
"""Seconds by which clocks of members may differ; a clock further back is another one, as after a restart of the machine."""


class Member(msgspec.Struct, array_like=True):
    """A member: when it was last heard of, and the limits that it names."""

    at: float
    requests: float = inf
    tokens: float = inf
    permits: float = inf


class Ledger(msgspec.Struct, array_like=True):
    """See the head of this file.

    Args:
        begun: when it began; -inf if it has no predecessor.

    Example:
        >>> ledger, ask = Ledger(), Ask(permits=Need(limit=8, rate=20))
        >>> ledger.renew(0.0, "a", ask).permits.hold
        8
        >>> ledger.renew(0.1, "b", ask).permits.hold  # it is to have half, once the other has said that it keeps to less
        0
        >>> ledger.renew(0.5, "a", Ask(permits=Need(limit=8, rate=20, hold=8))).permits.hold
        4
    """

    begun: float = -inf
    now: float = -inf
    seats: dict[str, Member] = {}
    requests: Minute = msgspec.field(default_factory=lambda: Minute(whole=True))
    tokens: Minute = msgspec.field(default_factory=lambda: Minute(whole=False))
    permits: Pot = msgspec.field(default_factory=lambda: Pot(whole=True))
    request_shares: Pot = msgspec.field(default_factory=lambda: Pot(whole=False))
    token_shares: Pot = msgspec.field(default_factory=lambda: Pot(whole=False))

    def renew(self, now: float, member: str, ask: RenewRequest) -> RenewReply:
        """A member says where it stands, and is told its share. Its renewals must come in their order; a late one may be lost."""
        now = self.now = max(self.now, now)
        limits = [inf if need is None else need.limit for need in (ask.requests, ask.tokens, ask.permits)]
        self.seats[member] = Member(now, *limits)
        self._advance(now)
        young = now < self.begun + LEASE
        share = RenewReply(len(self.seats), young)
        if ask.requests is not None:
            share.requests = self._rate(now, member, ask.requests, self.requests, self.request_shares, young=young)
        if ask.tokens is not None:
            share.tokens = self._rate(now, member, ask.tokens, self.tokens, self.token_shares, young=young)
        if ask.permits is not None:
            held = self.permits.renew(now, member, ask.permits, young=young)
            share.permits = Grant(self.permits.total, held)
        return share

    def leave(self, now: float, member: str, ask: RenewRequest) -> None:
        """A member is going, in good order: it has told what it used, and gives back the rest."""
        now = self.now = max(self.now, now)
        for need, minute in ((ask.requests, self.requests), (ask.tokens, self.tokens)):
            if need is not None and member in minute.accounts:
                minute.report(now, member, msgspec.structs.replace(need, left=0.0, want=0.0))
        self.bury(now, member)

    def bury(self, now: float, member: str) -> None:
        """A member has gone. What it had in hand counts as used, what it held is free."""
        now = self.now = max(self.now, now)
        self.seats.pop(member, None)
        for minute in (self.requests, self.tokens):
            minute.close(now, member)
        for pot in (self.permits, self.request_shares, self.token_shares):
            pot.close(member)
        self._advance(now)

    def silent(self, now: float) -> list[str]:
        """Members that should have been heard of by now: are they alive?"""
        return [member for member, seat in self.seats.items() if now > seat.at + FRESH]

    def is_of(self, now: float) -> bool:
        """Whether it was kept by this clock."""
        return now >= self.now - BACKWARDS

    def _advance(self, now: float) -> None:
        for member in [member for member, seat in self.seats.items() if now > seat.at + LEASE]:
            del self.seats[member]
        self._size()
        young = now < self.begun + LEASE
        for minute in (self.requests, self.tokens):
            if minute.limit < inf:
                minute.advance(now, young=young)
        for pot in (self.permits, self.request_shares, self.token_shares):
            pot.advance(now)

    def _size(self) -> None:
        """Of the limits that members name the smallest counts; the last one stays when nobody is left."""
        seats = self.seats.values()
        if not seats:
            return
        self.requests.limit, self.tokens.limit = min(seat.requests for seat in seats), min(seat.tokens for seat in seats)
        self.permits.total = min(seat.permits for seat in seats)
        self.request_shares.total, self.token_shares.total = (minute.limit * MINUTE / PERIOD for minute in (self.requests, self.tokens))

    @staticmethod
    def _rate(now: float, member: str, need: Demand, minute: Minute, shares: Pot, *, young: bool) -> Grant:
        hold = shares.renew(now, member, need, young=young)
        minute.report(now, member, need)
        return Grant(minute.limit, hold, 0.0 if young else minute.grant(now, member))
