"""Makers of what waits, for tests of the queue. A task's payload is what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed, Task

A, B, C = (Source(name, Random(0)) for name in "abc")
POOL = Pool("p", [], ExpectedFinish(), Queue())


def task(
    level: int = 5,
    born: float = 0.0,
    *,
    avoids: tuple[Source, ...] | None = None,
    timeout: float | None = None,
    tenant: str | None = None,
    cost: float = 1.0,
) -> Task:
    """A task that waits; one that these sources cannot serve has been sent before."""
    made = Task(cost, POOL, level, timeout, None, 0, tenant=tenant)
    made.born = born
    if timeout is not None:
        made.deadline = born + timeout
    if avoids is not None:
        made.sent_at, made.unfit = born, avoids
    return made


def feed(items: int | Iterable[float], level: int = 5, served: float = 0.0, tenant: str | None = None) -> BatchFeed:
    """A bulk of so many items, or of items of these costs."""
    made = BatchFeed(POOL, level, None, served, tenant=tenant)
    costs = [1.0] * items if isinstance(items, int) else items
    made.buffer.extend(task(level, cost=cost) for cost in costs)
    return made


def queue(*entries: Task | BatchFeed) -> Queue:
    made = Queue()
    for entry in entries:
        if isinstance(entry, Task):
            made.put(entry)
        else:
            made.put_feed(entry)
    return made


def order(waiting: Queue, source: Source = A, now: float = 0.0, *, patience: float = 0.0) -> list[Task]:
    """All that a source would take, in order."""
    taken = []
    while (entry := waiting.take(source, now, patience=patience)) is not None:
        taken.append(entry[0])
    return taken
