"""The items that wait to be merged, the requests in which they are sent, and the choice of those that go into the next request.

Callers and observers receive the outcome of a ``MergedItem``. The scheduler sends a ``MergedRequest``, which is empty until an endpoint
takes it. This module knows no event loop, no clock (``now`` is passed in) and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from qreward.batching.backlog import ALL, OVER, Backlog, Deadlines, ItemState
from qreward.codecs.rewards.base import MergeLimits
from qreward.engine.instrumentation import REPORTED
from qreward.scheduler.outages import deadline
from qreward.scheduler.state import BatchFeed, Pool, RequestOptions, Source, Task, TaskState
from qreward.scoring import sizing
from qreward.scoring.merge_spec import MergeSpec
from qreward.scoring.sizing import EndpointLimits, LearnedLimits


class PriorityLane:
    """The waiting items of one priority, either single ones or those of batches.

    Attributes:
        request: the unfilled merged request in the scheduler, or None.
        feed: the feed of the items of batches, beside which the scheduler keeps capacity for single calls. None for single items.
    """

    __slots__ = ("feed", "level", "request", "tenant", "waiting")

    def __init__(self, level: int, tenant: str | None, feed: BatchFeed | None) -> None:
        self.level = level
        self.tenant = tenant
        self.feed = feed
        self.waiting = 0
        self.request: MergedRequest | None = None


class MergedItem(Task):
    """One item. The caller receives the outcome of this task; the scheduler sends the ``MergedRequest`` that carries it.

    It also serves as the item of a ``Backlog``: all items have the same key and cost 1, and ``MergeQueue`` keeps their deadlines.

    Attributes:
        payload: the request that it would be alone.
        until: its deadline; inf while its time limit has not started, as for an item that a batch has read ahead.
        place: ``WAITING`` in the backlog, ``TAKEN`` by a merged request, or ``OVER``. It is ``OVER`` before it is added, too.
    """

    __slots__ = ("_since", "lane", "place", "request", "until")
    key = None
    cost = 1

    def __init__(self, payload: Any, pool: Pool, options: RequestOptions, waiter: Any, index: int) -> None:
        super().__init__(payload, pool, options.level, options.timeout, waiter, index, options.tenant)
        self.hedge = options.hedge
        self.place: ItemState = OVER
        self.until = inf
        self.lane: PriorityLane
        self.request: MergedRequest | None = None
        self._since = 0, 0  # the length of the request's trail, and its number of sends, when the item joined

    @property
    def arrived(self) -> float:
        """When it was added, in seconds. The backlog reads it by this name."""
        return self.born

    def attach(self, request: MergedRequest) -> None:
        """Move to a merged request."""
        self.detach()
        self.request = request
        self._since = 0 if request.trail is None else len(request.trail), request.sends

    def detach(self) -> None:
        """Leave the merged request, and keep the sends, attempt records and last error that it had since the item joined."""
        request = self.request
        if request is None:
            return
        self.request = None
        tried, sent = self._since
        self.sends += request.sends - sent
        if request.last_error is not None:
            self.last_error = request.last_error
        if request.trail is not None and len(request.trail) > tried:
            self.trail = [*(self.trail or ()), *request.trail[tried:]]

    def end(self) -> None:
        """Mark the item as over: it has an outcome, or its caller has given it up."""
        self.detach()
        self.place, self.state = OVER, TaskState.DONE


class ItemGroup:
    """Items with the same deadline, as one item of ``Deadlines``."""

    __slots__ = ("items", "number")

    def __init__(self, items: list[MergedItem]) -> None:
        self.items = items
        self.number = items[0].number

    @property
    def place(self) -> ItemState:
        return next((item.place for item in self.items if item.place is not OVER), OVER)


class Split:
    """The split of a failed merged request into parts.

    If an endpoint refused the request and both parts are answered, no item was at fault: the request had too many items.

    Attributes:
        source: the endpoint that refused the request, or None.
        length: number of items of the longer part.
        others_served: other items of the request were answered, so a further failure is the fault of the items, not of the server.
    """

    __slots__ = ("_open", "length", "others_served", "source")

    def __init__(self, source: Source | None, length: int, others_served: bool = False) -> None:
        self.source = source
        self.length = length
        self.others_served = others_served
        self._open = 2

    def record_answer(self) -> Source | None:
        """Record that a part was answered. Returns the endpoint that refused the whole if both parts now are."""
        self.others_served = True
        self._open -= 1
        return None if self._open else self.source


class MergedRequest(Task):
    """One request with the items of several calls.

    Attributes:
        lane: the lane for which it was made. It takes items from all lanes.
        members: its items, including those that are over.
        split: the split of a failed request that made it, after which no items are added; or None.
        refused_by: the endpoint that refused it, or None.
    """

    __slots__ = ("_live", "lane", "members", "refused_by", "split")

    def __init__(self, pool: Pool, lane: PriorityLane, merger: Any, members: Sequence[MergedItem] = (), split: Split | None = None) -> None:
        super().__init__(merger.spec.blank, pool, lane.level, None, merger, 0, lane.tenant)
        self.lane, self.split = lane, split
        self.members = list(members)
        self.refused_by: Source | None = None
        self._live = len(members)

    def bind(self, now: float, source: Source) -> bool:
        """Fill it just before it is sent. Returns False if there are no items."""
        filled: bool = self.waiter.queue.fill(now, self, source)
        return filled

    def left(self) -> list[MergedItem]:
        """The items that are not over."""
        return [item for item in self.members if item.place is not OVER]

    def is_suspect(self) -> bool:
        """Whether other items that were sent with these were answered."""
        return self.split is not None and self.split.others_served

    def lost_one(self) -> bool:
        """Record that one of its items is over. Returns True if it was the last."""
        self._live -= 1
        return not self._live

    def hold(self, items: list[MergedItem]) -> None:
        """Set the items of the next attempt.

        Observers see a request of one item as that item's own call, and a request of several items as a batch of them.
        """
        self.members, self._live, self.items = items, len(items), tuple(items)
        if not self.serial and len(items) == 1 and items[0].serial > 0:
            alone = items[0]
            self.serial, self.span, self.items, alone.end_reported = alone.serial, alone.span, (), REPORTED


FAILURE_WEIGHT = 3
"""Added to ``MergeQueue.failures`` for each request that a server fails; each answer subtracts 1. The sum grows if over a quarter fail."""
BY_CHANCE = 6
"""Up to this value of ``MergeQueue.failures`` a failed request is retried whole, above it split at once. Twice this is the maximum."""


class MergeQueue:
    """The waiting items of one ``RequestMerger``.

    Everything here is used under the engine's lock, because a merged request may be filled in another event loop's thread. Only ``waiting``
    may be read without the lock; its value may then be out of date.

    Attributes:
        lanes: the waiting items by (priority, whether they belong to batches), the most urgent first.
        deadlines: the deadlines of items whose time limit has started.
        unread: items that batches have yet to put in; inf if unknown.
        sent_at: when a merged request was last filled to be sent.
        failures: score of recent failures at servers, see ``FAILURE_WEIGHT``. Parts of a split request do not count.
    """

    def __init__(self, pool: Pool, spec: MergeSpec, known: LearnedLimits) -> None:
        self._pool, self._spec, self._known = pool, spec, known
        self._backlog: Any = Backlog()  # of MergedItem, which has the attributes of backlog.Item
        self._services: dict[Source, sizing.ServiceTimeModel] = {}
        self._limits: dict[Source, EndpointLimits] = {}  # for the item shape of this queue
        self.lanes: dict[tuple[int, bool], PriorityLane] = {}
        self.deadlines = Deadlines()
        self.unread = 0.0
        self.sent_at = -inf
        self.failures = 0

    @property
    def waiting(self) -> int:
        """Number of items that are in no merged request."""
        waiting: int = self._backlog.waiting
        return waiting

    def needs(self, unread: float) -> tuple[bool, float]:
        """Whether a lane with waiting items needs a merged request, and the time until which single items should wait for others first.

        Args:
            unread: the new value of the attribute.
        """
        self.unread = unread
        wanted = any(lane.waiting and lane.request is None for lane in self.lanes.values())
        full = min((known.limits.items or sizing.MOST for known in self._limits.values()), default=sizing.MOST)
        return wanted, self.sent_at + sizing.pause(self._pool) if wanted and self.waiting < full else -inf

    def interactive(self) -> int:
        """Number of waiting single items that no request in the scheduler stands for."""
        return sum(lane.waiting - (lane.request is not None) for lane in self.lanes.values() if lane.feed is None)

    def unfilled(self) -> list[Task]:
        """The unfilled merged requests in the scheduler."""
        return [lane.request for lane in self.lanes.values() if lane.request is not None]

    def unqueue(self, request: MergedRequest) -> None:
        """Record that a merged request is filled or has ended."""
        if request.lane.request is request:
            request.lane.request = None

    # adding and removing items, and recording outcomes

    def put(self, now: float, items: Sequence[MergedItem], waiter: Any, *, batch: bool) -> None:
        """Add items at the end. The time limit of a single item starts now, that of an item of a batch when it is taken."""
        for item in items:
            item.born = now
            item.state = TaskState.QUEUED
            item.lane = self.lanes.get((item.level, batch)) or self._new_lane(now, item, waiter, batch)
            item.lane.waiting += 1
            self._backlog.put(item)
        if not batch:
            self._start_timeouts(items, lambda _, timeout: now + timeout)

    def _new_lane(self, now: float, item: MergedItem, waiter: Any, batch: bool) -> PriorityLane:
        lane = PriorityLane(item.level, item.tenant, BatchFeed(self._pool, item.level, waiter, now, item.tenant) if batch else None)
        self.lanes = dict(sorted([*self.lanes.items(), ((item.level, batch), lane)]))
        return lane

    def _start_timeouts(self, items: Sequence[MergedItem], deadline_of: Callable[[MergedItem, float], float]) -> None:
        groups: dict[float, list[MergedItem]] = {}
        for item in items:
            if item.timeout is not None:
                item.until = deadline_of(item, item.timeout)
                groups.setdefault(item.until, []).append(item)
        for until, group in groups.items():
            self.deadlines.add(ItemGroup(group), until)

    def due(self, now: float) -> list[MergedItem]:
        """Return the items whose deadline has passed, each once, except those that are over."""
        return [item for group in self.deadlines.due(now) for item in group.items if item.place is not OVER]

    def remove(self, item: MergedItem) -> None:
        """Remove a waiting item."""
        self._backlog.remove(item)
        item.lane.waiting -= 1

    def record_answer(self, request: MergedRequest, source: Source, seconds: float) -> None:
        """Record that a merged request was answered after so many seconds."""
        self._services.setdefault(source, sizing.ServiceTimeModel()).add(len(request.members), seconds)
        if source in self._limits:
            self._limits[source].record_answer()
        if request.split is None:
            self.failures = max(0, self.failures - 1)
        split = request.split
        refused_by = None if split is None else split.record_answer()
        if split is not None and refused_by is not None and refused_by in self._limits:
            self._limits[refused_by].record_refusal(split.length)

    def record_rejection(self, source: Source, items: int) -> None:
        """Record that an endpoint rejected a request for lack of capacity while it had no other request of this client."""
        if source in self._limits:
            self._limits[source].record_rejection(items)

    def record_failure(self, request: MergedRequest) -> bool:
        """Record that a server responded to a merged request with a failure.

        Returns:
            Whether an item may have caused it: the request is part of a split one, or too many requests have failed.
        """
        if request.split is not None:
            return True
        if not request.tries:
            self.failures = min(2 * BY_CHANCE, self.failures + FAILURE_WEIGHT)
        return self.failures > BY_CHANCE

    # filling a merged request

    def fill(self, now: float, request: MergedRequest, source: Source) -> bool:
        """Choose the items of a merged request just before it is sent. Returns False if there are none.

        A request whose earlier attempts were not charged (such as a 429) also takes items that came since. Items that exceed the
        endpoint's limits return to the head of the queue.
        """
        self.unqueue(request)
        items = request.left()
        limits = self._limits_at(source, items)
        if len(items) > 1:
            items = self._cut(items, limits)
        if request.split is None and not request.tries:
            items += self._take(now, request, source, items, limits)
        if not items:
            return False
        request.hold(items)
        request.payload = self._spec.merged([item.payload for item in items])
        request.hedge = all(item.hedge for item in items) and self._fits_anywhere(items, limits)
        self.sent_at = now
        return True

    def _take(self, now: float, request: MergedRequest, source: Source, before: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        taken: list[MergedItem] = self._backlog.take(now, self._most(now, source, len(before), limits) - len(before))
        for item in taken:
            item.lane.waiting -= 1
        taken = [item for item in taken if item.until > now]  # the deadline timer ends the others at once
        if taken:
            taken = self._cut([*before, *taken], limits)[len(before) :]
        read_ahead = []
        for item in taken:
            if item.sent_at is None:
                item.sent_at = now
                if item.lane.feed is not None:
                    item.born = now
                    read_ahead.append(item)
            item.attach(request)
            item.state = TaskState.SENT
        self._start_timeouts(read_ahead, lambda item, timeout: deadline(now, source, self._pool, timeout, item.waiter.opened_at))
        return taken

    def _most(self, now: float, source: Source, before: int, limits: MergeLimits) -> int:
        """Maximum number of items for a request that already holds ``before`` items."""
        most = ALL if limits.items is None else limits.items
        if self._spec.divides:
            service = self._services.get(source) or sizing.ServiceTimeModel()
            most = min(most, sizing.length(now, self._pool, self.waiting + before + self.unread, service))
        return max(before, most)

    def _cut(self, items: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        """Return as many items as fit into one request. The others return to the head of the queue."""
        fits = self._spec.fitting(limits, [item.payload for item in items])
        if fits < len(items):
            for item in items[fits:]:
                item.detach()
                item.state = TaskState.QUEUED
                item.lane.waiting += 1
            self._backlog.put_back(items[fits:])
        return items[:fits]

    def _limits_at(self, source: Source, items: Sequence[MergedItem]) -> MergeLimits:
        known = self._limits.get(source)
        if known is None:
            some = items or self._backlog.items()
            if not some:
                return MergeLimits()
            endpoint: Any = source.handle
            usual = self._spec.limits(endpoint, some[0].payload)
            known = self._limits[source] = self._known.at(source, usual, sizing.MOST if self._spec.divides else None)
        return known.limits

    def _fits_anywhere(self, items: list[MergedItem], limits: MergeLimits) -> bool:
        """Whether a hedge may go to any endpoint of the pool: a request that was sent cannot be shortened."""
        others = {self._limits_at(source, items) for source in self._pool.sources} - {limits}
        calls = [item.payload for item in items]
        return all(self._spec.fitting(other, calls) == len(calls) for other in others)
