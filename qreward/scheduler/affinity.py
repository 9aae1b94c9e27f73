"""A line of waiting tasks from which each source takes what it has in its prefix cache.

A source takes, among the oldest ``look_ahead`` tasks:

1. a task whose prefix it has: of several the one with the longest, and of those the one it came to last, so that it finishes a group before
   its cache loses it;
2. a group that no source has, the largest first: inside of a group that it has (the questions of its rubric), else anywhere;
3. a task that has no prefix, or is the only one known to have it;
4. when nothing else is left, a task of a large group that other sources have.

So each prefix is computed once, while no source is ever idle for it, and nothing is bound to a source before it is sent. A task with n
tasks before it goes after at most 2 n + ``look_ahead`` others. Where no two tasks share a prefix, or for a single source, the order is that
of arrival.

Groups are nested, as prefixes are. The tree of groups holds those in which tasks wait, and those that a source has.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, islice
from math import log2
from typing import Any, Generic

from qreward.scheduler.prefixes import Cached, Homes, Prefix, make_prefix
from qreward.scheduler.shared_blocks import SharedBlocks, T

COMPARED = 16
"""Groups of other sources of which the largest is chosen."""
CLASSES = 1024
"""Classes of size of the groups that no source has, for each doubling of the size. With fewer the order is worse: 3 % of time with 16."""
BATCH = 16
"""More tasks are sorted into groups when this part of the look-ahead is free, because several at once cost less."""
SLICE = 256
"""Tasks that are sorted into groups in one go, and groups that are looked at when some are dropped, so that no task waits for it."""
SWEEP = 1024
"""Groups that are kept before those that are of no use are dropped, and as many as are of use."""

Groups = OrderedDict["Group[T]", None]
Path = tuple[int, tuple[int, ...], tuple[float, ...]]
"""Keys and lengths of a group and of those around it, and how many groups had been inserted between others by then."""
NO_PATH: Path = (-1, (), ())
Shelf = list[tuple[float, int, "Group[T]"]]
"""Heap of the groups that a source has at one depth, the one that it used last first. A group may be in it twice."""


class Group(Generic[T]):
    """Waiting tasks with a common prefix: those that share no more than it, and inner groups."""

    __slots__ = ("asleep", "depth", "free", "homes", "inner", "key", "length", "parent", "path", "place", "tasks")

    def __init__(self, key: int, length: float, parent: Group[T] | None) -> None:
        self.key, self.length, self.parent = key, length, parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.tasks: deque[T] = deque()  # those that are in no inner group; the first one waits, others may have left
        self.inner = 0  # how many inner groups there are
        self.free: BySize[T] | None = None  # those that no source has and that may have work
        self.homes: dict[Cached, Shelf[T]] = {}  # the sources that have it, or had when they last looked, and their groups of this depth
        self.asleep: dict[Cached, None] = {}  # of them, those that found nothing to do here
        self.place: Groups[T] | None = None  # where it is listed as work for sources that do not have it
        self.path: Path = NO_PATH

    def has_work(self) -> bool:
        """Return whether a source that has it would find something to do here: a task of its own, or an inner group that no source has."""
        return bool(self.tasks) or (self.free is not None and self.largest() is not None)

    def is_at(self, source: Cached) -> bool:
        """Return whether a source has it."""
        return source in self.homes and source.prefix_cache.is_warm(self.key)

    def narrowed(self, prefix: Prefix, inserts: int) -> Prefix:
        """Return the prefix of one of its tasks without the keys at which no tasks are known to part.

        What a source has of the others follows from these (see ``Homes.part``), so it need not be remembered.
        """
        keys, lengths, total, told = prefix
        if self.path[0] != inserts:
            self.path = (inserts, *self._path())
        _, before, ends = self.path
        if before and before[-1] == keys[-1]:
            return make_prefix(Prefix, (before, ends, total, told))
        return make_prefix(Prefix, (before + keys[-1:], ends + lengths[-1:], total, told))

    def _path(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        if self.parent is None:
            return (), ()
        keys, lengths = self.parent._path()
        return (*keys, self.key), (*lengths, self.length)

    def largest(self) -> Group[T] | None:
        """Return an inner group that no source has and that saves most text, or None."""
        free = self.free
        while free is not None and (group := free.first()) is not None:
            if group.has_work():
                return group
            group.unlist()
        return None

    def enlist(self, group: Group[T]) -> None:
        """List an inner group that no source has."""
        if self.free is None:
            self.free = BySize()
        place = self.free.of_size((len(group.tasks) + group.inner) * group.length)
        if place is not group.place:
            group.unlist()
            group.place = place
            place[group] = None

    def unlist(self) -> None:
        if self.place is not None:
            del self.place[self]
            self.place = None


class BySize(Generic[T]):
    """Groups by the text that they save, rounded: a heap of all of them costs twice as much with 100,000 groups."""

    __slots__ = ("_classes", "_order")

    def __init__(self) -> None:
        self._classes: dict[int, Groups[T]] = {}
        self._order: list[int] = []  # heap of their numbers, the largest first

    def of_size(self, characters: float) -> Groups[T]:
        """Return the class of groups of this size."""
        number = -int(CLASSES * log2(characters + 1))
        found = self._classes.get(number)
        if found is None:
            found = self._classes[number] = OrderedDict()
            heappush(self._order, number)
        return found

    def first(self) -> Group[T] | None:
        """Return the oldest of the largest groups, or None."""
        while self._order:
            for group in self._classes[self._order[0]]:
                return group
            del self._classes[heappop(self._order)]
        return None


class AffineQueue(Generic[T]):
    """Waiting tasks in order of arrival, for one pool."""

    __slots__ = (
        "_ahead", "_blocks", "_filed", "_foreign", "_groups", "_head", "_inserts", "_last", "_line", "_old", "_own", "_pushes", "_root",
        "_sweep_at", "_taken", "_unfiled", "append", "extend",
    )  # fmt: skip

    def __init__(self, tasks: Iterable[T] = ()) -> None:
        self._ahead: deque[T] = deque()  # to be taken before all others
        self._line: list[T | None] = []  # those that are filed in groups, oldest first, and None for those that have left
        self._head = 0  # the place in it of the oldest, unless that has left
        self._filed = self._taken = 0  # tasks that were filed, and those of them that have left
        self._unfiled: deque[T] = deque(tasks)  # those behind them
        self._root: Group[T] = Group(0, 0.0, None)  # of all groups; its own tasks are those without one
        self._groups: dict[int, Group[T]] = {}
        self._sweep_at = SWEEP
        self._old: list[Group[T]] = []  # those that are to be looked at before the sweep ends
        self._last: dict[Cached, Group[T]] = {}  # the group from which a source took last
        self._own: dict[Cached, list[Shelf[T]]] = {}  # groups that a source has and that may have work, by depth
        self._pushes = 0  # entries that were put on shelves
        self._foreign: Groups[T] = OrderedDict()  # groups that some source has and that may have work
        self._inserts = 0  # groups that were inserted between others
        self._blocks: SharedBlocks[T] | None = None  # made when it is needed first
        self.append = self._unfiled.append
        self.extend = self._unfiled.extend

    # in order of arrival

    def appendleft(self, task: T) -> None:
        """Add a task that goes before all others."""
        self._ahead.appendleft(task)

    def first(self) -> T | None:
        """Return the oldest task, or None."""
        if self._ahead:
            return self._ahead[0]
        if self._filed > self._taken:
            return self._oldest()
        return self._unfiled[0] if self._unfiled else None

    def head(self) -> T:
        """Return the oldest task of a line that is not empty."""
        first = self.first()
        assert first is not None
        return first

    def popleft(self) -> T:
        """Remove and return the oldest task."""
        if self._ahead or self._filed == self._taken:
            return (self._ahead or self._unfiled).popleft()
        task = self._oldest()
        self.discard(task)
        return task

    def pop(self) -> T:
        """Remove and return the newest task."""
        if self._unfiled or self._filed == self._taken:
            return (self._unfiled or self._ahead).pop()
        task = next(task for task in reversed(self._line) if task is not None)
        self.discard(task)
        return task

    def discard(self, task: T) -> None:
        """Remove a task if it is filed."""
        group = task.group
        if group is None:
            return
        task.group = None
        self._line[task.filed - self._filed] = None
        self._taken += 1
        tasks = group.tasks
        while tasks and tasks[0].group is not group:
            tasks.popleft()
        if task.alone is not None:
            task.alone.task = None

    def empty(self) -> list[T]:
        """Remove and return all tasks, oldest first."""
        tasks = list(self)
        self.clear()
        return tasks

    def clear(self) -> None:
        for task in self._waiting():
            task.group = task.alone = None
        self.__init__()  # type: ignore[misc]

    def keep(self, tasks: list[T]) -> None:
        """Drop all tasks but these, which are some of them in their order."""
        self.clear()
        self.extend(tasks)

    def __iter__(self) -> Iterator[T]:
        return chain(self._ahead, self._waiting(), self._unfiled)

    def __len__(self) -> int:
        return len(self._ahead) + self._filed - self._taken + len(self._unfiled)

    def __bool__(self) -> bool:
        return bool(self._unfiled or self._filed > self._taken or self._ahead)

    def _waiting(self) -> Iterator[T]:
        """Yield the tasks that are filed, oldest first."""
        return (task for task in islice(self._line, self._head, None) if task is not None)

    def _oldest(self) -> T:
        """Return the oldest of the tasks that are filed, of which there must be one."""
        line, head = self._line, self._head
        while (task := line[head]) is None:
            head += 1
        self._head = head
        return task

    # by affinity

    def take(self, source: Cached, look_ahead: int, homes: Homes[Any]) -> T:
        """Remove and return the task that a source should take. The queue must not be empty.

        Args:
            source: the source.
            look_ahead: how many tasks, in order of arrival, it chooses among; 0 for the oldest.
            homes: which sources have which prefixes.
        """
        if self._ahead or not look_ahead:
            return self.popleft()
        unfiled, waiting = self._unfiled, self._filed - self._taken
        if not waiting and unfiled[0].prefix is None:
            return unfiled.popleft()
        if unfiled and waiting < look_ahead - look_ahead // BATCH:
            self.file(look_ahead, homes)
        task = self._line[self._head] or self._oldest()
        group = task.group
        assert group is not None
        passed = self._taken - task.filed
        if passed >= task.slack or (2 * passed >= task.slack and group.is_at(source)):
            self._join(group, source)
        else:
            group = self._last.get(source)
            if group is None or group.free is not None or not group.tasks:  # else it stays with its group
                group = self._choose(source)
            task = group.tasks[0]
        self.discard(task)
        prefix = task.prefix
        if prefix is not None and len(prefix.keys) > group.depth:
            task.prefix = group.narrowed(prefix, self._inserts)
        return task

    def _choose(self, source: Cached) -> Group[T]:
        """Return the group from which a source takes from now on. It has tasks of its own."""
        group = self._warm(source) or self._cold()
        while group.free is not None and (inner := group.largest()) is not None:
            group = inner
        self._join(group, source)
        return group

    def _join(self, group: Group[T], source: Cached) -> None:
        """A source takes from a group."""
        if group.parent is not None:
            self._last[source] = group
            if source not in group.homes:
                self._visit(group, source, source.prefix_cache.clock)

    def _warm(self, source: Cached) -> Group[T] | None:
        """Return the innermost group with work that a source has, or None."""
        cache = source.prefix_cache
        for shelf in reversed(self._own.get(source, ())):
            while shelf:
                _, number, group = shelf[0]
                warm = cache.is_warm(group.key)
                if warm and (group.tasks or group.has_work()):
                    shelf[0] = (-cache.clock, number, group)  # it remains the first
                    return group
                heappop(shelf)
                if warm:
                    group.asleep[source] = None
                elif group.homes.pop(source, None) is not None:
                    group.asleep.pop(source, None)
                    self._list(group)
        return None

    def _cold(self) -> Group[T]:
        """Return a group with work for a source that has none with work."""
        if self._root.has_work():
            return self._root
        while True:
            group = max(islice(self._foreign, COMPARED), key=lambda group: len(group.tasks) + group.inner)
            if group.has_work():
                return group
            group.unlist()

    # the tree of groups

    def file(self, look_ahead: int, homes: Homes[Any]) -> None:
        """Sort some of the oldest tasks into groups. Tasks without a prefix stay in order if there are no others."""
        unfiled, filed = self._unfiled, self._filed
        waiting = filed - self._taken
        if not unfiled or not look_ahead or (not waiting and unfiled[0].prefix is None):
            return
        line, groups = self._line, self._groups
        if 2 * self._head > len(line) or not waiting:
            del line[: self._head if waiting else None]
            self._head = 0
        slack = waiting + look_ahead
        for _ in range(min(SLICE, len(unfiled), look_ahead - waiting)):
            task = unfiled.popleft()
            prefix = task.prefix
            line.append(task)
            task.filed = filed
            task.slack = slack
            filed += 1
            slack += 1
            if prefix is None:
                group = self._root
            else:
                group = (groups.get(prefix.keys[-1]) if prefix.told else None) or self._found(task, prefix, homes)
            task.group = group
            tasks = group.tasks
            tasks.append(task)
            size = len(tasks)
            if size & (size - 1) == 0:  # its first task, or the logarithm of its size has changed
                self._list(group)
        self._filed = filed
        if len(groups) > self._sweep_at:
            self._sweep()

    def _found(self, task: T, prefix: Prefix, homes: Homes[Any]) -> Group[T]:
        """Return the group of a task, after its first sibling was moved there."""
        if self._blocks is None:
            self._blocks = SharedBlocks()
        ends, first, parted = self._blocks.find(task, prefix, homes)
        if not prefix.told:
            homes.alone = 0 if ends else homes.alone + 1
        if not ends:
            return self._root
        if parted is not None:
            homes.part(*parted)
        group = self._groups.get(prefix.keys[ends[-1] - 1]) or self._group(prefix, ends, homes)
        if parted is not None:
            above, below = self._groups.get(parted[0]), self._groups.get(parted[1])
            if above is not None and below is not None:  # else keys are equal by chance
                self._insert(above, below)
        if first is not None and (before := first.group) is not None and before is not group:
            first.group = group
            group.tasks.append(first)
            while before.tasks and before.tasks[0].group is not before:
                before.tasks.popleft()
        return group

    def _group(self, prefix: Prefix, ends: Sequence[int], homes: Homes[Any]) -> Group[T]:
        """Return the innermost of the groups that are so many keys of a prefix; they are created if needed."""
        parent = self._root
        for end in ends:
            key = prefix.keys[end - 1]
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = Group(key, prefix.lengths[end - 1], parent)
                parent.inner += 1
                for source in homes.of(key):
                    self._visit(group, source, source.prefix_cache.used_at(key))
            parent = group
        return parent

    def _insert(self, group: Group[T], below: Group[T]) -> None:
        """Move a group below a new one, which nobody knew to be between it and its parent."""
        parent = group.parent
        if parent is None or below is group or below.parent is not parent:
            return
        below.unlist()
        below.parent, below.depth = group, group.depth + 1
        self._inserts += 1
        parent.inner -= 1
        group.inner += 1
        homes, below.homes = below.homes, {}
        below.asleep.clear()
        for source in homes:  # they look for it among those of its new depth
            self._visit(below, source, source.prefix_cache.used_at(below.key))
        self._list(below)

    def _list(self, group: Group[T]) -> None:
        """List a group where sources look for it: those that have it and those that do not."""
        parent = group.parent
        if parent is None:
            return
        if group.homes:
            for source in group.asleep:
                self._put(group, group.homes[source], source.prefix_cache.used_at(group.key))
            group.asleep.clear()
            if group.place is not self._foreign:
                group.unlist()
                group.place = self._foreign
                self._foreign[group] = None
        else:
            parent.enlist(group)
            if parent.place is None or parent.asleep:
                self._list(parent)

    def _visit(self, group: Group[T], source: Cached, at: float) -> None:
        """A source has a group, and those around it, and used it last at this clock."""
        shelves = self._own.setdefault(source, [])
        while (parent := group.parent) is not None and source not in group.homes:
            while len(shelves) < group.depth:
                shelves.append([])
            shelf = group.homes[source] = shelves[group.depth - 1]
            self._put(group, shelf, at)
            self._list(group)
            group = parent

    def _put(self, group: Group[T], shelf: Shelf[T], at: float) -> None:
        self._pushes += 1
        heappush(shelf, (-at, self._pushes, group))

    def _sweep(self) -> None:
        """Drop some of the groups without tasks that no source has. An inner group is newer than those around it, and goes before them."""
        if not self._old:
            self._old = list(self._groups.values())
        for _ in range(min(SLICE, len(self._old))):
            group = self._old.pop()
            if group.tasks or group.inner or any(source.prefix_cache.is_warm(group.key) for source in group.homes):
                continue
            del self._groups[group.key]
            group.unlist()
            assert group.parent is not None
            group.parent.inner -= 1
            group.homes.clear()
        if not self._old:
            self._sweep_at = SWEEP + 2 * len(self._groups)
