"""Tells observers what the engine does, in the words of ``qreward.observers``. An event is made only if somebody hears it.

Who is told what the engine does: watchers, such as telemetry. They see and change nothing, and no failure of theirs reaches a call.

A watcher is told in the loop of the call, never under the engine's lock, and is quick. What it is told of a call comes in order: ``began``
once, ``sent`` and ``ended`` for each attempt, ``first`` when its answer begins to be given out, ``done`` once. An attempt that lost may
end after its call is done.

A room that merges several calls into one sends a task of its own, whose ``items`` are the tasks that it carries::

    watch.began(item)                  # when the item comes, in its caller's context: item.sink.context
    merged.items = (item, other)       # before the merged task is submitted
    watch.done(item, answer, source)   # when its share of the answer is there; what was used is told by the merged task
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
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
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import Answer, Cancelled, Failure, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import Attempt, CancelReason, Task

T = TypeVar("T")

LOG = logging.getLogger("qreward")
GIVEN_UP, TOLD = 1, 2
"""States of ``Task.told``: what carried it was cancelled from outside, and its end was told."""
UNWANTED = -1
"""The ``Task.serial`` of a call that nobody wants to hear of."""

_SERIALS = count(1)

End = Answer | BaseException | None
"""How a call ended: an answer, an error, or None if its caller gave it up."""


class Scope(Protocol):
    """What surrounds the sending of an attempt, kept in ``Attempt.span``."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Watcher(Protocol):
    """See the head of this file. ``now`` is the engine's clock, in seconds."""

    def began(self, task: Task, now: float, /) -> bool:
        """A call was made. False if nothing more of it is of interest; if that is so for all watchers, none is told more."""

    def sent(self, attempt: Attempt, /) -> None: ...
    def first(self, attempt: Attempt, now: float, /) -> None: ...
    def gaps(self, attempt: Attempt, gaps: list[float], /) -> None: ...
    def ended(self, attempt: Attempt, outcome: Outcome, now: float, /) -> None: ...
    def done(self, task: Task, end: End, source: Source | None, now: float, /) -> None: ...


class Instrumentation:
    """Tells watchers, each call and each attempt once.

    Args:
        watchers: one that raises is told further; that it did is logged once.
        clock: the engine's.
    """

    def __init__(self, watchers: Iterable[Watcher], clock: Callable[[], float]) -> None:
        self._watchers = tuple(watchers)
        self._clock = clock
        self._complained: set[int] = set()

    def began(self, task: Task) -> None:
        """A call was made. Before it is submitted; a bulk's item, before it is sent."""
        now, wanted = self._clock(), False
        task.serial = next(_SERIALS)
        if not task.number:  # the scheduler has not seen it
            task.born = now
        for watcher in self._watchers:
            try:
                wanted = watcher.began(task, now) or wanted
            except Exception as error:
                self._complain(watcher, error)
        if not wanted:
            task.serial = UNWANTED

    def sent(self, attempt: Attempt) -> None:
        """An attempt is about to begin."""
        task = attempt.task
        if not task.serial:
            self.began(task)
        if task.serial == UNWANTED:
            return
        for watcher in self._watchers:
            try:
                watcher.sent(attempt)
            except Exception as error:
                self._complain(watcher, error)

    def first(self, attempt: Attempt) -> None:
        """The first piece of its answer is there."""
        if attempt.task.serial == UNWANTED:
            return
        now = self._clock()
        for watcher in self._watchers:
            try:
                watcher.first(attempt, now)
            except Exception as error:
                self._complain(watcher, error)

    def gaps(self, attempt: Attempt, gaps: list[float]) -> None:
        """Seconds that passed between pieces of its answer."""
        if attempt.task.serial == UNWANTED:
            return
        for watcher in self._watchers:
            try:
                watcher.gaps(attempt, gaps)
            except Exception as error:
                self._complain(watcher, error)

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt ended, and the scheduler knows. Once."""
        task = attempt.task
        if task.serial == UNWANTED:
            return
        if attempt.why is None and isinstance(outcome, Cancelled):  # not by us: by its caller, or by the loop's end
            task.told = task.told or GIVEN_UP
        now = self._clock()
        for watcher in self._watchers:
            try:
                watcher.ended(attempt, outcome, now)
            except Exception as error:
                self._complain(watcher, error)

    def done(self, task: Task, end: End, source: Source | None = None) -> None:
        """A call is over. What comes later is ignored."""
        if not task.serial and end is not None:  # read ahead, and never sent
            self.began(task)
        if task.serial <= 0 or task.told == TOLD:
            return
        if task.told == GIVEN_UP and isinstance(end, ClientClosed):
            end = None
        task.told = TOLD
        now = self._clock()
        for watcher in self._watchers:
            try:
                watcher.done(task, end, source, now)
            except Exception as error:
                self._complain(watcher, error)

    def withdrawn(self, tasks: Iterable[Task], error: BaseException | None = None) -> None:
        """Calls were given up, or end with an error that is not the scheduler's."""
        for task in tasks:
            self.done(task, error)

    def _complain(self, watcher: Watcher, error: Exception) -> None:
        if id(watcher) not in self._complained:
            self._complained.add(id(watcher))
            LOG.warning("%s raised %s; calls are not affected, and it stays registered", type(watcher).__name__, type(error).__name__)


async def within(scope: Scope, work: Awaitable[T]) -> T:
    """Await work inside a scope, as far as that can be entered."""
    entered = _did(scope.enter)
    try:
        found = await work
    except GeneratorExit:  # thrown away, perhaps in another context: there is nothing to leave
        raise
    except BaseException:
        if entered:
            _did(scope.leave)
        raise
    if entered:
        _did(scope.leave)
    return found


def _did(step: Callable[[], None]) -> bool:
    try:
        step()
    except Exception as error:
        LOG.debug("a watcher's scope failed with %s", type(error).__name__)
        return False
    return True


METHODS = ("call_started", "attempt_started", "first_chunk", "attempt_ended", "call_ended")


def type_of(attempt: Attempt) -> AttemptType:
    """Why an attempt was made."""
    return "hedge" if attempt.hedge else "original" if attempt.number == 1 else "retry"


def outcome_of(attempt: Attempt, outcome: Outcome) -> AttemptOutcome:
    """What became of an attempt that has ended. One that ran into its time limit was stopped, but it is what failed."""
    if attempt.won:
        return "won"
    if isinstance(outcome, Cancelled):
        return "failed" if attempt.why is CancelReason.OVERDUE else "cancelled"
    return "discarded" if isinstance(outcome, Answer) else "failed"


def error_of(attempt: Attempt, outcome: Outcome) -> QRewardError | None:
    """What went wrong, where something did."""
    failure = outcome if isinstance(outcome, Failure) else attempt.failure
    return None if failure is None else failure.error


def operation_of(task: Task) -> str:
    """What is asked of the model, in the words of OpenTelemetry's GenAI conventions; ``score`` for reward models."""
    codec = getattr(task.payload, "codec", None)
    name = str(getattr(codec, "name", "") or getattr(codec, "path", ""))
    return OPERATIONS.get(name, "score" if name.startswith("/") else name or "call")


OPERATIONS = {"/chat/completions": "chat", "/completions": "text_completion", "/embeddings": "embeddings", "completions": "text_completion"}
"""Path or name of a codec -> operation; other codecs say it themselves."""


def model_of(task: Task) -> str:
    """The model that was asked for."""
    return str(getattr(task.payload, "model", ""))


def route_of(pool: Pool | None) -> str:
    """The pattern of a route: what its pool is called, without the quotes."""
    return "" if pool is None else pool.name[1:-1]


def queued(task: Task, now: float) -> float:
    """Seconds before its first attempt, so far if there was none."""
    return (now if task.sent_at is None else task.sent_at) - task.born


class ObserverNotifier:
    """The watcher that tells observers.

    Args:
        observers: whoever has a method of :class:`~qreward.observers.Observer`.
    """

    def __init__(self, observers: Iterable[object]) -> None:
        self._observers = list(observers)
        self._sort()

    def _sort(self) -> None:
        self._hearers: dict[str, list[tuple[object, Callable[[Any], object]]]] = {
            name: [(each, getattr(each, name)) for each in self._observers if _has(each, name)] for name in METHODS
        }

    def _tell(self, name: str, event: object) -> None:
        for observer, method in self._hearers[name]:
            try:
                method(event)
            except (KeyboardInterrupt, SystemExit):  # they end the loop
                raise
            except BaseException as error:
                self._drop(observer, name, error)

    def _drop(self, observer: object, name: str, error: BaseException) -> None:
        who, what = type(observer).__name__, type(error).__name__
        LOG.warning("the observer %s raised %s in %s; it is not called any more", who, what, name)
        self._observers = [each for each in self._observers if each is not observer]
        self._sort()

    # the watcher

    def began(self, task: Task, _now: float) -> bool:
        if self._hearers["call_started"]:
            event = CallStarted(task.serial, operation_of(task), model_of(task), route_of(task.pool), task.streamed)
            self._tell("call_started", event)
        return bool(self._observers)

    def sent(self, attempt: Attempt) -> None:
        if self._hearers["attempt_started"]:
            event = AttemptStarted(attempt.task.serial, attempt.number, type_of(attempt), attempt.source.name)
            self._tell("attempt_started", event)

    def first(self, attempt: Attempt, now: float) -> None:
        if self._hearers["first_chunk"]:
            self._tell("first_chunk", FirstChunk(attempt.task.serial, attempt.source.name, now - attempt.task.born))

    def gaps(self, attempt: Attempt, gaps: list[float]) -> None:
        """Nobody is told of single pieces."""

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        if self._hearers["attempt_ended"]:
            error = error_of(attempt, outcome)
            event = AttemptEnded(
                attempt.task.serial,
                attempt.number,
                type_of(attempt),
                attempt.source.name,
                outcome_of(attempt, outcome),
                now - attempt.sent_at,
                getattr(error, "status_code", None),
                error,
            )
            self._tell("attempt_ended", event)

    def done(self, task: Task, end: End, source: Source | None, now: float) -> None:
        if not self._hearers["call_ended"]:
            return
        answer = end if isinstance(end, Answer) else None
        outcome: CallOutcome = "ok" if answer is not None else "cancelled" if end is None else "failed"
        event = CallEnded(
            task.serial,
            operation_of(task),
            model_of(task),
            route_of(task.pool),
            outcome,
            None if source is None else source.name,
            now - task.born,
            queued(task, now),
            task.sends,
            task.copies,
            None if answer is None else answer.prompt_tokens,
            None if answer is None else answer.output_tokens,
            end if isinstance(end, BaseException) else None,
        )
        self._tell("call_ended", event)


def _has(observer: object, name: str) -> bool:
    """Whether it has a method of its own, and not the empty one."""
    return getattr(type(observer), name, None) is not getattr(Observer, name) and callable(getattr(observer, name, None))


def watch_for(watcher: Watcher | None, observers: Iterable[object], clock: Callable[[], float]) -> Instrumentation | None:
    """What tells a watcher and observers; None if there is nobody to tell."""
    told = list(observers)
    watchers: list[Watcher] = [*([] if watcher is None else [watcher]), *([ObserverNotifier(told)] if told else [])]
    return Instrumentation(watchers, clock) if watchers else None
