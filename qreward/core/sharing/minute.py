"""A limit on what may be used in any minute, handed out in small pieces to many.

M1  What was given out counts from when it is given until a minute (and ``MARGIN``) after it was reported as used; the sum never
    exceeds the limit. So no minute holds more, whoever comes, goes, stops or dies: a piece that is not heard of any more counts as used.
M2  It is given out evenly, at the limit by ``PERIOD``, with about a second's worth at once.
M3  Who wants more than there is gets equal parts over time, by start-time fair queueing (Goyal, Vin and Cheng 1996): each has a
    clock that moves by what it is given; whoever is behind goes first, and who comes or comes back starts at the common time.
M4  A piece is at least what is of use to its taker. Who is first in line may be given one larger than what is there, if there is no debt.
"""

from __future__ import annotations

from math import floor, inf

import msgspec

from qreward.core.sharing.filling import level, part
from qreward.core.sharing.words import FRESH, LEASE, MARGIN, MINUTE, PERIOD, RENEW, STEP, Need

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

    def report(self, now: float, member: str, need: Need) -> Account:
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
