"""The queue of the items that wait to be merged, and the requests that are filled with these items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from qreward.batching.collector import ALL, OVER, Collector, ItemState
from qreward.codecs.rewards.base import MergeLimits
from qreward.engine.instrumentation import REPORTED
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.outages import deadline
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed, RequestOptions, Task, TaskState
from qreward.scoring import sizing
from qreward.scoring.merge_spec import MergeSpec
from qreward.scoring.sizing import EndpointLimits, LearnedLimits


@dataclass(slots=True, eq=False, repr=False)
class PriorityLane:
    """The waiting items of one priority: either single items or items of batches."""

    level: int
    tenant: str | None
    feed: BatchFeed | None  # of the requests of batches; None for single items, for which the scheduler keeps capacity free
    waiting: int = 0
    request: MergedRequest | None = None  # its request that waits to be filled


class MergedItem(Task):
    """One item, as a task whose outcome its caller receives. The scheduler sends another task, the ``MergedRequest`` with the item."""

    __slots__ = ("_since", "arrived", "key", "lane", "place", "request", "until")
    cost = 1

    def __init__(self, payload: Any, pool: Pool, options: RequestOptions, waiter: Any, index: int) -> None:
        super().__init__(payload, pool, options.level, options.timeout, waiter, index, options.tenant)
        self.hedge = options.hedge
        self.key = options.level
        self.place: ItemState = OVER
        self.until = inf  # deadline in seconds; inf while the time limit has not started
        self.arrived = 0.0
        self.lane: PriorityLane
        self.request: MergedRequest | None = None
        self._since = 0, 0  # length of ``trail``, and number of ``sends``, of the request when the item joined it

    def attach(self, request: MergedRequest) -> None:
        self.detach()
        self.request = request
        self._since = 0 if request.trail is None else len(request.trail), request.sends

    def detach(self) -> None:
        """Remove the item from its merged request, and add the attempts that it made with the request to its own."""
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

    def end(self, overdue_at: float | None = None) -> None:
        """Mark the item as over. ``overdue_at`` is the time at which its timeout has passed, if that is the reason."""
        request = self.request
        self.detach()
        if overdue_at is not None and request is not None:
            self.trail = [*(self.trail or ()), *unanswered(request, overdue_at)]
        self.place, self.state = OVER, TaskState.DONE


@dataclass(slots=True, eq=False, repr=False)
class Split:
    """The split of a failed merged request into two parts. If both are answered, the request had too many items for ``source``."""

    source: Source | None  # the endpoint that refused the request; None if no endpoint refused it
    length: int  # number of items of the longer part
    others_served: bool = False  # other items of the request were answered, so an item is the cause if a part fails later
    open: int = 2  # parts that are not answered


class MergedRequest(Task):
    """One request with the items of several calls."""

    __slots__ = ("lane", "live", "members", "misconfigured", "refused_by", "split")

    def __init__(self, pool: Pool, lane: PriorityLane, merger: Any, members: Sequence[MergedItem] = (), split: Split | None = None) -> None:
        super().__init__(merger.spec.blank, pool, lane.level, None, merger, 0, lane.tenant)
        self.lane, self.split = lane, split
        self.members = list(members)  # including items that are over
        self.refused_by: Source | None = None  # the endpoint that refused the request
        self.misconfigured = False  # the endpoint of the last attempt is configured wrongly, so parts of the request would fail too
        self.live = len(members)

    def bind(self, now: float, source: Source) -> bool:
        """Fill the request just before it is sent. Return False if there are no items."""
        filled: bool = self.waiter.queue.fill(now, self, source)
        return filled

    def left(self) -> list[MergedItem]:
        return [item for item in self.members if item.place is not OVER]

    def lost_one(self) -> bool:
        """Record that an item is over. Return True if all items of the request are over."""
        self.live -= 1
        return not self.live

    def hold(self, items: list[MergedItem]) -> None:
        """Set the items of the next attempt. Observers see a request with one item as its call, and any other as a batch."""
        self.members, self.live, self.items = items, len(items), tuple(items)
        if not self.serial and len(items) == 1 and items[0].serial > 0:
            alone = items[0]
            self.serial, self.span, self.items, alone.end_reported = alone.serial, alone.span, (), REPORTED


class MergeQueue:
    """The waiting items of one ``RequestMerger``. The caller must hold the engine's lock, except to read ``waiting``."""

    def __init__(self, pool: Pool, spec: MergeSpec, known: LearnedLimits) -> None:
        self._pool, self._spec, self._known = pool, spec, known
        self._collector = Collector()
        self._services: dict[Source, sizing.ServiceTimeModel] = {}
        self._limits: dict[Source, EndpointLimits] = {}  # for the item shape of this queue
        self.lanes: dict[tuple[int, bool], PriorityLane] = {}  # (priority, items of batches?), the most urgent first
        self.deadlines = self._collector.deadlines
        self.unread = 0.0  # number of items that batches have not added yet; inf if unknown
        self.sent_at = -inf  # when a merged request was last filled

    @property
    def waiting(self) -> int:
        return self._collector.waiting

    def needs(self, unread: float) -> tuple[bool, float]:
        """Set ``unread``. Return whether a lane needs a merged request, and until when single items should wait for other items."""
        self.unread = unread
        wanted = any(lane.waiting and lane.request is None for lane in self.lanes.values())
        full = min((known.limits.items or sizing.MOST for known in self._limits.values()), default=sizing.MOST)
        return wanted, self.sent_at + sizing.pause(self._pool) if wanted and self.waiting < full else -inf

    def waiting_in_pool(self) -> int:
        """Return the number of tasks that wait for the pool, plus the number of waiting single items."""
        single = sum(lane.waiting - (lane.request is not None) for lane in self.lanes.values() if lane.feed is None)
        return single + self._pool.queue.waiting

    def unfilled(self) -> list[Task]:
        return [lane.request for lane in self.lanes.values() if lane.request is not None]

    def unqueue(self, request: MergedRequest) -> None:
        """Record that a merged request is filled or has ended."""
        if request.lane.request is request:
            request.lane.request = None

    # adding and removing items, and recording outcomes

    def put(self, now: float, items: Sequence[MergedItem], waiter: Any, *, batch: bool) -> None:
        """Add items at the end. The time limit of a single item starts now, that of a batch item when it is sent."""
        for item in items:
            item.born = item.arrived = now
            item.state = TaskState.QUEUED
            item.lane = self.lanes.get((item.level, batch)) or self._new_lane(now, item, waiter, batch)
            item.lane.waiting += 1
            self._collector.put(item)
            if not batch and item.timeout is not None:
                self._start_timeout(item, now + item.timeout)

    def _new_lane(self, now: float, item: MergedItem, waiter: Any, batch: bool) -> PriorityLane:
        lane = PriorityLane(item.level, item.tenant, BatchFeed(self._pool, item.level, waiter, now, item.tenant) if batch else None)
        self.lanes = dict(sorted([*self.lanes.items(), ((item.level, batch), lane)]))
        return lane

    def _start_timeout(self, item: MergedItem, until: float) -> None:
        item.until = until
        self.deadlines.add(item, until)

    def remove(self, item: MergedItem) -> None:
        self._collector.remove(item)
        item.lane.waiting -= 1

    def record_answer(self, request: MergedRequest, source: Source, seconds: float) -> None:
        self._services.setdefault(source, sizing.ServiceTimeModel()).add(len(request.members), seconds)
        if source in self._limits:
            self._limits[source].record_answer()
        if (split := request.split) is not None:
            split.others_served = True
            split.open -= 1
            if not split.open and split.source in self._limits:
                self._limits[split.source].record_refusal(split.length)

    def record_rejection(self, source: Source, items: int) -> None:
        """Record that an endpoint without another request of this client rejected a request for lack of capacity."""
        if source in self._limits:
            self._limits[source].record_rejection(items)

    # filling a merged request

    def fill(self, now: float, request: MergedRequest, source: Source) -> bool:
        """Choose the items of a merged request just before it is sent. Return False if there are none."""
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
        queue = self._collector.queue(before[0].key) if before else self._collector.first()
        most = self._most(now, source, len(before), limits) - len(before)
        taken: list[MergedItem] = [] if queue is None else self._collector.take(most, queue=queue)
        # only a short request gets items of other levels too: an urgent item must not wait for the answers to many others
        while len(taken) < min(most, sizing.LEAST - len(before)) and (queue := self._collector.first()) is not None:
            taken += self._collector.take(min(most, sizing.LEAST - len(before)) - len(taken), queue=queue)
        for item in taken:
            item.lane.waiting -= 1
        taken = [item for item in taken if item.until > now]  # the timer of the deadline ends items that are too late
        if taken:
            taken = self._cut([*before, *taken], limits)[len(before) :]
        for item in taken:
            if item.sent_at is None:
                item.sent_at = now
                if item.lane.feed is not None:
                    item.born = now
                    item.waiter.took()
                    if item.timeout is not None:
                        self._start_timeout(item, deadline(now, source, self._pool, item.timeout, item.waiter.opened_at))
            item.attach(request)
            item.state = TaskState.SENT
        return taken

    def _most(self, now: float, source: Source, before: int, limits: MergeLimits) -> int:
        most = ALL if limits.items is None else limits.items
        if self._spec.divides:
            service = self._services.get(source) or sizing.ServiceTimeModel()
            most = min(most, sizing.length(now, self._pool, self.waiting + before + self.unread, service))
        return max(before, most)

    def _cut(self, items: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        """Return the first items, as many as fit into one request. Put the others back."""
        fits = self._spec.fitting(limits, [item.payload for item in items])
        if fits < len(items):
            for item in items[fits:]:
                item.detach()
                item.state = TaskState.QUEUED
                item.lane.waiting += 1
            self._collector.put_back(items[fits:])
        return items[:fits]

    def _limits_at(self, source: Source, items: Sequence[MergedItem]) -> MergeLimits:
        known = self._limits.get(source)
        if known is None:
            some = items or self._collector.items()
            if not some:
                return MergeLimits()
            endpoint: Any = source.handle
            usual = self._spec.limits(endpoint, some[0].payload)
            known = self._limits[source] = self._known.at(source, usual, sizing.MOST if self._spec.divides else None)
        return known.limits

    def _fits_anywhere(self, items: list[MergedItem], limits: MergeLimits) -> bool:
        """Return whether every endpoint accepts all items. If not, the request is not hedged, because a hedge has the same items."""
        others = {self._limits_at(source, items) for source in self._pool.sources} - {limits}
        calls = [item.payload for item in items]
        return all(self._spec.fitting(other, calls) == len(calls) for other in others)
