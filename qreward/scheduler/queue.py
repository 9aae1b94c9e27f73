"""The queue of a pool. Sources with a free slot take tasks from it.

There are ten priority levels. Entries are ordered by their arrival time plus ``AGEING`` seconds per level, so that urgent tasks go first
and no task starves. Within a level a retry goes ahead of what arrived after it. Then the tenants take turns, one request each. Within a
tenant, single tasks (those outside of batches) go first. Then the batches of the tenant take turns, one item each.

Tasks that ended while they waited are removed when the queue encounters them.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from math import inf
from operator import attrgetter

from qreward.scheduler.affinity import AffineQueue
from qreward.scheduler.source import Source
from qreward.scheduler.task import BULK, BatchFeed, Task, TaskState

QUEUED = TaskState.QUEUED
PATIENCE = 600.0
"""Seconds of waiting after which a task without a deadline is as urgent as a task whose deadline is now."""
MOST_GROUPS = 32
"""Maximum number of groups of retries that are searched when a source takes a task. Only the oldest task of each group is checked."""
LAST = 1e9
"""Seconds by which each failure moves a task back in the order for a half-open source."""
PASSED_OVER = 0.5
"""Share (0 to 1) of the time between the arrival of a single task and its ``order_time``. Until this share has passed, later tasks may be
taken before this task because of their prefixes."""
LEVELS = 10
AGEING = 15.0
"""Seconds of waiting that outweigh one level of priority."""
SWEEP = 64
"""Minimum number of tasks that must have ended in the queue before all ended tasks are removed together."""


def order_time(task: Task) -> float:
    """Return the time by which a task is ordered, so that tasks of equal timeouts keep their order, and no task starves."""
    return min(task.born + PATIENCE, task.deadline)


def rank(task: Task, source: Source) -> float:
    """Return the sort key of a task that was sent before: its arrival time. For a half-open source, tasks with fewer failures come first,
    or a few tasks that always fail would keep every source out of service."""
    return task.born + LAST * len(task.failures) if source.health.half_open else task.born


GroupKey = tuple[Source | None, tuple[Source, ...], tuple[Source, ...]]
"""The source of the attempt in flight, the sources that cannot serve the task, and the sources at which it failed."""


def should_take(source: Source, task: Task, now: float) -> bool:
    """Return whether a source with a free slot should take a task that was sent before.

    A source takes it unless a source at which the task has failed is expected to answer it sooner nevertheless. A source at which it has
    failed, or that gets a copy of a task in flight, takes it only if no other source is expected to answer it sooner.
    """
    burden = task.burden(source)
    if burden == inf:
        return False
    seconds = source.finish(now, task)
    if burden == 1.0 and task.attempt is None:
        return all(seconds <= failed.finish(now, task) for failed, _ in task.failures)
    return seconds <= task.pool.best(now, task, source)[0]


class RetryQueue:
    """Holds tasks that were sent before, grouped by the sources at which they failed.

    With these groups, the tasks that a source should take are found without a look at every task.
    """

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[GroupKey, deque[Task]] = {}  # oldest first; some of the tasks may have ended

    def put(self, task: Task) -> None:
        running = None if task.attempt is None else task.attempt.source
        key = running, task.unfit, tuple(source for source, _ in task.failures)
        if key not in self.groups:
            self.groups[key] = deque()
        self.groups[key].append(task)

    def first(self, source: Source, now: float) -> deque[Task] | None:
        """Return the group whose first task a source should take, or None."""
        best: deque[Task] | None = None
        least = inf
        for group in list(islice(self.groups, MOST_GROUPS)):
            head = self._head(group)
            if head is not None and (by := rank(head, source)) < least and should_take(source, head, now):
                best, least = self.groups[group], by
        return best

    def waits(self) -> bool:
        while self.groups:
            if self._head(next(iter(self.groups))) is not None:
                return True
        return False

    def unservable(self, sources: Sequence[Source]) -> list[Task]:
        keys = [key for key in self.groups if all(each is key[0] or each in key[1] or each.health.marked_unhealthy for each in sources)]
        return [task for key in keys for task in self.groups.pop(key) if task.state is QUEUED]

    def sweep(self) -> None:
        self.groups = {key: left for key, line in self.groups.items() if (left := deque(task for task in line if task.state is QUEUED))}

    def all(self) -> list[Task]:
        return [task for task in chain.from_iterable(self.groups.values()) if task.state is QUEUED]

    def _head(self, group: GroupKey) -> Task | None:
        """Return the oldest task of a group. If no task is left, remove the group and return None."""
        line = self.groups[group]
        while line and line[0].state is not QUEUED:
            line.popleft()
        if line:
            return line[0]
        del self.groups[group]
        return None

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))


class Tenant:
    """Holds the waiting tasks and batches of one tenant at one level, except retries.

    Tasks outside of batches are ordered by deadline, and those with equal deadlines by arrival. Tasks of equal timeouts arrive in the order
    of their deadlines. They are kept in ``line``, from which a source may take a later task by prefix affinity. A task whose deadline is
    earlier than the deadline of the last task in ``line`` is kept in the heap ``early``. Both may contain tasks that have ended.
    """

    __slots__ = ("_last", "batches", "early", "line")

    def __init__(self) -> None:
        self.line: AffineQueue[Task] = AffineQueue()
        self.early: list[tuple[float, int, Task]] = []  # a heap of order time, number and task
        self._last = -inf  # order time of the last task in ``line``
        self.batches: OrderedDict[BatchFeed, None] = OrderedDict()  # those with a non-empty buffer, the one whose turn it is first

    def put(self, task: Task) -> None:
        by = order_time(task)
        if by >= self._last or not (self.line or self.early):
            self._last = by
            self.line.append(task)
        else:
            heappush(self.early, (by, task.number, task))

    def next(self, allow_batch: bool = True) -> Task | BatchFeed | None:
        """Return a single task if one waits, unless a batch has waited ``BULK`` seconds longer; otherwise a batch, or None."""
        head = self._head()
        if allow_batch and self.batches:
            feed = next(iter(self.batches))
            if head is None or feed.born < head.born:
                return feed
        return head

    def _head(self) -> Task | None:
        first = self.line.first()
        while first is not None and first.state is not QUEUED:
            self.line.popleft()
            first = self.line.first()
        while self.early:
            by, _, task = self.early[0]
            if task.state is QUEUED:
                return task if first is None or by < order_time(first) else first
            heappop(self.early)
        return first

    def take(self, head: Task, source: Source, now: float) -> Task:
        """Remove and return the single task that a source should take. ``head`` was returned by ``next``."""
        if self.early and self.early[0][2] is head:
            return heappop(self.early)[2]
        if now - head.born > PASSED_OVER * (order_time(head) - head.born):
            return self.line.popleft()
        pool = head.pool
        while (task := self.line.take(source, pool.affinity_look_ahead, pool.holders)).state is not QUEUED:
            pass
        return task

    def sweep(self) -> None:
        self.line.keep([task for task in self.line if task.state is QUEUED])
        self.early = [entry for entry in self.early if entry[2].state is QUEUED]
        heapify(self.early)

    def tasks(self) -> list[Task]:
        self.sweep()
        return [*self.line, *(task for _, _, task in self.early)]

    def __len__(self) -> int:
        return len(self.line) + len(self.early) + sum(len(feed.buffer) for feed in self.batches)


Found = Task | BatchFeed | deque[Task] | None
"""A single task, a batch whose next item is to be taken, or a group of retries whose head is to be taken."""


class PriorityLevel:
    """Holds the entries of one priority level."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.delay = number * AGEING
        self.again = RetryQueue()
        self.tenants: OrderedDict[str | None, Tenant] = OrderedDict()  # those with entries, the one whose turn it is first

    def put(self, task: Task) -> None:
        if task.sent_at is None:
            self._tenant(task.tenant).put(task)
        else:
            self.again.put(task)

    def put_feed(self, feed: BatchFeed) -> None:
        self._tenant(feed.tenant).batches[feed] = None
        feed.queued = True

    def _tenant(self, name: str | None) -> Tenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = Tenant()
        return tenant

    # taking

    def best(self, source: Source, now: float, allow_batch: bool) -> tuple[float, Found]:
        """Return the sort key of the most urgent entry for a source (inf if there is none), and the entry that it should take."""
        found: Found = None
        first = earliest = inf
        for tenant in self.tenants.values():
            entry = tenant.next(allow_batch)
            if entry is None:
                continue
            if found is None:
                found, first = entry, entry.born
            earliest = min(earliest, entry.born)
            if isinstance(entry, Task):  # it may be more urgent than a batch whose turn it is
                break
        if self.again.groups:
            line = self.again.first(source, now)
            if line is not None and (retried := rank(line[0], source)) <= first:
                return min(earliest, retried) + self.delay, line
        return earliest + self.delay, found

    def take(self, found: Task | BatchFeed | deque[Task], source: Source, now: float) -> tuple[Task, BatchFeed | None]:
        """Remove and return the entry ``found`` by ``best``, or another entry of the same line that suits the source better."""
        if isinstance(found, deque):
            return found.popleft(), None
        tenant = self.tenants[found.tenant]
        if len(self.tenants) > 1:
            self.tenants.move_to_end(found.tenant)
        if isinstance(found, Task):
            return tenant.take(found, source, now), None
        pool = found.pool
        task = found.buffer.take(source, pool.affinity_look_ahead, pool.holders)
        task.feed = found
        found.born = now + BULK
        if not found.buffer:
            found.queued = False
            del tenant.batches[found]
        elif len(tenant.batches) > 1:
            tenant.batches.move_to_end(found)
        return task, found

    # removal

    def close_if_idle(self, name: str | None) -> None:
        """Forget a tenant if nothing of it waits."""
        tenant = self.tenants.get(name)
        if tenant is not None and not tenant.batches and tenant.next() is None:
            del self.tenants[name]

    def discard(self, task: Task) -> None:
        if task.sent_at is None:  # retries are dropped when they are encountered
            if task.group is not None:
                self.tenants[task.tenant].line.discard(task)
            self.close_if_idle(task.tenant)

    def drop_feed(self, feed: BatchFeed) -> None:
        feed.queued = False
        if feed.tenant in self.tenants:
            self.tenants[feed.tenant].batches.pop(feed, None)
            self.close_if_idle(feed.tenant)

    def tasks(self) -> list[Task]:
        return self.again.all() + [task for tenant in self.tenants.values() for task in tenant.tasks()]

    def feeds(self) -> list[BatchFeed]:
        return [feed for tenant in self.tenants.values() for feed in tenant.batches]

    def clear(self) -> None:
        self.again.groups.clear()
        self.tenants.clear()

    def sweep(self) -> None:
        self.again.sweep()
        for tenant in self.tenants.values():
            tenant.sweep()

    def __len__(self) -> int:
        return len(self.again) + sum(map(len, self.tenants.values()))


class Queue:
    """The queue of one pool. It holds tasks, and feeds whose buffer is not empty."""

    def __init__(self) -> None:
        self.levels: list[PriorityLevel] = []  # those with entries, the most urgent one first; empty if nothing waits
        self.waiting = 0  # waiting tasks that do not belong to a batch, including those that were sent before
        self.again = 0  # waiting tasks that were sent before
        self._levels = [PriorityLevel(number) for number in range(LEVELS)]
        self._ended = 0
        self._most_ended = SWEEP

    # adding

    def put(self, task: Task) -> None:
        """Add a task. A task that was sent before goes ahead of the new tasks of its level."""
        task.state = QUEUED
        task.queued = True
        self.again += task.sent_at is not None
        self.waiting += task.feed is None
        self._open(task.level).put(task)

    def put_feed(self, feed: BatchFeed) -> None:
        if not feed.queued:
            self._open(feed.level).put_feed(feed)

    # taking

    def key(self, source: Source, now: float, *, allow_batch: bool = True) -> float:
        """Return the sort key of the best entry for a source, or inf. The pool with the smallest key is served first."""
        return min((level.best(source, now, allow_batch)[0] for level in self.levels), default=inf)

    def take(self, source: Source, now: float, *, allow_batch: bool = True) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the best task for a source, with its feed if it is a batch item that was never sent; None if there is no task.

        Without ``allow_batch``, such items wait. Retries of batch items are taken nevertheless: this source may be the only one for them.
        """
        soonest, level, found = inf, None, None
        for each in self.levels:
            at, entry = each.best(source, now, allow_batch)
            if at < soonest and entry is not None:
                soonest, level, found = at, each, entry
        if level is None or found is None:
            for each in list(self.levels):
                self._close_if_idle(each)
            return None
        task, feed = level.take(found, source, now)
        if feed is None:
            self._out(task)
        elif feed.queued:
            return task, feed
        if task.sent_at is None:
            level.close_if_idle(task.tenant if feed is None else feed.tenant)
        self._close_if_idle(level)
        return task, feed

    def left(self) -> float:
        """Return the number of items that the waiting feeds still hold or will read; inf if the length of an input is unknown."""
        return sum(len(feed.buffer) if feed.ended else inf if feed.left is None else feed.left for feed in self._feeds())

    def empty(self) -> list[Task]:
        """Remove and return all tasks, including those in the buffers of feeds."""
        tasks = [task for level in self.levels for task in level.tasks()]
        for task in tasks:
            self._out(task)
        for feed in self._feeds():
            tasks += feed.buffer
            feed.buffer.clear()
            feed.queued = False
        for level in self.levels:
            level.clear()
        self.levels.clear()
        return tasks

    def unservable(self, sources: Sequence[Source]) -> list[Task]:
        if not self.again:
            return []
        tasks = [task for level in self.levels for task in level.again.unservable(sources)]
        for task in tasks:
            self._out(task)
        for level in list(self.levels):
            self._close_if_idle(level)
        return tasks

    def drop_feed(self, feed: BatchFeed) -> None:
        if feed.queued:
            level = self._levels[feed.level]
            level.drop_feed(feed)
            self._close_if_idle(level)

    def ended(self, task: Task) -> None:
        """Remove a task that has ended; its state must have changed before. Does nothing if the task is not in the queue."""
        if task.queued:
            self._out(task)
            self._levels[task.level].discard(task)
            self._ended += 1
            if self._ended >= self._most_ended:
                self._sweep()
            self._close_if_idle(self._levels[task.level])

    def take_back(self, task: Task) -> None:
        """Remove a task that was sent before and no longer needs to wait; its state must have changed before."""
        self._out(task)
        level = self._levels[task.level]
        level.discard(task)
        level.again.sweep()
        self._close_if_idle(level)

    def __len__(self) -> int:
        return sum(map(len, self.levels))

    def _feeds(self) -> list[BatchFeed]:
        return [feed for level in self.levels for feed in level.feeds()]

    def _out(self, task: Task) -> None:
        task.queued = False
        self.waiting -= task.feed is None
        self.again -= task.sent_at is not None

    def _open(self, number: int) -> PriorityLevel:
        level = self._levels[number]
        if level not in self.levels:
            insort(self.levels, level, key=attrgetter("number"))
        return level

    def _close_if_idle(self, level: PriorityLevel) -> None:
        if not (level.tenants or (level.again.groups and level.again.waits())) and level in self.levels:
            self.levels.remove(level)

    def _sweep(self) -> None:
        """Drop ended tasks. The next sweep comes after as many tasks have ended as are left now, so the cost per task is constant."""
        for level in self.levels:
            level.sweep()
        self._ended, self._most_ended = 0, max(SWEEP, len(self))
