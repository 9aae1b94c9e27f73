"""Where work waits: one queue a pool, pulled by whichever source has room.

Ten levels of priority. Each entry sorts by the time it came plus ``AGEING`` seconds a level, so that an urgent one goes
first and nothing starves; bulk feeds sort ``BULK`` seconds later still than single tasks of their level.
Retried tasks keep their time, so they are at the head, grouped by the sources they avoid.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, cast

from qreward.core.task import Feed, State, Task

if TYPE_CHECKING:
    from qreward.core.source import Source

LEVELS = 10
AGEING = 15.0
"""Seconds of waiting that outweigh one level of priority."""
BULK = 60.0
"""Seconds of waiting after which a bulk's next item goes before single tasks of its level."""
MOST_GROUPS = 32


class Lane:
    """The entries of one level."""

    __slots__ = ("again", "feeds", "fresh")

    def __init__(self) -> None:
        self.again: dict[tuple[Source, ...], deque[Task]] = {}
        self.fresh: deque[Task] = deque()
        self.feeds: deque[Feed] = deque()


class Queue:
    """Tasks and feeds of one pool. Tasks that ended while they waited are dropped when they are met.

    Attributes:
        levels: the priorities of which there are entries; empty if nothing waits.
    """

    __slots__ = ("_lanes", "levels")

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self.levels: list[int] = []

    def put(self, task: Task) -> None:
        """Append a task, or, if it was tried before, put it among the first of its level."""
        task.state = State.QUEUED
        lane = self._lane(task.level)
        if task.sent_at is None:
            lane.fresh.append(task)
        else:
            lane.again.setdefault(task.excluded, deque()).append(task)

    def put_feed(self, feed: Feed) -> None:
        """Append a feed that has something to take."""
        if not feed.lined:
            feed.lined = True
            self._lane(feed.level).feeds.append(feed)

    def drop_feed(self, feed: Feed) -> None:
        """Take a feed out, if it is in."""
        if feed.lined:
            feed.lined = False
            self._lanes[feed.level].feeds.remove(feed)
            self._forget_if_empty(feed.level)

    def key(self, source: Source) -> float:
        """How the best entry for a source sorts; smaller is sooner, inf if there is none."""
        return min((self._best(level, source)[0] for level in self.levels), default=inf)

    def take(self, source: Source, now: float) -> tuple[Task, Feed | None] | None:
        """Remove and return the best task for a source, with the feed it came from; None if there is none."""
        best, found, taken = inf, None, 0
        for level in self.levels:
            key, line = self._best(level, source)
            if key < best:
                best, found, taken = key, line, level
        if found is None:
            return None
        entry = self._pop(found, now)
        self._forget_if_empty(taken)
        return entry

    @staticmethod
    def _pop(found: deque[Task] | deque[Feed], now: float) -> tuple[Task, Feed | None]:
        if isinstance(found[0], Task):
            return cast("deque[Task]", found).popleft(), None
        feeds = cast("deque[Feed]", found)
        feed = feeds[0]
        task = feed.buffer.popleft()
        feed.served = now
        if feed.buffer:
            feeds.rotate(-1)  # feeds of a level take turns
        else:
            feeds.popleft()
            feed.lined = False
        return task, feed

    def empty(self) -> tuple[list[Task], list[Feed]]:
        """Remove and return all tasks, those read ahead included, and the feeds they came from."""
        tasks: list[Task] = []
        feeds: list[Feed] = []
        for lane in self._lanes.values():
            for line in (*lane.again.values(), lane.fresh):
                tasks += [task for task in line if task.state is State.QUEUED]
            for feed in lane.feeds:
                tasks += feed.buffer
                feed.buffer.clear()
                feed.lined = False
                feeds.append(feed)
        self._lanes.clear()
        self.levels.clear()
        return tasks, feeds

    def reclaim(self, usable: tuple[Source, ...]) -> list[Task]:
        """Remove and return the tasks that avoid all of the usable sources."""
        tasks: list[Task] = []
        for lane in self._lanes.values():
            for avoided in [avoided for avoided in lane.again if all(source in avoided for source in usable)]:
                tasks += [task for task in lane.again.pop(avoided) if task.state is State.QUEUED]
        return tasks

    def __len__(self) -> int:
        lanes = self._lanes.values()
        tasks = sum(len(lane.fresh) + sum(map(len, lane.again.values())) for lane in lanes)
        return tasks + sum(len(feed.buffer) for lane in lanes for feed in lane.feeds)

    def __bool__(self) -> bool:
        return bool(self.levels)

    def _forget_if_empty(self, level: int) -> None:
        lane = self._lanes[level]
        if not (lane.feeds or lane.fresh or lane.again):
            del self._lanes[level]
            self.levels.remove(level)

    def _lane(self, level: int) -> Lane:
        lane = self._lanes.get(level)
        if lane is None:
            lane = self._lanes[level] = Lane()
            self.levels = sorted(self._lanes)
        return lane

    def _best(self, level: int, source: Source) -> tuple[float, deque[Task] | deque[Feed] | None]:
        lane = self._lanes[level]
        head = level * AGEING
        best: tuple[float, deque[Task] | deque[Feed] | None] = (inf, None)
        if lane.again:
            best = self._retried(lane, source)
        fresh = lane.fresh
        while fresh and fresh[0].state is not State.QUEUED:
            fresh.popleft()
        if fresh and fresh[0].born < best[0]:
            best = (fresh[0].born, fresh)
        if lane.feeds and lane.feeds[0].served + BULK < best[0]:
            best = (lane.feeds[0].served + BULK, lane.feeds)
        return best[0] + head, best[1]

    @staticmethod
    def _retried(lane: Lane, source: Source) -> tuple[float, deque[Task] | None]:
        best: tuple[float, deque[Task] | None] = (inf, None)
        for avoided, line in list(lane.again.items())[:MOST_GROUPS]:
            while line and line[0].state is not State.QUEUED:
                line.popleft()
            if not line:
                del lane.again[avoided]
            elif source not in avoided and line[0].born < best[0]:
                best = (line[0].born, line)
        return best
