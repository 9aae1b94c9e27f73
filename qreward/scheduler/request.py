"""One logical request (``Task``), one try of it (``Attempt``), and a bulk of tasks that are read as they are needed (``BatchFeed``).

Plain records; the scheduler alone changes what is marked as its own, the shell may keep things in ``handle``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from qreward.errors import QRewardError
    from qreward.results import AttemptRecord
    from qreward.scheduler.endpoint_state import Source
    from qreward.scheduler.outcome import Failure
    from qreward.scheduler.pool import Pool


class TaskState(IntEnum):
    """Where a task is: it waits for a slot, it waits for a time, it is under way, or it is over."""

    NEW = 0
    QUEUED = 1
    WAITING = 2
    SENT = 3
    DONE = 4


class CancelReason(IntEnum):
    """Why the scheduler stops an attempt: its time limit passed, nobody wants it any more, or another answered first."""

    OVERDUE = 1
    ABANDONED = 2
    BEATEN = 3


class RequestOptions(NamedTuple):
    """How the tasks of one call are to be treated.

    Attributes:
        level: priority, 0 (most urgent) to 9.
        timeout: seconds each may take in all, or None.
        hedge: they may be sent to a second source while the first still works on them.
        tenant: who shares the fleet with others, or None.
        restarts: what was given out of an answer in pieces may be taken back, to begin anew.
        streamed: their answers come in pieces.
    """

    level: int
    timeout: float | None = None
    hedge: bool = True
    tenant: str | None = None
    restarts: bool = False
    streamed: bool = False

    def task(self, payload: Any, pool: Pool, sink: Any, index: int) -> Task:
        """One of them."""
        task = Task(payload, pool, self.level, self.timeout, sink, index, self.tenant)
        task.hedge = self.hedge
        task.restarts, task.streamed = self.restarts, self.streamed
        return task


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
        attempt, copy: what is under way: the older attempt and a duplicate of it, at another source. With no attempt
            there is no copy.
        hedge: it may be sent to a second source while the first still works on it.
        restarts: an attempt whose answer the caller was given in part may be followed by another.
        streamed: its answer comes in pieces.
        suspected: how often an attempt of it was taken for hung.
        failures: where and when it failed in a way that may be its own fault.
        feed: the bulk it was taken from, or None.
        tenant: who shares the fleet with others, or None; for a feed's task the feed's counts.
        sends, copies: how often it was sent, and how often of them while another attempt was under way.
        items: the tasks that it carries, merged into one, if it carries any.
        serial, told, span: the watcher's own: its number once it is known, whether its end is, and what is kept of it.
        charge: what the queue has counted for it, in tokens, and not yet corrected.
        lined: it is in the queue.
    """

    __slots__ = (
        "attempt", "born", "charge", "copies", "copy", "deadline", "due", "excluded", "failures", "feed", "hedge", "index", "items",
        "last_error", "level", "lined", "number", "overdue", "payload", "pool", "restarts", "sends", "sent_at", "serial", "sink",
        "span", "state", "streamed", "suspected", "tenant", "timeout", "told", "trail", "tries", "unfit",
    )  # fmt: skip

    def __init__(
        self, payload: Any, pool: Pool, level: int, timeout: float | None, sink: Any, index: int, tenant: str | None = None
    ) -> None:
        self.payload = payload
        self.pool = pool
        self.level = level
        self.timeout = timeout
        self.sink = sink
        self.index = index
        self.tenant = tenant
        self.feed: BatchFeed | None = None
        self.charge = 0.0
        self.lined = False
        self.state = TaskState.NEW
        self.number = 0  # unique among the live tasks of a scheduler
        self.born = 0.0
        self.sent_at: float | None = None
        self.deadline = inf
        self.due = -1
        self.tries = 0
        self.overdue = 0  # attempts that ran into their time limit; each doubles the next limit
        self.attempt: Attempt | None = None
        self.copy: Attempt | None = None
        self.hedge = True
        self.restarts = self.streamed = False
        self.suspected = 0
        self.failures: tuple[tuple[Source, float], ...] = ()
        self.excluded: tuple[Source, ...] = ()  # sources it should not go to now
        self.unfit: tuple[Source, ...] = ()  # of them, those that can never serve it
        self.trail: list[AttemptRecord] | None = None
        self.last_error: QRewardError | None = None
        self.sends = self.copies = self.serial = self.told = 0
        self.items: tuple[Task, ...] = ()
        self.span: Any = None

    def load(self, now: float, source: Source) -> bool:  # noqa: ARG002 - for those that are late bound
        """It is about to be sent, and nothing of it is under way: the last moment to say what. False if there is nothing to send."""
        return True

    def holds(self, attempt: Attempt) -> bool:
        """True if the attempt is one of those whose answer counts."""
        return attempt is self.attempt or attempt is self.copy

    def other(self, attempt: Attempt) -> Attempt | None:
        """What is under way besides one of its attempts."""
        return self.copy if attempt is self.attempt else self.attempt

    def drop(self, attempt: Attempt) -> None:
        """One of its attempts has ended; the other, if there is one, goes on."""
        if attempt is self.attempt:
            self.attempt = self.copy
        self.copy = None


class Attempt:
    """One try of a task at one source.

    Attributes:
        sent_at: when the scheduler sent it.
        overdue: how many attempts of its task had run into their time limit when it was sent.
        why: why the scheduler stopped it, or None.
        ended: its end was reported.
        committed: the caller is given its answer, piece by piece.
        number: it is its task's so-manieth.
        hedge: it was sent while another was under way.
        won: its answer is the task's.
        span: the watcher's own.
        held: seconds for which it waited for its caller to take what there was, ``holds_since`` then if it does so now.
        cost: tokens reserved for it, ``prompt`` of them estimated for the prompt.
        failure: how it failed, if the scheduler says so and not its outcome.
        handle: the shell's own, such as an asyncio task.
    """

    __slots__ = (
        "committed", "cost", "ended", "failure", "handle", "hedge", "held", "holds_since", "number", "overdue", "prompt", "sent_at",
        "source", "span", "task", "why", "won",
    )  # fmt: skip

    def __init__(self, task: Task, source: Source, now: float) -> None:
        self.task = task
        self.source = source
        self.sent_at = now
        self.overdue = task.overdue
        self.why: CancelReason | None = None
        self.ended = self.committed = self.hedge = self.won = False
        self.number = 1
        self.span: Any = None
        self.cost = self.prompt = self.held = 0.0
        self.holds_since: float | None = None
        self.failure: Failure | None = None
        self.handle: Any = None

    def held_until(self, now: float) -> float:
        """Seconds for which it has waited for its caller."""
        return self.held if self.holds_since is None else self.held + now - self.holds_since


class BatchFeed:
    """A bulk of tasks of one priority. The scheduler takes from ``buffer``, and asks the shell for more when it runs low.

    Nothing in the buffer is bound to a source or has begun its timeout: it is input that was read ahead.

    Attributes:
        left: items that are still to be taken, if the input's size is known.
        tenant: who shares the fleet with others, or None.
        timeout: seconds that each of its tasks may take, or None.
        failing: makes the errors of what waits or is read, as no source of the pool is alive; None while one is. The shell may
            use it instead of putting a task into a buffer that is not empty.
        opened_at, due, postponed: what ``outages`` keeps.
    """

    __slots__ = (
        "asked", "buffer", "due", "ended", "failing", "left", "level", "lined", "opened_at", "pool", "postponed", "served", "sink",
        "tenant", "timeout",
    )  # fmt: skip

    LOW = 8

    def __init__(self, pool: Pool, level: int, sink: Any, now: float, tenant: str | None = None, timeout: float | None = None) -> None:
        self.pool = pool
        self.level = level
        self.sink = sink
        self.buffer: deque[Task] = deque()
        self.asked = False
        self.ended = False
        self.left: int | None = None
        self.tenant = tenant
        self.timeout = timeout
        self.failing: Callable[[], QRewardError] | None = None
        self.opened_at = self.served = now
        self.due = -1
        self.postponed = False
        self.lined = False  # in the queue, which is when the buffer holds something
