"""The ledger of one key: its members, and what each of them may use and hold. Pure: ``now`` comes in, in seconds of any clock that all
who write into one ledger share; it may be kept anywhere between two calls.

A ledger that has just begun may have had a predecessor, of which members still hold shares. While it is *young*, for one lease, it
gives nothing: whoever says that it holds a share goes on with that, all others wait. Where it is known that nobody can hold anything
(``Ledger()``) nobody need wait.
"""

from __future__ import annotations

from math import inf

import msgspec

from qreward.core.sharing.minute import Minute
from qreward.core.sharing.pot import Pot
from qreward.core.sharing.words import FRESH, LEASE, MINUTE, PERIOD, Ask, Need, Part, Share

BACKWARDS = 1.0
"""Seconds by which clocks of members may differ; a clock further back is another one, as after a restart of the machine."""


class Seat(msgspec.Struct, array_like=True):
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
    seats: dict[str, Seat] = {}
    requests: Minute = msgspec.field(default_factory=lambda: Minute(whole=True))
    tokens: Minute = msgspec.field(default_factory=lambda: Minute(whole=False))
    permits: Pot = msgspec.field(default_factory=lambda: Pot(whole=True))
    request_shares: Pot = msgspec.field(default_factory=lambda: Pot(whole=False))
    token_shares: Pot = msgspec.field(default_factory=lambda: Pot(whole=False))

    def renew(self, now: float, member: str, ask: Ask) -> Share:
        """A member says where it stands, and is told its share. Its renewals must come in their order; a late one may be lost."""
        now = self.now = max(self.now, now)
        limits = [inf if need is None else need.limit for need in (ask.requests, ask.tokens, ask.permits)]
        self.seats[member] = Seat(now, *limits)
        self._advance(now)
        young = now < self.begun + LEASE
        share = Share(len(self.seats), young)
        if ask.requests is not None:
            share.requests = self._rate(now, member, ask.requests, self.requests, self.request_shares, young=young)
        if ask.tokens is not None:
            share.tokens = self._rate(now, member, ask.tokens, self.tokens, self.token_shares, young=young)
        if ask.permits is not None:
            held = self.permits.renew(now, member, ask.permits, young=young)
            share.permits = Part(self.permits.total, held)
        return share

    def leave(self, now: float, member: str, ask: Ask) -> None:
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
    def _rate(now: float, member: str, need: Need, minute: Minute, shares: Pot, *, young: bool) -> Part:
        hold = shares.renew(now, member, need, young=young)
        minute.report(now, member, need)
        return Part(minute.limit, hold, 0.0 if young else minute.grant(now, member))
