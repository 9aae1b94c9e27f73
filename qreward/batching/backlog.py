"""The items that wait for a batch: their order, their deadlines, and which of them fit into the next batch.

An item is not assigned to a batch before it is taken. Pure: no clock (``now`` is an argument), no asyncio, no HTTP. The module does
not inspect the value of an item, and does not know the unit of its cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, TypeVar

from qreward.scheduler.queueing.queue import AGEING, SWEEP
from qreward.settings.policies import Priority

T = TypeVar("T")
ALL = 2**62
"""The number of items when there is no limit."""


class ItemState(Enum):
    """State of an item: waiting in the backlog; taken by a caller of ``take``; or over (answered, cancelled or expired)."""

    WAITING = 0
    TAKEN = 1
    OVER = 2


WAITING, TAKEN, OVER = ItemState.WAITING, ItemState.TAKEN, ItemState.OVER


class Item:
    """One item that waits for a batch.

    Args:
        value: what is to be sent. It is not inspected.
        arrived: time of submission, in seconds.
        key: items share a batch only if their keys are equal, for example (path, model, parameters).
        cost: the item's share of the ``max_cost`` of a batch, in items, tokens or bytes.
        level: priority, 0 (most urgent) to 9.
        deadline: time in seconds after which the item is not sent any more.

    Attributes:
        place: state of the item. Code that answers a taken item sets it to ``OVER``. The item then neither expires nor can be put back.
    """

    __slots__ = ("arrived", "cost", "deadline", "key", "level", "number", "place", "value")
    number: int
    place: ItemState

    def __init__(
        self,
        value: Any,
        arrived: float = 0.0,
        key: Hashable = None,
        cost: float = 1,
        level: int = Priority.NORMAL,
        deadline: float = inf,
    ) -> None:
        self.value = value
        self.arrived = arrived
        self.key = key
        self.cost = cost
        self.level = level
        self.deadline = deadline


class KeyQueue:
    """The waiting items of one key. Within a priority level they keep the order of submission.

    Attributes:
        count: number of waiting items.
        cost: their total cost.
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

    def level(self, level: int) -> deque[Any]:
        return self.levels.setdefault(level, deque())

    def full(self, max_items: int, max_cost: float) -> bool:
        """Whether the waiting items fill a batch."""
        return self.count >= max_items or self.cost >= max_cost

    def first(self) -> deque[Any] | None:
        """The level whose first item is next. One level outweighs ``AGEING`` seconds of waiting, as in the scheduler's queue."""
        best, soonest = None, (inf, 0)
        for level, waiting in self.levels.items():
            while waiting and waiting[0].place is not WAITING:  # cancelled or expired
                waiting.popleft()
                self.dead -= 1
            if waiting:
                head = waiting[0]
                sorts = (head.arrived + level * AGEING, head.number)
                if sorts < soonest:
                    best, soonest = waiting, sorts
        return best

    def sorts(self) -> tuple[float, int]:
        """The sort key of the first item, for comparison with the first items of other keys."""
        waiting = self.first()
        assert waiting is not None
        head = waiting[0]
        return head.arrived + head.level * AGEING, head.number

    def oldest(self) -> float:
        """The submission time of the item that has waited longest."""
        self.first()
        oldest: float = min(waiting[0].arrived for waiting in self.levels.values() if waiting)
        return oldest

    def take(self, max_items: int, max_cost: float, skip: int) -> list[Any]:
        only = None
        if len(self.levels) == 1:
            (only,) = self.levels.values()
            if not self.dead and self.count <= max_items and self.cost <= max_cost:
                return self._take_all(only)
        taken: list[Any] = []
        passed: list[Any] = []
        cost = 0.0
        while len(taken) < max_items:
            waiting = only if only and only[0].place is WAITING else self.first()
            if waiting is None:
                break
            item = waiting.popleft()
            if cost + item.cost > max_cost and taken:
                passed.append(item)
                if len(passed) > skip:
                    break
                continue
            cost += item.cost
            item.place = TAKEN
            taken.append(item)
        for item in reversed(passed):
            self.levels[item.level].appendleft(item)
        self.count -= len(taken)
        self.cost = self.cost - cost if self.count else 0.0
        return taken

    def _take_all(self, waiting: deque[Any]) -> list[Any]:
        taken = list(waiting)
        waiting.clear()
        self.count, self.cost = 0, 0.0
        for item in taken:
            item.place = TAKEN
        return taken

    def put_back(self, item: Any) -> None:
        """Insert a taken item at its original position."""
        waiting, before = self.level(item.level), []
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
    """The deadlines of items that wait or were taken: a heap from which items that are over are removed before they accumulate."""

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
        """The earliest deadline of an item that is not over, or inf."""
        entries = self._entries
        while entries and entries[0][2].place is OVER:
            heappop(entries)
        return entries[0][0] if entries else inf

    def due(self, now: float) -> list[Any]:
        """Return the items whose deadline has passed, each once. Items that are over are left out."""
        late: list[Any] = []
        while self._entries and self._entries[0][0] <= now:
            item = heappop(self._entries)[2]
            if item.place is not OVER:
                late.append(item)
        return late


class Backlog:
    """Items that wait for a batch, and the deadlines of waiting and taken items.

    This is the low-level interface for code that sends lists itself. Take items from the head only when they can be sent. Put back items
    that the server rejected (429, 503). Split a list that failed as a whole (see :func:`halves`).

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

    __slots__ = ("_deadlines", "_late", "_lines", "_numbers", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self._lines: dict[Hashable, KeyQueue] = {}
        self._numbers = count()
        self._deadlines = Deadlines()
        self._late: list[Any] = []

    def put(self, item: Item) -> None:
        """Add an item at the end of its priority level."""
        line = self._lines.get(item.key)
        if line is None:
            line = self._lines[item.key] = KeyQueue(item.key)
        item.number = next(self._numbers)
        item.place = WAITING
        waiting = line.levels.get(item.level)
        if waiting is None:
            waiting = line.level(item.level)
        waiting.append(item)
        line.count += 1
        line.cost += item.cost
        self.waiting += 1
        if item.deadline != inf:
            self._deadlines.add(item, item.deadline)

    def put_back(self, items: Iterable[Item]) -> None:
        """Return taken items to their original positions. Items that are over are skipped."""
        for item in sorted((item for item in items if item.place is TAKEN), key=lambda item: item.number, reverse=True):
            item.place = WAITING
            line = self._lines.get(item.key)
            if line is None:
                line = self._lines[item.key] = KeyQueue(item.key)
            line.put_back(item)
            self.waiting += 1

    def take(self, now: float, max_items: int = ALL, max_cost: float = inf, *, line: KeyQueue | None = None, skip: int = 0) -> list[Any]:
        """Remove and return the next items, all of one key. An item whose cost alone exceeds ``max_cost`` is returned alone.

        Args:
            now: current time in seconds. Expired items are not taken; ``due`` returns them.
            max_items: maximum number of items.
            max_cost: maximum total cost.
            line: one of ``lines()``. By default, the line whose first item is next.
            skip: how many items that do not fit may be passed over. They stay at the head.
        """
        self._late += self._overdue(now)
        if line is None:
            line = self.first()
        if line is None or not line.count:
            return []
        taken = line.take(max_items, max_cost, skip)
        self.waiting -= len(taken)
        if not line.count and (line.dead or len(self._lines) > 1):
            self._close(line)
        return taken

    def remove(self, item: Item) -> None:
        """Remove a waiting item immediately, wherever it is in the backlog. Its entry is swept later."""
        item.place = OVER
        line = self._lines[item.key]
        line.count -= 1
        line.cost -= item.cost
        line.dead += 1
        self.waiting -= 1
        if not line.count:
            self._close(line)
        elif line.dead > SWEEP and line.dead > line.count:
            line.sweep()

    def due(self, now: float) -> list[Any]:
        """Return the items whose deadline has passed, each once. Waiting items are removed and over; taken items are left as they are."""
        late, self._late = self._late, []
        return late + self._overdue(now)

    def next_deadline(self) -> float:
        """The earliest deadline of an item that is not over, or inf."""
        return self._deadlines.next()

    def lines(self) -> list[KeyQueue]:
        """One line for each key that has waiting items."""
        return [line for line in self._lines.values() if line.count]

    def first(self) -> KeyQueue | None:
        """The line whose first item is next, or None if no item waits."""
        if len(self._lines) > 1:
            return min(self.lines(), key=KeyQueue.sorts, default=None)
        for line in self._lines.values():
            return line if line.count else None
        return None

    def items(self) -> list[Any]:
        """All waiting items, in no particular order."""
        levels = [waiting for line in self._lines.values() for waiting in line.levels.values()]
        return [item for waiting in levels for item in waiting if item.place is WAITING]

    def _overdue(self, now: float) -> list[Any]:
        late = self._deadlines.due(now)
        for item in late:
            if item.place is WAITING:
                self.remove(item)
        return late

    def _close(self, line: KeyQueue) -> None:
        line.clear()
        if len(self._lines) > 1:  # the last line is kept: most backlogs only ever have one key
            del self._lines[line.key]


def halves(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split a list that failed as a whole (400, 413, 422, 424). Splitting again and again isolates the bad item.

    Raises:
        ValueError: the list holds a single item, which is then the bad one.

    Example:
        >>> halves(["a", "b", "c"])
        (['a', 'b'], ['c'])
    """
    if len(items) < 2:
        raise ValueError("a list of one item cannot be split; it is the item that fails")
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]
