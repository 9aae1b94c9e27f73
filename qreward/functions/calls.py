"""Calls of decorated functions: what their exceptions mean, ``AsyncCall`` for asynchronous callers, and ``BlockingCall``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from numbers import Real
from queue import SimpleQueue
from typing import Any, NamedTuple

from qreward.codecs import rate_limit_headers
from qreward.engine.background import SHARED
from qreward.engine.driver import Engine, Single, driver_of
from qreward.engine.portal import Portal, portal
from qreward.errors import ClientClosed, QueueFull, RateLimited
from qreward.scheduler.functions import Call, CallFailure, CallScheduler, Try
from qreward.scheduler.outcome import CANCELLED, Answer, Cancelled
from qreward.scheduler.scheduler import FINISH, SEND, Command
from qreward.scheduler.task import Task

ENDINGS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end tasks and programs. They are never retried."""


def is_retried(error: BaseException, options: Any) -> Any:
    """Return whether ``exception_types`` names an exception, or the seconds to wait before the retry."""
    kinds: Any = options.exception_types
    if isinstance(kinds, type | tuple):
        return isinstance(error, kinds) and not isinstance(error, ENDINGS)
    found = kinds(error) if isinstance(error, Exception) else False
    return found if isinstance(found, Real) else bool(found)  # None, a match of a pattern, a boolean of numpy


def failure_of(error: BaseException, options: Any, *, waits: bool) -> CallFailure:
    """Classify an exception that a try raised: whether and when the call is tried again, and whether the exception means overload."""
    overload = overload_of(error)
    wait = None if overload is None or not overload.retry_after else min(overload.retry_after, LONGEST_WAIT)
    try:
        again = is_retried(error, options)
        covered = again is not False
        if covered and again is not True:
            again, wait = True, max(0.0, float(again))  # also for NaN
    except Exception as raised:  # by the user's function
        return CallFailure(raised, again=False)
    if overload is not None and overload.should_retry is False:  # the server forbids a retry
        again = False
    if wait is not None and not waits:
        wait = 0.0
    return CallFailure(error, again=bool(again), wait=wait, overloaded=overload is not None, covered=covered)


LONGEST_WAIT = 60.0
"""Longest wait in seconds that a ``Retry-After`` can cause, as ``Retry.max_retry_after`` has it for requests. A wait of 0 asks for none."""
LINKS = 8
"""Maximum number of exceptions of a chain that are inspected. Libraries build chains of at most four exceptions. The limit also ends
cycles."""
_OVERLOADED = frozenset({429, 503, 529})


class Overload(NamedTuple):
    """States that a server is overloaded, or that a rate limit is exhausted."""

    retry_after: float | None = None  # seconds to wait, as the server requested; None if the server requested no wait
    should_retry: bool | None = None  # False if the server forbids a retry, True if it asks for one (``x-should-retry``)


def overload_of(error: BaseException) -> Overload | None:
    """Return the overload that an exception, or one that it was raised ``from``, reports; None for any other error. Never raises.

    A group counts if all of its exceptions count. Messages are ignored, because their words may come from a prompt.
    """
    links = [error]
    while len(links) < LINKS and links[-1].__cause__ is not None:
        links.append(links[-1].__cause__)
    found: list[Overload] = []
    for link in links:
        with suppress(Exception):  # attributes of other libraries' exceptions may raise; the caller must see the original error
            if (overload := _overload_of_one(link)) is not None:
                found.append(overload)
    return next((overload for overload in found if overload.retry_after is not None), found[0] if found else None)


def _overload_of_one(error: BaseException) -> Overload | None:
    if isinstance(error, ExceptionGroup):
        members = [overload for each in error.exceptions if (overload := overload_of(each)) is not None]
        if len(members) < len(error.exceptions):
            return None
        waits = [each.retry_after for each in members if each.retry_after is not None]
        return Overload(max(waits, default=None), False if any(each.should_retry is False for each in members) else None)
    plain = type(error).__module__ == "builtins" and not error.__dict__  # most exceptions are plain and have no status
    if plain or not isinstance(error, Exception):
        return None
    holders = error, getattr(error, "response", None)
    if isinstance(error, RateLimited):
        if error.status_code == 402 or (error.attempts and error.attempts[-1].outcome == "quota"):
            return None  # the account is exhausted, so waiting does not help
    else:
        found = (getattr(holder, name, None) for holder in holders for name in ("status_code", "status"))
        if next((status for status in found if isinstance(status, int)), None) not in _OVERLOADED:
            return None
    all_headers = (getattr(holder, "headers", None) for holder in holders)
    given: Any = next((each for each in all_headers if isinstance(each, Iterable) and hasattr(each, "items")), {})
    headers = {str(name).lower(): str(value) for name, value in given.items()}
    seconds: Any = rate_limit_headers.retry_after(headers, time.time())
    if seconds is None:
        own = getattr(error, "retry_after", None)
        seconds = rate_limit_headers.number(str(own)) if isinstance(own, int | float) else None
    return Overload(seconds, rate_limit_headers.should_retry(headers))


Inbox = SimpleQueue[Any]  # brings a blocking caller the tries that its own thread runs, and then the outcome of its call


class Time:
    """What calls use of the clock and of threads. Tests replace some of it; see :func:`replaced_time`."""

    now = staticmethod(time.monotonic)
    run = staticmethod(SHARED.run)

    def timers(self) -> Portal:
        """Return the thread whose event loop runs the timer of blocking callers."""
        return portal("qreward-timers")

    def take(self, inbox: Inbox, engine: Engine[CallScheduler]) -> Any:  # noqa: ARG002 - for subclasses
        return inbox.get()

    def keep(self, engine: Engine[CallScheduler], wake: float | None) -> None:
        """Make sure that the scheduler is ticked at ``wake``. Raises ``ClientClosed`` if the process is ending."""
        timers = self.timers()
        driver = engine.driver_in(timers.loop)
        if driver is None or (wake is not None and not driver.is_armed(wake)):
            timers.soon(lambda: engine.driver().rearm())


_time = Time()


def now() -> float:
    return _time.now()


@contextmanager
def replaced_time(time: Time) -> Iterator[None]:
    """Make all decorated functions use another clock inside the ``with`` block. Times recorded with the other clock mean nothing then."""
    global _time  # noqa: PLW0603 - one in a process
    before, _time = _time, time
    try:
        yield
    finally:
        _time = before


class AsyncCall(Single):
    """Runs the tries of one asynchronous call, and receives its outcome. ``body`` starts one run of the function."""

    __slots__ = ("_body",)

    def __init__(self, driver: Any, body: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(driver)
        self._body = body

    async def execute(self, attempt: Try) -> Answer | CallFailure:  # type: ignore[override]
        """Run the function once. Only cancellation is raised, which the loop driver handles."""
        try:
            return Answer(await self._body())
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            return failure_of(error, attempt.task.options, waits=attempt.task.paced)

    def finish(self, _task: Task, outcome: Any, *_: Any) -> None:
        self._result = outcome
        self._wake()


class BlockingCall:
    """Runs the tries of one blocking call, in the caller's thread (``inline``) or in worker threads, and receives its outcome."""

    __slots__ = ("_body", "_context", "_engine", "_inbox")

    def __init__(self, engine: Engine[CallScheduler], body: Callable[[], Any], *, inline: bool) -> None:
        self._engine = engine
        self._body = body
        self._context = None if inline else copy_context()
        self._inbox: Inbox = SimpleQueue()

    @property
    def driver(self) -> BlockingCall:
        """The call itself: any thread may pass a command to it."""
        return self

    def result(self, call: Call) -> Answer | BaseException:
        """Submit the call and wait for its outcome. If the caller is interrupted, the tries of the call are given up."""
        scheduler = self._engine.scheduler
        try:
            self._change(scheduler.submit, call)
            while True:
                if self._inbox.empty():  # it waits, which is refused if the process is ending
                    _time.keep(self._engine, None)
                item = _time.take(self._inbox, self._engine)
                if type(item) is not Try:
                    return item  # type: ignore[no-any-return]
                self._change(scheduler.event, item, self._run(item))
        finally:
            self.leave(call)

    def leave(self, call: Call) -> None:
        """Give up a call that has not ended, and the tries that only the caller's own thread would run."""
        try:
            if call.number and not call.done:  # without a number, the caller was interrupted before the call was submitted
                self._change(self._engine.scheduler.withdraw, [call])
        finally:  # also if the system refuses a thread for the timer
            if self._context is None:
                for attempt in list(call.tried):
                    self._change(self._engine.scheduler.event, attempt, CANCELLED)

    def post(self, command: Command) -> None:
        """Run a command that results from a change in another thread or event loop, whose own timer may end with it."""
        self._receive(command)
        if command[0] == SEND:
            self._change(lambda _now: None)

    def _change(self, change: Callable[..., None], *arguments: Any) -> None:
        """Change the scheduler's state under the lock, run the resulting commands, and make sure that the scheduler is ticked in time."""
        engine, scheduler = self._engine, self._engine.scheduler
        with engine.lock:
            change(engine.clock(), *arguments)
            out, scheduler.out = scheduler.out, []
            wake = scheduler.next_wake()
        for command in out:
            home = driver_of(command)
            (self._receive if home is self else home.post)(command)
        if wake is not None:
            with suppress(ClientClosed):
                _time.keep(engine, wake)

    def _receive(self, command: Command) -> None:
        if command[0] == FINISH:
            self._inbox.put(command[2])
        elif command[0] == SEND:  # a CANCEL has no effect, because a thread cannot be stopped
            self._start(command[1])

    def _start(self, attempt: Try) -> None:
        if self._context is None:
            self._inbox.put(attempt)
            return
        context = self._context.copy()
        ended = partial(self._change, self._engine.scheduler.event, attempt)
        if _time.run(lambda: partial(ended, context.run(self._run, attempt))):
            return
        outcome: CallFailure | Cancelled = CANCELLED
        if len(attempt.task.tried) == 1:  # a further try without a thread does not fail the call
            why = "all worker threads are busy, perhaps with calls that hang; set max_concurrency, or a time limit inside the function"
            outcome = CallFailure(QueueFull(why), again=False)
        ended(outcome)

    def _run(self, attempt: Try) -> Answer | CallFailure | Cancelled:
        if attempt.cancel_reason is not None:
            return CANCELLED
        try:
            return Answer(self._body())
        except BaseException as error:  # interrupts and exits too: the scheduler ends the call with them
            return failure_of(error, attempt.task.options, waits=attempt.task.paced)
