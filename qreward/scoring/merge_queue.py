"""The items that wait to be merged, and the choice of those that go into the next request.

Everything here is used under the engine's lock, because a merged request may be filled in another event loop's thread. Only ``waiting`` may
be read without the lock; its value may then be out of date. This module knows no event loop, no clock (``now`` is passed in) and no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any

from qreward.batching.backlog import ALL, OVER, Backlog
from qreward.codecs.rewards.base import MergeLimits
from qreward.scheduler.outages import deadline
from qreward.scheduler.state import BatchFeed, Pool, Source, TaskState
from qreward.scoring import sizing
from qreward.scoring.endpoint_limits import EndpointLimits, KnownLists
from qreward.scoring.formats import MergeFormat
from qreward.scoring.items import MergedItem, MergedRequest, PriorityLane

SWEEP = 64
"""Number of entries above which those without live items are removed for the first time."""


class Deadlines:
    """The deadlines of items that wait or were sent, one entry per group with the same deadline. Pure."""

    __slots__ = ("_entries", "_most", "_numbers")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, list[MergedItem]]] = []
        self._numbers = count()
        self._most = SWEEP

    def add(self, members: list[MergedItem], until: float) -> None:
        """Add items that share a deadline."""
        heappush(self._entries, (until, next(self._numbers), members))
        if len(self._entries) > self._most:
            self._entries = [entry for entry in self._entries if _lives(entry[2])]
            heapify(self._entries)
            self._most = 2 * len(self._entries) + SWEEP

    def next(self) -> float | None:
        """The earliest deadline of an item that is not over, or None."""
        while self._entries and not _lives(self._entries[0][2]):
            heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def due(self, now: float) -> list[MergedItem]:
        """Remove the entries whose deadline has passed, and return their items that are not over."""
        late: list[MergedItem] = []
        while self._entries and self._entries[0][0] <= now:
            late += [member for member in heappop(self._entries)[2] if member.place is not OVER]
        return late


def _lives(members: list[MergedItem]) -> bool:
    return any(member.place is not OVER for member in members)


BREAKS = 3
"""Added to ``MergeQueue.broken`` for each request that a server fails; each answer subtracts 1. The sum grows if over a quarter fail."""
BY_CHANCE = 6
"""Up to this value of ``MergeQueue.broken`` a failed request is retried whole; above it, it is split at once. Twice this is the maximum."""


class MergeQueue:
    """The waiting items of one ``RequestMerger``.

    Args:
        pool: the endpoints that may serve them.
        listing: how they are merged into one request.
        lists: the known limits of merged requests, by endpoint.

    Attributes:
        lanes: the waiting items by (priority, whether they belong to batches), the most urgent first.
        loaded: the merged requests that hold items.
        deadlines: the deadlines of items whose time limit has started.
        unread: items that batches have yet to put in; inf if unknown.
        sent_at: when a merged request was last filled to be sent.
        broken: score of recent failures at servers, see ``BREAKS``. Parts of a split request do not count.
    """

    def __init__(self, pool: Pool, listing: MergeFormat, lists: KnownLists) -> None:
        self._pool, self._listing, self._lists = pool, listing, lists
        self._backlog: Any = Backlog()  # of MergedItem, which has the attributes of backlog.Item
        self._services: dict[Source, sizing.ServiceTimeModel] = {}
        self._limits: dict[Source, EndpointLimits] = {}  # for the item shape of this queue
        self.lanes: dict[tuple[int, bool], PriorityLane] = {}
        self.loaded: dict[MergedRequest, None] = {}
        self.deadlines = Deadlines()
        self.unread = 0.0
        self.sent_at = -inf
        self.broken = 0

    @property
    def waiting(self) -> int:
        """Number of items that are in no merged request."""
        waiting: int = self._backlog.waiting
        return waiting

    def look(self, now: float, unread: float) -> tuple[bool, float]:
        """Whether a lane with waiting items needs a merged request, and the seconds that single items should wait for others first.

        Zero or fewer seconds mean that nothing should wait.

        Args:
            unread: the new value of the attribute.
        """
        self.unread = unread
        wanted = any(lane.waiting and lane.carrier is None for lane in self.lanes.values())
        return wanted, self.sent_at + sizing.pause(self._pool) - now if wanted and not self._fills() else 0.0

    def _fills(self) -> bool:
        """Whether the waiting items fill a request at one of the endpoints whose limits are known."""
        return self.waiting >= min((known.limits.items or sizing.MOST for known in self._limits.values()), default=sizing.MOST)

    def singles(self) -> tuple[int, int]:
        """Number of waiting single items, and of unfilled merged requests for them."""
        lanes = [lane for lane in self.lanes.values() if lane.feed is None]
        return sum(lane.waiting for lane in lanes), sum(lane.carrier is not None for lane in lanes)

    def unsent(self) -> list[MergedRequest]:
        """The unfilled merged requests in the scheduler."""
        return [lane.carrier for lane in self.lanes.values() if lane.carrier is not None]

    def unload(self) -> list[MergedRequest]:
        """Forget the merged requests that hold items, and return them."""
        loaded, self.loaded = list(self.loaded), {}
        return loaded

    def returned(self, carrier: MergedRequest) -> None:
        """Forget a merged request that has ended."""
        if carrier.lane.carrier is carrier:
            carrier.lane.carrier = None
        self.loaded.pop(carrier, None)

    # adding and removing items, and recording outcomes

    def put(self, now: float, members: Sequence[MergedItem], sink: Any, *, bulk: bool) -> None:
        """Add items at the end. The time limit of single items starts now, that of a batch's items when they are taken."""
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
        """Start the time limit of items.

        Args:
            source: the endpoint that takes them, for items of a batch.
        """
        times: dict[float, list[MergedItem]] = {}
        for member in members:
            if member.timeout is not None:
                if source is None:
                    member.until = now + member.timeout
                else:
                    member.until = deadline(now, source, self._pool, member.timeout, member.waiter.opened_at)
                times.setdefault(member.until, []).append(member)
        for until, each in times.items():
            self.deadlines.add(each, until)

    def remove(self, member: MergedItem) -> None:
        """Remove a waiting item."""
        self._backlog.remove(member)
        member.lane.waiting -= 1

    def remove_all(self) -> list[MergedItem]:
        """Remove and return all waiting items, in their order."""
        waiting: list[MergedItem] = sorted(self._backlog.items(), key=lambda member: member.number)
        for member in waiting:
            self.remove(member)
        return waiting

    def took(self, carrier: MergedRequest, source: Source, seconds: float) -> None:
        """Record that a merged request was answered after so many seconds."""
        items = len(carrier.members)
        service = self._services.get(source)
        if service is None:
            service = self._services[source] = sizing.ServiceTimeModel()
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
        """Record that an endpoint rejected a request for lack of capacity while it had no other request of this client."""
        known = self._limits.get(source)
        if known is not None:
            known.turned_away(items)

    def broke(self, carrier: MergedRequest) -> bool:
        """Record that a server responded to a merged request with a failure.

        Returns:
            Whether an item may have caused it: the request is part of a split one, or too many requests have failed.
        """
        if carrier.closed:
            return True
        if not carrier.tries:
            self.broken = min(2 * BY_CHANCE, self.broken + BREAKS)
        return self.broken > BY_CHANCE

    # filling a merged request

    def fill(self, now: float, carrier: MergedRequest, source: Source) -> bool:
        """Choose the items of a merged request just before it is sent. Returns False if there are none.

        A request whose earlier attempts were not charged (such as a 429) also takes items that came since. Items that exceed the
        endpoint's limits return to the head of the queue.
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
        taken = [member for member in taken if member.until > now]  # the deadline timer ends the others at once
        if taken:
            taken = self._cut([*before, *taken], limits)[len(before) :]
        for member in taken:
            member.board(carrier, now)
        first = [member for member in taken if member.lane.feed is not None and member.until == inf and member.sent_at == now]
        self._begin(now, first, source)  # a batch read them ahead, so their time limit starts only now
        for member in first:
            member.born = now
        return taken

    def _most(self, now: float, source: Source, before: int, limits: MergeLimits) -> int:
        """Maximum number of items for a request that already holds ``before`` items."""
        most = ALL if limits.items is None else limits.items
        if not self._listing.divides:
            return max(most, before)
        service = self._services.get(source) or sizing.ServiceTimeModel()
        wanted = sizing.length(now, self._pool, self._backlog.waiting + before + self.unread, service)
        return max(before, min(most, wanted))

    def _cut(self, members: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        """Return as many items as fit into one request. The others return to the head of the queue."""
        fits = self._listing.fitting(limits, [member.payload for member in members])
        if fits < len(members):
            for member in members[fits:]:
                member.detach()
                member.state = TaskState.QUEUED
                member.lane.waiting += 1
            self._backlog.put_back(members[fits:])
        return members[:fits]

    def _limits_at(self, source: Source, members: Sequence[MergedItem]) -> MergeLimits:
        """The limits of one request to an endpoint, for the item shape of this queue."""
        known = self._limits.get(source)
        if known is not None:
            return known.limits
        some = members or self._backlog.items()
        if not some:
            return MergeLimits()
        endpoint: Any = source.handle
        usual = self._listing.limits(endpoint, some[0].payload)
        known = self._limits[source] = self._lists.at(source, usual, sizing.MOST if self._listing.divides else None)
        return known.limits

    def _fits_anywhere(self, members: list[MergedItem], limits: MergeLimits) -> bool:
        """Whether a hedge may go to any endpoint of the pool: a request that was sent cannot be shortened."""
        others = {self._limits_at(source, members) for source in self._pool.sources} - {limits}
        calls = [member.payload for member in members]
        return all(self._listing.fitting(other, calls) == len(calls) for other in others)
