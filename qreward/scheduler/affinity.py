"""The waiting tasks of a batch or of a tenant. Each source takes the one that its prefix cache suits best.

Tasks whose prompts begin alike form a group. Groups are nested: the group of a rubric contains those of its questions. A source *holds* a
group while its cache is expected to have the prefix of the group. A group that no source holds is *cold*. A source chooses among the oldest
``look_ahead`` tasks:

1. It takes from a group that it holds: the most deeply nested one, and of several the one that it used last. Cold groups inside of this
   group go first.
2. If it holds no group with tasks, it takes from the cold group that saves most text.
3. If there is no cold group, it takes a task without a group.
4. If there is no such task, it takes from a large group that other sources hold.

So each prefix is computed once, and no source is idle while tasks wait. A task with n tasks before it is sent after at most
2 n + ``look_ahead`` others. If no two tasks share a prefix, the order is that of arrival.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice
from typing import Any, Generic

from qreward.scheduler.prefixes import HasCache, Holders, Prefix, make_prefix
from qreward.scheduler.shared_blocks import SharedBlocks, T

COMPARED = 16
"""Groups of other sources of which the largest is taken."""
BATCH = 16
"""More tasks are sorted into groups when this part of the look-ahead is free, because sorting several at once costs less."""
SLICE = 256
"""Most tasks that are sorted in one go, and most groups that are checked in one sweep, so that no request is delayed by it."""
SWEEP = 1024
"""Groups in the tree from which on those without use are dropped."""

Groups = OrderedDict["Group[T]", None]
Path = tuple[int, tuple[int, ...], tuple[float, ...]]
"""The keys and lengths of a group and of those around it, the outermost first, and the number of splits when they were collected."""
Held = list[tuple[int, float, int, "Group[T]"]]
"""Heap of groups that a source holds: the most deeply nested first, then the one that it used last. A group may be in it twice."""


class Group(Generic[T]):
    """Waiting tasks with a common prefix: those that share no more than it, and inner groups."""

    __slots__ = ("cold", "depth", "holders", "idle", "inner", "key", "length", "listed", "parent", "path", "tasks")

    def __init__(self, key: int, length: float, parent: Group[T] | None) -> None:
        self.key, self.length, self.parent = key, length, parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.tasks: deque[T] = deque()  # its own, which are in no inner group; the first one waits, others may have been taken
        self.inner = 0  # how many inner groups it has
        self.cold: LargestFirst[T] | None = None  # the cold ones among them
        self.holders: dict[HasCache, None] = {}  # the sources that held it when they looked last
        self.idle: dict[HasCache, None] = {}  # the holders that found no task here, and look again when one comes
        self.listed: Groups[T] | None = None  # the list in which sources find it that do not hold it
        self.path: Path = (-1, (), ())  # see ``Path``

    def has_work(self) -> bool:
        """Return whether a source that holds it would find a task here: one of its own, or one of a cold inner group."""
        return bool(self.tasks) or (self.cold is not None and self.cold.first() is not None)

    def is_held_by(self, source: HasCache) -> bool:
        """Return whether a source holds it."""
        return source in self.holders and source.prefix_cache.is_warm(self.key)

    def unlist(self) -> None:
        if self.listed is not None:
            del self.listed[self]
            self.listed = None

    def shorten(self, prefix: Prefix, splits: int) -> Prefix:
        """Return the prefix of one of its tasks with the keys of the nested groups and the last key only.

        No two tasks are known to differ at the other keys, so nobody asks for them. If two do later, ``Holders.split`` fills them in.
        """
        at, keys, lengths = self.path
        if at != splits:
            at, keys, lengths = self.path = (splits, *self._path())
        whole, ends, total, named = prefix
        if not keys or keys[-1] != whole[-1]:
            keys, lengths = keys + whole[-1:], lengths + ends[-1:]
        return make_prefix(Prefix, (keys, lengths, total, named))

    def _path(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        if self.parent is None:
            return (), ()
        keys, lengths = self.parent._path()
        return (*keys, self.key), (*lengths, self.length)


class LargestFirst(Generic[T]):
    """Groups by the text that they save, in classes of a factor of two. A finer order makes no batch faster (simulated)."""

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[int, Groups[T]] = {}  # by the bits of the size

    def put(self, group: Group[T]) -> None:
        """Add a group, or move it because its size has changed."""
        bits = int((len(group.tasks) + group.inner) * group.length).bit_length()
        groups = self._classes.get(bits)
        if groups is None:
            groups = self._classes[bits] = OrderedDict()
        if groups is not group.listed:
            group.unlist()
            group.listed = groups
            groups[group] = None

    def first(self) -> Group[T] | None:
        """Return the oldest of the largest groups, or None. Groups without tasks are removed."""
        while self._classes:
            bits = max(self._classes)
            groups = self._classes[bits]
            while groups:
                group = next(iter(groups))
                if group.has_work():
                    return group
                group.unlist()
            del self._classes[bits]
        return None


class AffineQueue(Generic[T]):
    """Waiting tasks in order of arrival, for one pool."""

    __slots__ = (
        "_ahead", "_blocks",
        "_current",
        "_entries",
        "_grouped",
        "_groups",
        "_head",
        "_held",
        "_left",
        "_line",
        "_of_others",
        "_root",
        "_splits",
        "_sweep_at",
        "_to_check",
        "_ungrouped",
        "append",
        "extend",
    )  # fmt: skip

    def __init__(self, tasks: Iterable[T] = ()) -> None:
        self._ahead: deque[T] = deque()  # tasks that go before all others
        self._line: list[T | None] = []  # the tasks that are sorted into groups, oldest first; None for those that have left
        self._head = 0  # place in it before which all have left
        self._grouped = self._left = 0  # how many tasks were ever sorted, and how many of them have left
        self._ungrouped: deque[T] = deque(tasks)  # those behind them
        self._root: Group[T] = Group(0, 0.0, None)  # of the tree of groups; its own tasks are those without a group
        self._groups: dict[int, Group[T]] = {}  # those with tasks, and those that a source holds
        self._sweep_at = SWEEP
        self._to_check: list[Group[T]] = []  # what is left to do of a sweep
        self._current: dict[HasCache, Group[T]] = {}  # the group from which a source took last
        self._held: dict[HasCache, Held[T]] = {}  # groups that a source holds and that may have work
        self._entries = 0  # how many were pushed there
        self._of_others: Groups[T] = OrderedDict()  # groups that some source holds and that may have work
        self._splits = 0  # how many groups were inserted between others
        self._blocks: SharedBlocks[T] | None = None  # made when it is needed first
        self.append = self._ungrouped.append
        self.extend = self._ungrouped.extend

    # in order of arrival

    def appendleft(self, task: T) -> None:
        """Add a task that goes before all others."""
        self._ahead.appendleft(task)

    def first(self) -> T | None:
        """Return the oldest task, or None."""
        if self._ahead:
            return self._ahead[0]
        if self._grouped > self._left:
            return self._oldest()
        return self._ungrouped[0] if self._ungrouped else None

    def head(self) -> T:
        """Return the oldest task. The queue must not be empty."""
        first = self.first()
        assert first is not None
        return first

    def popleft(self) -> T:
        """Remove and return the oldest task."""
        if self._ahead or self._grouped == self._left:
            return (self._ahead or self._ungrouped).popleft()
        task = self._oldest()
        self.discard(task)
        return task

    def pop(self) -> T:
        """Remove and return the newest task."""
        if self._ungrouped or self._grouped == self._left:
            return (self._ungrouped or self._ahead).pop()
        task = next(task for task in reversed(self._line) if task is not None)
        self.discard(task)
        return task

    def discard(self, task: T) -> None:
        """Remove a task if it is sorted into a group."""
        group = task.group
        if group is None:
            return
        task.group = None
        self._line[task.position - self._grouped] = None
        self._left += 1
        tasks = group.tasks
        while tasks and tasks[0].group is not group:
            tasks.popleft()
        if task.unshared is not None:
            task.unshared.task = None

    def empty(self) -> list[T]:
        """Remove and return all tasks, oldest first."""
        tasks = list(self)
        self.clear()
        return tasks

    def clear(self) -> None:
        for task in self._in_groups():
            task.group = task.unshared = None
        self.__init__()  # type: ignore[misc]

    def keep(self, tasks: list[T]) -> None:
        """Drop all tasks but these, which are some of them in their order."""
        self.clear()
        self.extend(tasks)

    def __iter__(self) -> Iterator[T]:
        return chain(self._ahead, self._in_groups(), self._ungrouped)

    def __len__(self) -> int:
        return len(self._ahead) + self._grouped - self._left + len(self._ungrouped)

    def __bool__(self) -> bool:
        return bool(self._ungrouped or self._grouped > self._left or self._ahead)

    def _in_groups(self) -> Iterator[T]:
        """Yield the tasks that are sorted into groups, oldest first."""
        return (task for task in islice(self._line, self._head, None) if task is not None)

    def _oldest(self) -> T:
        """Return the oldest of the tasks that are sorted into groups, of which there must be one."""
        line, head = self._line, self._head
        while (task := line[head]) is None:
            head += 1
        self._head = head
        return task

    # by prefix affinity

    def take(self, source: HasCache, look_ahead: int, holders: Holders[Any]) -> T:
        """Remove and return the task that a source should take. The queue must not be empty.

        Args:
            source: the source.
            look_ahead: how many tasks, in order of arrival, it chooses among; 0 for the oldest.
            holders: which sources hold which prefixes.
        """
        if self._ahead or not look_ahead:
            return self.popleft()
        ungrouped, waiting = self._ungrouped, self._grouped - self._left
        if not waiting and ungrouped[0].prefix is None:
            return ungrouped.popleft()
        if ungrouped and waiting < look_ahead - look_ahead // BATCH:
            self.form_groups(look_ahead, holders)
        task = self._line[self._head] or self._oldest()
        group = task.group
        passed = self._left - task.position  # at most so many younger tasks have left before it
        if passed >= task.slack or (2 * passed >= task.slack and group.is_held_by(source)):
            self._join(group, source)
        else:
            group = self._current.get(source)
            if group is None or group.cold is not None or not group.tasks:  # else it stays with its group
                group = self._choose(source)
            task = group.tasks[0]
        self.discard(task)
        prefix = task.prefix
        if prefix is not None and len(prefix[0]) > group.depth:
            task.prefix = group.shorten(prefix, self._splits)
        return task

    def _choose(self, source: HasCache) -> Group[T]:
        """Return the group from which a source takes from now on. It has tasks of its own."""
        group = self._held_group(source) or (self._root if self._root.has_work() else self._group_of_others())
        while group.cold is not None and (inner := group.cold.first()) is not None:
            group = inner
        self._join(group, source)
        return group

    def _join(self, group: Group[T], source: HasCache) -> None:
        """Record that a source takes from a group, which it holds from now on."""
        if group.parent is not None:
            self._current[source] = group
            if source not in group.holders:
                self._hold(group, source, source.prefix_cache.clock)

    def _held_group(self, source: HasCache) -> Group[T] | None:
        """Return the first group with work that a source holds, or None."""
        cache, held = source.prefix_cache, self._held.get(source)
        while held:
            depth, _, number, group = held[0]
            warm = cache.is_warm(group.key)
            if warm and group.has_work():
                heapreplace(held, (depth, -cache.clock, number, group))
                return group
            heappop(held)
            if warm:
                group.idle[source] = None
            elif source in group.holders:
                del group.holders[source]
                group.idle.pop(source, None)
                self._list(group)
        return None

    def _group_of_others(self) -> Group[T]:
        """Return a large group with work. All groups with work must be held by sources."""
        while True:
            group = max(islice(self._of_others, COMPARED), key=lambda group: len(group.tasks) + group.inner)
            if group.has_work():
                return group
            group.unlist()

    # the tree of groups

    def form_groups(self, look_ahead: int, holders: Holders[Any]) -> None:
        """Sort some of the oldest tasks into groups. Tasks without a prefix stay in order if there are no others."""
        ungrouped, position = self._ungrouped, self._grouped
        waiting = position - self._left
        if not ungrouped or not look_ahead or (not waiting and ungrouped[0].prefix is None):
            return
        line, groups = self._line, self._groups
        if 2 * self._head > len(line) or not waiting:
            del line[: self._head if waiting else None]
            self._head = 0
        slack = waiting + look_ahead
        for _ in range(min(SLICE, len(ungrouped), look_ahead - waiting)):
            task = ungrouped.popleft()
            prefix = task.prefix
            line.append(task)
            task.position = position
            task.slack = slack
            position += 1
            slack += 1
            if prefix is None:
                group = self._root
            else:
                group = (groups.get(prefix.keys[-1]) if prefix.named else None) or self._find_group(task, prefix, holders)
            task.group = group
            tasks = group.tasks
            tasks.append(task)
            size = len(tasks)
            if size & (size - 1) == 0:  # its first task, or its size has doubled
                self._list(group)
        self._grouped = position
        if len(groups) > self._sweep_at:
            self._sweep()

    def _find_group(self, task: T, prefix: Prefix, holders: Holders[Any]) -> Group[T]:
        """Return the group of a task. The first task of a new group is moved there."""
        if self._blocks is None:
            self._blocks = SharedBlocks()
        ends, first, split = self._blocks.find(task, prefix, holders)
        if not prefix.named:
            holders.unshared = 0 if ends else holders.unshared + 1
        if not ends:
            return self._root
        if split is not None:
            holders.split(*split)
        group = self._groups.get(prefix.keys[ends[-1] - 1]) or self._add_groups(prefix, ends, holders)
        if split is not None:
            outer, inner = self._groups.get(split[0]), self._groups.get(split[1])
            if outer is not None and inner is not None:  # else keys are equal by chance
                self._insert(outer, inner)
        if first is not None and first.group is not None and first.group is not group:
            self._move(first, group)
        return group

    def _move(self, task: T, group: Group[T]) -> None:
        """Move a waiting task to another group."""
        before, task.group = task.group, group
        group.tasks.append(task)
        while before.tasks and before.tasks[0].group is not before:
            before.tasks.popleft()

    def _add_groups(self, prefix: Prefix, ends: Sequence[int], holders: Holders[Any]) -> Group[T]:
        """Return the innermost of the groups that are so many keys of a prefix; they are created if needed."""
        parent = self._root
        for end in ends:
            key = prefix.keys[end - 1]
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = Group(key, prefix.lengths[end - 1], parent)
                parent.inner += 1
                for source in holders.of(key):
                    self._hold(group, source, source.prefix_cache.used_at(key))
            parent = group
        return parent

    def _insert(self, group: Group[T], inner: Group[T]) -> None:
        """Insert a new group between an inner group and its parent."""
        parent = group.parent
        if parent is None or inner is group or inner.parent is not parent:
            return
        inner.unlist()
        inner.parent, inner.depth = group, group.depth + 1
        self._splits += 1
        parent.inner -= 1
        group.inner += 1
        holders, inner.holders = inner.holders, {}
        inner.idle.clear()
        for source in holders:  # which hold the new group too
            self._hold(inner, source, source.prefix_cache.used_at(inner.key))
        self._list(inner)

    def _hold(self, group: Group[T], source: HasCache, at: float) -> None:
        """Record that a source holds a group and those around it, and when it used them last, by its clock."""
        while (parent := group.parent) is not None and source not in group.holders:
            group.holders[source] = None
            self._push(group, source, at)
            self._list(group)
            group = parent

    def _list(self, group: Group[T]) -> None:
        """List a group that has a task where sources look for it: in the heaps of its holders, and in a list for the other sources."""
        parent = group.parent
        if parent is None:
            return
        if group.holders:
            for source in group.idle:
                self._push(group, source, source.prefix_cache.used_at(group.key))
            group.idle.clear()
            if group.listed is not self._of_others:
                group.unlist()
                group.listed = self._of_others
                self._of_others[group] = None
        else:
            if parent.cold is None:
                parent.cold = LargestFirst()
            parent.cold.put(group)
            if parent.listed is None or parent.idle:
                self._list(parent)

    def _push(self, group: Group[T], source: HasCache, at: float) -> None:
        """Put a group into the heap of a source that holds it."""
        self._entries += 1
        heappush(self._held.setdefault(source, []), (-group.depth, -at, self._entries, group))

    def _sweep(self) -> None:
        """Drop groups without tasks that no source holds. An inner group is newer than those around it, and is checked before them."""
        if not self._to_check:
            self._to_check = list(self._groups.values())
        for _ in range(min(SLICE, len(self._to_check))):
            group = self._to_check.pop()
            if group.tasks or group.inner or any(source.prefix_cache.is_warm(group.key) for source in group.holders):
                continue
            del self._groups[group.key]
            group.unlist()
            assert group.parent is not None
            group.parent.inner -= 1
            group.holders.clear()
        if not self._to_check:
            self._sweep_at = SWEEP + 2 * len(self._groups)
