"""A limit on what is held at once, divided by lease among those who want of it.

P1  Each is to have its max-min fair part. Nobody is given more than what no other may still believe to hold; so a share grows by what
    others gave up and have said so, or lost with their lease, or left behind when they died.
P2  A member may hold, until it says otherwise, what it said last or what it was told since, whichever is more, and what it has in flight.
P3  Where parts are whole numbers, those that are left over go round, each for a ``TURN``: nobody starves where there are too few for all.
"""

from __future__ import annotations

from math import floor, inf

import msgspec

from qreward.core.sharing.filling import level
from qreward.core.sharing.words import LEASE, Need

TURN = 15.0
"""Seconds for which an odd one is kept while others wait for it. Each change of hands costs about half a second of its use."""
HAIR = 1e-9
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

    def renew(self, now: float, member: str, need: Need, *, young: bool) -> float:
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
