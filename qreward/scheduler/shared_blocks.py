"""Finds which prompts begin alike, from the hashes of their blocks of text: where nobody has told the groups of a batch.

The blocks of all recent tasks form a radix tree: a ``Run`` is a row of blocks that the same tasks have. It ends where they part. So a task
costs a look-up per run instead of one per block. The group of a task is the innermost run that another task has too. Tasks come one after
another, so the first of a group looks as if it were alone; when the second comes, ``find`` names the first again. The module does not know
sources or queues.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from qreward.scheduler.prefixes import Prefix

REMEMBERED = 4096
"""Runs that are remembered at least, and twice as many at most."""

Levels = list[tuple[int, float]]
"""Nested groups from the outermost to the innermost: the key of each, and its length in characters."""


class Waiting(Protocol):
    """A task, as far as this matters here and to ``AffineQueue``."""

    prefix: Prefix | None
    group: Any  # the ``Group`` in which it waits, or None
    alone: Any  # the ``Run`` that only this task has, while it waits
    turn: int


T = TypeVar("T", bound=Waiting)


class Run(Generic[T]):
    """Blocks that the same tasks have."""

    __slots__ = ("end", "prefix", "task")

    def __init__(self, prefix: Prefix, end: int, task: T | None) -> None:
        self.prefix = prefix  # of one of these tasks
        self.end = end  # how many blocks of that prefix there are up to the end of this run
        self.task = task  # the only one that has had it, while it waits


class Shared(NamedTuple, Generic[T]):
    """What is known of a task after a look at its blocks."""

    levels: Levels  # its groups
    first: T | None = None  # the waiting task that belongs to the innermost of them from now on
    parted: tuple[int, int] | None = None  # a group that is new because tasks part inside of a run, and the end of that run: their keys


class SharedBlocks(Generic[T]):
    """The blocks of recent tasks."""

    __slots__ = ("_before", "_runs")

    def __init__(self) -> None:
        self._runs: dict[int, Run[T]] = {}  # by the key of their first block, which tells all that precedes it
        self._before: dict[int, Run[T]] = {}  # those that were not needed lately

    def find(self, task: T, prefix: Prefix, warm: Container[int]) -> Shared[T]:
        """Return the groups of a task, which is remembered.

        Args:
            task: the task.
            prefix: its prefix.
            warm: the blocks that a source has, perhaps from tasks of long ago.
        """
        if len(self._runs) > REMEMBERED:
            self._before, self._runs = self._runs, {}
        runs, keys, lengths = self._runs, prefix.keys, prefix.lengths
        count, place = len(keys), 0
        levels: Levels = []
        first, parted = None, None
        while place < count:
            run = runs.get(keys[place]) or self._recall(keys[place])
            if run is None:
                self._add(task, prefix, place, levels, warm)
                break
            end, others = run.end, run.prefix.keys
            if run.task is not None:
                first = run.task
            if end > count or keys[end - 1] != others[end - 1]:
                end = _parting(keys, others, place + 1, min(end, count))
                parted = keys[end - 1], others[run.end - 1]
                runs[others[end]] = run
                runs[keys[place]] = Run(prefix, end, None)
            elif first is not None:
                first.alone = run.task = None
            levels.append((keys[end - 1], lengths[end - 1]))
            place = end
        return Shared(levels, first, parted)

    def _add(self, task: T, prefix: Prefix, place: int, levels: Levels, warm: Container[int]) -> None:
        """Remember the blocks from ``place`` on, which no other recent task has. Those that a source has are a group."""
        keys = prefix.keys
        for last in range(len(keys) - 1, place - 1, -1):
            if keys[last] in warm:
                levels.append((keys[last], prefix.lengths[last]))
                self._runs[keys[place]] = Run(prefix, last + 1, None)
                place = last + 1
                break
        if place < len(keys):
            task.alone = self._runs[keys[place]] = Run(prefix, len(keys), task)

    def _recall(self, key: int) -> Run[T] | None:
        run = self._before.get(key)
        if run is not None:
            self._runs[key] = run
        return run


def _parting(keys: tuple[int, ...], others: tuple[int, ...], low: int, high: int) -> int:
    """Return how many blocks two tasks have in common, which is between ``low`` and ``high``."""
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
