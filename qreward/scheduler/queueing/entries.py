"""The ways in which tasks stand in line one by one: by deadline, and, once they were tried, by what they avoid.

Tasks that ended while they waited are dropped when they are met. Knows nothing of levels, tenants or cost.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.request import Task, TaskState

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source

QUEUED = TaskState.QUEUED
PATIENCE = 600.0
"""Seconds after which a task without a deadline is as urgent as one whose deadline is now."""
MOST_GROUPS = 32
LAST = 1e9
"""Seconds by which each failure puts a task back in the order for a source that is on its way back into service."""


def due(task: Task) -> float:
    """By when a single task is to be served: tasks of equal timeouts keep their order, and none waits for ever."""
    return min(task.born + PATIENCE, task.deadline)


def rank(task: Task, source: Source) -> float:
    """How a task that was tried before sorts for a source: by age.

    A source whose next request decides whether it comes back is given what has failed least. Otherwise a few tasks that always
    fail would keep every source out of service.
    """
    return task.born if source.health.allowed > 1 else task.born + LAST * len(task.failures)


class DeadlineQueue:
    """Tasks that were never sent, earliest deadline first, equal ones as they came.

    Tasks of equal timeouts come in the order of their deadlines: they stand in a line, and only those that overtake it cost a heap.

    Attributes:
        line, early: both, for those who look often; the ended ones included.
    """

    __slots__ = ("_last", "_number", "early", "line")

    def __init__(self) -> None:
        self.line: deque[Task] = deque()
        self.early: list[tuple[float, int, Task]] = []
        self._last = -inf  # when the last of the line is due
        self._number = 0

    def put(self, task: Task) -> None:
        by = task.born + PATIENCE  # as in ``due``, but this is the hot path
        if task.deadline < by:  # noqa: PLR1730
            by = task.deadline
        if by >= self._last or not (self.line or self.early):
            self._last = by
            self.line.append(task)
        else:
            self._number += 1
            heappush(self.early, (by, self._number, task))

    def head(self) -> Task | None:
        """The most urgent one, or None."""
        line = self.line
        while line and line[0].state is not QUEUED:
            line.popleft()
        if self.early:
            while self.early and self.early[0][2].state is not QUEUED:
                heappop(self.early)
            if self._overtaken():
                return self.early[0][2]
        return line[0] if line else None

    def pop(self) -> Task:
        """Remove and return what ``head`` has just returned."""
        if self.early and self._overtaken():
            return heappop(self.early)[2]
        return self.line.popleft()

    def sweep(self) -> None:
        """Drop all that ended."""
        self.line = deque(task for task in self.line if task.state is QUEUED)
        self.early = [entry for entry in self.early if entry[2].state is QUEUED]
        heapify(self.early)

    def all(self) -> list[Task]:
        """Those that still wait."""
        self.sweep()
        return [*self.line, *(entry[2] for entry in self.early)]

    def __len__(self) -> int:
        return len(self.line) + len(self.early)

    def _overtaken(self) -> bool:
        return bool(self.early) and (not self.line or self.early[0][0] < due(self.line[0]))


class RetryQueue:
    """Tasks that were sent before, grouped by the sources they avoid, so that those a source must not have are in nobody's way.

    And by how often they failed, so that those that fail do not stand before those that do not, see ``rank``.
    """

    __slots__ = ("groups", "most_avoided")

    def __init__(self) -> None:
        self.most_avoided = -1  # sources that one of them avoids at most; -1 if there are none. May be too large, never too small
        self.groups: dict[tuple[tuple[Source, ...], int], deque[Task]] = {}

    def put(self, task: Task) -> None:
        self.most_avoided = max(self.most_avoided if self.groups else -1, len(task.excluded))
        self.groups.setdefault((task.excluded, len(task.failures)), deque()).append(task)

    def first(self, source: Source) -> deque[Task] | None:
        """The line with the oldest head among those that a source may take, looking at a bounded number of them."""
        best: deque[Task] | None = None
        least = inf
        for group, line in list(islice(self.groups.items(), MOST_GROUPS)):
            if self._waits(group, line) and source not in group[0] and (by := rank(line[0], source)) < least:
                best, least = line, by
        return best

    def waits(self) -> bool:
        """Whether any of them waits."""
        while self.groups:
            if self._waits(*next(iter(self.groups.items()))):
                return True
        return False

    def reclaim(self, usable: tuple[Source, ...]) -> list[Task]:
        """Remove and return those that avoid all of the usable sources."""
        stuck = [group for group in self.groups if all(source in group[0] for source in usable)]
        return [task for group in stuck for task in self.groups.pop(group) if task.state is QUEUED]

    def sweep(self) -> None:
        """Drop all that ended."""
        groups = {group: deque(task for task in line if task.state is QUEUED) for group, line in self.groups.items()}
        self.groups = {group: line for group, line in groups.items() if line}

    def all(self) -> list[Task]:
        """Those that still wait."""
        return [task for task in chain.from_iterable(self.groups.values()) if task.state is QUEUED]

    def _waits(self, group: tuple[tuple[Source, ...], int], line: deque[Task]) -> bool:
        while line and line[0].state is not QUEUED:
            line.popleft()
        if not line:
            del self.groups[group]
        return bool(line)

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))
