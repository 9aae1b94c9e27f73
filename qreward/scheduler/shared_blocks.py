"""Finds which prompts begin alike, from the hashes of their blocks of text, or from the groups that the caller has told.

The blocks of all recent tasks form a radix tree: a ``Run`` is a row of blocks that the same tasks have. It ends where they part. So a task
costs a look-up per run instead of one per block. The group of a task is the innermost run that another task has too. Tasks come one after
another, so the first of a group looks as if it were alone; when the second comes, ``find`` names the first again. The module does not know
sources or queues.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Generic, Protocol, TypeVar

from qreward.scheduler.prefixes import Homes, Prefix

REMEMBERED = 4096
"""Runs that are remembered at least, and twice as many at most."""


class Waiting(Protocol):
    """A task, as far as this matters here and to ``AffineQueue``."""

    prefix: Prefix | None
    attempt: Any  # its request in flight, of which it waits to send a copy, or None
    group: Any  # the ``Group`` in which it waits, or None
    alone: Any  # the ``Run`` that only this task had when it last waited, or None
    filed: int
    slack: int


T = TypeVar("T", bound=Waiting)


class Run(Generic[T]):
    """Blocks that the same tasks have."""

    __slots__ = ("end", "keys", "shared", "task")

    def __init__(self, keys: tuple[int, ...], end: int, task: T | None) -> None:
        self.keys = keys  # of one of these tasks
        self.end = end  # how many of them there are up to the end of this run
        self.task = task  # the only one that has had it, while it waits
        self.shared = task is None  # several have had it


class SharedBlocks(Generic[T]):
    """The blocks of recent tasks."""

    __slots__ = ("_before", "_runs")

    def __init__(self) -> None:
        self._runs: dict[int, Run[T]] = {}  # by the key of their first block, which tells all that precedes it
        self._before: dict[int, Run[T]] = {}  # those that were not needed lately

    def find(self, task: T, prefix: Prefix, homes: Homes[Any]) -> tuple[list[int], T | None, tuple[int, int] | None]:
        """Return the groups of a task, which is remembered.

        Args:
            task: the task.
            prefix: its prefix.
            homes: who has which blocks, perhaps from tasks of long ago.

        Returns:
            How many blocks each of its nested groups has, from the outermost to the innermost.
            The waiting task that belongs to the innermost of them from now on, if any.
            If one of them is new because tasks part inside of a run: its key, and that of the end of the run.
        """
        if len(self._runs) > REMEMBERED:
            self._before, self._runs = self._runs, {}
        runs, keys = self._runs, prefix.keys
        count, place = len(keys), 0
        ends: list[int] = []
        first, parted = None, None
        while place < count:
            key = keys[place]
            run = runs.get(key) or self._recall(key)
            if (
                run is None
                or (run is task.alone and not run.shared)  # the task is back, for a retry
                or (end := run.end) <= place
                or (others := run.keys)[place] != key  # another has an equal key by chance
            ):
                self._add(task, keys, place, ends, homes)
                break
            if run.task is not None:
                first = run.task
            if end > count or keys[end - 1] != others[end - 1]:
                end = _parting(keys, others, place + 1, min(end, count))
                parted = keys[end - 1], others[run.end - 1]
                runs[others[end]] = run
                runs[key] = Run(keys, end, None)
            else:
                run.shared = True
                if first is not None:
                    first.alone = run.task = None
            ends.append(end)
            place = end
        return ends, first, parted

    def _add(self, task: T, keys: tuple[int, ...], place: int, ends: list[int], homes: Homes[Any]) -> None:
        """Remember the blocks from ``place`` on, which no other recent task has. Those that a source has are a group.

        A copy has no such group: it must go elsewhere than the request by which a source has the blocks.
        """
        end = homes.last_known(keys, place) if task.attempt is None else place
        if end > place:
            ends.append(end)
            self._runs[keys[place]] = Run(keys, end, None)
            place = end
        if place < len(keys):
            task.alone = self._runs[keys[place]] = Run(keys, len(keys), task)

    def _recall(self, key: int) -> Run[T] | None:
        run = self._before.pop(key, None)
        if run is not None:
            self._runs[key] = run
        return run


def _parting(keys: tuple[int, ...], others: tuple[int, ...], low: int, high: int) -> int:
    """Return how many blocks two tasks have in common, which is between ``low`` and ``high``."""
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda count: keys[count - 1] != others[count - 1])
