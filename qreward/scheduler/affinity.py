"""A line of waiting tasks from which each source takes what it has in its prefix cache.

A source takes from the line, among the oldest ``look_ahead`` tasks:

1. a task whose prefix it has, of several such the one with the longest;
2. below that prefix, a group that no source has yet, the largest first; of outer prefixes (rubrics) too;
3. a task without a group;
4. when nothing else is left, a task of the largest group that other sources have.

So each prefix is computed once, while no source is ever idle for it, and nothing is bound to a source before it is sent. No task is passed
over by more than ``look_ahead`` later ones. Without prefixes, or for a single source, the order is that of arrival.

Groups are nested, as prefixes are: the tree of groups holds what waits, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from qreward.scheduler.shared_blocks import Levels, SharedBlocks

if TYPE_CHECKING:
    from qreward.scheduler.state import Pool, Source, Task


class Ladder:
    """Groups by how many tasks wait in them, to within a factor of two. Those alike are in the order in which they came."""

    __slots__ = ("rungs",)

    def __init__(self) -> None:
        self.rungs: list[OrderedDict[Group, None]] = []

    def put(self, group: Group) -> None:
        size = group.waiting.bit_length()
        while len(self.rungs) <= size:
            self.rungs.append(OrderedDict())
        group.rung = self.rungs[size]
        group.rung[group] = None

    def first(self) -> Group | None:
        """Return one of the largest groups with work, or None. Groups without work are removed."""
        rungs = self.rungs
        while rungs:
            if not rungs[-1]:
                rungs.pop()
                continue
            group = next(iter(rungs[-1]))
            if group.has_work():
                return group
            group.leave_ladder()
        return None


class Group:
    """Waiting tasks with a common prefix: those that share no more than it, and inner groups."""

    __slots__ = ("asleep", "depth", "free", "homes", "key", "length", "parent", "rung", "tasks", "waiting")

    def __init__(self, key: int, length: float, parent: Group | None) -> None:
        self.key, self.length, self.parent = key, length, parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.tasks: OrderedDict[Task, None] = OrderedDict()  # that are in none of the inner groups
        self.waiting = 0  # all tasks, those of inner groups too
        self.free = Ladder()  # the inner groups that no source has
        self.homes: dict[Source, None] = {}  # the sources that have it, or had when they last looked
        self.asleep: list[Source] = []  # of them, those that found nothing to do here
        self.rung: OrderedDict[Group, None] | None = None  # where it is in a ladder

    def has_work(self) -> bool:
        """Return whether a source that has it would find something to do here: a task of its own, or an inner group that no source has."""
        return bool(self.tasks) or self.free.first() is not None

    def leave_ladder(self) -> None:
        if self.rung is not None:
            del self.rung[self]
            self.rung = None


class AffineQueue:
    """Waiting tasks in order of arrival, for one pool."""

    __slots__ = ("_ahead", "_blocks", "_foreign", "_groups", "_line", "_own", "_root", "_taken", "_turns", "_unfiled", "append", "extend")

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._ahead: deque[Task] = deque()  # to be taken before all others
        self._line: OrderedDict[Task, None] = OrderedDict()  # those that are filed in groups, oldest first
        self._unfiled: deque[Task] = deque(tasks)  # those behind them
        self._root = Group(0, 0.0, None)  # of all groups; its own tasks are those without one
        self._groups: dict[int, Group] = {}
        self._own: dict[Source, list[OrderedDict[Group, None]]] = {}  # groups that a source has and that may have work, by depth
        self._foreign = Ladder()  # groups with work that some source has
        self._blocks: SharedBlocks | None = None  # made when it is needed first
        self._turns = self._taken = 0  # tasks that were filed, and those of them that have left
        self.append = self._unfiled.append
        self.extend = self._unfiled.extend

    # in order of arrival

    def appendleft(self, task: Task) -> None:
        """Add a task that goes before all others."""
        self._ahead.appendleft(task)

    def first(self) -> Task | None:
        """Return the oldest task, or None."""
        if self._ahead:
            return self._ahead[0]
        if self._line:
            return next(iter(self._line))
        return self._unfiled[0] if self._unfiled else None

    def popleft(self) -> Task:
        """Remove and return the oldest task."""
        if self._line and not self._ahead:
            task = next(iter(self._line))
            self.discard(task)
            return task
        return (self._ahead or self._unfiled).popleft()

    def pop(self) -> Task:
        """Remove and return the newest task."""
        if self._line and not self._unfiled:
            task = next(reversed(self._line))
            self.discard(task)
            return task
        return (self._unfiled or self._ahead).pop()

    def discard(self, task: Task) -> None:
        """Remove a task if it is filed."""
        group = task.group
        if group is None:
            return
        task.group = None
        del self._line[task]
        del group.tasks[task]
        self._taken += 1
        self._count(group, -1)
        if self._blocks is not None and task.prefix is not None and not task.prefix.told:
            self._blocks.left(task.prefix, group.length)

    def clear(self) -> None:
        for task in self._line:
            task.group = None
        self.__init__()  # type: ignore[misc]

    def keep(self, tasks: list[Task]) -> None:
        """Drop all tasks but these, which are some of them in their order."""
        self.clear()
        self.extend(tasks)

    def __iter__(self) -> Iterator[Task]:
        return chain(self._ahead, self._line, self._unfiled)

    def __len__(self) -> int:
        return len(self._ahead) + len(self._line) + len(self._unfiled)

    def __bool__(self) -> bool:
        return bool(self._unfiled or self._line or self._ahead)

    # by affinity

    def take(self, source: Source, pool: Pool) -> Task:
        """Remove and return the task that a source should take. The queue must not be empty."""
        if self._ahead or not (self._line or self._unfiled[0].prefix is not None) or not pool.is_affine():
            return self.popleft()
        while self._unfiled and len(self._line) < pool.look_ahead:
            self._file(self._unfiled.popleft(), pool)
        task = next(iter(self._line))
        if self._taken - task.turn < pool.look_ahead:
            task = self._chosen(source)
        assert task.group is not None
        self._claim(task.group, source)
        self.discard(task)
        return task

    def _chosen(self, source: Source) -> Task:
        group = self._warm(source)
        if group is None:
            group = self._root
            if not group.has_work():
                group = self._foreign.first()
                assert group is not None
        while (inner := group.free.first()) is not None:
            group = inner
        return next(iter(group.tasks))

    def _warm(self, source: Source) -> Group | None:
        """Return the innermost group with work that a source has, or None."""
        for shelf in reversed(self._own.get(source, ())):
            while shelf:
                group = next(iter(shelf))
                if not source.prefix_cache.is_warm(group.key):
                    del shelf[group], group.homes[source]
                    self._rank(group)
                elif group.has_work():
                    return group
                else:
                    del shelf[group]
                    group.asleep.append(source)
        return None

    # the tree of groups

    def _file(self, task: Task, pool: Pool) -> None:
        task.turn = self._turns
        self._turns += 1
        self._line[task] = None
        prefix = task.prefix
        if prefix is None:
            self._enter(task, self._root)
        elif prefix.told:
            group = self._groups.get(prefix.keys[-1])
            self._enter(task, group or self._group(list(zip(prefix.keys, prefix.lengths, strict=True)), pool))
        else:
            if self._blocks is None:
                self._blocks = SharedBlocks()
            levels, first = self._blocks.find(task, prefix, pool.homes)
            group = (self._groups.get(levels[-1][0]) or self._group(levels, pool)) if levels else self._root
            self._enter(task, group)
            if first is not None and first.group is not None:
                del first.group.tasks[first]
                self._count(first.group, -1)
                self._enter(first, group)

    def _group(self, levels: Levels, pool: Pool) -> Group:
        """Return the innermost of these groups, which are created if needed."""
        parent = self._root
        for key, length in levels:
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = Group(key, length, parent)
                for source in pool.homes.of(key):
                    self._claim(group, source)
            parent = group
        return parent

    def _enter(self, task: Task, group: Group) -> None:
        task.group = group
        group.tasks[task] = None
        self._count(group, 1)

    def _count(self, group: Group, more: int) -> None:
        """One task more or less waits in a group, and in those around it."""
        while (parent := group.parent) is not None:
            before = group.waiting
            group.waiting = before + more
            if not group.waiting:
                self._remove(group)
            elif group.rung is None or before.bit_length() != group.waiting.bit_length():
                self._rank(group)
            group = parent

    def _rank(self, group: Group) -> None:
        """Put a group where it belongs: among those with work that sources have, or among those of its parent that none has."""
        group.leave_ladder()
        parent = group.parent
        if parent is None:
            return
        if not group.homes:
            parent.free.put(group)
            if parent.rung is None or parent.asleep:
                self._rank(parent)
        elif group.has_work():
            self._foreign.put(group)
            while group.asleep:
                self._own[group.asleep.pop()][group.depth - 1][group] = None

    def _claim(self, group: Group, source: Source) -> None:
        """A source takes a task of a group: it has the group from now on, and those around it."""
        while group.parent is not None and source not in group.homes:
            self._settle(group, source)
            self._rank(group)
            group = group.parent

    def _settle(self, group: Group, source: Source) -> None:
        group.homes[source] = None
        shelves = self._own.setdefault(source, [])
        while len(shelves) < group.depth:
            shelves.append(OrderedDict())
        shelves[group.depth - 1][group] = None

    def _remove(self, group: Group) -> None:
        del self._groups[group.key]
        group.leave_ladder()
        for source in group.homes:
            self._own[source][group.depth - 1].pop(group, None)
