"""The queue of one priority level: retries first, then tenants in turn; of a tenant its single tasks first, then its batches in turn.

Single tasks are those outside of batches. Tenants, and the batches of a tenant, share by cost (see ``fair``). The module does not know the
other levels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.queueing.entries import QUEUED, DeadlineQueue, RetryQueue, rank
from qreward.scheduler.queueing.fair import Fair, FairHeap, Flow
from qreward.scheduler.request import BatchFeed, Task

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source

BULK = 60.0
"""Seconds of waiting after which a batch's next item goes ahead of newer single tasks of its level and tenant."""
LEAST_COST = 1.0


class Bulk(Flow):
    """The flow of one batch among the batches of its tenant."""

    __slots__ = ("feed",)

    def __init__(self, feed: BatchFeed) -> None:
        self.feed = feed

    @property
    def born(self) -> float:
        """Arrival time of a single task that would be as urgent as the next item."""
        return self.feed.served + BULK

    @property
    def tenant(self) -> str | None:
        return self.feed.tenant

    def waits(self) -> bool:
        return self.feed.lined


class Tenant(Flow):
    """The flow of one tenant: all it has waiting at a level, except retries."""

    __slots__ = ("bulks", "name", "singles")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.singles = DeadlineQueue()
        self.bulks: Fair[BatchFeed, Bulk] = Fair()

    def next(self, bulk: bool) -> Task | Bulk | None:
        """Return the next entry: a single task, unless none waits or a batch has waited for long. ``bulk``: batches may be taken."""
        head = self.singles.head()
        if bulk and self.bulks.flows:
            first = self.bulks.first()
            if first is not None and (head is None or first.born < head.born):
                return first
        return head

    def waits(self) -> bool:
        return self.next(bulk=True) is not None

    def has_single(self) -> bool:
        return self.singles.head() is not None


Found = Task | Bulk | deque[Task] | None
"""A single task, a batch whose next item is to be taken, or a group of retries whose head is to be taken."""


class PriorityLevel:
    """The entries of one level."""

    __slots__ = ("_online", "_tenants", "again", "items_again", "level")

    def __init__(self, level: int) -> None:
        self.level = level
        self.again = RetryQueue()
        self.items_again = RetryQueue()  # retries of batch items
        self._tenants: Fair[str | None, Tenant] = Fair()
        self._online: FairHeap[Tenant] = FairHeap(Tenant.has_single)  # kept while there are several tenants

    # adding

    def tenant(self, name: str | None) -> Tenant:
        """Return the tenant of that name, created if needed. The caller is about to add a task or a feed to it."""
        alone = self._tenants.alone
        return alone if alone is not None and alone.name == name else self._enter(name)

    def put_feed(self, feed: BatchFeed) -> None:
        bulks = self.tenant(feed.tenant).bulks
        bulk = bulks.flows.get(feed)
        if bulk is None:
            bulk = Bulk(feed)
            bulks.add(feed, bulk)
        if bulks.alone is None:
            bulks.awake(bulk)
        feed.lined = True

    def _enter(self, name: str | None) -> Tenant:
        tenants = self._tenants
        tenant = tenants.flows.get(name)
        if tenant is None:
            if tenants.alone is not None:
                self._online.join(tenants.alone)
            tenant = Tenant(name)
            tenants.add(name, tenant)
        if tenants.alone is None:
            tenants.awake(tenant)
            self._online.join(tenant)
        return tenant

    # taking

    def take(self, source: Source, now: float, bulk: bool, cost: Callable[[Task], float]) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the task that a source should take, with its feed if it is a batch item that was never sent."""
        if self.again.groups or self.items_again.groups:
            return self.remove(self.best(source, bulk)[1], now, cost)
        alone = self._tenants.alone
        return self.remove(self._turn(bulk) if alone is None else alone.next(bulk), now, cost)

    def best(self, source: Source, bulk: bool) -> tuple[float, Found]:
        """Return what a source should take, and the arrival time of the most urgent entry that it may take; inf if there is none."""
        alone = self._tenants.alone
        fresh = self._turn(bulk) if alone is None else alone.next(bulk)
        found: Found = fresh
        age = first = inf if fresh is None else fresh.born
        if alone is None and (online := self._online.first()) is not None:
            single = online.next(bulk=False)  # a batch's turn must not cost a single task its rank among the levels
            age = age if single is None else min(age, single.born)
        if self.again.groups or self.items_again.groups:
            line = self._retried(source)
            if line is not None and (retried := rank(line[0], source)) <= first:
                age, found = min(age, retried), line
        return age, found

    def remove(self, found: Found, now: float, cost: Callable[[Task], float]) -> tuple[Task, BatchFeed | None] | None:
        """Remove and return the entry that ``best`` has just found."""
        if found is None:
            return None
        if isinstance(found, deque):
            return found.popleft(), None
        alone = self._tenants.alone
        tenant = alone or self._tenants.flows[found.tenant]
        if not isinstance(found, Task):
            return self._take_item(tenant, found, now, cost)
        tenant.singles.pop()
        if alone is None:
            self._charge(found, cost, tenant)
        return found, None

    def _take_item(self, tenant: Tenant, bulk: Bulk, now: float, cost: Callable[[Task], float]) -> tuple[Task, BatchFeed]:
        feed = bulk.feed
        task = feed.buffer.popleft()
        task.feed = feed
        feed.served = now
        if not feed.buffer:
            feed.lined = False
        if self._tenants.alone is None or tenant.bulks.alone is None:
            self._charge(task, cost, tenant, bulk)
        if feed.ended and not feed.lined:
            tenant.bulks.forget(feed)
        return task, feed

    def _turn(self, bulk: bool) -> Task | Bulk | None:
        """Return the next entry of the tenant whose turn it is."""
        tenant = self._tenants.first() if bulk else self._online.first()
        return None if tenant is None else tenant.next(bulk)

    def _retried(self, source: Source) -> deque[Task] | None:
        line = self.again.first(source)
        items = self.items_again.first(source)
        return items if line is None or (items is not None and rank(items[0], source) < rank(line[0], source)) else line

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
            tenant.bulks.settle(feed, charge, used)

    def _charge(self, task: Task, cost: Callable[[Task], float], tenant: Tenant, bulk: Bulk | None = None) -> None:
        task.charge = max(LEAST_COST, cost(task))
        if self._tenants.alone is None:
            self._tenants.charge(tenant, task.charge)
        if bulk is not None and tenant.bulks.alone is None:
            tenant.bulks.charge(bulk, task.charge)

    # removal

    def waits(self) -> bool:
        """Return whether anything waits."""
        alone = self._tenants.alone
        if alone is not None and (line := alone.singles.line) and line[0].state is QUEUED:
            return True  # fast path
        if self._tenants.first() is not None:
            return True
        return bool(self.again.groups or self.items_again.groups) and (self.again.waits() or self.items_again.waits())

    def drop_feed(self, feed: BatchFeed) -> None:
        feed.lined = False
        tenant = self._tenants.flows.get(feed.tenant)
        if tenant is not None:
            tenant.bulks.forget(feed)

    def most_avoided(self) -> int:
        """Return the most sources that a task sent before avoids; -1 if there is no such task."""
        return max((line.most_avoided for line in (self.again, self.items_again) if line.groups), default=-1)

    def reclaim(self, usable: tuple[Source, ...]) -> list[Task]:
        """Remove and return the tasks that avoid all of the usable sources."""
        return self.again.reclaim(usable) + self.items_again.reclaim(usable)

    def tasks(self) -> list[Task]:
        """Return the waiting tasks, except those in the buffers of feeds."""
        singles = [task for tenant in self._tenants.flows.values() for task in tenant.singles.all()]
        return self.again.all() + self.items_again.all() + singles

    def feeds(self) -> list[BatchFeed]:
        """Return the feeds with a non-empty buffer."""
        return [bulk.feed for tenant in self._tenants.flows.values() for bulk in tenant.bulks.flows.values() if bulk.waits()]

    def sweep(self) -> None:
        """Drop all tasks that have ended."""
        self.again.sweep()
        self.items_again.sweep()
        for tenant in self._tenants.flows.values():
            tenant.singles.sweep()

    def rest(self) -> None:
        """Reset fair queueing, since nothing waits, and release references to tenants and feeds."""
        alone = self._tenants.alone
        if alone is None:
            self._tenants.clear()
            self._online.clear()
        elif alone.bulks.flows:
            alone.bulks.clear()

    def __len__(self) -> int:
        tenants = self._tenants.flows.values()
        tasks = len(self.again) + len(self.items_again) + sum(len(tenant.singles) for tenant in tenants)
        return tasks + sum(len(bulk.feed.buffer) for tenant in tenants for bulk in tenant.bulks.flows.values() if bulk.waits())
