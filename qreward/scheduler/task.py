"""Tasks, their attempts, and batches. The scheduler changes them. The engine reads input into a feed and says when the input has ended, and
marks for how long a streamed attempt waits for its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from qreward.scheduler.outcome import Failure
from qreward.scheduler.prefixes import COLD, AffineQueue, Expected, Prefix

if TYPE_CHECKING:
    from qreward.errors import QRewardError
    from qreward.results import AttemptRecord
    from qreward.scheduler.pool import Pool
    from qreward.scheduler.source import Source


class TaskState(IntEnum):
    """The state of a task: new, queued for a source, waiting for its retry time, in flight, or ended."""

    NEW = 0
    QUEUED = 1
    WAITING = 2
    SENT = 3
    DONE = 4


class CancelReason(IntEnum):
    """The reason for which the scheduler cancels an attempt.

    The attempt exceeded its time limit, its task was abandoned or has failed, or another attempt of the task answered first.
    """

    OVERDUE = 1
    ABANDONED = 2
    BEATEN = 3


class RequestOptions(NamedTuple):
    """Options that apply to all tasks of one call."""

    level: int  # priority, 0 (most urgent) to 9
    timeout: float | None = None  # seconds that a task may take, or None; the time in the queue counts, except for items of batches
    hedge: bool = True  # a task may be sent to a second source while the first still works on it
    tenant: str | None = None  # name of the tenant for fair queueing, or None
    restarts: bool = False  # a streamed answer may be restarted from the beginning after parts of it were delivered
    streamed: bool = False  # the answers are streamed

    def task(self, payload: Any, pool: Pool, waiter: Any, index: int) -> Task:
        """Make a task with these options. Finds the prefix of its prompt, unless the pool needs none."""
        task = Task(payload, pool, self.level, self.timeout, waiter, index, self.tenant)
        task.hedge, task.restarts, task.streamed = self.hedge, self.restarts, self.streamed
        if pool.affinity_look_ahead:
            task.prefix = pool.find_prefix(payload)
        return task


MOST_DOUBLINGS = 3
"""Maximum number of times that the time limit of a task's attempts doubles. The limit doubles with each attempt that exceeds it. If the
latency of the source is known, the first such attempt does not double the limit. Also the maximum number of times that the failures of a
task at a source double the expected tries there."""


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """A task is one logical request, which may need several attempts. See ``RequestOptions`` for the fields without a comment."""

    payload: Any  # the request content; opaque to the scheduler, which only sets its ``level`` if the source is told of it
    pool: Pool
    level: int
    timeout: float | None
    waiter: Any  # the waiter to which the engine delivers the outcome; opaque to the scheduler
    index: int  # position of the task within its ``waiter``
    tenant: str | None = None  # tenant of a task outside of batches; a batch item has the tenant of its feed
    feed: BatchFeed | None = None  # the batch from which the task was taken
    size: int = 0  # number of items that are merged into the task; 0 for a task of another kind
    state: TaskState = TaskState.NEW
    queued: bool = False  # it is in the queue
    number: int = 0  # unique among the live tasks of a scheduler
    born: float = 0.0  # when it was submitted, or taken from its feed
    sent_at: float | None = None  # when it was first sent
    deadline: float = inf
    due: int = -1  # belongs to the timer wheel
    attempt: Attempt | None = None  # the older one of its attempts in flight
    copy: Attempt | None = None  # the younger one of its attempts in flight, at another source
    hedge: bool = True
    restarts: bool = False
    streamed: bool = False
    sends: int = 0  # how often it was sent
    copies: int = 0  # how many times it was sent as a copy of an attempt in flight
    tries: int = 0  # failed attempts that were charged to it
    overdue: int = 0  # how many of its attempts exceeded their time limit; a higher number raises the limit of the next attempt
    suspected: int = 0  # how often one of its attempts was suspected to hang
    failures: tuple[tuple[Source, float], ...] = ()  # (source, time) of each failure that a server or this machine caused, not a connection
    unfit: tuple[Source, ...] = ()  # sources that can never serve it
    refusals: int = 0  # how many of them refused its content
    prefix: Prefix | None = None  # what its prompt begins with; None if unknown, so that prefix affinity does not apply
    # the next three belong to ``AffineQueue``:
    group: Any = None  # the ``Group`` of tasks with the same prefix in which it waits, or None
    position: int = -2  # how many tasks were sorted into groups before it
    slack: int = 0  # how many younger tasks may be taken before it
    trail: list[AttemptRecord] | None = None  # one record for each attempt that failed, or that lost to another attempt
    last_error: QRewardError | None = None
    items: tuple[Task, ...] = ()  # the tasks that are merged into this task
    # the next three belong to the engine's instrumentation:
    serial: int = 0  # its number, once assigned
    end_reported: int = 0  # whether its end was reported
    span: Any = None

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002 - for subclasses
        """Choose the payload just before the task is sent. Called under the engine's lock, while no attempt is in flight. Returns False if
        there is nothing to send: then the task ends here, and its outcome is reported by the one who overrides this method.

        The payload of this class is fixed, so the method does nothing here. Subclasses override it.
        """
        return True

    def holds(self, attempt: Attempt) -> bool:
        """Return whether the attempt is a current attempt of this task, so that its answer counts."""
        return attempt is self.attempt or attempt is self.copy

    def other(self, attempt: Attempt) -> Attempt | None:
        return self.copy if attempt is self.attempt else self.attempt

    def burden(self, source: Source) -> float:
        """Return the factor on the expected tries at a source. Each failure of this task there doubles it, up to ``MOST_DOUBLINGS`` times.

        The factor is inf if the source cannot serve the task, or works on it already.
        """
        if source in self.unfit or (self.attempt is not None and self.attempt.source is source):
            return inf
        if not self.failures:
            return 1.0
        return 2.0 ** min([failed for failed, _ in self.failures].count(source), MOST_DOUBLINGS)

    def drop(self, attempt: Attempt) -> None:
        if attempt is self.attempt:
            self.attempt = self.copy
        self.copy = None


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """An attempt sends one task to one source."""

    task: Task
    source: Source
    sent_at: float
    overdue: int = 0  # how many attempts of its task had exceeded their time limit when it was sent
    number: int = 1  # its position among the task's attempts, counted from 1
    order: int = 0  # how many requests had been sent to the source, this one included
    is_copy: bool = False  # it was sent while another attempt of the task was in flight
    cancel_reason: CancelReason | None = None  # why the scheduler cancelled it
    ended: bool = False  # its end was reported
    committed: bool = False  # its streamed answer is being delivered to the caller
    won: bool = False  # its answer is the task's answer
    held: float = 0.0  # seconds for which it waited for the caller to read
    holds_since: float | None = None  # when it began to wait, if it waits now
    inflight_seconds: float = 0.0  # ``Source.inflight_seconds`` when it was sent
    cost: float = 0.0  # tokens reserved for it
    cached: Expected = COLD  # what it was expected to find in the prefix cache of its source
    prompt: float = 0.0  # estimated tokens of the prompt, before scaling
    failure: Failure | None = None  # a failure that the scheduler determined itself: the attempt exceeded its time limit
    span: Any = None  # used by the engine's instrumentation
    handle: Any = None  # used by the engine, for example for an asyncio task

    def held_until(self, now: float) -> float:
        """Return the seconds up to ``now`` for which the attempt has waited for the caller to read."""
        return self.held if self.holds_since is None else self.held + now - self.holds_since


BULK = 60.0
"""If a batch has not been served for this number of seconds, its next item goes ahead of single tasks of the same level and tenant that
arrive afterwards."""
READ_AHEAD, LOW = 32, 8
"""``READ_AHEAD``: number of tasks that the buffer of a batch without prefix affinity should hold. ``LOW``: number of tasks in this buffer
below which more input is requested."""


@dataclass(slots=True, eq=False, repr=False)
class BatchFeed:
    """A feed supplies the tasks of one batch, which have one priority. The scheduler takes tasks from ``buffer``, and requests more tasks
    from the engine when few are left.

    Tasks in the buffer are input that was read ahead. They are not bound to a source, and their timeout has not started. The engine reads
    tasks into ``incoming`` without the engine's lock, and calls ``Scheduler.refill`` to hand them over.
    """

    pool: Pool
    level: int
    waiter: Any
    opened_at: float
    tenant: str | None = None
    timeout: float | None = None  # seconds that each of its tasks may take
    buffer: AffineQueue = field(default_factory=AffineQueue)
    incoming: list[Task] = field(default_factory=list)  # tasks that were read; belong to the engine until it hands them over
    queued: bool = False  # it is in the queue, that is, the buffer is not empty
    more_requested: bool = False  # more input was requested
    ended: bool = False  # all input was read
    left: int | None = None  # number of items that are still to be taken, or None if the size of the input is unknown
    born: float = field(init=False)  # arrival time of a single task that is as urgent as the next item of the batch
    make_error: Callable[[], QRewardError] | None = None
    """Function that makes an error, or None. The function is set while the pool cannot serve the batch, for example because no source has
    been alive for too long. Meanwhile, waiting items and items that are read from the input fail with an error that the function makes.
    While a task waits, an item that the engine reads may fail with such an error at once."""
    due: int = -1  # belongs to the timer wheel
    postponed: bool = False  # used by ``OutageTracker``
    read_ahead: int = READ_AHEAD  # number of tasks that the buffer should hold; a larger number if the tasks have prefixes

    def __post_init__(self) -> None:
        self.born = self.opened_at + BULK

    def add(self, task: Task) -> None:
        """Take a task that was read from the input. Called by the engine, without its lock."""
        self.incoming.append(task)
        if task.prefix is not None and self.read_ahead == READ_AHEAD:
            self.read_ahead = max(READ_AHEAD, self.pool.look_ahead)

    def ahead(self) -> int:
        """Return the number of tasks that were read and not taken. Without the engine's lock, the number is approximate."""
        return len(self.buffer) + len(self.incoming)

    def take_in(self) -> None:
        """Move the incoming tasks to the buffer. They are sorted into groups of equal prefixes now, not when a source takes a task."""
        if self.incoming:
            self.buffer.extend(self.incoming)
            self.incoming.clear()
        if self.read_ahead > READ_AHEAD and len(self.buffer) > 1:
            self.buffer.form_groups(self.pool.affinity_look_ahead, self.pool.holders)
