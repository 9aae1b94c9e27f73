"""The queue of a pool. Sources with a free slot take tasks from it.

There are ten priority levels. Each entry sorts by its arrival time plus ``AGEING`` seconds per level, so that urgent tasks go first and
none starves. ``priority_level`` defines the order within a level.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.queueing.priority_level import Found, PriorityLevel
from qreward.scheduler.request import BatchFeed, Task, TaskState

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source

LEVELS = 10
AGEING = 15.0
"""Seconds of waiting that outweigh one level of priority."""
SWEEP = 64
"""Tasks that may have ended in the queue before they are removed."""
QUEUED = TaskState.QUEUED


def one_each(_task: Task) -> float:
    """Return the default cost of a task."""
    return 1.0


class Queue:
    """Tasks and feeds of one pool.

    Tenants of a level, and the batches of a tenant, get equal shares by the cost of their tasks. Tasks that ended while they waited are
    dropped when the queue encounters them.

    Args:
        cost: returns the expected cost of a task, in any unit, such as tokens; at least 1 is charged. Called only while several tenants or
            batches share a level.

    Attributes:
        cost: as given; may be changed at any time.
        levels: the priority levels with entries; empty if nothing waits.
        waiting: waiting tasks that do not belong to a batch, including those that were sent before.
    """

    __slots__ = ("_ended", "_levels", "_most_ended", "_only", "_resting", "cost", "levels", "waiting")

    def __init__(self, cost: Callable[[Task], float] = one_each) -> None:
        self.cost = cost
        self.levels: list[int] = []
        self.waiting = 0
        self._levels: dict[int, PriorityLevel] = {}
        self._resting: dict[int, PriorityLevel] = {}
        self._only: PriorityLevel | None = None  # set while exactly one level has entries
        self._ended = 0
        self._most_ended = SWEEP

    # adding

    def put(self, task: Task) -> None:
        """Add a task. One that was sent before goes ahead of new ones of its level."""
        task.state = QUEUED
        task.lined = True
        lane = self._levels.get(task.level)
        if lane is None:
            lane = self._open(task.level)
        if task.feed is not None:
            lane.items_again.put(task)
            return
        self.waiting += 1
        if task.sent_at is not None:
            lane.again.put(task)
        else:
            lane.tenant(task.tenant).singles.put(task)

    def put_feed(self, feed: BatchFeed) -> None:
        """Add a feed with a non-empty buffer."""
        if not feed.lined:
            lane = self._levels.get(feed.level)
            if lane is None:
                lane = self._open(feed.level)
            lane.put_feed(feed)

    # taking

    def key(self, source: Source, *, bulk: bool = True) -> float:
        """Return the sort key of the best entry for a source; smaller is sooner, inf if there is none. For ``bulk`` see ``take``."""
        return min((self._levels[level].best(source, bulk)[0] + level * AGEING for level in self.levels), default=inf)

    def take(self, source: Source, now: float, *, bulk: bool = True) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the best task for a source, with its feed if it is a batch item that was never sent; None if there is none.

        Args:
            source: the source that takes the task.
            now: the time, in seconds.
            bulk: False if batch items must wait. Retries of batch items need not: this source may be the only one they do not avoid.
        """
        lane = self._only
        if lane is not None:
            entry = lane.take(source, now, bulk, self.cost)
        else:
            lane, found = self._first(source, bulk)
            if lane is None:
                return None
            entry = lane.remove(found, now, self.cost)
        if entry is not None:
            task, feed = entry
            if feed is None:
                task.lined = False
                if task.feed is None:
                    self.waiting -= 1
            elif feed.lined:
                return entry
        if not lane.waits():
            self._close(lane)
        return entry

    def left(self) -> float:
        """Return the number of items that the waiting feeds still hold or will read; inf if the length of an input is unknown."""
        return sum(len(feed.buffer) if feed.ended else inf if feed.left is None else feed.left for feed in self._feeds())

    def empty(self) -> list[Task]:
        """Remove and return all tasks, including those in the buffers of feeds."""
        lanes = list(self._levels.values())
        tasks = self._out([task for lane in lanes for task in lane.tasks()])
        for feed in self._feeds():
            tasks += feed.buffer
            feed.buffer.clear()
            feed.lined = False
        self._levels.clear()
        self._resting.clear()
        self._only = None
        self.levels.clear()
        return tasks

    def most_avoided(self) -> int:
        """Return the most sources that a task sent before avoids; -1 if there is no such task."""
        return max((lane.most_avoided() for lane in self._levels.values()), default=-1)

    def reclaim(self, usable: tuple[Source, ...]) -> list[Task]:
        """Remove and return the tasks that avoid all of the usable sources."""
        tasks = self._out([task for lane in self._levels.values() for task in lane.reclaim(usable)])
        self._close_idle()
        return tasks

    def drop_feed(self, feed: BatchFeed) -> None:
        """Remove a feed for good, if it is in the queue."""
        lane = self._levels.get(feed.level)
        if lane is not None:
            lane.drop_feed(feed)
            self._close_idle()

    def ended(self, task: Task) -> None:
        """Remove a task that has ended; its state must have changed before. Does nothing if the task is not in the queue."""
        if not task.lined:
            return
        self._out([task])
        self._ended += 1
        if self._ended >= self._most_ended:
            self._sweep()
        lane = self._levels.get(task.level)
        if lane is not None and not lane.waits():
            self._close(lane)

    def take_back(self, task: Task) -> None:
        """Remove a task that no longer needs to wait; its state must have changed before. It may be added again."""
        self._out([task])
        lane = self._levels[task.level]
        lane.sweep()
        if not lane.waits():
            self._close(lane)

    # costs

    def passed(self, task: Task) -> None:
        """Charge the tenant of a task that is sent without waiting while other tasks wait."""
        lane = self._levels.get(task.level)
        if lane is not None:
            lane.passed(task, self.cost)

    def settle(self, task: Task, used: float) -> None:
        """Replace the charge of a task that has ended by its real cost. Does nothing if the task was not charged.

        Args:
            task: a task with a charge; settling clears the charge.
            used: real cost, in the unit of ``cost``.
        """
        charge, task.charge = task.charge, 0.0
        lane = self._levels.get(task.level)
        if lane is not None:
            lane.settle(task, charge, used)

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def __bool__(self) -> bool:
        return bool(self.levels)

    def _feeds(self) -> list[BatchFeed]:
        return [feed for lane in self._levels.values() for feed in lane.feeds()]

    def _out(self, tasks: list[Task]) -> list[Task]:
        """Update the counts for tasks that leave the queue out of turn."""
        for task in tasks:
            task.lined = False
            self.waiting -= task.feed is None
        return tasks

    # empty levels are kept for reuse, since they are often needed again at once

    def _open(self, level: int) -> PriorityLevel:
        lane = self._levels[level] = self._resting.pop(level) if level in self._resting else PriorityLevel(level)
        insort(self.levels, level)
        self._only = None if len(self.levels) > 1 else lane
        return lane

    def _close(self, lane: PriorityLevel) -> None:
        lane.rest()
        self._resting[lane.level] = self._levels.pop(lane.level)
        self.levels.remove(lane.level)
        self._only = next(iter(self._levels.values())) if len(self.levels) == 1 else None

    def _close_idle(self) -> None:
        for lane in [lane for lane in self._levels.values() if not lane.waits()]:
            self._close(lane)

    def _first(self, source: Source, bulk: bool) -> tuple[PriorityLevel | None, Found]:
        """Return the level whose turn it is, and its entry to take."""
        key: float = inf
        lane, found = None, None
        for level in self.levels:
            other = self._levels[level]
            age, what = other.best(source, bulk)
            if lane is None or age + level * AGEING < key:
                key, lane, found = age + level * AGEING, other, what
        return lane, found

    def _sweep(self) -> None:
        """Drop ended tasks. It runs after as many have ended as the queue held the last time, so that the cost per task is constant."""
        for lane in self._levels.values():
            lane.sweep()
        self._ended, self._most_ended = 0, max(SWEEP, len(self))
