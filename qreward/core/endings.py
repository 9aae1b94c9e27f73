"""The errors that the scheduler itself ends tasks with."""

from __future__ import annotations

from qreward.core.outcome import Cancelled, Failure
from qreward.core.pool import Pool
from qreward.core.task import Task
from qreward.errors import CircuitOpen, NoEndpoint, QRewardError, QueueFull, RequestTimeout


def timed_out(task: Task) -> RequestTimeout:
    """The task's own timeout passed."""
    seen = "it was never sent: no endpoint had room" if task.sent_at is None else "an attempt was under way or waiting"
    if task.last_error is not None:
        seen = f"the last failure was: {task.last_error}"
    error = RequestTimeout(f"no answer within the timeout of {task.timeout:g} s (queueing included) over {task.pool.name}; {seen}")
    error.__cause__ = task.last_error
    return error


def too_late(task: Task) -> RequestTimeout:
    """Not even a quick answer would come in time."""
    error = RequestTimeout(
        f"dropped before it was sent: no endpoint of {task.pool.name} answers within what is left of the timeout of {task.timeout:g} s"
        " (queueing included); raise the timeout, send less at once, or add endpoints"
    )
    error.__cause__ = task.last_error
    return error


def full(pool: Pool, most: int) -> QueueFull:
    """As many wait as may."""
    return QueueFull(f"{most} requests wait for {pool.name} already; send fewer at once, or raise max_queued")


def hopeless(pool: Pool) -> QRewardError | None:
    """What is to be said if nothing in a pool will ever serve."""
    if not pool.sources:
        return NoEndpoint(f"the route {pool.name} has no endpoint left; add one, or register the route anew")
    if all(source.health.down for source in pool.sources):
        names = ", ".join(repr(source.name) for source in pool.sources)
        return CircuitOpen(f"every endpoint of the route {pool.name} is marked unhealthy ({names}); mark_healthy brings one back")
    return None


def described(outcome: Failure | Cancelled) -> str:
    """What ended an attempt, in words for a log."""
    if isinstance(outcome, Failure):
        return f"{type(outcome.error).__name__}: {outcome.error}"
    return "requests were given up without an answer"


def unfit(task: Task) -> QRewardError | None:
    """What is to be said if no source can serve this task."""
    if task.unfit and all(source in task.unfit or source.health.down for source in task.pool.sources):
        return task.last_error
    return None
