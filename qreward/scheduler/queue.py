"""The queue of a pool. Sources with a free slot take tasks from it.

There are ten priority levels. Entries are ordered by their arrival time plus ``AGEING`` seconds per level, so that urgent tasks go first
and no task starves. Within a level a retry goes ahead of what arrived after it. Then the tenants take turns, one request each. Within a
tenant, single tasks (those outside of batches) go first. Then the batches of the tenant take turns, one item each.

Tasks that ended while they waited are removed when the queue encounters them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import NamedTuple

from qreward.scheduler.prefixes import AffineQueue
from qreward.scheduler.source import Source
from qreward.scheduler.task import BULK, BatchFeed, Task, TaskState

QUEUED = TaskState.QUEUED
DUE_AFTER = 600.0
"""Seconds of waiting after which a task without a deadline is as urgent as a task whose deadline is now."""
MOST_GROUPS = 32
"""Maximum number of groups of retries that are searched when a source takes a task. Only the oldest task of each group is checked."""
LAST = 1e9
"""Seconds by which each failure moves a task back in the order for a half-open source. Otherwise a few tasks that always fail would keep
every source out of service."""
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
    return min(task.born + DUE_AFTER, task.deadline)


class RetryKey(NamedTuple):
    """What decides which sources should take a task that was sent before. So these are found without a look at every task."""

    level: int
    running: Source | None  # the source of its attempt in flight
    unfit: tuple[Source, ...]  # the sources that cannot serve it
    failed: tuple[Source, ...]  # the sources at which it failed


def should_take(source: Source, task: Task, now: float) -> bool:
    """Return whether a source with a free slot should take a task that was sent before.

    A source takes it unless a source at which the task has failed is expected to answer it sooner nevertheless. A source at which it has
    failed, or that gets a copy of a task in flight, takes it only if no other source is expected to answer it sooner.
    """
    burden = task.burden(source)
    if burden == inf:
        return False
    seconds = source.finishes_in(now, task)
    if burden == 1.0 and task.attempt is None:
        return all(seconds <= failed.finishes_in(now, task) for failed, _ in task.failures)
    return seconds <= task.pool.best(now, task, source)[0]


class Tenant:
    """Holds the waiting tasks and batches of one tenant at one level, except retries.

    Tasks outside of batches are ordered by deadline, and those with equal deadlines by arrival. Tasks of equal timeouts arrive in the order
    of their deadlines. They are kept in ``line``, from which a source may take a later task by prefix affinity. A task whose deadline is
    earlier than the deadline of the last task in ``line`` is kept in the heap ``early``. Both may contain tasks that have ended.
    """

    __slots__ = ("_last", "batches", "early", "line")

    def __init__(self) -> None:
        self.line: AffineQueue = AffineQueue()
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

    def next(self) -> Task | BatchFeed | None:
        """Return a single task if one waits, unless a batch has waited ``BULK`` seconds longer; otherwise a batch, or None."""
        head = self.line.first()
        while head is not None and head.state is not QUEUED:
            self.line.popleft()
            head = self.line.first()
        while self.early:
            by, _, task = self.early[0]
            if task.state is QUEUED:
                head = task if head is None or by < order_time(head) else head
                break
            heappop(self.early)
        if self.batches:
            feed = next(iter(self.batches))
            if head is None or feed.born < head.born:
                return feed
        return head

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

    def take_item(self, feed: BatchFeed, source: Source, now: float) -> Task:
        """Remove and return the item of a batch that a source should take. Then it is the turn of the tenant's next batch."""
        pool = feed.pool
        task = feed.buffer.take(source, pool.affinity_look_ahead, pool.holders)
        task.feed = feed
        feed.born = now + BULK
        if len(self.batches) > 1:
            self.batches.move_to_end(feed)
        return task

    def sweep(self) -> None:
        self.line.keep([task for task in self.line if task.state is QUEUED])
        self.early = [entry for entry in self.early if entry[2].state is QUEUED]
        heapify(self.early)

    def __len__(self) -> int:
        return len(self.line) + len(self.early) + sum(len(feed.buffer) for feed in self.batches)


_NONE: OrderedDict[str | None, Tenant] = OrderedDict()

Entry = Task | BatchFeed | deque[Task]
"""A single task, a batch whose next item is to be taken, or a group of retries whose head is to be taken."""


class Queue:
    """The queue of one pool. It holds tasks, and the batches whose buffer is not empty."""

    def __init__(self) -> None:
        self.entries = 0  # waiting tasks except those in the buffers of batches, and batches; 0 if nothing waits
        self.waiting = 0  # waiting tasks that do not belong to a batch, including those that were sent before
        self.again = 0  # waiting tasks that were sent before
        self._levels: dict[int, OrderedDict[str | None, Tenant]] = {}  # those with tenants; of those, the one whose turn it is first
        self._retries: dict[RetryKey, deque[Task]] = {}  # tasks that were sent before, oldest first; some of them may have ended
        self._ended = 0
        self._most_ended = SWEEP

    # adding

    def put(self, task: Task) -> None:
        """Add a task. A task that was sent before goes ahead of the new tasks of its level."""
        task.state = QUEUED
        task.queued = True
        self.entries += 1
        self.waiting += task.feed is None
        if task.sent_at is None:
            self._tenant(task.level, task.tenant).put(task)
        else:
            self.again += 1
            running = None if task.attempt is None else task.attempt.source
            key = RetryKey(task.level, running, task.unfit, tuple(source for source, _ in task.failures))
            self._retries.setdefault(key, deque()).append(task)

    def put_feed(self, feed: BatchFeed) -> None:
        if not feed.queued:
            feed.queued = True
            self.entries += 1
            self._tenant(feed.level, feed.tenant).batches[feed] = None

    def _tenant(self, level: int, name: str | None) -> Tenant:
        if level not in self._levels:
            self._levels[level] = OrderedDict()
        tenant = self._levels[level].get(name)
        if tenant is None:
            tenant = self._levels[level][name] = Tenant()
        return tenant

    # taking

    def best(self, source: Source, now: float, *, patience: float = 0.0) -> tuple[float, int, Entry | None]:
        """Return the best entry for a source, after its sort key and its level; without an entry, the key is inf.

        With ``patience``, of the tasks that were never sent only single ones are taken that have waited for at least so many seconds.
        Retries are taken nevertheless: this source may be the only one for them. Of several pools, the one with the smallest key is served
        first.
        """
        retried = self._best_retries(source, now) if self.again else {}
        levels = {**dict.fromkeys(retried, _NONE), **self._levels} if retried else self._levels
        least, best, found = inf, LEVELS, None
        for level, tenants in levels.items():
            entry: Entry | None = None
            first = earliest = inf
            for tenant in tenants.values():
                each = tenant.next()
                if each is None or (patience and (isinstance(each, BatchFeed) or now - each.born < patience)):
                    continue
                if entry is None:
                    entry, first = each, each.born
                earliest = min(earliest, each.born)
                if isinstance(each, Task):  # it may be more urgent than a batch whose turn it is
                    break
            if level in retried and retried[level][0] <= first:
                earliest, entry = min(earliest, retried[level][0]), retried[level][1]
            key = earliest + level * AGEING
            if key < least or (key == least and level < best):
                least, best, found = key, level, entry
        return least, best, found

    def _best_retries(self, source: Source, now: float) -> dict[int, tuple[float, deque[Task]]]:
        """Return for each level the retries of which a source should take the first one, after the sort key of that task: its arrival."""
        found: dict[int, tuple[float, deque[Task]]] = {}
        for key in list(islice(self._retries, MOST_GROUPS)):
            group = self._retries[key]
            while group and group[0].state is not QUEUED:
                group.popleft()
            if not group:
                del self._retries[key]
                continue
            by = group[0].born + (LAST * len(group[0].failures) if source.health.half_open else 0.0)
            if by < found.get(key.level, (inf,))[0] and should_take(source, group[0], now):
                found[key.level] = by, group
        return found

    def take(self, source: Source, now: float, *, patience: float = 0.0) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the best task for a source, or another task of the same line that suits the source better.

        A batch item that was never sent is returned with its batch. Returns None if there is no task.
        """
        _, level, found = self.best(source, now, patience=patience)
        if found is None:
            return None
        if isinstance(found, deque):
            task = found.popleft()
            self._out(task)
            return task, None
        tenants = self._levels[level]
        tenant = tenants[found.tenant]
        if len(tenants) > 1:
            tenants.move_to_end(found.tenant)
        if isinstance(found, Task):
            task = tenant.take(found, source, now)
            self._out(task)
            self._close_if_idle(level, task.tenant)
            return task, None
        task = tenant.take_item(found, source, now)
        if not found.buffer:
            self.drop_feed(found)
        return task, found

    def left(self) -> float:
        """Return the number of items that wait or will be read by the waiting feeds; inf if the length of an input is unknown."""
        return self.waiting + sum(len(feed.buffer) if feed.ended else inf if feed.left is None else feed.left for feed in self._feeds())

    # removing

    def empty(self) -> list[Task]:
        """Remove and return all tasks, including those in the buffers of feeds."""
        self.sweep()
        tasks = [task for group in self._retries.values() for task in group]
        for tenant in self._tenants():
            tasks += [*tenant.line, *(task for _, _, task in tenant.early)]
        for task in tasks:
            self._out(task)
        for feed in self._feeds():
            tasks += feed.buffer
            feed.buffer.clear()
            feed.queued = False
        self._retries.clear()
        self._levels.clear()
        self.entries = 0
        return tasks

    def unservable(self, sources: Sequence[Source]) -> list[Task]:
        """Remove and return the tasks that were sent before and that none of these sources may take."""
        keys = [
            key
            for key in self._retries
            if all(each is key.running or each in key.unfit or each.health.marked_unhealthy for each in sources)
        ]
        tasks = [task for key in keys for task in self._retries.pop(key) if task.state is QUEUED]
        for task in tasks:
            self._out(task)
        return tasks

    def drop_feed(self, feed: BatchFeed) -> None:
        if feed.queued:
            feed.queued = False
            self.entries -= 1
            del self._levels[feed.level][feed.tenant].batches[feed]
            self._close_if_idle(feed.level, feed.tenant)

    def ended(self, task: Task) -> None:
        """Remove a task that has ended; its state must have changed before. Does nothing if the task is not in the queue."""
        if not task.queued:
            return
        self._out(task)
        if task.sent_at is None:  # retries are dropped when they are encountered
            if task.group is not None:
                self._levels[task.level][task.tenant].line.discard(task)
            self._close_if_idle(task.level, task.tenant)
        self._ended += 1
        if self._ended >= self._most_ended:
            self.sweep()

    def take_back(self, task: Task) -> None:
        """Remove a task that no longer needs to wait, but may wait again later; its state must have changed before."""
        self.ended(task)
        self._sweep_retries()

    def sweep(self) -> None:
        """Drop ended tasks. The next sweep comes after as many tasks have ended as are left now, so the cost per task is constant."""
        self._sweep_retries()
        for tenant in self._tenants():
            tenant.sweep()
        self._ended, self._most_ended = 0, max(SWEEP, len(self))

    def _sweep_retries(self) -> None:
        self._retries = {key: left for key, line in self._retries.items() if (left := deque(task for task in line if task.state is QUEUED))}

    def __len__(self) -> int:
        return sum(map(len, self._retries.values())) + sum(map(len, self._tenants()))

    def _tenants(self) -> list[Tenant]:
        return [tenant for tenants in self._levels.values() for tenant in tenants.values()]

    def _feeds(self) -> list[BatchFeed]:
        return [feed for tenant in self._tenants() for feed in tenant.batches]

    def _out(self, task: Task) -> None:
        task.queued = False
        self.entries -= 1
        self.waiting -= task.feed is None
        self.again -= task.sent_at is not None
        if not self.again:
            self._retries.clear()

    def _close_if_idle(self, level: int, name: str | None) -> None:
        """Forget a tenant if nothing of it waits."""
        tenants = self._levels.get(level)
        if tenants is None or name not in tenants or tenants[name].batches or tenants[name].next() is not None:
            return
        del tenants[name]
        if not tenants:
            del self._levels[level]
