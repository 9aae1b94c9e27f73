"""The task that carries items: empty until an endpoint takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qreward.batching.backlog import OVER
from qreward.core.pool import Pool
from qreward.core.source import Source
from qreward.core.task import Feed, Task
from qreward.engine.watching import TOLD

if TYPE_CHECKING:
    from qreward.rewards.collector import Collector
    from qreward.rewards.member import Member


class Lane:
    """The waiting items of one priority: single ones, or those of bulks.

    Attributes:
        waiting: how many.
        carrier: what the scheduler has for them that was not sent yet, or None.
        feed: of those of bulks, for it is bulks that leave room to single calls.
    """

    __slots__ = ("carrier", "feed", "level", "tenant", "waiting")

    def __init__(self, level: int, tenant: str | None, feed: Feed | None) -> None:
        self.level = level
        self.tenant = tenant
        self.feed = feed
        self.waiting = 0
        self.carrier: Carrier | None = None


class Cut:
    """A list that failed, and was sent again in parts. If all are taken and it was refused, it was no item's fault: it was too long.

    Attributes:
        source: who refused it, if anybody did.
        length: of the longest part.
        others_served: others of the list were answered, so what still fails has itself to blame, and not the server.
    """

    __slots__ = ("_open", "length", "others_served", "source")

    def __init__(self, source: Source | None, length: int, others_served: bool = False) -> None:
        self.source = source
        self.length = length
        self.others_served = others_served
        self._open = 2

    def taken(self) -> bool:
        """A part was taken; True if it was the second of a list that was refused."""
        self.others_served = True
        self._open -= 1
        return not self._open and self.source is not None


class Carrier(Task):
    """One request of several items.

    Attributes:
        sink: the collector.
        lane: the line that it was made for; it takes from all.
        members: what it carries, those that are over included.
        alive: how many of them are not over.
        closed: nothing is added to it: it is a part of a list that failed.
        cut: by what it came to be such a part.
        refused_by: who refused it.
    """

    __slots__ = ("alive", "closed", "cut", "lane", "members", "refused_by")
    sink: Collector

    def __init__(self, payload: Any, pool: Pool, lane: Lane, sink: Collector, members: list[Member] | None = None) -> None:
        super().__init__(payload, pool, lane.level, None, sink, 0, lane.tenant)
        self.lane = lane
        self.members: list[Member] = members or []
        self.alive = len(self.members)
        self.closed = members is not None
        self.cut: Cut | None = None
        self.refused_by: Source | None = None

    def load(self, now: float, source: Source) -> bool:
        """Fill it, as it is about to be sent."""
        return self.sink.fill(now, self, source)

    def left(self) -> list[Member]:
        """What it carries that is still wanted."""
        return [member for member in self.members if member.place is not OVER]

    def is_suspect(self) -> bool:
        """Others that were sent with these items were answered, but not they."""
        return self.cut is not None and self.cut.others_served

    def lost_one(self) -> bool:
        """One of its items is over; True if it was the last."""
        self.alive -= 1
        return not self.alive

    def take_in(self, members: list[Member], payload: Any) -> None:
        """It is to be sent with these. One item alone is told of as the call that it is; several are told to be carried."""
        self.members, self.alive, self.payload, self.items = members, len(members), payload, tuple(members)
        if not self.serial and len(members) == 1 and members[0].serial > 0:
            alone = members[0]
            self.serial, self.span, self.items, alone.told = alone.serial, alone.span, (), TOLD
