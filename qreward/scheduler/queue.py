"""The queue of a pool. Sources with a free slot take tasks from it.

There are ten priority levels. Entries are ordered by their arrival time plus ``AGEING`` seconds per level, so that urgent tasks go first
and no task starves. Within a level retries go first. Then the tenants take turns by cost (see ``fair_queueing``). Within a tenant, single
tasks (those outside of batches) go first. Then the batches of the tenant take turns, again by cost.

Tasks that ended while they waited are removed when the queue encounters them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from math import inf

from qreward.scheduler.affinity import AffineQueue
from qreward.scheduler.fair_queueing import Fair, FairHeap, Flow
from qreward.scheduler.heap import IndexedHeap
from qreward.scheduler.state import BatchFeed, Pool, Source, Task, TaskState

QUEUED = TaskState.QUEUED
PATIENCE = 600.0
"""Seconds of waiting after which a task without a deadline is as urgent as a task whose deadline is now."""
MOST_GROUPS = 32
"""Maximum number of groups of retries that are searched when a source takes a task. Only the oldest task of each group is checked."""
LAST = 1e9
"""Seconds by which each failure moves a task back in the order for a half-open source."""
BULK = 60.0
"""If a batch has not been served for this number of seconds, its next item goes ahead of single tasks of the same level and tenant that
arrive afterwards."""
PASSED_OVER = 0.5
"""Share (0 to 1) of the time between the arrival of a single task and its ``due`` time. Until this share has passed, later tasks may be
taken before this task because of their prefixes."""
LEAST_COST = 1.0
LEVELS = 10
AGEING = 15.0
"""Seconds of waiting that outweigh one level of priority."""
SWEEP = 64
"""Minimum number of tasks that must have ended in the queue before all ended tasks are removed together."""


def due(task: Task) -> float:
    """Return the time by which a task is ordered: its deadline, or ``PATIENCE`` seconds after its submission if that is sooner.

    Tasks of equal timeouts keep their order, and no task starves.
    """
    return min(task.born + PATIENCE, task.deadline)


def rank(task: Task, source: Source) -> float:
    """Return the sort key of a task that was sent before. The key is the arrival time of the task, except for a half-open source.

    For a half-open source, tasks with fewer failures come first. Without this order, a few tasks that always fail would keep every source
    out of service.
    """
    return task.born if source.health.half_open_limit > 1 else task.born + LAST * len(task.failures)


def take_queued(line: AffineQueue[Task], source: Source, pool: Pool) -> Task:
    """Remove and return the task of a line that a source should take. At least one task of the line must not have ended."""
    while (task := line.take(source, pool.compared, pool.holders)).state is not QUEUED:
        pass
    return task


class DeadlineQueue:
    """Holds tasks that were never sent, ordered by deadline. Tasks with equal deadlines are in the order of arrival.

    Tasks of equal timeouts arrive in the order of their deadlines. They are kept in ``line``, from which a source may take a later task by
    prefix affinity. A task whose deadline is earlier than the deadline of the last task in ``line`` is kept in the heap ``early``. Both
    ``line`` and ``early`` may contain tasks that have ended.
    """

    __slots__ = ("_last", "early", "line")

    def __init__(self) -> None:
        self.line: AffineQueue[Task] = AffineQueue()
        self.early: IndexedHeap[Task] | None = None  # created when it is needed
        self._last = -inf  # due time of the last task in ``line``

    def put(self, task: Task) -> None:
        by = task.born + PATIENCE  # inlined from ``due``: hot path
        if task.deadline < by:  # noqa: PLR1730
            by = task.deadline
        if by >= self._last or not (self.line or self.early):
            self._last = by
            self.line.append(task)
        else:
            if self.early is None:
                self.early = IndexedHeap()
            self.early.put(task, by)

    def head(self) -> Task | None:
        """Return the most urgent task, or None."""
        first = self.line.first()
        while first is not None and first.state is not QUEUED:
            self.line.popleft()
            first = self.line.first()
        if self.early is not None:
            while (task := self.early.first()) is not None and task.state is not QUEUED:
                self.early.drop(task)
            if task is not None and (first is None or self.early.rank() < due(first)):
                return task
        return first

    def take(self, head: Task, source: Source, now: float) -> Task:
        """Remove and return the task that a source should take. ``head`` is the result of ``self.head()``."""
        if self.early is not None and head in self.early:
            self.early.drop(head)
            return head
        late = now - head.born > PASSED_OVER * (due(head) - head.born)
        return self.line.popleft() if late else take_queued(self.line, source, head.pool)

    def sweep(self) -> None:
        """Drop all tasks that have ended."""
        self.line.keep([task for task in self.line if task.state is QUEUED])
        if self.early is not None:
            for task in [task for task in self.early if task.state is not QUEUED]:
                self.early.drop(task)

    def all(self) -> list[Task]:
        """Return the tasks that still wait."""
        self.sweep()
        return [*self.line, *(self.early or ())]

    def __len__(self) -> int:
        return len(self.line) + len(self.early or ())


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
    return not task.pool.answers_sooner(now, task, seconds, besides=source)


class RetryQueue:
    """Holds tasks that were sent before, grouped by the sources at which they failed.

    With these groups, the tasks that a source should take are found without a look at every task.
    """

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[GroupKey, AffineQueue[Task]] = {}

    def put(self, task: Task) -> None:
        running = None if task.attempt is None else task.attempt.source
        key = running, task.unfit, tuple(source for source, _ in task.failures)
        if key not in self.groups:
            self.groups[key] = AffineQueue()
        self.groups[key].append(task)

    def first(self, source: Source, now: float) -> AffineQueue[Task] | None:
        """Return the group whose first task a source should take, or None.

        Only the first ``MOST_GROUPS`` groups are searched.
        """
        best: AffineQueue[Task] | None = None
        least = inf
        for group in list(islice(self.groups, MOST_GROUPS)):
            head = self._head(group)
            if head is not None and (by := rank(head, source)) < least and should_take(source, head, now):
                best, least = self.groups[group], by
        return best

    def waits(self) -> bool:
        """Return whether any task waits."""
        while self.groups:
            if self._head(next(iter(self.groups))) is not None:
                return True
        return False

    def unservable(self, sources: Sequence[Source]) -> list[Task]:
        """Remove and return the tasks that none of the sources can serve until an operator marks one healthy."""
        keys = [key for key in self.groups if all(source in key[1] or source.health.marked_unhealthy for source in sources)]
        return [task for key in keys for task in self.groups.pop(key).empty() if task.state is QUEUED]

    def sweep(self) -> None:
        """Drop all tasks that have ended."""
        for line in self.groups.values():
            line.keep([task for task in line if task.state is QUEUED])

    def all(self) -> list[Task]:
        """Return the tasks that still wait."""
        return [task for task in chain.from_iterable(self.groups.values()) if task.state is QUEUED]

    def _head(self, group: GroupKey) -> Task | None:
        """Return the oldest task of a group. If no task is left, remove the group and return None."""
        line = self.groups[group]
        while (head := line.first()) is not None and head.state is not QUEUED:
            line.popleft()
        if head is None:
            del self.groups[group]
        return head

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))


class BatchFlow(Flow):
    """The flow of one batch. It takes turns with the other batches of the same tenant."""

    __slots__ = ("feed",)

    def __init__(self, feed: BatchFeed) -> None:
        self.feed = feed

    @property
    def born(self) -> float:
        """The arrival time of a single task that is as urgent as the next item of this batch."""
        return self.feed.served + BULK

    @property
    def tenant(self) -> str | None:
        return self.feed.tenant

    def waits(self) -> bool:
        return self.feed.queued


class TenantFlow(Flow):
    """The flow of one tenant at one level. It holds the waiting tasks and batches of the tenant, except retries."""

    __slots__ = ("batches", "name", "singles")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.singles = DeadlineQueue()
        self.batches: Fair[BatchFeed, BatchFlow] = Fair()

    def next(self, allow_batch: bool) -> Task | BatchFlow | None:
        """Return the next entry, or None if there is no entry.

        The entry is a single task if one waits, unless a batch has waited ``BULK`` seconds longer than this task. Otherwise the entry is a
        batch. If ``allow_batch`` is False, no batch is returned.
        """
        head = self.singles.head()
        if allow_batch and self.batches.flows:
            first = self.batches.first()
            if first is not None and (head is None or first.born < head.born):
                return first
        return head

    def waits(self) -> bool:
        return self.next(allow_batch=True) is not None

    def has_single(self) -> bool:
        return self.singles.head() is not None


Found = Task | BatchFlow | AffineQueue[Task] | None
"""A single task, a batch whose next item is to be taken, or a group of retries whose head is to be taken."""


class PriorityLevel:
    """Holds the entries of one priority level."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.again = RetryQueue()
        self.items_again = RetryQueue()  # retries of batch items
        self._tenants: Fair[str | None, TenantFlow] = Fair()
        self._online: FairHeap[TenantFlow] = FairHeap(TenantFlow.has_single)  # the tenants with single tasks, if there are several tenants

    # adding

    def tenant(self, name: str | None) -> TenantFlow:
        """Return the tenant of that name, created if needed. The caller must then add a task or a feed to the tenant."""
        alone = self._tenants.alone
        return alone if alone is not None and alone.name == name else self._enter(name)

    def put_feed(self, feed: BatchFeed) -> None:
        batches = self.tenant(feed.tenant).batches
        batch = batches.flows.get(feed)
        if batch is None:
            batch = BatchFlow(feed)
            batches.add(feed, batch)
        if batches.alone is None:
            batches.awake(batch)
        feed.queued = True

    def _enter(self, name: str | None) -> TenantFlow:
        tenants = self._tenants
        tenant = tenants.flows.get(name)
        if tenant is None:
            if tenants.alone is not None:
                self._online.join(tenants.alone)
            tenant = TenantFlow(name)
            tenants.add(name, tenant)
        if tenants.alone is None:
            tenants.awake(tenant)
            self._online.join(tenant)
        return tenant

    # taking

    def take(self, source: Source, now: float, allow_batch: bool, cost: Callable[[Task], float]) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the task that a source should take, with its feed if it is a batch item that was never sent."""
        if self.again.groups or self.items_again.groups:
            return self.remove(self.best(source, now, allow_batch)[1], source, now, cost)
        alone = self._tenants.alone
        return self.remove(self._turn(allow_batch) if alone is None else alone.next(allow_batch), source, now, cost)

    def best(self, source: Source, now: float, allow_batch: bool) -> tuple[float, Found]:
        """Find the entry that a source should take.

        Returns:
            The first value is the arrival time of the most urgent entry, or inf if there is no entry for this source.
            The second value is the entry that the source should take, or None.
        """
        alone = self._tenants.alone
        fresh = self._turn(allow_batch) if alone is None else alone.next(allow_batch)
        found: Found = fresh
        age = first = inf if fresh is None else fresh.born
        if alone is None and (online := self._online.first()) is not None:
            single = online.next(allow_batch=False)  # it may be more urgent than a batch whose turn it is
            age = age if single is None else min(age, single.born)
        if self.again.groups or self.items_again.groups:
            line = self._retried(source, now)
            if line is not None and (retried := rank(line.head(), source)) <= first:
                age, found = min(age, retried), line
        return age, found

    def remove(self, found: Found, source: Source, now: float, cost: Callable[[Task], float]) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the entry ``found`` by ``best``, or another entry of the same line that suits the source better."""
        if found is None:
            return None
        if isinstance(found, AffineQueue):
            return take_queued(found, source, found.head().pool), None
        alone = self._tenants.alone
        tenant = alone or self._tenants.flows[found.tenant]
        if not isinstance(found, Task):
            return self._take_item(tenant, found, source, now, cost)
        task = tenant.singles.take(found, source, now)
        if alone is None:
            self._charge(task, cost, tenant)
        return task, None

    def _take_item(
        self, tenant: TenantFlow, batch: BatchFlow, source: Source, now: float, cost: Callable[[Task], float]
    ) -> tuple[Task, BatchFeed]:
        feed = batch.feed
        pool = feed.pool
        task = feed.buffer.take(source, pool.compared, pool.holders)
        task.feed = feed
        feed.served = now
        if not feed.buffer:
            feed.queued = False
        if self._tenants.alone is None or tenant.batches.alone is None:
            self._charge(task, cost, tenant, batch)
        if feed.ended and not feed.queued:
            tenant.batches.forget(feed)
        return task, feed

    def _turn(self, allow_batch: bool) -> Task | BatchFlow | None:
        """Return the next entry of the tenant whose turn it is."""
        tenant = self._tenants.first() if allow_batch else self._online.first()
        return None if tenant is None else tenant.next(allow_batch)

    def _retried(self, source: Source, now: float) -> AffineQueue[Task] | None:
        line = self.again.first(source, now)
        items = self.items_again.first(source, now)
        return items if line is None or (items is not None and rank(items.head(), source) < rank(line.head(), source)) else line

    # costs

    def passed(self, task: Task, cost: Callable[[Task], float]) -> None:
        """Charge a task that was sent without waiting while other tasks wait."""
        alone = self._tenants.alone
        if alone is None or alone.name != task.tenant:
            tenant = self._enter(task.tenant)
            if self._tenants.alone is None:
                self._charge(task, cost, tenant)

    def settle(self, task: Task, charge: float, used: float) -> None:
        """Record the real cost of a task that was charged ``charge``."""
        feed = task.feed
        name = task.tenant if feed is None else feed.tenant
        self._tenants.settle(name, charge, used)
        if feed is not None and (tenant := self._tenants.flows.get(name)) is not None:
            tenant.batches.settle(feed, charge, used)

    def _charge(self, task: Task, cost: Callable[[Task], float], tenant: TenantFlow, batch: BatchFlow | None = None) -> None:
        task.charge = max(LEAST_COST, cost(task))
        if self._tenants.alone is None:
            self._tenants.charge(tenant, task.charge)
        if batch is not None and tenant.batches.alone is None:
            tenant.batches.charge(batch, task.charge)

    # removal

    def waits(self) -> bool:
        """Return whether anything waits."""
        alone = self._tenants.alone
        if alone is not None and alone.has_single():
            return True  # fast path
        if self._tenants.first() is not None:
            return True
        return bool(self.again.groups or self.items_again.groups) and (self.again.waits() or self.items_again.waits())

    def discard(self, task: Task) -> None:
        """Remove a task that has ended, if it is in the line of its tenant."""
        if task.group is not None and task.sent_at is None:  # retries are dropped when they are encountered
            self._tenants.flows[task.tenant].singles.line.discard(task)

    def drop_feed(self, feed: BatchFeed) -> None:
        feed.queued = False
        tenant = self._tenants.flows.get(feed.tenant)
        if tenant is not None:
            tenant.batches.forget(feed)

    def unservable(self, sources: Sequence[Source]) -> list[Task]:
        """Remove and return the tasks that none of the sources can serve."""
        return self.again.unservable(sources) + self.items_again.unservable(sources)

    def tasks(self) -> list[Task]:
        """Return the waiting tasks, except those in the buffers of feeds."""
        singles = [task for tenant in self._tenants.flows.values() for task in tenant.singles.all()]
        return self.again.all() + self.items_again.all() + singles

    def feeds(self) -> list[BatchFeed]:
        """Return the feeds with a non-empty buffer."""
        return [batch.feed for tenant in self._tenants.flows.values() for batch in tenant.batches.flows.values() if batch.waits()]

    def sweep(self) -> None:
        """Drop all tasks that have ended."""
        self.again.sweep()
        self.items_again.sweep()
        for tenant in self._tenants.flows.values():
            tenant.singles.sweep()

    def rest(self) -> None:
        """Reset fair queueing, because nothing waits. This also releases references to tenants and feeds."""
        alone = self._tenants.alone
        if alone is None:
            self._tenants.clear()
            self._online.empty()
        elif alone.batches.flows:
            alone.batches.clear()

    def __len__(self) -> int:
        tenants = self._tenants.flows.values()
        tasks = len(self.again) + len(self.items_again) + sum(len(tenant.singles) for tenant in tenants)
        return tasks + sum(len(batch.feed.buffer) for tenant in tenants for batch in tenant.batches.flows.values() if batch.waits())


class Queue:
    """The queue of one pool. It holds tasks, and feeds whose buffer is not empty.

    Args:
        cost: function that returns the expected cost of a task, in any unit, such as tokens; at least 1 is charged. It is called only while
            several tenants or batches share a level.
    """

    def __init__(self, cost: Callable[[Task], float] = lambda _task: 1.0) -> None:
        self.cost = cost  # as given; may be changed at any time
        self.levels: list[int] = []  # the priority levels with entries; empty if nothing waits
        self.waiting = 0  # waiting tasks that do not belong to a batch, including those that were sent before
        self.again = 0  # waiting tasks that were sent before
        self._levels: dict[int, PriorityLevel] = {}  # levels without entries are kept, since they are often needed again soon
        self._ended = 0
        self._most_ended = SWEEP

    # adding

    def put(self, task: Task) -> None:
        """Add a task. A task that was sent before goes ahead of the new tasks of its level."""
        task.state = QUEUED
        task.queued = True
        level = self._open(task.level)
        self.again += task.sent_at is not None
        if task.feed is not None:
            level.items_again.put(task)
            return
        self.waiting += 1
        if task.sent_at is not None:
            level.again.put(task)
        else:
            level.tenant(task.tenant).singles.put(task)

    def put_feed(self, feed: BatchFeed) -> None:
        """Add a feed with a non-empty buffer."""
        if not feed.queued:
            self._open(feed.level).put_feed(feed)

    # taking

    def key(self, source: Source, now: float, *, allow_batch: bool = True) -> float:
        """Return the sort key of the best entry for a source, or inf if there is no entry.

        The pool with the smallest key is served first. For ``allow_batch`` see ``take``.
        """
        return min((self._levels[level].best(source, now, allow_batch)[0] + level * AGEING for level in self.levels), default=inf)

    def take(self, source: Source, now: float, *, allow_batch: bool = True) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the best task for a source, or return None if there is no task.

        If the task is a batch item that was never sent, its feed is returned with it.

        Args:
            source: the source that takes the task.
            now: the time, in seconds.
            allow_batch: False if batch items that were never sent must wait. Retries of batch items are taken nevertheless, because this
                source may be the only source that they do not avoid.
        """
        levels = self.levels
        if len(levels) == 1:
            level = self._levels[levels[0]]
            entry = level.take(source, now, allow_batch, self.cost)
        elif levels:
            found = [(each, *self._levels[each].best(source, now, allow_batch)) for each in levels]
            number, _, what = min(found, key=lambda best: best[1] + best[0] * AGEING)
            level = self._levels[number]
            entry = level.remove(what, source, now, self.cost)
        else:
            return None
        if entry is not None:
            task, feed = entry
            if feed is None:
                self._out((task,))
            elif feed.queued:
                return entry
        self._close_if_idle(level)
        return entry

    def left(self) -> float:
        """Return the number of items that the waiting feeds still hold or will read; inf if the length of an input is unknown."""
        return sum(len(feed.buffer) if feed.ended else inf if feed.left is None else feed.left for feed in self._feeds())

    def empty(self) -> list[Task]:
        """Remove and return all tasks, including those in the buffers of feeds."""
        tasks = [task for level in self._busy() for task in level.tasks()]
        self._out(tasks)
        for feed in self._feeds():
            tasks += feed.buffer
            feed.buffer.clear()
            feed.queued = False
        self._levels.clear()
        self.levels.clear()
        return tasks

    def unservable(self, sources: Sequence[Source]) -> list[Task]:
        """Remove and return the tasks that were sent before and that none of the sources can serve."""
        if not self.again:
            return []
        tasks = [task for level in self._busy() for task in level.unservable(sources)]
        self._out(tasks)
        for level in self._busy():
            self._close_if_idle(level)
        return tasks

    def drop_feed(self, feed: BatchFeed) -> None:
        """Remove a feed for good, if it is in the queue."""
        if feed.level in self.levels:
            self._levels[feed.level].drop_feed(feed)
            self._close_if_idle(self._levels[feed.level])

    def ended(self, task: Task) -> None:
        """Remove a task that has ended; its state must have changed before. Does nothing if the task is not in the queue."""
        if task.queued:
            self._out((task,))
            self._levels[task.level].discard(task)
            self._ended += 1
            if self._ended >= self._most_ended:
                self._sweep()
            self._close_if_idle(self._levels[task.level])

    def take_back(self, task: Task) -> None:
        """Remove a task that was sent before and no longer needs to wait; its state must have changed before."""
        self._out((task,))
        level = self._levels[task.level]
        level.again.sweep()
        level.items_again.sweep()
        self._close_if_idle(level)

    # costs

    def passed(self, task: Task) -> None:
        """Charge the tenant of a task that is sent without waiting while other tasks wait."""
        if task.level in self.levels:
            self._levels[task.level].passed(task, self.cost)

    def settle(self, task: Task, used: float) -> None:
        """When a task has ended, replace its charge by its real cost. Does nothing if the task was not charged.

        Args:
            task: a task with a charge; settling clears the charge.
            used: real cost, in the unit of ``cost``.
        """
        charge, task.charge = task.charge, 0.0
        if task.level in self.levels:
            self._levels[task.level].settle(task, charge, used)

    def __len__(self) -> int:
        return sum(map(len, self._busy()))

    def _busy(self) -> list[PriorityLevel]:
        return [self._levels[level] for level in self.levels]

    def _feeds(self) -> list[BatchFeed]:
        return [feed for level in self._busy() for feed in level.feeds()]

    def _out(self, tasks: Iterable[Task]) -> None:
        """Update the counts for tasks that leave the queue."""
        for task in tasks:
            task.queued = False
            self.waiting -= task.feed is None
            self.again -= task.sent_at is not None

    def _open(self, number: int) -> PriorityLevel:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = PriorityLevel(number)
        if number not in self.levels:
            insort(self.levels, number)
        return level

    def _close_if_idle(self, level: PriorityLevel) -> None:
        if not level.waits() and level.number in self.levels:
            level.rest()
            self.levels.remove(level.number)

    def _sweep(self) -> None:
        """Drop ended tasks. The next sweep comes after as many tasks have ended as are left now, so the cost per task is constant."""
        for level in self._busy():
            level.sweep()
        self._ended, self._most_ended = 0, max(SWEEP, len(self))
