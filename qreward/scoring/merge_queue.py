"""What waits to be merged, and what is taken of it when an endpoint has room.

Every method is called under the engine's lock, and so is ``lanes`` read, for a carrier may be sent by another loop's thread. ``waiting``
alone may be read without it: a number that may be old when it is there. Knows no loop, no clock (``now`` comes in) and no HTTP.

When items are too late: one entry for all items of a list whose time began together.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any

from qreward.batching.backlog import ALL, OVER, Backlog
from qreward.codecs.rewards.base import MergeLimits
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outages import deadline
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import BatchFeed, TaskState
from qreward.scoring import sizing as spread
from qreward.scoring.endpoint_limits import Known, KnownLists
from qreward.scoring.formats import MergeFormat
from qreward.scoring.items import MergedItem, MergedRequest, PriorityLane

SWEEP = 64
"""Entries before the first look for those of which nothing is left."""


class Deadlines:
    """The deadlines of items that wait or are under way. Pure."""

    __slots__ = ("_entries", "_most", "_numbers")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, list[MergedItem]]] = []
        self._numbers = count()
        self._most = SWEEP

    def add(self, members: list[MergedItem], until: float) -> None:
        """Items that have the same time."""
        heappush(self._entries, (until, next(self._numbers), members))
        if len(self._entries) > self._most:
            self._entries = [entry for entry in self._entries if _lives(entry[2])]
            heapify(self._entries)
            self._most = 2 * len(self._entries) + SWEEP

    def next(self) -> float | None:
        """The earliest that still matters, or None."""
        while self._entries and not _lives(self._entries[0][2]):
            heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def due(self, now: float) -> list[MergedItem]:
        """Those whose time has passed, each once."""
        late: list[MergedItem] = []
        while self._entries and self._entries[0][0] <= now:
            late += [member for member in heappop(self._entries)[2] if member.place is not OVER]
        return late


def _lives(members: list[MergedItem]) -> bool:
    return any(member.place is not OVER for member in members)


BREAKS = 3
"""What each list counts that fails at a server, against 1 for each that is answered: more than a quarter is not by chance."""
BY_CHANCE = 6
"""Count up to which such a list is tried again whole; beyond it, up to twice as much, it is cut in two at once."""


class MergeQueue:
    """The waiting items of one collector.

    Args:
        pool: where they may go.
        listing: how they become lists.
        lists: how long those may be.

    Attributes:
        lanes: what waits by (priority, of bulks), the most urgent first.
        loaded: the carriers that carry something.
        deadlines: of items whose time has begun.
        unread: items that bulks are still to put in; inf if nobody knows.
        sent_at: when a list was last sent.
        broken: how many lists have failed at a server of late; parts of others do not count.
    """

    def __init__(self, pool: Pool, listing: MergeFormat, lists: KnownLists) -> None:
        self._pool, self._listing, self._lists = pool, listing, lists
        self._backlog: Any = Backlog()  # of members, which are its items in all but name
        self._services: dict[Source, spread.ServiceTimeModel] = {}
        self._limits: dict[Source, Known] = {}  # of these items' shape
        self.lanes: dict[tuple[int, bool], PriorityLane] = {}
        self.loaded: dict[MergedRequest, None] = {}
        self.deadlines = Deadlines()
        self.unread = 0.0
        self.sent_at = -inf
        self.broken = 0

    @property
    def waiting(self) -> int:
        """Items that no carrier has taken."""
        waiting: int = self._backlog.waiting
        return waiting

    def look(self, now: float, unread: float) -> tuple[bool, float]:
        """Whether something waits that no carrier waits for, and seconds that single items are to wait for others though there is room.

        Args:
            unread: as the attribute, which it becomes.
        """
        self.unread = unread
        wanted = any(lane.waiting and lane.carrier is None for lane in self.lanes.values())
        return wanted, self.sent_at + spread.pause(self._pool) - now if wanted and not self._fills() else 0.0

    def _fills(self) -> bool:
        """Whether what waits would fill a list of some endpoint, as far as they are known."""
        return self.waiting >= min((known.limits.items or spread.MOST for known in self._limits.values()), default=spread.MOST)

    def singles(self) -> tuple[int, int]:
        """Single items that wait, and carriers that wait for them."""
        lanes = [lane for lane in self.lanes.values() if lane.feed is None]
        return sum(lane.waiting for lane in lanes), sum(lane.carrier is not None for lane in lanes)

    def unsent(self) -> list[MergedRequest]:
        """The carriers that wait for items that wait."""
        return [lane.carrier for lane in self.lanes.values() if lane.carrier is not None]

    def unload(self) -> list[MergedRequest]:
        """Forget all carriers that carry something, and return them."""
        loaded, self.loaded = list(self.loaded), {}
        return loaded

    def returned(self, carrier: MergedRequest) -> None:
        """A carrier has come to its end."""
        if carrier.lane.carrier is carrier:
            carrier.lane.carrier = None
        self.loaded.pop(carrier, None)

    # what comes and goes otherwise

    def put(self, now: float, members: Sequence[MergedItem], sink: Any, *, bulk: bool) -> None:
        """Add items at the end. The time of single ones begins; that of a bulk's begins when they are taken."""
        for member in members:
            member.born = now
            member.state = TaskState.QUEUED
            member.lane = self._lane(now, member, sink, bulk)
            member.lane.waiting += 1
            self._backlog.put(member)
        if not bulk:
            self._begin(now, members)

    def _lane(self, now: float, member: MergedItem, sink: Any, bulk: bool) -> PriorityLane:
        place = (member.level, bulk)
        lane = self.lanes.get(place)
        if lane is None:
            feed = BatchFeed(self._pool, member.level, sink, now, member.tenant) if bulk else None
            lane = self.lanes[place] = PriorityLane(member.level, member.tenant, feed)
            self.lanes = dict(sorted(self.lanes.items()))
        return lane

    def _begin(self, now: float, members: Sequence[MergedItem], source: Source | None = None) -> None:
        """The time of items begins, as a source takes them if one is given."""
        times: dict[float, list[MergedItem]] = {}
        for member in members:
            if member.timeout is not None:
                if source is None:
                    member.until = now + member.timeout
                else:
                    member.until = deadline(now, source, self._pool, member.timeout, member.sink.opened_at)
                times.setdefault(member.until, []).append(member)
        for until, each in times.items():
            self.deadlines.add(each, until)

    def remove(self, member: MergedItem) -> None:
        """Take out an item that waits."""
        self._backlog.remove(member)
        member.lane.waiting -= 1

    def remove_all(self) -> list[MergedItem]:
        """Take out all that wait."""
        waiting: list[MergedItem] = sorted(self._backlog.items(), key=lambda member: member.number)
        for member in waiting:
            self.remove(member)
        return waiting

    def took(self, carrier: MergedRequest, source: Source, seconds: float) -> None:
        """A list was answered."""
        items = len(carrier.members)
        service = self._services.get(source)
        if service is None:
            service = self._services[source] = spread.ServiceTimeModel()
        service.add(items, seconds)
        known = self._limits.get(source)
        if known is not None:
            known.took()
        if not carrier.closed:
            self.broken = max(0, self.broken - 1)
        cut = carrier.cut
        if cut is not None and cut.taken() and cut.source is not None and (shorter := self._limits.get(cut.source)) is not None:
            shorter.refused(cut.length)

    def turned_away(self, source: Source, items: int) -> None:
        """A list came back for want of room, though the source had nothing else of ours."""
        known = self._limits.get(source)
        if known is not None:
            known.turned_away(items)

    def broke(self, carrier: MergedRequest) -> bool:
        """A list failed at a server, which is there. Whether that looks like something in it: it is part of one, or too many did."""
        if carrier.closed:
            return True
        if not carrier.tries:
            self.broken = min(2 * BY_CHANCE, self.broken + BREAKS)
        return self.broken > BY_CHANCE

    # the filling

    def fill(self, now: float, carrier: MergedRequest, source: Source) -> bool:
        """A source takes a carrier: the last moment to say what is in it. False if nothing waits any more.

        One that was turned away, and not to blame, takes what has come meanwhile as well. One that holds more than this source takes
        leaves the rest at the head of what waits.
        """
        if carrier.lane.carrier is carrier:
            carrier.lane.carrier = None
        members = carrier.left()
        limits = self._limits_at(source, members)
        if len(members) > 1:
            members = self._cut(members, limits)
        if not carrier.closed and not carrier.tries:
            members += self._take(now, carrier, source, members, limits)
        if not members:
            self.loaded.pop(carrier, None)
            return False
        carrier.take_in(members, self._listing.merged([member.payload for member in members]))
        carrier.hedge = all(member.hedge for member in members) and self._fits_anywhere(members, limits)
        self.loaded[carrier] = None
        self.sent_at = now
        return True

    def _take(self, now: float, carrier: MergedRequest, source: Source, before: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        taken: list[MergedItem] = self._backlog.take(now, self._most(now, source, len(before), limits) - len(before))
        for member in taken:
            member.lane.waiting -= 1
        taken = [member for member in taken if member.until > now]  # the timer tells the others, at once
        if taken:
            taken = self._cut([*before, *taken], limits)[len(before) :]
        for member in taken:
            member.board(carrier, now)
        first = [member for member in taken if member.lane.feed is not None and member.until == inf and member.sent_at == now]
        self._begin(now, first, source)  # their time begins as they are taken: they were read ahead by bulks
        for member in first:
            member.born = now
        return taken

    def _most(self, now: float, source: Source, before: int, limits: MergeLimits) -> int:
        """Items that the list should have at most."""
        most = ALL if limits.items is None else limits.items
        if not self._listing.spreads:
            return max(most, before)
        service = self._services.get(source) or spread.ServiceTimeModel()
        wanted = spread.length(now, self._pool, self._backlog.waiting + before + self.unread, service)
        return max(before, min(most, wanted))

    def _cut(self, members: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        """As many as go into one request; the others return to the head of what waits."""
        fits = self._listing.fitting(limits, [member.payload for member in members])
        if fits < len(members):
            for member in members[fits:]:
                member.alight()
                member.state = TaskState.QUEUED
                member.lane.waiting += 1
            self._backlog.put_back(members[fits:])
        return members[:fits]

    def _limits_at(self, source: Source, members: Sequence[MergedItem]) -> MergeLimits:
        """How much a request to a source may hold, of the one shape that is here."""
        known = self._limits.get(source)
        if known is not None:
            return known.limits
        some = members or self._backlog.items()
        if not some:
            return MergeLimits()
        endpoint: Any = source.handle
        usual = self._listing.limits(endpoint, some[0].payload)
        known = self._limits[source] = self._lists.at(source, usual, spread.MOST if self._listing.spreads else None)
        return known.limits

    def _fits_anywhere(self, members: list[MergedItem], limits: MergeLimits) -> bool:
        """Whether a copy may go to any source: what is under way cannot be made shorter."""
        others = {self._limits_at(source, members) for source in self._pool.sources} - {limits}
        calls = [member.payload for member in members]
        return all(self._listing.fitting(other, calls) == len(calls) for other in others)
