"""One logical request (``Task``), one try of it (``Attempt``), and a bulk of tasks that are read as they are needed (``Feed``).

Plain records; the scheduler alone changes what is marked as its own, the shell may keep things in ``handle``.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.core.pool import Pool
    from qreward.core.source import Source
    from qreward.errors import QRewardError
    from qreward.results import AttemptRecord


class State(IntEnum):
    """Where a task is: it waits for a slot, it waits for a time, it is under way, or it is over."""

    NEW = 0
    QUEUED = 1
    WAITING = 2
    SENT = 3
    DONE = 4


class Why(IntEnum):
    """Why the scheduler stops an attempt."""

    OVERDUE = 1
    ABANDONED = 2


class Task:
    """One logical request.

    Attributes:
        payload: what is sent, opaque here.
        level: priority, 0 (most urgent) to 9.
        timeout: seconds it may take in all, queueing included, or None.
        sink: whom the shell tells the outcome; opaque here.
        index: the sink's number for it.
        born: when it was submitted, or for a feed's task, taken.
        sent_at: when it was first sent, or None.
        tries: failed attempts that were charged.
        trail: one record per failed attempt, or None.
    """

    __slots__ = (
        "attempt", "born", "deadline", "due", "excluded", "index", "last_error", "level", "number", "overdue",
        "payload", "pool", "sent_at", "sink", "state", "timeout", "trail", "tries", "unfit",
    )  # fmt: skip

    def __init__(self, payload: Any, pool: Pool, level: int, timeout: float | None, sink: Any, index: int) -> None:
        self.payload = payload
        self.pool = pool
        self.level = level
        self.timeout = timeout
        self.sink = sink
        self.index = index
        self.state = State.NEW
        self.number = 0  # unique among the live tasks of a scheduler
        self.born = 0.0
        self.sent_at: float | None = None
        self.deadline = inf
        self.due = -1
        self.tries = 0
        self.overdue = 0  # attempts that ran into their time limit; each doubles the next limit
        self.attempt: Attempt | None = None
        self.excluded: tuple[Source, ...] = ()  # sources it should not go to now
        self.unfit: tuple[Source, ...] = ()  # of them, those that can never serve it
        self.trail: list[AttemptRecord] | None = None
        self.last_error: QRewardError | None = None


class Attempt:
    """One try of a task at one source.

    Attributes:
        sent_at: when the scheduler sent it.
        why: why the scheduler stopped it, or None.
        ended: its end was reported.
        cost: tokens reserved for it, ``prompt`` of them estimated for the prompt.
        handle: the shell's own, such as an asyncio task.
    """

    __slots__ = ("cost", "ended", "handle", "prompt", "sent_at", "source", "task", "why")

    def __init__(self, task: Task, source: Source, now: float) -> None:
        self.task = task
        self.source = source
        self.sent_at = now
        self.why: Why | None = None
        self.ended = False
        self.cost = self.prompt = 0.0
        self.handle: Any = None


class Feed:
    """A bulk of tasks of one priority. The scheduler takes from ``buffer``, and asks the shell for more when it runs low.

    Nothing in the buffer is bound to a source or has begun its timeout: it is input that was read ahead.
    """

    __slots__ = ("asked", "buffer", "ended", "level", "lined", "pool", "served", "sink")

    LOW = 8

    def __init__(self, pool: Pool, level: int, sink: Any, now: float) -> None:
        self.pool = pool
        self.level = level
        self.sink = sink
        self.buffer: deque[Task] = deque()
        self.asked = False
        self.ended = False
        self.served = now
        self.lined = False  # in the queue, which is when the buffer holds something
