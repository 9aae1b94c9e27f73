"""Streamed attempts (``StreamAttempt``) and the waiters that receive their chunks (``StreamWaiter``, ``SingleStreamSink``)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from qreward.engine.driver import LoopDriver, Waiter
from qreward.engine.snapshots import result_of
from qreward.errors import ClientClosed, QRewardError, RequestError, RequestTimeout, StreamInterrupted
from qreward.results import Result
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome, RateLimitInfo
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, Task, TaskState

GAPS_AT_ONCE = 64
"""Number of gaps between tokens that are collected before they are recorded at the source. Recording takes the engine's lock."""
AHEAD = 64
"""Number of chunks that are queued for the consumer before reading pauses. Reading resumes when half of them are taken."""


GRACE = 2.0
"""Seconds that a stream may stay open after its answer has ended. The answer then counts without the end of the stream."""
MARGIN = 0.05  # seconds before its deadline at which an answer that has ended counts without the end of the stream


class OpenStream(Protocol):
    """An open stream. The backend's method ``stream`` returns an open stream or a ``Failure``. Each chunk has the attributes ``text`` and
    ``has_output``. ``whole`` is True while the stream is open and its answer has ended."""

    limits: RateLimitInfo | None
    outcome: Outcome | None

    @property
    def whole(self) -> bool: ...
    def end(self) -> Outcome: ...
    def text(self) -> str: ...
    async def read(self) -> list[Any] | None: ...
    async def aclose(self) -> None: ...


class InactivityTimer:
    """Limits all waits of an asyncio task with one timer. The timer cancels the task when a wait takes too long."""

    __slots__ = ("_deadline", "_fires_at", "_task", "_timer", "expired", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.loop = loop
        self.expired = False
        self._task = task
        self._deadline = self._fires_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def within(self, now: float, seconds: float) -> None:
        """Set the deadline to ``seconds`` after ``now``, in the event loop's time."""
        self._deadline = deadline = now + seconds
        if deadline < self._fires_at:
            self._set(deadline)

    def shorten(self, now: float, seconds: float) -> None:
        """Set the deadline as ``within`` does, unless it is earlier already."""
        self.within(now, min(seconds, self._deadline - now))

    def rest(self) -> None:
        """Remove the deadline."""
        self._deadline = inf

    def expire(self) -> None:
        """Cancel the task as at the deadline."""
        self._deadline, self.expired = inf, True
        self._task.cancel()

    def close(self) -> None:
        self._deadline = inf
        self._set(inf)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at, self._timer = when, None if when == inf else self.loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._fires_at, self._timer = inf, None
        if self.loop.time() >= self._deadline:
            self.expire()
        elif self._deadline != inf:
            self._set(self._deadline)


class Signal:
    """Wakes all asyncio tasks that wait for it."""

    __slots__ = ("_loop", "_waiters", "read")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []
        self.read = False

    def wait_alone(self) -> asyncio.Future[None]:
        """Return the future of the stream's one reader, which must set ``read`` to False when it wakes."""
        waiter = self.wait()
        if self.read:
            raise RuntimeError("a stream can be read by only one task at a time")
        self.read = True
        return waiter

    def wait(self) -> asyncio.Future[None]:
        self.check_loop()
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def check_loop(self) -> None:
        """Raise ``RuntimeError`` in another event loop, where the wait would never end."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a stream must be read in the event loop that began it, not in another thread or a forked process")

    def give(self) -> None:
        waiters = self._waiters
        if waiters:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            waiters.clear()


class StreamWaiter(Waiter):
    """A waiter whose attempts are streams. One consumer takes the events of these streams."""

    __slots__ = ("_arrived", "_events", "_open_attempts", "driver")

    def __init__(self, driver: LoopDriver) -> None:
        self.driver = driver
        self._events: deque[Any] = deque()  # events that have arrived and are not yet taken
        self._arrived = Signal(driver.loop)
        self._open_attempts: dict[StreamAttempt, None] = {}

    # the consumer's side

    async def take(self) -> Any:
        """Return the next event, or None at the end. Raises the error that ended the stream after all events are taken."""
        arrived = self._arrived
        while not self._events:
            if self.ended():
                return None
            something = arrived.wait_alone()
            try:
                await something
            finally:
                arrived.read = False
        event = self._events.popleft()
        self.took()
        return event

    def ended(self) -> bool:
        """Return True if no more events will arrive. Raises the error that ended the stream, if there was one."""
        raise NotImplementedError

    def took(self) -> None:  # called after an event was taken
        raise NotImplementedError

    async def ends(self) -> Any:  # waits for the end and returns the result
        raise NotImplementedError

    def leave(self) -> None:
        """Give up the stream and cancel its requests in flight. Must be called in the event loop's thread."""
        raise NotImplementedError

    def over(self) -> bool:  # then ``leave`` has nothing left to do
        raise NotImplementedError

    async def idle(self) -> None:
        """Wait until the connections of cancelled attempts are closed."""
        while self._open_attempts:
            await self._arrived.wait()

    def end_whole(self) -> None:
        """End the open streams whose answers have ended, and give the answers. Called before the other open streams are given up."""
        for attempt in list(self._open_attempts):
            attempt.end_if_whole()

    # the attempt's side

    def execute(self, attempt: Attempt) -> Coroutine[Any, Any, Outcome]:
        streamed = StreamAttempt(attempt, self)
        self._open_attempts[streamed] = None
        return streamed.run()

    def attempt_ended(self, attempt: StreamAttempt) -> None:
        """Called when an attempt has ended and its connection is closed."""
        del self._open_attempts[attempt]
        self._arrived.give()

    def begin(self, task: Task, stream: OpenStream) -> None:
        """Called before the first chunk of a committed attempt. Text of an earlier attempt is discarded."""
        raise NotImplementedError

    def put(self, task: Task, chunks: list[Any], /) -> bool:
        """Take chunks. Returns True if ``space`` must be awaited before the next call."""
        raise NotImplementedError

    async def space(self) -> None:  # waits until more chunks may be put
        raise NotImplementedError


class StreamAttempt:
    """Carries out one streamed attempt, once."""

    __slots__ = ("_attempt", "_before", "_gaps", "_last", "_limit", "_receiver", "_stream", "_tempo", "_timer")

    def __init__(self, attempt: Attempt, receiver: StreamWaiter) -> None:
        self._attempt = attempt
        self._receiver = receiver
        self._tempo: Any = attempt.source.stream_timing
        self._limit: float = inf  # seconds that the current wait may take
        self._last: float | None = None  # when the last chunk arrived, or None if reading has paused since
        self._gaps: list[float] = []
        self._stream: OpenStream | None = None

    def end_if_whole(self) -> None:
        """If the stream is committed and its answer has ended, report the outcome of the answer now, and close the stream soon."""
        stream = self._stream
        if stream is not None and stream.whole and self._attempt.committed:
            self._receiver.driver.ended(self._attempt, stream.end())
            self._timer.expire()

    async def run(self) -> Outcome:
        """Carry out the attempt. Must be awaited in a task that does nothing else meanwhile. Raises only ``CancelledError``."""
        me = asyncio.current_task()
        assert me is not None
        self._before = before = me.cancelling()
        self._timer = timer = InactivityTimer(self._receiver.driver.loop, me)
        attempt = self._attempt
        backend: Any = self._receiver.driver.backend
        try:
            if self._tempo is not None and (limit := self._tempo.first_limit(attempt.overdue)) is not None:
                self._limit = limit
                timer.within(timer.loop.time(), limit)
            opened: OpenStream | Failure = await backend.stream(attempt.source.handle, attempt.task.payload)
            return opened if isinstance(opened, Failure) else await self._read(opened)
        except asyncio.CancelledError:
            if not timer.expired or me.uncancel() > before:  # not (only) the inactivity timer cancelled
                raise
            return self._timeout()
        finally:
            timer.close()
            self._receiver.attempt_ended(self)

    async def _read(self, stream: OpenStream) -> Outcome:
        self._stream = stream
        try:
            if stream.limits is not None:
                self._receiver.driver.opened(self._attempt, stream.limits)
            chunks = await self._read_first(stream)
            if chunks is not None and not self._begin(stream):
                return CANCELLED
            while chunks is not None:
                # an empty list is a keep-alive, which does not extend the limit: proxies send them even when the server hangs
                if chunks and self._pass_on(stream, chunks):
                    await self._pause()
                chunks = await self._next(stream)
            if self._gaps:
                self._record_gaps()
            assert stream.outcome is not None
            return stream.outcome
        finally:
            self._timer.close()
            await stream.aclose()

    async def _read_first(self, stream: OpenStream) -> list[Any] | None:
        """Read up to and including the first token. Returns None if the stream ended without an answer."""
        held: list[Any] = []
        while (chunks := await self._next(stream)) is not None:
            held += chunks
            if not isinstance(stream.outcome, Failure) and any(chunk.has_output for chunk in chunks):
                return held
            if chunks and stream.whole:
                self._limit_ending(self._timer.loop.time(), GRACE)
        return held if isinstance(stream.outcome, Answer) else None  # an answer without output is also an answer

    async def _next(self, stream: OpenStream) -> list[Any] | None:
        """Return the next chunks. Return None if the stream has an outcome, also if the timer expired after the answer had ended."""
        try:
            return await stream.read()
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not self._timer.expired or stream.outcome is CANCELLED or me is None:
                raise
            self._timer.expired = False
            if me.uncancel() > self._before:  # not only the timer cancelled
                raise
            return None

    def _limit_ending(self, now: float, seconds: float) -> None:
        """Limit the wait for the end of a stream whose answer has ended. It ends before the time limits of the request and the attempt."""
        attempt, clock = self._attempt, self._receiver.driver.engine.clock()
        limit = attempt.source.attempt_timeout
        limited = inf if limit is None else attempt.sent_at + limit + attempt.held_until(clock)
        self._timer.shorten(now, max(0.0, min(seconds, attempt.task.deadline - clock - MARGIN, limited - clock - MARGIN)))

    def _begin(self, stream: OpenStream) -> bool:
        """Commit the attempt at its first token. Returns False if the attempt is no longer wanted."""
        if not self._receiver.driver.commit(self._attempt):
            return False
        self._tempo = self._attempt.source.stream_timing  # ``commit`` has set it if it was not set before
        self._limit = self._tempo.gap_limit()
        self._receiver.begin(self._attempt.task, stream)
        return True

    def _pass_on(self, stream: OpenStream, chunks: list[Any]) -> bool:
        """Pass chunks on. Returns True if the receiver's buffer is full and more chunks are expected."""
        timer = self._timer
        now, last = timer.loop.time(), self._last
        self._last = now
        if last is not None:
            self._gaps.append(now - last)
            if len(self._gaps) >= GAPS_AT_ONCE:
                self._record_gaps()
        full = self._receiver.put(self._attempt.task, chunks)
        if stream.whole:  # an ending that comes with output may be one of many, as some servers send them; so it gets more time
            self._limit_ending(now, self._limit if chunks[-1].has_output else GRACE)
            return False
        if not full:
            timer.within(now, self._limit)
        return full

    async def _pause(self) -> None:
        timer, attempt = self._timer, self._attempt
        timer.rest()
        attempt.holds_since = timer.loop.time()
        await self._receiver.space()
        self._last = None  # the next chunk may have arrived during the pause
        now = timer.loop.time()
        attempt.held, attempt.holds_since = attempt.held_until(now), None
        timer.within(now, self._limit)

    def _record_gaps(self) -> None:
        driver = self._receiver.driver
        with driver.engine.lock:
            self._tempo.went_on(self._gaps)
        if driver.watch is not None:
            driver.watch.gaps(self._attempt, self._gaps)
        self._gaps.clear()

    def _timeout(self) -> Failure:
        name = self._attempt.source.name
        if self._attempt.committed:
            message = f"endpoint {name!r} sent nothing for {self._limit:.1f} s amid its answer, far longer than it ever pauses"
        else:
            message = f"no first token from endpoint {name!r} within {self._limit:.1f} s, far longer than it usually takes"
        return Failure(FailureKind.TIMEOUT, RequestTimeout(message, endpoint=name))


@dataclass(frozen=True, slots=True)
class StreamRestarted:
    """A stream event after which all earlier text must be discarded. The answer starts again, possibly at another endpoint.

    Attributes:
        text: the text to discard.
        error: the error that interrupted the answer.
    """

    text: str
    error: QRewardError | None


class SingleStreamSink(StreamWaiter):
    """Receives the events of a single stream."""

    __slots__ = ("_only_result", "_stream", "_taken", "_task", "context", "left", "result")

    def __init__(self, driver: LoopDriver) -> None:
        super().__init__(driver)
        self.left = False  # the consumer has given up the stream
        self.result: Result[Any] | None = None
        self._stream: OpenStream | None = None  # of the committed attempt; it holds the text
        self._only_result = False  # the consumer takes no more events
        self._task: Task | None = None
        self.context = copy_context()
        self._taken = Signal(driver.loop)

    # the consumer's side

    def submit(self, task: Task) -> None:
        """Submit the stream's task, once. The task is sent as soon as an endpoint has a free slot."""
        self._task = task
        self.driver.waiters[self] = None
        self.driver.submit(task)

    def ended(self) -> bool:
        if self.left:
            raise closed(self.text())
        if self.result is not None and self.result.error is not None:
            raise self.result.error
        return self.result is not None

    def took(self) -> None:
        if len(self._events) == AHEAD // 2:
            self._taken.give()

    async def begins(self) -> None:
        """Wait until an attempt is committed, or the stream has ended."""
        while not (self.begun or self.left or self.result):
            await self._arrived.wait()

    async def ends(self) -> Result[Any]:
        """Wait for the end. Events that have arrived or still arrive are not kept for ``take``."""
        self._only_result = True
        self._events.clear()
        self._taken.give()
        while self.result is None:
            if self.left:
                raise closed(self.text())
            await self._arrived.wait()
        return self.result

    def text(self) -> str:
        """Return the text that has arrived since the last restart."""
        return "" if self._stream is None else self._stream.text()

    @property
    def begun(self) -> bool:
        """Whether an attempt was committed, so that its chunks are passed on."""
        return self._stream is not None

    def leave(self) -> None:
        if self.left:
            return
        self.end_whole()
        self.left = True
        self._events.clear()
        if self._task is not None and self._task.state is not TaskState.DONE:
            self.driver.withdraw([self._task])
        self._forget()

    def over(self) -> bool:
        return self.left or (self.result is not None and not self._events)

    # called by the loop driver

    def start(self, attempt: Attempt) -> None:
        self.driver.spawn(attempt, self.context.copy())

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self.begun and isinstance(outcome, RequestError):
            outcome = interrupted(outcome, self.text())
        self.result = result_of(task, outcome, source, seconds)
        self._forget()

    def close(self) -> None:
        self.end_whole()
        if self.result is not None:
            return
        (task,) = self.abandon()
        error = ClientClosed("the client was closed before the stream was done")
        self.driver.withdraw([task], error)
        self.finish(task, error, None, 0.0)

    def abandon(self) -> list[Task]:
        assert self._task is not None
        return [self._task]

    def _forget(self) -> None:
        self.driver.waiters.pop(self, None)
        self._task = None  # breaks the reference cycle of task and waiter, so that reference counting frees them
        self._arrived.give()

    # the attempt's side

    def begin(self, task: Task, stream: OpenStream) -> None:
        if self.begun and not self._only_result:
            self._events.append(StreamRestarted(self.text(), task.last_error))
        self._stream = stream

    def put(self, _task: Task, chunks: list[Any]) -> bool:
        if self._only_result:
            return False
        self._events += chunks
        self._arrived.give()
        return len(self._events) >= AHEAD

    async def space(self) -> None:
        while len(self._events) > AHEAD // 2:
            await self._taken.wait()


def interrupted(error: RequestError, text: str) -> StreamInterrupted:
    """Return the error to raise instead of ``error`` after part of a stream was delivered."""
    details = {name: getattr(error, name) for name in ("endpoint", "model", "status_code", "request_id")}
    broken = StreamInterrupted(f"the stream broke off after {len(text)} characters: {error}", text=text, **details)
    broken.__cause__ = error
    return broken


def closed(text: str) -> StreamInterrupted:
    """Return the error for a consumer that reads on after it has given up the stream."""
    return StreamInterrupted("the stream was left before its end, which closed it; read it in one loop, or by one iterator", text=text)
