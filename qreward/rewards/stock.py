"""What waits to be merged, and what is taken of it when an endpoint has room.

Under the engine's lock only, for a carrier may be sent by another loop's thread. Knows no loop, no clock (``now`` comes in) and no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from qreward.batching.backlog import ALL, Backlog
from qreward.core.outages import deadline
from qreward.core.pool import Pool
from qreward.core.source import Source
from qreward.core.task import Feed, State
from qreward.rewards import spread
from qreward.rewards.carrier import Carrier, Lane
from qreward.rewards.deadlines import Deadlines
from qreward.rewards.lists import Listing
from qreward.rewards.member import Member
from qreward.wire.rewards.merging import MergeLimits

LONE_REJECTS = 2
"""Lists that a source turns away one after another, while it has nothing else of ours, before shorter ones are tried there."""
BREAKS = 3
"""What each list counts that fails at a server, against 1 for each that is answered: more than a quarter is not by chance."""
BY_CHANCE = 6
"""Count up to which such a list is tried again whole; beyond it, up to twice as much, it is cut in two at once."""
MOST_PATIENCE = 64
"""Most lists that such a source takes before a longer one is tried again."""


class Known:
    """What a source takes at most, as far as it is known.

    A server that limits the items of a list may have a place for each (Text Embeddings Inference): a list longer than all of them is never
    let in, and all that is said is that there is no room. So shorter ones are tried. If not even one item is let in it was not the
    length, and lists are whole again; if one is, the next are as long, and then longer as far as that goes.

    Attributes:
        endpoint: held, so that its id stays its own.
        limits: of a list now.
    """

    __slots__ = ("_counts_items", "_most", "_patience", "_rejects", "_taken", "endpoint", "limits")

    def __init__(self, endpoint: Any, limits: MergeLimits, *, counts_items: bool) -> None:
        self.endpoint = endpoint
        self.limits = self._most = limits
        self._counts_items = counts_items
        self._rejects = self._taken = 0
        self._patience = 1  # lists after which a longer one is tried; doubled when that fails

    def refused(self, most: int) -> None:
        """It takes no longer lists than this, whatever its kind usually takes."""
        self._most = self._most.with_items(most)
        self.limits = self.limits.with_items(most)

    def turned_away(self, length: int) -> None:
        """A list came back for want of room, though there was nothing else of ours."""
        self._rejects += 1
        if not self._counts_items or self._rejects < LONE_REJECTS:
            return
        if self._taken == 0 and self._rejects == LONE_REJECTS:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        if length > 1:
            self.limits = self._most.with_items(length // 2)
        else:
            self.limits, self._rejects = self._most, 0

    def took(self) -> None:
        """A list was answered."""
        self._rejects = 0
        if self.limits is not self._most:
            self._taken += 1
            if self._taken >= self._patience:
                self._taken = 0
                self.limits = self._most.with_items(2 * (self.limits.items or 1))


class Stock:
    """The waiting items of one collector.

    Args:
        pool: where they may go.
        listing: how they become lists.

    Attributes:
        lanes: what waits by (priority, of bulks), the most urgent first.
        loaded: the carriers that carry something.
        deadlines: of items whose time has begun.
        unread: items that bulks are still to put in; inf if nobody knows.
        sent_at: when a list was last sent.
        broken: how many lists have failed at a server of late; parts of others do not count.
    """

    def __init__(self, pool: Pool, listing: Listing) -> None:
        self._pool, self._listing = pool, listing
        self._backlog: Any = Backlog()  # of members, which are its items in all but name
        self._services: dict[Source, spread.Service] = {}
        self._limits: dict[int, Known] = {}
        self.lanes: dict[tuple[int, bool], Lane] = {}
        self.loaded: dict[Carrier, None] = {}
        self.deadlines = Deadlines()
        self.unread = 0.0
        self.sent_at = -inf
        self.broken = 0

    @property
    def waiting(self) -> int:
        """Items that no carrier has taken."""
        waiting: int = self._backlog.waiting
        return waiting

    def fills(self) -> bool:
        """Whether what waits would fill a list of some endpoint, as far as they are known."""
        return self.waiting >= min((known.limits.items or spread.MOST for known in self._limits.values()), default=spread.MOST)

    # what comes and goes otherwise

    def put(self, now: float, members: Sequence[Member], sink: Any, *, bulk: bool) -> None:
        """Add items at the end. The time of single ones begins; that of a bulk's begins when they are taken."""
        for member in members:
            member.born = now
            member.state = State.QUEUED
            member.lane = self._lane(now, member, sink, bulk)
            member.lane.waiting += 1
            self._backlog.put(member)
        if not bulk:
            self._begin(now, members)

    def _lane(self, now: float, member: Member, sink: Any, bulk: bool) -> Lane:
        place = (member.level, bulk)
        lane = self.lanes.get(place)
        if lane is None:
            feed = Feed(self._pool, member.level, sink, now, member.tenant) if bulk else None
            lane = self.lanes[place] = Lane(member.level, member.tenant, feed)
            self.lanes = dict(sorted(self.lanes.items()))
        return lane

    def _begin(self, now: float, members: Sequence[Member], source: Source | None = None) -> None:
        """The time of items begins, as a source takes them if one is given."""
        times: dict[float, list[Member]] = {}
        for member in members:
            if member.timeout is not None:
                if source is None:
                    member.until = now + member.timeout
                else:
                    member.until = deadline(now, source, self._pool, member.timeout, member.sink.opened_at)
                times.setdefault(member.until, []).append(member)
        for until, each in times.items():
            self.deadlines.add(each, until)

    def remove(self, member: Member) -> None:
        """Take out an item that waits."""
        self._backlog.remove(member)
        member.lane.waiting -= 1

    def remove_all(self) -> list[Member]:
        """Take out all that wait."""
        waiting: list[Member] = sorted(self._backlog.items(), key=lambda member: member.number)
        for member in waiting:
            self.remove(member)
        return waiting

    def took(self, source: Source, items: int, seconds: float) -> None:
        """A list of so many items took so long."""
        service = self._services.get(source)
        if service is None:
            service = self._services[source] = spread.Service()
        service.add(items, seconds)
        known = self._limits.get(id(source.handle))
        if known is not None:
            known.took()

    def turned_away(self, source: Source, items: int) -> None:
        """A list came back for want of room, though the source had nothing else of ours."""
        known = self._limits.get(id(source.handle))
        if known is not None:
            known.turned_away(items)

    def shorten(self, source: Source, most: int) -> None:
        """A source takes no longer lists than this."""
        known = self._limits.get(id(source.handle))
        if known is not None:
            known.refused(most)

    def broke(self, carrier: Carrier) -> bool:
        """A list failed at a server, which is there. Whether that looks like something in it: it is part of one, or too many did."""
        if carrier.closed:
            return True
        if not carrier.tries:
            self.broken = min(2 * BY_CHANCE, self.broken + BREAKS)
        return self.broken > BY_CHANCE

    def held(self, carrier: Carrier) -> None:
        """A list was answered."""
        if not carrier.closed:
            self.broken = max(0, self.broken - 1)

    # the filling

    def fill(self, now: float, carrier: Carrier, source: Source) -> bool:
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

    def _take(self, now: float, carrier: Carrier, source: Source, before: list[Member], limits: MergeLimits) -> list[Member]:
        taken: list[Member] = self._backlog.take(now, self._most(now, source, len(before), limits) - len(before))
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
        service = self._services.get(source) or spread.Service()
        wanted = spread.length(now, self._pool, self._backlog.waiting + before + self.unread, service)
        return max(before, min(most, wanted))

    def _cut(self, members: list[Member], limits: MergeLimits) -> list[Member]:
        """As many as go into one request; the others return to the head of what waits."""
        fits = self._listing.fitting(limits, [member.payload for member in members])
        if fits < len(members):
            for member in members[fits:]:
                member.alight()
                member.state = State.QUEUED
                member.lane.waiting += 1
            self._backlog.put_back(members[fits:])
        return members[:fits]

    def _limits_at(self, source: Source, members: Sequence[Member]) -> MergeLimits:
        """How much a request to a source may hold, of the one shape that is here."""
        endpoint: Any = source.handle
        known = self._limits.get(id(endpoint))
        if known is not None:
            return known.limits
        some = members or self._backlog.items()
        if not some:
            return MergeLimits()
        limits = self._listing.limits(endpoint, some[0].payload)
        counts_items = limits.items is not None
        if self._listing.spreads:
            limits = limits.with_items(spread.MOST)
        self._limits[id(endpoint)] = Known(endpoint, limits, counts_items=counts_items)
        return limits

    def _fits_anywhere(self, members: list[Member], limits: MergeLimits) -> bool:
        """Whether a copy may go to any source: what is under way cannot be made shorter."""
        others = {self._limits_at(source, members) for source in self._pool.sources} - {limits}
        calls = [member.payload for member in members]
        return all(self._listing.fitting(other, calls) == len(calls) for other in others)
