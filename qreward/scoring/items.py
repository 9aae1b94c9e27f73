"""One item that waits to be sent with others, and the caller of a few of them.

The task that carries items: empty until an endpoint takes it.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from qreward.batching.backlog import OVER, TAKEN, Place
from qreward.engine.driver import LoopDriver
from qreward.engine.instrumentation import TOLD
from qreward.engine.snapshots import result_of
from qreward.errors import QRewardError
from qreward.results import AttemptRecord, Result
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import Answer
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import Attempt, BatchFeed, RequestOptions, Task, TaskState

if TYPE_CHECKING:
    from qreward.scoring.merger import RequestMerger


class MergedItem(Task):
    """An item. What its caller is told of is this task; what is sent is the carrier's.

    To the backlog it is an item of one key and of cost 1, whose deadline is none of its business.

    Attributes:
        payload: the call that it would be alone.
        until: when it is too late for an answer; inf while its time has not begun, as that of an item that a bulk has read ahead.
        place: where it is: in the backlog, in a carrier, or over. It is over before it is put in, too.
        lane: where it is counted while it waits.
        carrier: who carries it, or None.
        since: how many records the trail of its carrier had when it came, and how often that had been sent.
    """

    __slots__ = ("carrier", "lane", "place", "since", "until")
    key = None
    cost = 1

    def __init__(self, payload: Any, pool: Pool, terms: RequestOptions, sink: Any, index: int) -> None:
        super().__init__(payload, pool, terms.level, terms.timeout, sink, index, terms.tenant)
        self.hedge = terms.hedge
        self.place: Place = OVER
        self.until = inf
        self.lane: PriorityLane
        self.carrier: MergedRequest | None = None
        self.since = 0, 0

    @property
    def arrived(self) -> float:
        """When it came, as the backlog calls it."""
        return self.born

    def board(self, carrier: MergedRequest, now: float) -> None:
        """A carrier that is about to be sent takes it."""
        if self.sent_at is None:
            self.sent_at = now
        self.change_to(carrier)
        self.place, self.state = TAKEN, TaskState.SENT

    def change_to(self, carrier: MergedRequest) -> None:
        """Another carries it from now on."""
        self.alight()
        self.carrier = carrier
        self.since = 0 if carrier.trail is None else len(carrier.trail), carrier.sends

    def alight(self) -> None:
        """It leaves its carrier, and takes along what it went through there."""
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
        """Its carrier was answered, but not for it."""
        self.alight()
        self.trail = [*(self.trail or ()), record]
        self.last_error = error

    def with_last_error(self) -> MergedItem:
        """The same, knowing what its carrier went through last."""
        if self.carrier is not None and self.carrier.last_error is not None:
            self.last_error = self.carrier.last_error
        return self

    def end(self) -> None:
        """It has its answer or its error, or nobody wants it."""
        self.alight()
        self.place, self.state = OVER, TaskState.DONE


class ItemWaiter:
    """The sink of the items of one call, of which there are few."""

    carry = None
    __slots__ = ("_left", "_results", "_waiter", "context", "shell")

    def __init__(self, shell: LoopDriver) -> None:
        self.shell = shell
        self.context = copy_context()

    async def results(self, collector: RequestMerger, members: list[MergedItem]) -> list[Result[Any]]:
        """Send the items and wait for all. Raises the first error; if the caller is cancelled, what is not done is dropped."""
        self._results: list[Any] = [None] * len(members)
        self._left = len(members)
        self._waiter = self.shell.loop.create_future()
        collector.put(members)
        try:
            await self._waiter
        except GeneratorExit:  # thrown away, perhaps by the garbage collector amid our own work, where the lock is held
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

    # what the shell asks of those who send tasks themselves

    def start(self, attempt: Attempt) -> None:
        raise AssertionError(f"an item is not sent by itself: {attempt}")

    def read(self, feed: BatchFeed) -> bool:
        raise AssertionError(f"a few items have no feed: {feed}")

    def close(self) -> None:
        """The collector does it."""

    def abandon(self) -> list[Task]:
        return []


class PriorityLane:
    """The waiting items of one priority: single ones, or those of bulks.

    Attributes:
        waiting: how many.
        carrier: what the scheduler has for them that was not sent yet, or None.
        feed: of those of bulks, for it is bulks that leave room to single calls.
    """

    __slots__ = ("carrier", "feed", "level", "tenant", "waiting")

    def __init__(self, level: int, tenant: str | None, feed: BatchFeed | None) -> None:
        self.level = level
        self.tenant = tenant
        self.feed = feed
        self.waiting = 0
        self.carrier: MergedRequest | None = None


class Split:
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


class MergedRequest(Task):
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
    sink: RequestMerger

    def __init__(self, payload: Any, pool: Pool, lane: PriorityLane, sink: RequestMerger, members: list[MergedItem] | None = None) -> None:
        super().__init__(payload, pool, lane.level, None, sink, 0, lane.tenant)
        self.lane = lane
        self.members: list[MergedItem] = members or []
        self.alive = len(self.members)
        self.closed = members is not None
        self.cut: Split | None = None
        self.refused_by: Source | None = None

    def load(self, now: float, source: Source) -> bool:
        """Fill it, as it is about to be sent."""
        return self.sink.fill(now, self, source)

    def left(self) -> list[MergedItem]:
        """What it carries that is still wanted."""
        return [member for member in self.members if member.place is not OVER]

    def is_suspect(self) -> bool:
        """Others that were sent with these items were answered, but not they."""
        return self.cut is not None and self.cut.others_served

    def lost_one(self) -> bool:
        """One of its items is over; True if it was the last."""
        self.alive -= 1
        return not self.alive

    def take_in(self, members: list[MergedItem], payload: Any) -> None:
        """It is to be sent with these. One item alone is told of as the call that it is; several are told to be carried."""
        self.members, self.alive, self.payload, self.items = members, len(members), payload, tuple(members)
        if not self.serial and len(members) == 1 and members[0].serial > 0:
            alone = members[0]
            self.serial, self.span, self.items, alone.told = alone.serial, alone.span, (), TOLD
