"""Where work waits: one queue a pool, pulled by whichever source has room.

Ten levels of priority. Each entry sorts by the time it came plus ``AGEING`` seconds a level, so that an urgent one goes
first and nothing starves. Who goes first within a level is in ``lane``.
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
"""Tasks that may have ended in the queue before somebody looks for them."""
QUEUED = TaskState.QUEUED


def one_each(_task: Task) -> float:
    """What a task costs while nobody knows better."""
    return 1.0


class Queue:
    """Tasks and feeds of one pool.

    Tenants of a level, and the bulks of a tenant, get equal shares of what their tasks cost. Tasks that ended while they
    waited are dropped when they are met.

    Args:
        cost: what a task is expected to cost, in any unit, such as tokens; at least 1 is counted. Only asked while several
            tenants or bulks share a level.

    Attributes:
        cost: as given; may be changed at any time.
        levels: the priorities of which there are entries; empty if nothing waits.
        waiting: single tasks that wait, those that were sent before included.
    """

    __slots__ = ("_ended", "_lanes", "_most_ended", "_only", "_resting", "cost", "levels", "waiting")

    def __init__(self, cost: Callable[[Task], float] = one_each) -> None:
        self.cost = cost
        self.levels: list[int] = []
        self.waiting = 0
        self._lanes: dict[int, PriorityLevel] = {}
        self._resting: dict[int, PriorityLevel] = {}
        self._only: PriorityLevel | None = None  # if there is one level
        self._ended = 0
        self._most_ended = SWEEP

    # what comes

    def put(self, task: Task) -> None:
        """Add a task; if it was tried before, it goes among the first of its level."""
        task.state = QUEUED
        task.lined = True
        lane = self._lanes.get(task.level)
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
        """Add a feed that has something to take."""
        if not feed.lined:
            lane = self._lanes.get(feed.level)
            if lane is None:
                lane = self._open(feed.level)
            lane.put_feed(feed)

    # what goes

    def key(self, source: Source, *, bulk: bool = True) -> float:
        """How the best entry for a source sorts; smaller is sooner, inf if there is none. For ``bulk`` see ``take``."""
        return min((self._lanes[level].best(source, bulk)[0] + level * AGEING for level in self.levels), default=inf)

    def take(self, source: Source, now: float, *, bulk: bool = True) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the best task for a source, with the feed if it comes fresh from one; None if there is none.

        Args:
            source: who asks.
            now: the time, in seconds.
            bulk: False if items of feeds are to wait. Retries of such items are not: others may have to leave them to the source.
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
        """Items that the waiting feeds are still to give; inf if the input of one may be of any length."""
        return sum(len(feed.buffer) if feed.ended else inf if feed.left is None else feed.left for feed in self._feeds())

    def empty(self) -> list[Task]:
        """Remove and return all tasks, those read ahead included."""
        lanes = list(self._lanes.values())
        tasks = self._out([task for lane in lanes for task in lane.tasks()])
        for feed in self._feeds():
            tasks += feed.buffer
            feed.buffer.clear()
            feed.lined = False
        self._lanes.clear()
        self._resting.clear()
        self._only = None
        self.levels.clear()
        return tasks

    def most_avoided(self) -> int:
        """How many sources a task that was tried before avoids at most; -1 if there is none."""
        return max((lane.most_avoided() for lane in self._lanes.values()), default=-1)

    def reclaim(self, usable: tuple[Source, ...]) -> list[Task]:
        """Remove and return the tasks that avoid all of the usable sources."""
        tasks = self._out([task for lane in self._lanes.values() for task in lane.reclaim(usable)])
        self._close_idle()
        return tasks

    def drop_feed(self, feed: BatchFeed) -> None:
        """Take a feed out, if it is in. It does not come again."""
        lane = self._lanes.get(feed.level)
        if lane is not None:
            lane.drop_feed(feed)
            self._close_idle()

    def ended(self, task: Task) -> None:
        """To be called when a task has ended, its state changed. It does nothing if the task is not in the queue."""
        if not task.lined:
            return
        self._out([task])
        self._ended += 1
        if self._ended >= self._most_ended:
            self._sweep()
        lane = self._lanes.get(task.level)
        if lane is not None and not lane.waits():
            self._close(lane)

    def take_back(self, task: Task) -> None:
        """Take out a task that goes on without a turn, its state changed; it may come again."""
        self._out([task])
        lane = self._lanes[task.level]
        lane.sweep()
        if not lane.waits():
            self._close(lane)

    # what it costs

    def passed(self, task: Task) -> None:
        """To be called when a single task is sent that did not have to wait although others do: its tenant is charged."""
        lane = self._lanes.get(task.level)
        if lane is not None:
            lane.passed(task, self.cost)

    def settle(self, task: Task, used: float) -> None:
        """A task has ended: correct what was counted for it by what it used. It does nothing if nothing was counted.

        Args:
            task: it may be settled once; later calls do nothing.
            used: in the unit of ``cost``.
        """
        charge, task.charge = task.charge, 0.0
        lane = self._lanes.get(task.level)
        if lane is not None:
            lane.settle(task, charge, used)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __bool__(self) -> bool:
        return bool(self.levels)

    def _feeds(self) -> list[BatchFeed]:
        return [feed for lane in self._lanes.values() for feed in lane.feeds()]

    def _out(self, tasks: list[Task]) -> list[Task]:
        """Tasks leave the queue, not by their turn."""
        for task in tasks:
            task.lined = False
            self.waiting -= task.feed is None
        return tasks

    # levels that have nothing: their lanes are kept, for they are often needed again at once

    def _open(self, level: int) -> PriorityLevel:
        lane = self._lanes[level] = self._resting.pop(level) if level in self._resting else PriorityLevel(level)
        insort(self.levels, level)
        self._only = None if len(self.levels) > 1 else lane
        return lane

    def _close(self, lane: PriorityLevel) -> None:
        lane.rest()
        self._resting[lane.level] = self._lanes.pop(lane.level)
        self.levels.remove(lane.level)
        self._only = next(iter(self._lanes.values())) if len(self.levels) == 1 else None

    def _close_idle(self) -> None:
        for lane in [lane for lane in self._lanes.values() if not lane.waits()]:
            self._close(lane)

    def _first(self, source: Source, bulk: bool) -> tuple[PriorityLevel | None, Found]:
        """Of several levels, the one whose turn it is, and what is to be taken."""
        key: float = inf
        lane, found = None, None
        for level in self.levels:
            other = self._lanes[level]
            age, what = other.best(source, bulk)
            if lane is None or age + level * AGEING < key:
                key, lane, found = age + level * AGEING, other, what
        return lane, found

    def _sweep(self) -> None:
        """Drop what ended in the queue; not before as many have ended as were left the last time, so that it costs each one look."""
        for lane in self._lanes.values():
            lane.sweep()
        self._ended, self._most_ended = 0, max(SWEEP, len(self))
