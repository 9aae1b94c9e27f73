"""Notifies watchers, such as telemetry and the user's observers, of calls and attempts, and warns of work that does not move.

Watchers must not change anything, and their errors never reach a call. A watcher is called in the event loop of the call, never under
the engine's lock, and must be quick. The events of a call come in this order: ``began`` once, ``sent`` and ``ended`` for each attempt,
``first`` when the answer begins to be delivered, ``done`` once. Calls that are merged into one request are the ``items`` of its task.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar

from qreward.errors import ClientClosed, QRewardError
from qreward.observers import (
    AttemptEnded,
    AttemptOutcome,
    AttemptStarted,
    AttemptType,
    CallEnded,
    CallOutcome,
    CallStarted,
    FirstChunk,
    Observer,
)
from qreward.results import Explanation
from qreward.scheduler.outcome import Answer, Cancelled, Failure, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, CancelReason, Task
from qreward.scheduler.why import explain, route_of

T = TypeVar("T")

LOG = logging.getLogger("qreward")
GIVEN_UP, REPORTED = 1, 2
"""Values of ``Task.end_reported``. ``GIVEN_UP``: an attempt was cancelled from outside the engine. ``REPORTED``: the end of the task was
reported."""
UNWANTED = -1
"""The ``Task.serial`` of a call in which no watcher is interested."""

_SERIALS = count(1)

End = Answer | BaseException | None
"""The end of a call: an answer, an error, or None if the caller cancelled the call."""


class Watcher(Protocol):
    """Receives the events, at the time ``now`` of the engine's clock. ``began`` returns False if no further events of a call are needed.
    ``sent`` may set ``Attempt.span`` to a context manager, which must not raise. It is entered while the attempt is sent."""

    def began(self, task: Task, now: float, /) -> bool: ...
    def sent(self, attempt: Attempt, /) -> None: ...
    def first(self, attempt: Attempt, now: float, /) -> None: ...
    def ended(self, attempt: Attempt, outcome: Outcome, now: float, /) -> None: ...
    def done(self, task: Task, end: End, source: Source | None, now: float, /) -> None: ...


class Instrumentation:
    """Notifies watchers of the events of calls and attempts, each once. Of the errors of a watcher, only the first is logged."""

    def __init__(self, watchers: Iterable[Watcher], clock: Callable[[], float]) -> None:
        self.watchers = tuple(watchers)
        self._clock = clock
        self._failed: set[int] = set()

    def began(self, task: Task) -> None:
        """Report a new call: a single call before it is submitted, an item of a batch before it is sent."""
        now = self._clock()
        task.serial = next(_SERIALS)
        if not task.number:  # not submitted to the scheduler yet
            task.born = now
        if not self._notify("began", task, now):
            task.serial = UNWANTED

    def sent(self, attempt: Attempt) -> None:
        task = attempt.task
        if len(task.items) > 1 and task.serial == task.items[0].serial > 0:  # was the call of this item until others were added
            task.serial, task.span = 0, None
        if not task.serial:
            self.began(task)
        if task.serial != UNWANTED:
            self._notify("sent", attempt)

    def first(self, attempt: Attempt) -> None:
        if attempt.task.serial != UNWANTED:
            self._notify("first", attempt, self._clock())

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        task = attempt.task
        if task.serial == UNWANTED:
            return
        if attempt.cancel_reason is None and isinstance(outcome, Cancelled):  # cancelled by its caller or the loop's shutdown
            task.end_reported = task.end_reported or GIVEN_UP
        self._notify("ended", attempt, outcome, self._clock())

    def done(self, task: Task, end: End, source: Source | None = None) -> None:
        if not task.serial and end is not None:  # an item that was read ahead and never sent
            self.began(task)
        if task.serial <= 0 or task.end_reported == REPORTED:
            return
        if task.end_reported == GIVEN_UP and isinstance(end, ClientClosed):
            end = None
        task.end_reported = REPORTED
        self._notify("done", task, end, source, self._clock())

    def withdrawn(self, tasks: Iterable[Task], error: BaseException | None = None) -> None:
        """Report the end of calls that were cancelled by their caller, or that end with an error that the scheduler did not make."""
        for task in tasks:
            self.done(task, error)

    def _notify(self, event: str, *arguments: Any) -> bool:
        wanted = False
        for watcher in self.watchers:
            try:
                wanted = getattr(watcher, event)(*arguments) or wanted
            except Exception as error:
                if id(watcher) not in self._failed:
                    self._failed.add(id(watcher))
                    kind, what = type(watcher).__name__, type(error).__name__
                    LOG.warning("%s raised %s; calls are not affected, and it stays registered", kind, what)
        return wanted


async def within(span: AbstractContextManager[object], work: Awaitable[T]) -> T:
    with span:
        return await work


def type_of(attempt: Attempt) -> AttemptType:
    return "hedge" if attempt.is_copy else "original" if attempt.number == 1 else "retry"


def outcome_of(attempt: Attempt, outcome: Outcome) -> AttemptOutcome:
    """Return the outcome of an attempt that has ended. An attempt that exceeded its time limit counts as failed, not as cancelled."""
    if attempt.won:
        return "won"
    if isinstance(outcome, Cancelled):
        return "failed" if attempt.cancel_reason is CancelReason.OVERDUE else "cancelled"
    return "discarded" if isinstance(outcome, Answer) else "failed"


def error_of(attempt: Attempt, outcome: Outcome) -> QRewardError | None:
    failure = outcome if isinstance(outcome, Failure) else attempt.failure
    return None if failure is None else failure.error


def operation_of(task: Task) -> str:
    """Return the operation's name in OpenTelemetry's GenAI conventions; ``score`` for reward models."""
    codec = getattr(task.payload, "codec", None)
    name = str(getattr(codec, "name", "") or getattr(codec, "path", ""))
    return OPERATIONS.get(name, "score" if name.startswith("/") else name or "call")


OPERATIONS = {"/chat/completions": "chat", "/completions": "text_completion", "/embeddings": "embeddings", "completions": "text_completion"}
"""Path or name of a codec -> operation. For other codecs, the codec's name is the operation."""


def model_of(task: Task) -> str:
    return str(getattr(task.payload, "model", ""))


def queued(task: Task, now: float) -> float:
    """Return the seconds from the start of a task to its first attempt, or to ``now`` if the task has had no attempt."""
    return max(0.0, (now if task.sent_at is None else task.sent_at) - task.born)  # the parts of a split request were sent before they began


class ObserverWatcher:
    """Gives one of the user's observers the events for which it has methods. An observer that raises is not called again."""

    def __init__(self, observer: object) -> None:
        self._observer = observer
        named = [name for name in vars(Observer) if not name.startswith("_")]
        found = [name for name in named if getattr(type(observer), name, None) is not getattr(Observer, name)]  # not the inherited ones
        self._methods = {name: method for name in found if callable(method := getattr(observer, name, None))}

    def _tell(self, name: str, event: Callable[..., object], *fields: Any) -> None:
        if name not in self._methods:
            return
        try:
            self._methods[name](event(*fields))
        except (KeyboardInterrupt, SystemExit):  # they end the event loop
            raise
        except BaseException as error:
            self._methods = {}
            kind, what = type(self._observer).__name__, type(error).__name__
            LOG.warning("the observer %s raised %s in %s; it is not called any more", kind, what, name)

    def began(self, task: Task, _now: float) -> bool:
        self._tell("call_started", CallStarted, task.serial, operation_of(task), model_of(task), route_of(task.pool), task.streamed)
        return bool(self._methods)

    def sent(self, attempt: Attempt) -> None:
        self._tell("attempt_started", AttemptStarted, attempt.task.serial, attempt.number, type_of(attempt), attempt.source.name)

    def first(self, attempt: Attempt, now: float) -> None:
        self._tell("first_chunk", FirstChunk, attempt.task.serial, attempt.source.name, now - attempt.task.born)

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        error, which = error_of(attempt, outcome), (attempt.task.serial, attempt.number, type_of(attempt), attempt.source.name)
        how = outcome_of(attempt, outcome), now - attempt.sent_at, getattr(error, "status_code", None), error
        self._tell("attempt_ended", AttemptEnded, *which, *how)

    def done(self, task: Task, end: End, source: Source | None, now: float) -> None:
        which = task.serial, operation_of(task), model_of(task), route_of(task.pool)
        endpoint, times = None if source is None else source.name, (now - task.born, queued(task, now))
        outcome: CallOutcome = "ok" if isinstance(end, Answer) else "cancelled" if end is None else "failed"
        tokens = (end.prompt_tokens, end.output_tokens) if isinstance(end, Answer) else (None, None)
        error = end if isinstance(end, BaseException) else None
        self._tell("call_ended", CallEnded, *which, outcome, endpoint, *times, task.sends, task.copies, *tokens, error)


FIRST, GROWTH, LONGEST = 10.0, 2.0, 86400.0
"""``FIRST``: seconds without progress before the first warning. ``GROWTH``: factor on the seconds before each further warning.
``LONGEST``: after so many seconds there are no more warnings."""
EVERY, BLOCKED = 5.0, 5.0
"""``EVERY``: seconds between two looks. ``BLOCKED``: seconds by which a look must be late to show that the event loop was blocked."""


@dataclass(slots=True)
class _Seen:
    ended: int
    since: float  # when the last item ended
    due: float = FIRST  # seconds without progress before the next warning


class StallWatch:
    """Logs one warning when no item of a route has ended for ten seconds although work waits, and further ones at growing intervals.

    A loop driver looks every few seconds while it has work, so a request costs nothing. ``elsewhere`` returns explanations of work that
    waits outside of the scheduler.
    """

    def __init__(self, pools: Callable[[], Iterable[Pool]], elsewhere: Callable[[], Iterable[Explanation]]) -> None:
        self._pools, self._elsewhere = pools, elsewhere
        self._seen: dict[Pool, _Seen] = {}

    def look(self, engine: Any, began: float) -> bool:
        """Warn of work that does not move. Returns False if there is no work, so that nobody needs to look.

        ``began`` is the time at which this look was planned: the time of the previous look, or that at which the work began.
        """
        warnings: list[str] = []
        with engine.lock:
            now = engine.clock()
            blocked = now - began - EVERY
            seen, self._seen = self._seen, {}
            for pool in self._pools():
                if not pool.live and not pool.feeds:
                    continue
                known = self._seen[pool] = seen.get(pool) or _Seen(-1, began)
                if known.ended != pool.ended or _streams(pool):
                    known.ended = pool.ended
                    faults = [each.fault.at for each in pool.sources if each.fault is not None]
                    ends = [began, *(each.answered_at for each in pool.sources), *faults]
                    known.since = now if blocked >= BLOCKED else max(ends)
                elif known.due <= now - known.since < LONGEST and (why := self._why(now, pool)) is not None:
                    warnings.append(f"nothing has ended for {now - known.since:.0f} s: {why}")
                    known.due = max(known.due * GROWTH, now - known.since + FIRST)
        if blocked >= BLOCKED:
            warnings = [f"the event loop was blocked for {blocked:.1f} s by code that does not yield; nothing was sent or read meanwhile"]
        for text in warnings:
            LOG.warning("%s", text)
        return any(now - known.since < LONGEST for known in self._seen.values())

    def _why(self, now: float, pool: Pool) -> str | None:
        """Return why the work waits. Return None if it is as usual: the requests in flight take no longer than others did."""
        found = explain(now, pool)
        if found.code == "input" and (elsewhere := list(self._elsewhere())):
            return elsewhere[0].text
        usual = found.code in ("running", "ready") or (
            found.code == "concurrency_limit" and any(each.latency.mean for each in pool.sources)
        )
        return None if usual else found.text


def _streams(pool: Pool) -> bool:
    """Return whether a stream is being delivered."""
    return any(each.committed and each.holds_since is None for source in pool.sources for each in source.attempts)
