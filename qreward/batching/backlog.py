"""The items that wait for a batch: their order, their deadlines, and which of them fit into the next batch.

An item is assigned to a batch only when the batch is sent. This module uses no clock (``now`` is an argument), no asyncio and no HTTP. It
does not inspect the value of an item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, TypeVar

from qreward.scheduler.queue import AGEING, SWEEP
from qreward.settings.policies import Priority

T = TypeVar("T")
ALL = 2**62
"""Number of items that stands for "no limit"."""


class ItemState(Enum):
    """State of an item: ``WAITING`` in the backlog, ``TAKEN`` for a batch, or ``OVER`` (answered, cancelled or expired)."""

    WAITING = 0
    TAKEN = 1
    OVER = 2


WAITING, TAKEN, OVER = ItemState.WAITING, ItemState.TAKEN, ItemState.OVER


@dataclass(slots=True, eq=False, repr=False)
class Item:
    """One item that waits for a batch.

    Args:
        value: any object.
        arrived: time of submission, in seconds.
        key: only items with equal keys share a batch. A key may be a tuple such as (path, model, parameters).
        cost: size of the item, in items, tokens or bytes. ``take`` limits the total cost of a batch.
        level: priority, 0 (most urgent) to 9.
        deadline: time in seconds after which the item is no longer sent.

    Attributes:
        number: position of the item in the order of submission.
        place: state of the item. Code that answers a taken item sets ``place`` to ``OVER``. The item can then neither expire nor be put
            back.
    """

    value: Any
    arrived: float = 0.0
    key: Hashable = None
    cost: float = 1
    level: int = Priority.NORMAL
    deadline: float = inf
    number: int = field(init=False)
    place: ItemState = field(init=False)


class KeyQueue:
    """Holds the waiting items of one key. Each priority level has a deque, which is in the order of submission.

    A removed item stays in its deque until it reaches the head of the deque or ``sweep`` is called.

    Attributes:
        count: number of the waiting items.
        cost: total cost of the waiting items.
        dead: number of removed items that are still in a deque.
    """

    __slots__ = ("cost", "count", "dead", "key", "levels")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.levels: dict[int, deque[Any]] = {}
        self.count, self.cost, self.dead = 0, 0.0, 0

    def clear(self) -> None:
        if self.dead:
            for waiting in self.levels.values():
                waiting.clear()
        self.count, self.cost, self.dead = 0, 0.0, 0

    def first(self) -> deque[Any] | None:
        """Return the deque whose first item is sent next, or None if no item waits.

        One priority level counts as much as ``AGEING`` seconds of waiting.
        """
        best, soonest = None, (inf, 0)
        for level, waiting in self.levels.items():
            while waiting and waiting[0].place is not WAITING:  # cancelled or expired
                waiting.popleft()
                self.dead -= 1
            if waiting:
                rank = (waiting[0].arrived + level * AGEING, waiting[0].number)
                if rank < soonest:
                    best, soonest = waiting, rank
        return best

    def rank(self) -> tuple[float, int]:
        """Return the rank of the next item. Of several ``KeyQueue`` objects, the one with the lowest rank comes first."""
        waiting = self.first()
        assert waiting is not None
        head = waiting[0]
        return head.arrived + head.level * AGEING, head.number

    def oldest(self) -> float:
        self.first()
        oldest: float = min(waiting[0].arrived for waiting in self.levels.values() if waiting)
        return oldest

    def take(self, max_items: int, max_cost: float) -> list[Any]:
        only = None
        if len(self.levels) == 1:
            (only,) = self.levels.values()
            if not self.dead and self.count <= max_items and self.cost <= max_cost:
                taken = list(only)
                only.clear()
                self.count, self.cost = 0, 0.0
                for item in taken:
                    item.place = TAKEN
                return taken
        taken, cost = [], 0.0
        while len(taken) < max_items:
            waiting = only if only and only[0].place is WAITING else self.first()
            if waiting is None or (taken and cost + waiting[0].cost > max_cost):
                break
            item = waiting.popleft()
            cost += item.cost
            item.place = TAKEN
            taken.append(item)
        self.count -= len(taken)
        self.cost = self.cost - cost if self.count else 0.0
        return taken

    def put_back(self, item: Any) -> None:
        """Insert a taken item at its original position."""
        waiting, before = self.levels.setdefault(item.level, deque()), []
        while waiting and waiting[0].number < item.number:
            before.append(waiting.popleft())
        waiting.appendleft(item)
        waiting.extendleft(reversed(before))
        self.count += 1
        self.cost += item.cost

    def sweep(self) -> None:
        for level, waiting in self.levels.items():
            self.levels[level] = deque(item for item in waiting if item.place is WAITING)
        self.dead = 0


class Deadlines:
    """Holds the deadlines of waiting and taken items in a heap. Entries of items in the state ``OVER`` are removed from time to time."""

    __slots__ = ("_entries", "_most")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Any]] = []
        self._most = SWEEP

    def add(self, item: Any, deadline: float) -> None:
        heappush(self._entries, (deadline, item.number, item))
        if len(self._entries) > self._most:
            self._entries = [entry for entry in self._entries if entry[2].place is not OVER]
            heapify(self._entries)
            self._most = 2 * len(self._entries) + SWEEP

    def next(self) -> float:
        """Return the earliest deadline of an item that is not over, or inf."""
        entries = self._entries
        while entries and entries[0][2].place is OVER:
            heappop(entries)
        return entries[0][0] if entries else inf

    def due(self, now: float) -> list[Any]:
        """Remove all items whose deadline has passed. Return the removed items that are not over."""
        late: list[Any] = []
        while self._entries and self._entries[0][0] <= now:
            item = heappop(self._entries)[2]
            if item.place is not OVER:
                late.append(item)
        return late


class Backlog:
    """Holds the items that wait for a batch, and the deadlines of waiting and taken items.

    This is the low-level interface for code that sends lists itself. Such code takes items only when it can send them. It puts the items
    back if the server rejects the list (429, 503). If the list fails for another reason, it splits the list with :func:`halves`.

    Attributes:
        waiting: number of waiting items.

    Example:
        >>> backlog = Backlog()
        >>> for number, tokens in enumerate([300, 500, 400]):
        ...     backlog.put(Item(f"text {number}", arrived=0.0, key="/v1/embeddings", cost=tokens))
        >>> batch = backlog.take(now=0.1, max_items=32, max_cost=1000)
        >>> [item.value for item in batch]
        ['text 0', 'text 1']
        >>> backlog.put_back(batch)  # the server returned 429
        >>> [item.value for item in backlog.take(now=2.0, max_items=32)]
        ['text 0', 'text 1', 'text 2']
    """

    __slots__ = ("_deadlines", "_keys", "_late", "_numbers", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self._keys: dict[Hashable, KeyQueue] = {}
        self._numbers = count()
        self._deadlines = Deadlines()
        self._late: list[Any] = []

    def put(self, item: Item) -> None:
        """Add an item at the end of its priority level."""
        queue = self._queue(item.key)
        item.number = next(self._numbers)
        item.place = WAITING
        waiting = queue.levels.get(item.level)
        if waiting is None:
            waiting = queue.levels[item.level] = deque()
        waiting.append(item)
        queue.count += 1
        queue.cost += item.cost
        self.waiting += 1
        if item.deadline != inf:
            self._deadlines.add(item, item.deadline)

    def put_back(self, items: Iterable[Item]) -> None:
        """Put taken items back to their original positions. Items that are over are skipped."""
        for item in sorted((item for item in items if item.place is TAKEN), key=lambda item: item.number, reverse=True):
            item.place = WAITING
            self._queue(item.key).put_back(item)
            self.waiting += 1

    def take(self, now: float, max_items: int = ALL, max_cost: float = inf, *, queue: KeyQueue | None = None) -> list[Any]:
        """Remove and return the next items. All of them have the same key. If the first item exceeds ``max_cost``, it is returned alone.

        Args:
            now: current time in seconds. Expired items are not taken. ``due`` returns them.
            max_items: maximum number of items.
            max_cost: maximum total cost.
            queue: one of ``queues()``. The default is the queue whose first item is next.
        """
        self._late += self._overdue(now)
        if queue is None:
            queue = self.first()
        if queue is None or not queue.count:
            return []
        taken = queue.take(max_items, max_cost)
        self.waiting -= len(taken)
        if not queue.count and (queue.dead or len(self._keys) > 1):
            self._close(queue)
        return taken

    def remove(self, item: Item) -> None:
        """Remove a waiting item, wherever it is in the backlog."""
        item.place = OVER
        queue = self._keys[item.key]
        queue.count -= 1
        queue.cost -= item.cost
        queue.dead += 1
        self.waiting -= 1
        if not queue.count:
            self._close(queue)
        elif queue.dead > SWEEP and queue.dead > queue.count:
            queue.sweep()

    def due(self, now: float) -> list[Any]:
        """Return each item whose deadline has passed, once. Waiting items are removed from the backlog. Taken items keep their state."""
        late, self._late = self._late, []
        return late + self._overdue(now)

    def next_deadline(self) -> float:
        """Return the earliest deadline of an item that is not over, or inf."""
        return self._deadlines.next()

    def has(self, key: Hashable) -> bool:
        """Return True if items with this key are waiting."""
        queue = self._keys.get(key)
        return queue is not None and queue.count > 0

    def queues(self) -> list[KeyQueue]:
        """Return the queues of all keys with waiting items."""
        return [queue for queue in self._keys.values() if queue.count]

    def first(self) -> KeyQueue | None:
        """Return the queue whose first item is next, or None if no item waits."""
        if len(self._keys) > 1:
            return min(self.queues(), key=KeyQueue.rank, default=None)
        for queue in self._keys.values():
            return queue if queue.count else None
        return None

    def items(self) -> list[Any]:
        """Return all waiting items, in no particular order."""
        levels = [waiting for queue in self._keys.values() for waiting in queue.levels.values()]
        return [item for waiting in levels for item in waiting if item.place is WAITING]

    def _queue(self, key: Hashable) -> KeyQueue:
        queue = self._keys.get(key)
        if queue is None:
            queue = self._keys[key] = KeyQueue(key)
        return queue

    def _overdue(self, now: float) -> list[Any]:
        late = self._deadlines.due(now)
        for item in late:
            if item.place is WAITING:
                self.remove(item)
        return late

    def _close(self, queue: KeyQueue) -> None:
        queue.clear()
        if len(self._keys) > 1:  # the last queue is kept, because most backlogs only ever have one key
            del self._keys[queue.key]


def halves(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split a list that failed as a whole (400, 413, 422, 424). Repeated splitting isolates the bad item.

    Raises:
        ValueError: the list has a single item, so this item is the bad item.

    Example:
        >>> halves(["a", "b", "c"])
        (['a', 'b'], ['c'])
    """
    if len(items) < 2:
        raise ValueError("a list of one item cannot be split; this item is the one that fails")
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]
