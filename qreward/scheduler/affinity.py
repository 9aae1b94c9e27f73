"""A queue of the waiting tasks of one batch or one tenant. Each source takes the task that its prefix cache suits best.

Tasks whose prompts begin alike form a group. Groups are nested: for example, the group of a rubric contains the groups of its questions. A
source *holds* a group while the prefix of the group is expected to be in the cache of the source. A group that no source holds is *cold*. A
source chooses among the oldest ``look_ahead`` tasks:

1. If the source holds groups with tasks, it takes a task of the most deeply nested of those that it used last. Of equally nested groups,
   it chooses the group that it used last. If the chosen group contains cold groups, the tasks of the cold groups are taken first.
2. If the source holds no group with tasks, it takes a task of the cold group that saves the most text, of the oldest ones. A group saves
   text because the common prefix is computed only once. The saved text is estimated as the length of the prefix times the number of tasks
   and inner groups.
3. If there is no cold group, the source takes a task without a group.
4. If there is no task without a group, the source takes a task of a large group that other sources hold, first of its cold groups.

So no source is idle while tasks wait, and a source computes a prefix that other sources hold only if it has no other task to take, or if a
task has waited long. If n tasks are before a task when it arrives, at most 2 n + ``look_ahead`` other tasks are sent before it. If no two
tasks share a prefix, tasks are taken in the order of arrival.

A group exists while one of its tasks waits. What sources hold outlives it (``Holders``).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar

from qreward.scheduler.prefixes import HasCache, Holders, Prefix

COMPARED = 32
"""Number of groups that are compared when a source leaves its group: of those that it holds the ones that it used last, of others the
oldest ones. With 16, the single calls of one workload took 4 % longer; 64 gained nothing (simulated)."""
BATCH = 16
"""Divisor of the look-ahead. The queue sorts more tasks into groups only when the number of sorted tasks that wait has fallen below the
look-ahead by more than the look-ahead divided by this number. So several tasks are sorted together, which costs less per task."""
SLICE = 256
"""Maximum number of tasks that are sorted in one call. A longer call would delay requests."""
REMEMBERED = 65_536
"""Number of keys of recent tasks at which the older half of them is forgotten."""
SEVERAL = -1
"""Stands for the position of a task if several tasks had a key."""


class WaitingTask(Protocol):
    """The attributes of a task that this module uses."""

    prefix: Prefix | None
    group: Any  # the ``Group`` in which the task waits, or None
    position: int
    slack: int


T = TypeVar("T", bound=WaitingTask)
Groups = OrderedDict["Group[T]", None]


class Group(Generic[T]):
    """A group holds the waiting tasks with a common prefix. Tasks that share a longer prefix are in inner groups."""

    __slots__ = ("cold", "depth", "holders", "inner", "key", "length", "listed", "parent", "tasks")

    def __init__(self, key: int, length: float, depth: int, parent: Group[T] | None) -> None:
        self.key, self.length, self.parent = key, length, parent
        self.depth = depth  # number of keys of its prefix
        self.tasks: deque[T] = deque()  # tasks that are in no inner group; the first one waits, later ones may have left
        self.inner = 0  # number of inner groups
        self.cold: Groups[T] = OrderedDict()  # the cold inner groups
        self.holders: dict[HasCache, None] = {}  # the sources that held this group when they last checked
        self.listed: Groups[T] = self.cold  # the list in which sources that do not hold this group find it

    def has_work(self) -> bool:
        """Return whether a source that holds this group would find a task: a task of the group itself, or of a cold inner group."""
        return bool(self.tasks or self.cold)

    def saves(self) -> float:
        return (len(self.tasks) + self.inner) * self.length


class AffineQueue(Generic[T]):
    """Keeps waiting tasks of one batch or tenant in the order of arrival. A source may take a later task by prefix affinity."""

    __slots__ = (
        "_ahead", "_current", "_formed", "_grouped", "_groups", "_head", "_held", "_left", "_line", "_of_others", "_root",
        "_seen", "_ungrouped", "append", "extend",
    )  # fmt: skip

    def __init__(self, tasks: Iterable[T] = ()) -> None:
        self._ahead: deque[T] = deque()  # tasks that go before all other tasks
        self._line: list[T | None] = []  # the tasks that are sorted into groups, oldest first; None for a task that has left
        self._head = 0  # index in ``_line``; all tasks before this index have left
        self._grouped = self._left = 0  # number of tasks that were ever sorted into groups, and number of these that have left
        self._ungrouped: deque[T] = deque(tasks)  # younger tasks, which are not sorted yet
        self._root: Group[T] = Group(0, 0.0, 0, None)  # root of the tree of groups; its tasks are the tasks without a group
        self._groups: dict[int, Group[T]] = {}  # by key
        self._formed: set[int] = set()  # keys of the groups that existed so far; they exist again around new inner groups
        self._current: dict[HasCache, Group[T]] = {}  # source -> the group from which it took last
        self._held: dict[HasCache, Groups[T]] = {}  # source -> the groups that it holds, the one used last at the end
        self._of_others: Groups[T] = OrderedDict()  # groups that some source holds
        self._seen: dict[int, int] = {}  # key -> position of the only task that had it, or SEVERAL
        self.append = self._ungrouped.append
        self.extend = self._ungrouped.extend

    # in order of arrival

    def appendleft(self, task: T) -> None:
        self._ahead.appendleft(task)

    def first(self) -> T | None:
        if self._ahead:
            return self._ahead[0]
        if self._grouped > self._left:
            return self._oldest()
        return self._ungrouped[0] if self._ungrouped else None

    def popleft(self) -> T:
        if self._ahead or self._grouped == self._left:
            return (self._ahead or self._ungrouped).popleft()
        task = self._oldest()
        self.discard(task)
        return task

    def discard(self, task: T) -> None:
        group = task.group
        if group is None:
            return
        task.group = None
        self._line[task.position - self._grouped] = None
        self._left += 1
        self._tidy(group)

    def _tidy(self, group: Group[T]) -> None:
        """Drop tasks that have left from the head of a group. Forget the group, and the groups around it, if nothing of it waits."""
        tasks = group.tasks
        while tasks and tasks[0].group is not group:
            tasks.popleft()
        while (parent := group.parent) is not None and not (group.tasks or group.inner):
            del self._groups[group.key], group.listed[group]
            for source in group.holders:
                del self._held[source][group]
            parent.inner -= 1
            group = parent

    def clear(self) -> None:
        for task in self._in_groups():
            task.group = None
        self.__init__()  # type: ignore[misc]

    def keep(self, tasks: list[T]) -> None:
        """Keep only the given tasks. They must be tasks of this queue, in the order of this queue."""
        self.clear()
        self.extend(tasks)

    def __iter__(self) -> Iterator[T]:
        return chain(self._ahead, self._in_groups(), self._ungrouped)

    def __len__(self) -> int:
        return len(self._ahead) + self._grouped - self._left + len(self._ungrouped)

    def __bool__(self) -> bool:
        return bool(self._ungrouped or self._grouped > self._left or self._ahead)

    def _in_groups(self) -> Iterator[T]:
        return (task for task in islice(self._line, self._head, None) if task is not None)

    def _oldest(self) -> T:
        line, head = self._line, self._head
        while (task := line[head]) is None:
            head += 1
        self._head = head
        return task

    # by prefix affinity

    def take(self, source: HasCache, look_ahead: int, holders: Holders[Any]) -> T:
        """Remove and return the task that a source should take among the ``look_ahead`` oldest ones. The queue must not be empty."""
        if self._ahead or not look_ahead:
            return self.popleft()
        ungrouped, waiting = self._ungrouped, self._grouped - self._left
        if not waiting:
            task = ungrouped[0]
            if len(ungrouped) == 1 or task.prefix is None or not holders.is_affinity_useful(task.prefix):  # no choice
                return ungrouped.popleft()
        if ungrouped and waiting < look_ahead - look_ahead // BATCH:
            self.form_groups(look_ahead, holders)
        task = self._line[self._head] or self._oldest()
        group = task.group
        passed = self._left - task.position  # upper bound of the number of younger tasks that have left before this task
        if passed >= task.slack or (2 * passed >= task.slack and source in group.holders and source.prefix_cache.is_warm(group.key)):
            self._join(group, source)
        else:
            group = self._current.get(source)
            if group is None or group.cold or not group.tasks:  # otherwise it stays with its group
                group = self._choose(source)
            task = group.tasks[0]
        self.discard(task)
        return task

    def _choose(self, source: HasCache) -> Group[T]:
        """Return the group from which a source takes from now on. This group has tasks of its own."""
        group = self._held_group(source) or self._root
        if not group.has_work():  # each group with work is held by other sources
            others = islice((group for group in self._of_others if group.has_work()), COMPARED)
            group = max(others, key=lambda group: (bool(group.cold), len(group.tasks) + group.inner))
        while group.cold:
            group = max(islice(group.cold, COMPARED), key=Group.saves)
        self._join(group, source)
        return group

    def _join(self, group: Group[T], source: HasCache) -> None:
        if group.parent is not None:
            self._current[source] = group
            self._hold(group, source)

    def _held_group(self, source: HasCache) -> Group[T] | None:
        """Return the group with work that a source holds and should take from. Of its groups it has lost some."""
        held, lost = self._held.get(source), []
        best, depth, at = None, 0, 0.0
        for group in islice(reversed(held), COMPARED) if held else ():
            if group.depth >= depth and (group.tasks or group.cold):
                used = source.prefix_cache.warm_since(group.key)
                if used is None:
                    lost.append(group)
                elif group.depth > depth or used > at:
                    best, depth, at = group, group.depth, used
        for group in reversed(lost):  # inner ones first
            if len(group.cold) == group.inner:  # else the list in which it is found would hide inner groups that are listed as held
                del self._held[source][group], group.holders[source]
                self._list(group)
        return best

    # the tree of groups

    def form_groups(self, look_ahead: int, holders: Holders[Any]) -> None:
        """Sort some of the oldest unsorted tasks into groups, unless no sorted task waits and the oldest one needs no group."""
        ungrouped, position = self._ungrouped, self._grouped
        waiting = position - self._left
        if not ungrouped or not look_ahead:
            return
        prefix = ungrouped[0].prefix
        if (prefix is None and not waiting) or not holders.is_affinity_useful(prefix):
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
            group = self._root if prefix is None else groups.get(prefix.keys[-1]) or self._find_group(task, prefix, holders)
            task.group = group
            group.tasks.append(task)
        self._grouped = position

    def _find_group(self, task: T, prefix: Prefix, holders: Holders[Any]) -> Group[T]:
        """Return the group of a task: its longest prefix that another task has had, or that a source holds.

        If the only other task with this prefix still waits, it is moved to the group.
        """
        keys = prefix.keys
        seen, other = self._shared(keys, task.position)
        held = holders.last_held(keys, seen)
        outer = group = self._root
        for shared in (seen, held):
            if shared:
                outer, group = group, self._groups.get(keys[shared - 1]) or self._add_group(prefix, shared, holders)
            if shared == seen and other is not None and other.group.depth < shared:
                self._move(other, group)
        if outer is not group:  # if the inner group was there before, the outer one may be empty
            self._tidy(outer)
        return group

    def _shared(self, keys: tuple[int, ...], position: int) -> tuple[int, T | None]:
        """Return how many keys of the task at ``position`` other tasks have had, and the task that alone had the last one, if it waits."""
        seen = self._seen
        if len(seen) > REMEMBERED:
            seen = self._seen = dict(islice(seen.items(), len(seen) // 2, None))
            self._formed.intersection_update(seen)
        shared, at = 0, SEVERAL
        if not seen.keys().isdisjoint(keys):  # unusual; faster than one by one
            shared = next(place for place in range(len(keys), 0, -1) if keys[place - 1] in seen)
            at = seen[keys[shared - 1]]
            seen.update(dict.fromkeys(keys[:shared], SEVERAL))
        seen.update(dict.fromkeys(keys[shared:], position))
        age = position - at + 1  # the task at ``position`` is the last one of the line
        return shared, self._line[-age] if shared and at != SEVERAL and age <= len(self._line) else None

    def _move(self, task: T, group: Group[T]) -> None:
        before, task.group = task.group, group
        group.tasks.append(task)
        self._tidy(before)

    def _add_group(self, prefix: Prefix, blocks: int, holders: Holders[Any]) -> Group[T]:
        """Add the group of ``blocks`` keys of a prefix, and those around it that were groups before."""
        keys, groups, formed = prefix.keys, self._groups, self._formed
        outer = next((count for count in range(blocks - 1, 0, -1) if keys[count - 1] in groups), 0)
        group = groups[keys[outer - 1]] if outer else self._root
        between = () if formed.isdisjoint(keys[outer : blocks - 1]) else range(outer + 1, blocks)
        for count in (*between, blocks):
            key, parent = keys[count - 1], group
            if count < blocks and (key not in formed or key in groups or key == keys[blocks - 1]):  # keys may be equal by chance
                continue
            group = groups[key] = Group(key, prefix.lengths[count - 1], count, parent)
            formed.add(key)
            parent.inner += 1
            parent.cold[group] = None
            group.listed = parent.cold
            for source in holders.of(key):
                self._hold(group, source)
        return group

    def _hold(self, group: Group[T], source: HasCache) -> None:
        """Record that a source holds a group and the groups around it, and used them last."""
        held = self._held.setdefault(source, OrderedDict())
        while (parent := group.parent) is not None:
            if source in group.holders:
                held.move_to_end(group)
            else:
                group.holders[source] = held[group] = None
                self._list(group)
            group = parent

    def _list(self, group: Group[T]) -> None:
        """Enter a group in the list where sources look for it that do not hold it."""
        assert group.parent is not None
        listed = self._of_others if group.holders else group.parent.cold
        if listed is not group.listed:
            del group.listed[group]
            listed[group] = None
            group.listed = listed
