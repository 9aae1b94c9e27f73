"""The tasks of merging: items, and the merged requests in which they are sent.

Callers and observers receive the outcome of a ``MergedItem``. The scheduler sends a ``MergedRequest``, which is empty until an endpoint
takes it.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from qreward.batching.backlog import OVER, TAKEN, ItemState
from qreward.engine.driver import LoopDriver
from qreward.engine.instrumentation import TOLD
from qreward.engine.snapshots import result_of
from qreward.errors import QRewardError
from qreward.results import AttemptRecord, Result
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import Attempt, BatchFeed, Pool, RequestOptions, Source, Task, TaskState

if TYPE_CHECKING:
    from qreward.scoring.merger import RequestMerger


class MergedItem(Task):
    """One item. The caller receives the outcome of this task; the scheduler sends the ``MergedRequest`` that carries it.

    It also serves as the item of a ``Backlog``: all items have the same key and cost 1, and ``MergeQueue`` keeps their deadlines.

    Attributes:
        payload: the request that it would be alone.
        until: its deadline on the engine's clock; inf while its time limit has not started, as for an item that a batch has read ahead.
        place: ``WAITING`` in the backlog, ``TAKEN`` by a merged request, or ``OVER``. It is ``OVER`` before it is added, too.
        lane: the lane that counts it while it waits.
        carrier: the merged request that holds it, or None.
        since: the length of the carrier's trail, and its number of sends, when the item joined.
    """

    __slots__ = ("carrier", "lane", "place", "since", "until")
    key = None
    cost = 1

    def __init__(self, payload: Any, pool: Pool, terms: RequestOptions, sink: Any, index: int) -> None:
        super().__init__(payload, pool, terms.level, terms.timeout, sink, index, terms.tenant)
        self.hedge = terms.hedge
        self.place: ItemState = OVER
        self.until = inf
        self.lane: PriorityLane
        self.carrier: MergedRequest | None = None
        self.since = 0, 0

    @property
    def arrived(self) -> float:
        """When it was added, under the backlog's name."""
        return self.born

    def board(self, carrier: MergedRequest, now: float) -> None:
        """Join a merged request that is about to be sent."""
        if self.sent_at is None:
            self.sent_at = now
        self.change_to(carrier)
        self.place, self.state = TAKEN, TaskState.SENT

    def change_to(self, carrier: MergedRequest) -> None:
        """Move to another merged request."""
        self.detach()
        self.carrier = carrier
        self.since = 0 if carrier.trail is None else len(carrier.trail), carrier.sends

    def detach(self) -> None:
        """Leave the merged request, and keep the sends, attempt records and last error that it had since the item joined."""
        carrier = self.carrier
        if carrier is None:
            return
        self.carrier = None
        tried, sent = self.since
        self.sends += carrier.sends - sent
        if carrier.last_error is not None:
            self.last_error = carrier.last_error
        if carrier.trail is not None and len(carrier.trail) > tried:
            self.trail = [*(self.trail or ()), *carrier.trail[tried:]]

    def fail(self, record: AttemptRecord, error: QRewardError) -> None:
        """Record that the merged request was answered without a valid answer for this item."""
        self.detach()
        self.trail = [*(self.trail or ()), record]
        self.last_error = error

    def with_last_error(self) -> MergedItem:
        """Copy the last error of the merged request to the item, and return the item."""
        if self.carrier is not None and self.carrier.last_error is not None:
            self.last_error = self.carrier.last_error
        return self

    def end(self) -> None:
        """Mark the item as over: it has an outcome, or its caller has given it up."""
        self.detach()
        self.place, self.state = OVER, TaskState.DONE


class ItemWaiter:
    """The waiter for the items of one call (see ``engine.protocols.Waiter``)."""

    carry = None
    __slots__ = ("_left", "_results", "_waiter", "context", "shell")

    def __init__(self, shell: LoopDriver) -> None:
        self.shell = shell
        self.context = copy_context()

    async def results(self, collector: RequestMerger, members: list[MergedItem]) -> list[Result[Any]]:
        """Send the items and wait for all of them.

        Raises the first error. If the caller is cancelled, unfinished items are dropped.
        """
        self._results: list[Any] = [None] * len(members)
        self._left = len(members)
        self._waiter = self.shell.loop.create_future()
        collector.put(members)
        try:
            await self._waiter
        except GeneratorExit:  # the garbage collector may close this coroutine while the engine's lock is held
            self.shell.later(partial(collector.drop, members))
            raise
        except BaseException:
            collector.drop(members)
            raise
        return self._results

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self._waiter.done():
            return
        result = result_of(task, outcome, source, seconds)
        if result.error is not None:
            self._waiter.set_exception(result.error)
            return
        self._results[task.index] = result
        self._left -= 1
        if not self._left:
            self._waiter.set_result(None)

    # required by Waiter, but unused: the merger sends the items

    def start(self, attempt: Attempt) -> None:
        raise AssertionError(f"an item is not sent by itself: {attempt}")

    def read(self, feed: BatchFeed) -> bool:
        raise AssertionError(f"a few items have no feed: {feed}")

    def close(self) -> None:
        """Nothing to do: the merger ends the items."""

    def abandon(self) -> list[Task]:
        return []


class PriorityLane:
    """The waiting items of one priority, either single ones or those of batches.

    Attributes:
        waiting: number of waiting items.
        carrier: the unfilled merged request in the scheduler, or None.
        feed: the feed of the items of batches, beside which the scheduler keeps capacity for single calls. None for single items.
    """

    __slots__ = ("carrier", "feed", "level", "tenant", "waiting")

    def __init__(self, level: int, tenant: str | None, feed: BatchFeed | None) -> None:
        self.level = level
        self.tenant = tenant
        self.feed = feed
        self.waiting = 0
        self.carrier: MergedRequest | None = None


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

    def taken(self) -> bool:
        """Record that a part was answered. Returns True if it was the second part of a request that an endpoint refused."""
        self.others_served = True
        self._open -= 1
        return not self._open and self.source is not None


class MergedRequest(Task):
    """One request with the items of several calls.

    Attributes:
        waiter: the merger.
        lane: the lane for which it was made. It takes items from all lanes.
        members: its items, including those that are over.
        alive: number of its items that are not over.
        closed: no items are added, because it is part of a failed request.
        cut: the split that made it such a part, or None.
        refused_by: the endpoint that refused it, or None.
    """

    __slots__ = ("alive", "closed", "cut", "lane", "members", "refused_by")
    waiter: RequestMerger

    def __init__(self, payload: Any, pool: Pool, lane: PriorityLane, sink: RequestMerger, members: list[MergedItem] | None = None) -> None:
        super().__init__(payload, pool, lane.level, None, sink, 0, lane.tenant)
        self.lane = lane
        self.members: list[MergedItem] = members or []
        self.alive = len(self.members)
        self.closed = members is not None
        self.cut: Split | None = None
        self.refused_by: Source | None = None

    def bind(self, now: float, source: Source) -> bool:
        """Fill it just before it is sent. Returns False if there are no items."""
        return self.waiter.fill(now, self, source)

    def left(self) -> list[MergedItem]:
        """The items that are not over."""
        return [member for member in self.members if member.place is not OVER]

    def is_suspect(self) -> bool:
        """Whether other items that were sent with these were answered."""
        return self.cut is not None and self.cut.others_served

    def lost_one(self) -> bool:
        """Record that one of its items is over. Returns True if it was the last."""
        self.alive -= 1
        return not self.alive

    def take_in(self, members: list[MergedItem], payload: Any) -> None:
        """Set the items and the payload of the next attempt.

        Observers see a request of one item as that item's own call, and a request of several items as a batch of them.
        """
        self.members, self.alive, self.payload, self.items = members, len(members), payload, tuple(members)
        if not self.serial and len(members) == 1 and members[0].serial > 0:
            alone = members[0]
            self.serial, self.span, self.items, alone.end_reported = alone.serial, alone.span, (), TOLD
