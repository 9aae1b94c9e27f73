"""Items that wait to be merged, and the requests that are filled with these items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from qreward.batching.collector import OVER, ItemState
from qreward.engine.instrumentation import REPORTED
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed, RequestOptions, Task, TaskState


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

    __slots__ = ("_since", "arrived", "key", "lane", "merger", "place", "request", "until")
    cost = 1

    def __init__(self, payload: Any, pool: Pool, options: RequestOptions, waiter: Any, index: int) -> None:
        super().__init__(payload, pool, options.level, options.timeout, waiter, index, options.tenant)
        self.hedge = options.hedge
        self.key = options.level
        self.place: ItemState = OVER
        self.until = inf  # deadline in seconds; inf while the time limit has not started
        self.arrived = 0.0
        self.lane: PriorityLane
        self.merger: Any = None  # the ``RequestMerger`` that holds the item
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
        filled: bool = self.waiter.fill(now, self, source)
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
