"""Tells observers what the engine does, in the words of ``qreward.observe``. An event is made only if somebody hears it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qreward.core.outcome import Answer, Cancelled, Failure, Outcome
from qreward.core.pool import Pool
from qreward.core.source import Source
from qreward.core.task import Attempt, Task, Why
from qreward.engine.watching import LOG, End, Watch, Watcher
from qreward.errors import QRewardError
from qreward.observe import (
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

METHODS = ("call_started", "attempt_started", "first_chunk", "attempt_ended", "call_ended")


def type_of(attempt: Attempt) -> AttemptType:
    """Why an attempt was made."""
    return "hedge" if attempt.hedge else "original" if attempt.number == 1 else "retry"


def outcome_of(attempt: Attempt, outcome: Outcome) -> AttemptOutcome:
    """What became of an attempt that has ended. One that ran into its time limit was stopped, but it is what failed."""
    if attempt.won:
        return "won"
    if isinstance(outcome, Cancelled):
        return "failed" if attempt.why is Why.OVERDUE else "cancelled"
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


class Herald:
    """The watcher that tells observers.

    Args:
        observers: whoever has a method of :class:`~qreward.observe.Observer`.
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


def watch_for(watcher: Watcher | None, observers: Iterable[object], clock: Callable[[], float]) -> Watch | None:
    """What tells a watcher and observers; None if there is nobody to tell."""
    told = list(observers)
    watchers: list[Watcher] = [*([] if watcher is None else [watcher]), *([Herald(told)] if told else [])]
    return Watch(watchers, clock) if watchers else None
