"""Finds which prompts begin alike, from the hashes of their blocks of text, or from the groups that the caller has named.

The blocks of recent tasks form a radix tree. A node is a run of consecutive blocks that the same tasks have. It ends where these tasks
begin to differ. So a task costs one look-up per node, not one per block. The group of a task is the innermost node that another task has
too. The first task of a group has no group until the second task comes. ``find`` then also returns the first task, so that it can be moved
to the group. This module does not depend on sources or queues.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Generic, Protocol, TypeVar

from qreward.scheduler.prefixes import Holders, Prefix

REMEMBERED = 4096
"""Minimum number of recently used nodes that are remembered. The maximum is about twice this number."""


class WaitingTask(Protocol):
    """The attributes of a task that this module and ``AffineQueue`` use."""

    prefix: Prefix | None
    attempt: Any  # the request in flight of a task that waits to send a copy of this request, or None
    group: Any  # the ``Group`` in which the task waits, or None
    unshared: Any  # the ``Node`` that only this task had when the task last waited, or None
    position: int
    slack: int


T = TypeVar("T", bound=WaitingTask)


class Node(Generic[T]):
    """A node stands for consecutive blocks that the same tasks have."""

    __slots__ = ("end", "keys", "shared", "task")

    def __init__(self, keys: tuple[int, ...], end: int, task: T | None) -> None:
        self.keys = keys  # the keys of all blocks of one of these tasks
        self.end = end  # how many blocks there are from the beginning of the prompt to the end of this node
        self.task = task  # the task, if only one task has had this node and that task is waiting; otherwise None
        self.shared = task is None  # whether several tasks have had this node, or a source held its blocks from the start


class SharedBlocks(Generic[T]):
    """Keeps the blocks of recent tasks in a radix tree, and finds the blocks that several tasks share."""

    __slots__ = ("_before", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[int, Node[T]] = {}  # key of a node's first block, which depends on all blocks before it -> node
        self._before: dict[int, Node[T]] = {}  # older nodes, which have not been used since ``_nodes`` was last emptied

    def find(self, task: T, prefix: Prefix, holders: Holders[Any]) -> tuple[list[int], T | None, tuple[int, int] | None]:
        """Return the groups of a task, and remember the blocks of the task.

        Args:
            task: the task.
            prefix: the prefix of the task.
            holders: which sources hold which blocks. They may still hold blocks of tasks that this tree has forgotten.

        Returns:
            The first value is a list with the number of blocks of each nested group of the task, from the outermost group to the innermost.
            The second value is another waiting task that belongs to the innermost group from now on, or None.
            The third value is None unless a node was split. In that case it is a pair: the key of the new outer group, and the key of the
            inner group.
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
                or (node is task.unshared and not node.shared)  # the task has returned for a retry
                or (end := node.end) <= place
                or (others := node.keys)[place] != key  # a different block has an equal key by chance
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
        """Remember the blocks of a task from ``place`` on, which no other recent task has. Blocks that a source holds become a group.

        The copy of a request in flight gets no such group. The copy must go to another source than this request, and the source of the
        request may hold the blocks only because of the request.
        """
        end = holders.last_held(keys, place) if task.attempt is None else place
        if end > place:
            ends.append(end)
            self._nodes[keys[place]] = Node(keys, end, None)
            place = end
        if place < len(keys):
            task.unshared = self._nodes[keys[place]] = Node(keys, len(keys), task)


def _common(keys: tuple[int, ...], others: tuple[int, ...], low: int, high: int) -> int:
    """Return the number of blocks at the beginning that two tasks have in common. It must be between ``low`` and ``high``."""
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda count: keys[count - 1] != others[count - 1])
