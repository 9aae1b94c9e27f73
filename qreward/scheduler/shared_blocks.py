"""Finds which prompts begin alike, from the hashes of their blocks of text, or from the groups that the caller has named.

The blocks of recent tasks form a radix tree. A node is a row of blocks that the same tasks have, and ends where these tasks differ. So a
task costs one look-up per node, not one per block. The group of a task is the innermost node that another task has too. The first task of a
group has no group until the second one comes; ``find`` then returns the first one again. The module does not know sources or queues.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Generic, Protocol, TypeVar

from qreward.scheduler.prefixes import Holders, Prefix

REMEMBERED = 4096
"""Nodes that are remembered at least, and twice as many at most."""


class WaitingTask(Protocol):
    """A task, as far as this matters here and to ``AffineQueue``."""

    prefix: Prefix | None
    attempt: Any  # its request in flight, of which it waits to send a copy, or None
    group: Any  # the ``Group`` in which it waits, or None
    unshared: Any  # the ``Node`` that only this task had when it last waited, or None
    position: int
    slack: int


T = TypeVar("T", bound=WaitingTask)


class Node(Generic[T]):
    """Blocks that the same tasks have."""

    __slots__ = ("end", "keys", "shared", "task")

    def __init__(self, keys: tuple[int, ...], end: int, task: T | None) -> None:
        self.keys = keys  # of one of these tasks
        self.end = end  # how many blocks there are from the beginning of the prompt to the end of this node
        self.task = task  # the only one that has had it, while it waits
        self.shared = task is None  # several have had it


class SharedBlocks(Generic[T]):
    """The blocks of recent tasks."""

    __slots__ = ("_before", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[int, Node[T]] = {}  # by the key of their first block, which depends on all blocks before it
        self._before: dict[int, Node[T]] = {}  # those that were not needed lately

    def find(self, task: T, prefix: Prefix, holders: Holders[Any]) -> tuple[list[int], T | None, tuple[int, int] | None]:
        """Return the groups of a task, which is remembered.

        Args:
            task: the task.
            prefix: its prefix.
            holders: which sources hold which blocks, perhaps from tasks of long ago.

        Returns:
            How many blocks each of its nested groups has, from the outermost to the innermost.
            The waiting task that belongs to the innermost of them from now on, if any.
            If a node was split, the keys of the two groups: that of the new, outer one, and that of the inner one.
        """
        if len(self._nodes) > REMEMBERED:
            self._before, self._nodes = self._nodes, {}
        nodes, before, keys = self._nodes, self._before, prefix[0]
        count, place = len(keys), 0
        ends: list[int] = []
        first, split = None, None
        while place < count:
            key = keys[place]
            node = nodes.get(key)
            if node is None and key in before:
                node = nodes[key] = before.pop(key)
            if (
                node is None
                or (node is task.unshared and not node.shared)  # the task is back, for a retry
                or (end := node.end) <= place
                or (others := node.keys)[place] != key  # another has an equal key by chance
            ):
                self._add(task, keys, place, ends, holders)
                break
            if node.task is not None:
                first = node.task
            if end > count or keys[end - 1] != others[end - 1]:
                end = _common(keys, others, place + 1, min(end, count))
                split = keys[end - 1], others[node.end - 1]
                nodes[others[end]] = node
                nodes[key] = Node(keys, end, None)
            else:
                node.shared = True
                if first is not None:
                    first.unshared = node.task = None
            ends.append(end)
            place = end
        return ends, first, split

    def _add(self, task: T, keys: tuple[int, ...], place: int, ends: list[int], holders: Holders[Any]) -> None:
        """Remember the blocks from ``place`` on, which no other recent task has. Those that a source holds are a group.

        A copy has no such group: it must go elsewhere than the request by which a source holds the blocks.
        """
        end = holders.last_held(keys, place) if task.attempt is None else place
        if end > place:
            ends.append(end)
            self._nodes[keys[place]] = Node(keys, end, None)
            place = end
        if place < len(keys):
            task.unshared = self._nodes[keys[place]] = Node(keys, len(keys), task)


def _common(keys: tuple[int, ...], others: tuple[int, ...], low: int, high: int) -> int:
    """Return how many blocks two tasks have in common, which is between ``low`` and ``high``."""
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda count: keys[count - 1] != others[count - 1])
