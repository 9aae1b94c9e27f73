"""Queues of single tasks: new tasks by deadline, and tasks that were sent before by the sources they avoid.

Tasks that ended while they waited are dropped when a queue encounters them. The module does not know levels, tenants or costs.
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
"""Seconds by which each failure moves a task back in the order for a half-open source."""


def due(task: Task) -> float:
    """Return the time by which a task is ordered: its deadline, or ``PATIENCE`` after its submission if that is sooner.

    Tasks of equal timeouts keep their order, and no task starves.
    """
    return min(task.born + PATIENCE, task.deadline)


def rank(task: Task, source: Source) -> float:
    """Return the sort key of a task that was sent before: its age.

    A half-open source receives the tasks with the fewest failures first. Otherwise a few tasks that always fail would keep every source out
    of service.
    """
    return task.born if source.health.allowed > 1 else task.born + LAST * len(task.failures)


class DeadlineQueue:
    """Tasks that were never sent, earliest deadline first, equal deadlines in the order of arrival.

    Tasks of equal timeouts arrive in the order of their deadlines, so they are appended to a deque. Only tasks with an earlier deadline
    than its last one go to a heap.

    Attributes:
        line: the deque; may contain tasks that have ended. Public for fast access.
        early: the heap of (time, number, task); may contain tasks that have ended.
    """

    __slots__ = ("_last", "_number", "early", "line")

    def __init__(self) -> None:
        self.line: deque[Task] = deque()
        self.early: list[tuple[float, int, Task]] = []
        self._last = -inf  # due time of the last task in ``line``
        self._number = 0

    def put(self, task: Task) -> None:
        by = task.born + PATIENCE  # inlined from ``due``: hot path
        if task.deadline < by:  # noqa: PLR1730
            by = task.deadline
        if by >= self._last or not (self.line or self.early):
            self._last = by
            self.line.append(task)
        else:
            self._number += 1
            heappush(self.early, (by, self._number, task))

    def head(self) -> Task | None:
        """Return the most urgent task, or None."""
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
        """Remove and return the task that ``head`` has just returned."""
        if self.early and self._overtaken():
            return heappop(self.early)[2]
        return self.line.popleft()

    def sweep(self) -> None:
        """Drop all tasks that have ended."""
        self.line = deque(task for task in self.line if task.state is QUEUED)
        self.early = [entry for entry in self.early if entry[2].state is QUEUED]
        heapify(self.early)

    def all(self) -> list[Task]:
        """Return the tasks that still wait."""
        self.sweep()
        return [*self.line, *(entry[2] for entry in self.early)]

    def __len__(self) -> int:
        return len(self.line) + len(self.early)

    def _overtaken(self) -> bool:
        return bool(self.early) and (not self.line or self.early[0][0] < due(self.line[0]))


class RetryQueue:
    """Tasks that were sent before, grouped by the sources they avoid and by their number of failures.

    The first grouping keeps tasks that a source must not take from blocking others. The second keeps tasks that fail from blocking those
    that do not; see ``rank``.
    """

    __slots__ = ("groups", "most_avoided")

    def __init__(self) -> None:
        self.most_avoided = -1  # most sources that one task avoids; -1 without tasks. May be too large, never too small
        self.groups: dict[tuple[tuple[Source, ...], int], deque[Task]] = {}

    def put(self, task: Task) -> None:
        self.most_avoided = max(self.most_avoided if self.groups else -1, len(task.excluded))
        self.groups.setdefault((task.excluded, len(task.failures)), deque()).append(task)

    def first(self, source: Source) -> deque[Task] | None:
        """Return the group with the oldest head among those that a source may take; a bounded number of groups is checked."""
        best: deque[Task] | None = None
        least = inf
        for group, line in list(islice(self.groups.items(), MOST_GROUPS)):
            if self._waits(group, line) and source not in group[0] and (by := rank(line[0], source)) < least:
                best, least = line, by
        return best

    def waits(self) -> bool:
        """Return whether any task waits."""
        while self.groups:
            if self._waits(*next(iter(self.groups.items()))):
                return True
        return False

    def reclaim(self, usable: tuple[Source, ...]) -> list[Task]:
        """Remove and return the tasks that avoid all of the usable sources."""
        stuck = [group for group in self.groups if all(source in group[0] for source in usable)]
        return [task for group in stuck for task in self.groups.pop(group) if task.state is QUEUED]

    def sweep(self) -> None:
        """Drop all tasks that have ended."""
        groups = {group: deque(task for task in line if task.state is QUEUED) for group, line in self.groups.items()}
        self.groups = {group: line for group, line in groups.items() if line}

    def all(self) -> list[Task]:
        """Return the tasks that still wait."""
        return [task for task in chain.from_iterable(self.groups.values()) if task.state is QUEUED]

    def _waits(self, group: tuple[tuple[Source, ...], int], line: deque[Task]) -> bool:
        while line and line[0].state is not QUEUED:
            line.popleft()
        if not line:
            del self.groups[group]
        return bool(line)

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))
