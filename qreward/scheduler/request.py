"""One logical request (``Task``), one attempt at it (``Attempt``), and a batch of tasks that are read as they are needed (``BatchFeed``).

These are plain records. Only the scheduler changes them; the engine keeps its own objects in ``handle``.
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
    """State of a task: new, queued for a source, waiting for its retry time, in flight, or ended."""

    NEW = 0
    QUEUED = 1
    WAITING = 2
    SENT = 3
    DONE = 4


class CancelReason(IntEnum):
    """Why the scheduler cancels an attempt: its time limit passed, the task was abandoned, or another attempt answered first."""

    OVERDUE = 1
    ABANDONED = 2
    BEATEN = 3


class RequestOptions(NamedTuple):
    """Options of the tasks of one call.

    Attributes:
        level: priority, 0 (most urgent) to 9.
        timeout: seconds each task may take, queueing included, or None.
        hedge: a task may be sent to a second source while the first still works on it.
        tenant: name of the tenant for fair queueing, or None.
        restarts: a streamed answer may be restarted from the beginning after parts of it were delivered.
        streamed: the answers are streamed.
    """

    level: int
    timeout: float | None = None
    hedge: bool = True
    tenant: str | None = None
    restarts: bool = False
    streamed: bool = False

    def task(self, payload: Any, pool: Pool, sink: Any, index: int) -> Task:
        """Create a task with these options."""
        task = Task(payload, pool, self.level, self.timeout, sink, index, self.tenant)
        task.hedge = self.hedge
        task.restarts, task.streamed = self.restarts, self.streamed
        return task


class Task:
    """One logical request.

    Attributes:
        payload: the request content; opaque to the scheduler.
        level: priority, 0 (most urgent) to 9.
        timeout: seconds it may take, queueing included, or None.
        sink: the waiter to which the engine delivers the outcome; opaque to the scheduler.
        index: position of the task within its ``sink``.
        born: when it was submitted, or taken from its feed.
        sent_at: when it was first sent, or None.
        tries: failed attempts that were charged to it.
        trail: one record per attempt that failed or lost to another, or None.
        attempt, copy: the attempts in flight: the older one, and a copy of it at another source. Without an attempt there is no copy.
        hedge: it may be sent to a second source while the first still works on it.
        restarts: an attempt may follow one whose answer was partly delivered to the caller.
        streamed: its answer is streamed.
        suspected: how often one of its attempts was suspected to hang.
        failures: (source, time) of failures that the task itself may have caused.
        feed: the batch it was taken from, or None.
        tenant: name of the tenant for fair queueing, or None; for a batch item the feed's tenant applies.
        sends, copies: how often it was sent, and how many of those sends were copies of an attempt in flight.
        items: the tasks that are merged into this one, if any.
        serial, told, span: used by the engine's instrumentation: its number once assigned, whether its end was reported, its span.
        charge: tokens that fair queueing has charged for it and not yet corrected.
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
        self.overdue = 0  # attempts that exceeded their time limit; raises the next limit
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
        """Bind the payload just before the task is sent, with no attempt in flight. False if there is nothing to send.

        Subclasses that choose their content late override it.
        """
        return True

    def holds(self, attempt: Attempt) -> bool:
        """Return whether the attempt is a current one of this task, so that its answer counts."""
        return attempt is self.attempt or attempt is self.copy

    def other(self, attempt: Attempt) -> Attempt | None:
        """Return the attempt in flight besides the given one, or None."""
        return self.copy if attempt is self.attempt else self.attempt

    def drop(self, attempt: Attempt) -> None:
        """Forget one of its attempts, which has ended. The other one, if any, continues."""
        if attempt is self.attempt:
            self.attempt = self.copy
        self.copy = None


class Attempt:
    """One attempt at a task, at one source.

    Attributes:
        sent_at: when the scheduler sent it.
        overdue: how many attempts of its task had exceeded their time limit when it was sent.
        why: why the scheduler cancelled it, or None.
        ended: its end was reported.
        committed: its streamed answer is being delivered to the caller.
        number: its position among the task's attempts, counted from 1.
        hedge: it was sent while another attempt of the task was in flight.
        won: its answer is the task's answer.
        span: used by the engine's instrumentation.
        held: seconds for which it waited for the caller to read; ``holds_since`` is when it began to wait, or None if it does not wait now.
        cost: tokens reserved for it.
        prompt: estimated tokens of the prompt, before scaling.
        failure: the failure that the scheduler determined itself (a time limit), instead of a reported outcome.
        handle: used by the engine, for example for an asyncio task.
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
        """Return the seconds for which it has waited for the caller to read, up to ``now``."""
        return self.held if self.holds_since is None else self.held + now - self.holds_since


class BatchFeed:
    """A batch of tasks of one priority. The scheduler takes tasks from ``buffer`` and requests more from the engine when it runs low.

    Tasks in the buffer are input that was read ahead. They are not bound to a source, and their timeout has not started.

    Attributes:
        left: items that are still to be taken, if the size of the input is known; else None.
        tenant: name of the tenant for fair queueing, or None.
        timeout: seconds that each of its tasks may take, or None.
        failing: factory of errors for items that wait or are read while no source of the pool is alive; None otherwise. The engine may
            fail an item with it instead of appending the item to a non-empty buffer.
        opened_at, due, postponed: used by ``outages``.
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
        self.lined = False  # it is in the queue, that is, the buffer is not empty
