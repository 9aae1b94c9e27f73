"""The collector: items wait here until several of them can be sent together."""

from __future__ import annotations

from asyncio import Future
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, count, islice, takewhile
from math import inf
from typing import Any, TypeVar

from qreward.scheduler.queue import AGEING, SWEEP
from qreward.scheduler.task import TaskState
from qreward.settings.policies import Priority

T = TypeVar("T")
Measure = Callable[[list[Any]], float]
"""A function that returns the total size of a list of items. It calls ``batch_size_fn``."""
ALL = 2**62  # number of items that stands for "no limit"


WAITING, TAKEN, OVER = TaskState.QUEUED, TaskState.SENT, TaskState.DONE
"""States of an item: waiting in the collector, taken for a batch, or over (answered, cancelled or expired)."""


@dataclass(slots=True, eq=False, repr=False)
class Item:
    """One item that waits for a batch, or is in one."""

    value: Any
    arrived: float = 0.0  # time of submission, in seconds
    key: Hashable = None  # only items with equal keys share a batch
    cost: float = 1  # size of the item alone, in items or in the unit of ``batch_size_fn``
    level: int = Priority.NORMAL  # 0 (most urgent) to 9
    deadline: float = inf  # time in seconds after which the item is no longer sent
    number: int = field(init=False)  # position in the order of submission
    state: TaskState = field(init=False)  # code that answers a taken item sets it to ``OVER``
    future: Future[Any] = field(init=False)  # its caller waits for it, and cancels it when the caller leaves
    batch: Any = field(init=False)  # the batch for which it was taken
    request_context: Any = field(init=False)  # of its call, in a process with Ray Serve

    def fail(self, error: BaseException) -> None:
        self.state = OVER
        if not self.future.done():
            self.future.set_exception(error)


def _order(item: Any) -> tuple[float, int]:
    """Return the rank of an item. One priority level counts as much as ``AGEING`` seconds of waiting."""
    return item.arrived + item.level * AGEING, item.number


class KeyQueue:
    """The waiting items of one key, at least one, in the order in which they are sent."""

    __slots__ = ("cost", "items", "key")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.items: list[Any] = []
        self.cost = 0.0  # total cost of the items

    def order(self) -> tuple[float, int]:
        """Return the rank of the next item."""
        return _order(self.items[0])


class Collector:
    """Holds the items that wait, one :class:`KeyQueue` for each key, and the deadlines of waiting and taken items."""

    __slots__ = ("_deadlines", "_keys", "_most_deadlines", "_numbers", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self._deadlines: list[tuple[float, int, Any]] = []  # a heap, from which items that are over are removed from time to time
        self._most_deadlines = SWEEP
        self._keys: dict[Hashable, KeyQueue] = {}
        self._numbers = count()

    def put(self, item: Any) -> None:
        """Add an item at the end of its priority level."""
        item.number, item.state = next(self._numbers), WAITING
        queue = self._keys.get(item.key)
        if queue is None:
            queue = self._keys[item.key] = KeyQueue(item.key)
        items = queue.items
        if not items or (items[-1].level <= item.level and items[-1].arrived <= item.arrived):  # the usual case
            items.append(item)
        else:
            insort(items, item, key=_order)
        queue.cost += item.cost
        self.waiting += 1
        if item.deadline != inf:
            self.add_deadline(item, item.deadline)

    def put_back(self, taken: Iterable[Any]) -> None:
        """Put taken items back to their original positions. Items that are over are skipped."""
        for item in taken:
            if item.state is TAKEN:
                item.state = WAITING
                queue = self._keys.setdefault(item.key, KeyQueue(item.key))
                insort(queue.items, item, key=_order)
                queue.cost += item.cost
                self.waiting += 1

    def take(self, max_items: int = ALL, *, queue: KeyQueue | None = None, limit: float = inf, measure: Measure | None = None) -> list[Any]:
        """Remove and return the next items. All of them have the same key. If the first item exceeds ``limit``, it is returned alone."""
        queue = queue or self.first()
        if queue is None:
            return []
        items = queue.items
        if len(items) <= max_items and queue.cost <= limit:  # the usual case: all of them
            taking = len(items)
        else:
            sizes = accumulate(item.cost for item in islice(items, max_items))
            taking = sum(1 for _ in takewhile(lambda size: size <= limit, sizes)) or min(max_items, 1)
        if measure is not None:  # the size of a list may differ from this sum: for example, if items are padded to the longest
            with suppress(Exception):
                while taking > 1 and measure(items[:taking]) > limit:
                    taking -= 1
                while taking < len(items) and measure(items[: taking + 1]) <= limit:
                    taking += 1
        taken = items[:taking]
        del items[:taking]  # in place, which copies no references: many more items may wait
        for item in taken:
            item.state = TAKEN
        self.waiting -= taking
        if queue.items:
            queue.cost -= sum(item.cost for item in taken)
        else:
            del self._keys[queue.key]
        return taken

    def remove(self, item: Any) -> None:
        """Remove a waiting item, wherever it is."""
        item.state = OVER
        queue = self._keys[item.key]
        del queue.items[bisect_left(queue.items, _order(item), key=_order)]
        queue.cost -= item.cost
        self.waiting -= 1
        if not queue.items:
            del self._keys[queue.key]

    def add_deadline(self, item: Any, deadline: float) -> None:
        heappush(self._deadlines, (deadline, item.number, item))
        if len(self._deadlines) > self._most_deadlines:
            self._deadlines = [entry for entry in self._deadlines if entry[2].state is not OVER]
            heapify(self._deadlines)
            self._most_deadlines = 2 * len(self._deadlines) + SWEEP

    def next_deadline(self) -> float:
        """Return the earliest deadline of an item that is not over, or inf."""
        while self._deadlines and self._deadlines[0][2].state is OVER:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else inf

    def due(self, now: float) -> list[Any]:
        """Return each waiting or taken item whose deadline has passed, once."""
        late: list[Any] = []
        while self.next_deadline() <= now and self._deadlines:
            late.append(heappop(self._deadlines)[2])
        return late

    def queues(self) -> list[KeyQueue]:
        """Return the queues of all keys with waiting items."""
        return list(self._keys.values())

    def queue(self, key: Hashable) -> KeyQueue | None:
        """Return the queue of a key, or None if no item of this key waits."""
        return self._keys.get(key)

    def first(self) -> KeyQueue | None:
        """Return the queue whose first item is next, or None if no item waits."""
        queues = self._keys.values()
        return min(queues, key=KeyQueue.order) if len(queues) > 1 else next(iter(queues), None)

    def items(self) -> list[Any]:
        """Return all waiting items, in no particular order."""
        return [item for queue in self._keys.values() for item in queue.items]


def halves(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split a list of at least two items that failed as a whole. Repeated splitting isolates the item that fails."""
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]
