"""Streamed attempts (``StreamAttempt``), and the waiters that receive their chunks (``StreamWaiter``, ``BatchStreamWaiter``)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, cast

from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import LoopDriver, Waiter, result_of
from qreward.errors import QRewardError, RequestError, RequestTimeout, StreamInterrupted
from qreward.results import BatchResult, Result
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome, RateLimitInfo
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, Task, TaskState

GAPS_AT_ONCE = 64
"""Number of gaps between tokens that are collected before they are recorded at the source. Recording takes the engine's lock."""
AHEAD = 64
"""Number of chunks of one stream that wait for the consumer before reading pauses. Reading resumes when half of them are taken."""
BATCH_AHEAD = 256
"""The same, for the events of all streams of a batch together."""
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


@dataclass(frozen=True, slots=True)
class StreamRestarted:
    """A stream event after which all earlier text must be discarded. The answer starts again, possibly at another endpoint.

    Attributes:
        text: the text to discard.
        error: the error that interrupted the answer.
    """

    text: str
    error: QRewardError | None


class StreamAttempt:
    """Carries out one streamed attempt, once. One timer limits all its waits: it cancels the asyncio task when a wait takes too long."""

    def __init__(self, attempt: Attempt, waiter: AnyStreamWaiter) -> None:
        self.attempt, self._waiter, self._loop = attempt, waiter, waiter.driver.loop
        self._timing: Any = attempt.source.stream_timing
        self._limit: float = inf  # seconds that the current wait may take
        self._last: float | None = None  # when the last chunk arrived, or None if reading has paused since
        self._gaps: list[float] = []
        self.stream: OpenStream | None = None
        self._deadline = self._fires_at = inf  # in the event loop's time
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    async def run(self) -> Outcome:
        """Carry out the attempt. Must be awaited in a task that does nothing else meanwhile. Raises only ``CancelledError``."""
        me = asyncio.current_task()
        assert me is not None
        self._task, self._before = me, me.cancelling()
        attempt = self.attempt
        backend: Any = self._waiter.driver.backend
        try:
            if self._timing is not None and (limit := self._timing.first_limit(attempt.overdue)) is not None:
                self._limit = limit
                self._within(self._loop.time(), limit)
            opened: OpenStream | Failure = self._withheld() or await backend.stream(attempt.source.endpoint, attempt.task.payload)
            return opened if isinstance(opened, Failure) else await self._read(opened)
        except asyncio.CancelledError:
            if not self._expired or me.uncancel() > self._before:  # not (only) the timer cancelled
                raise
            name, after = attempt.source.name, f"{self._limit:.1f} s"
            message = f"no first token from endpoint {name!r} within {after}, far longer than it usually takes"
            if attempt.committed:
                message = f"endpoint {name!r} sent nothing for {after} amid its answer, far longer than it ever pauses"
            return Failure(FailureKind.TIMEOUT, RequestTimeout(message, endpoint=name))
        finally:
            self._set_timer(inf)
            self._waiter.attempt_ended(self)

    def _withheld(self) -> Failure | None:
        """Return the failure for which the backend would rather not send the stream to this source, if another source may be sent it."""
        attempt, backend = self.attempt, self._waiter.driver.backend
        source, task, withheld = attempt.source, attempt.task, getattr(backend, "withheld", None)
        failure: Failure | None = withheld(source.endpoint, task.payload) if withheld is not None else None
        if failure is None:
            return None
        rest = (other for other in task.pool.sources if other is not source and other not in task.unfit)
        return failure if any(other.health.in_service for other in rest) else None

    async def _read(self, stream: OpenStream) -> Outcome:
        self.stream, attempt, waiter = stream, self.attempt, self._waiter
        try:
            if stream.limits is not None:
                waiter.driver.locked(waiter.driver.engine.scheduler.opened, attempt, stream.limits)
            chunks = await self._read_first(stream)
            if chunks is not None:  # commits the attempt at its first token
                if not waiter.driver.commit(attempt):
                    return CANCELLED
                self._timing = attempt.source.stream_timing  # ``commit`` has set it if it was not set before
                self._limit = self._timing.gap_limit()
                waiter.begin(attempt.task, stream)
            while chunks is not None:
                # an empty list is a keep-alive, which does not extend the limit: proxies send them even when the server hangs
                if chunks and self._pass_on(stream, chunks):
                    self._deadline, attempt.holds_since = inf, self._loop.time()
                    await waiter.space()
                    self._last = None  # the next chunk may have arrived during the pause
                    now = self._loop.time()
                    attempt.held, attempt.holds_since = attempt.held_until(now), None
                    self._within(now, self._limit)
                chunks = await self._next(stream)
            if self._gaps:
                self._record_gaps()
            assert stream.outcome is not None
            return stream.outcome
        finally:
            self._set_timer(inf)
            await stream.aclose()

    async def _read_first(self, stream: OpenStream) -> list[Any] | None:
        held: list[Any] = []
        while (chunks := await self._next(stream)) is not None:
            held += chunks
            if not isinstance(stream.outcome, Failure) and any(chunk.has_output for chunk in chunks):
                return held
            if chunks and stream.whole:
                self._limit_ending(self._loop.time(), GRACE)
        return held if isinstance(stream.outcome, Answer) else None  # an answer without output is also an answer

    async def _next(self, stream: OpenStream) -> list[Any] | None:
        """Return the next chunks. Return None if the stream has an outcome, also if the timer expired after the answer had ended."""
        try:
            return await stream.read()
        except asyncio.CancelledError:
            if not self._expired or stream.outcome is CANCELLED:
                raise
            self._expired = False
            if self._task.uncancel() > self._before:  # not only the timer cancelled
                raise
            return None

    def _pass_on(self, stream: OpenStream, chunks: list[Any]) -> bool:
        """Pass chunks on. Returns True if too many wait for the consumer and more chunks are expected."""
        now, last = self._loop.time(), self._last
        goes_on = any(chunk.has_output for chunk in chunks)  # servers and proxies also send chunks without output to keep a connection open
        if goes_on:
            self._last = now
        if goes_on and last is not None:
            self._gaps.append(now - last)
            if len(self._gaps) >= GAPS_AT_ONCE:
                self._record_gaps()
        full = self._waiter.put(self.attempt.task, chunks)
        if stream.whole:  # an ending that comes with output may be one of many, as some servers send them; so it gets more time
            self._limit_ending(now, self._limit if chunks[-1].has_output else GRACE)
            return False
        if goes_on and not full:
            self._within(now, self._limit)
        return full

    def _record_gaps(self) -> None:
        with self._waiter.driver.engine.lock:
            self._timing.went_on(self._gaps)
        self._gaps.clear()

    # the timer

    def _within(self, now: float, seconds: float) -> None:
        self._deadline = deadline = now + seconds
        if deadline < self._fires_at:
            self._set_timer(deadline)

    def _limit_ending(self, now: float, seconds: float) -> None:
        """Limit the wait for the end of a stream whose answer has ended. It ends before the time limits of the request and the attempt."""
        attempt, clock = self.attempt, self._waiter.driver.engine.clock()
        limit = attempt.source.attempt_timeout
        limited = inf if limit is None else attempt.sent_at + limit + attempt.held_until(clock)
        left = min(seconds, attempt.task.deadline - clock - MARGIN, limited - clock - MARGIN)
        self._within(now, min(max(0.0, left), self._deadline - now))

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at, self._timer = when, None if when == inf else self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._fires_at, self._timer = inf, None
        if self._loop.time() >= self._deadline:
            self.expire()
        elif self._deadline != inf:
            self._set_timer(self._deadline)

    def expire(self) -> None:
        self._deadline, self._expired = inf, True
        self._task.cancel()


class StreamingWaiter(Waiter):
    """A waiter whose attempts are streams. One consumer takes their events. ``leave``, in the event loop's thread, gives the streams up."""

    def __init__(self, driver: LoopDriver, ahead: int) -> None:
        self.driver, self._ahead = driver, ahead
        self._events: deque[Any] = deque()  # events that have arrived and are not yet taken
        self._only_results = False  # the consumer takes no more texts
        self._open_attempts: dict[StreamAttempt, None] = {}
        self._waiting: list[asyncio.Future[None]] = []  # those who wait for events or the end
        self._wanted_space: list[asyncio.Future[None]] = []  # attempts that pause
        self._read_by_one = False

    def ended(self) -> bool:
        """Return True if no more events will arrive. Raises the error that ended the stream."""
        raise NotImplementedError

    async def take(self) -> Any:
        """Return the next event, or None at the end. Raises the error that ended the stream after all events are taken."""
        while not self._events:
            if self.ended():
                return None
            arrival = self._arrival()
            if self._read_by_one:
                raise RuntimeError("a stream can be read by only one task at a time")
            self._read_by_one = True
            try:
                await arrival
            finally:
                self._read_by_one = False
        event = self._events.popleft()
        if len(self._events) == self._ahead // 2:
            self._resume()
        return event

    def _resume(self) -> None:
        wake(self._wanted_space)

    def _arrival(self) -> asyncio.Future[None]:
        self.check_loop()
        self._waiting.append(arrival := self.driver.loop.create_future())
        return arrival

    def check_loop(self) -> None:
        """Raise ``RuntimeError`` in another event loop, where the wait would never end."""
        if asyncio.get_running_loop() is not self.driver.loop:
            raise RuntimeError("a stream must be read in the event loop that began it, not in another thread or a forked process")

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds that may change with each event, and with the end of an attempt or of the stream."""
        while not condition():
            await self._arrival()

    def idle(self) -> bool:
        """Return True if the connections of all attempts are closed."""
        return not self._open_attempts

    def end_whole(self) -> None:
        """Report the outcomes of committed streams whose answers have ended, and close these streams soon. Called before the other open
        streams are given up."""
        for streamed in list(self._open_attempts):
            stream, attempt = streamed.stream, streamed.attempt
            if stream is not None and stream.whole and attempt.committed:
                self.driver.ended(attempt, stream.end())
                streamed.expire()

    # the attempt's side

    def execute(self, attempt: Attempt) -> Coroutine[Any, Any, Outcome]:
        streamed = StreamAttempt(attempt, cast("AnyStreamWaiter", self))
        self._open_attempts[streamed] = None
        return streamed.run()

    def attempt_ended(self, attempt: StreamAttempt) -> None:
        del self._open_attempts[attempt]
        wake(self._waiting)

    async def space(self) -> None:
        while len(self._events) > self._ahead // 2 and not self._only_results:
            self._wanted_space.append(space := self.driver.loop.create_future())
            await space


def wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not (future.done() or future.get_loop().is_closed()):  # closed: an attempt is discarded with its event loop
            future.set_result(None)
    waiting.clear()


class StreamWaiter(StreamingWaiter):
    def __init__(self, driver: LoopDriver) -> None:
        super().__init__(driver, AHEAD)
        self.left = False  # the consumer has given up the stream
        self.result: Result[Any] | None = None
        self.stream: OpenStream | None = None  # of the committed attempt, whose chunks are passed on; it holds the text
        self._task: Task | None = None
        self.context = copy_context()

    def submit(self, task: Task) -> None:
        self._task = task
        self.driver.waiters[self] = None
        self.driver.submit(task)

    def ended(self) -> bool:
        if self.left:
            raise closed(self.text())
        if self.result is not None and self.result.error is not None:
            raise self.result.error
        return self.result is not None

    def only_results(self) -> None:
        """Drop all chunks, those that wait and those that arrive later."""
        self._only_results = True
        self._events.clear()
        self._resume()

    def text(self) -> str:
        return "" if self.stream is None else self.stream.text()

    def leave(self) -> None:
        if self.left:
            return
        self.end_whole()
        self.left = True
        self._events.clear()
        if left := [task for task in self.abandon() if task.state is not TaskState.DONE]:
            self.driver.withdraw(left)
        self._forget()

    def over(self) -> bool:
        return self.left or (self.result is not None and not self._events)

    # called by the loop driver

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self.stream is not None and isinstance(outcome, RequestError):
            outcome = interrupted(outcome, self.text())
        self.result = result_of(task, outcome, source, seconds)
        self._forget()

    def close(self) -> None:
        self.end_whole()
        super().close()

    def abandon(self) -> list[Task]:
        return [] if self._task is None else [self._task]

    def _forget(self) -> None:
        self.driver.waiters.pop(self, None)
        self._task = None  # breaks the reference cycle of task and waiter, so that reference counting frees them
        wake(self._waiting)

    # the attempt's side: ``begin`` before the first chunk of a committed attempt; ``put`` returns True if ``space`` must be awaited then

    def begin(self, task: Task, stream: OpenStream) -> None:
        if self.stream is not None and not self._only_results:
            self._events.append(StreamRestarted(self.text(), task.last_error))
        self.stream = stream

    def put(self, _task: Task, chunks: list[Any]) -> bool:
        if self._only_results:
            return False
        self._events += chunks
        wake(self._waiting)
        return len(self._events) >= AHEAD


class BatchStreamWaiter(StreamingWaiter, BatchWaiter):
    """Receives the events of a batch of streams. Its constructor takes the arguments of :class:`BatchWaiter`, and ``most``."""

    _items_at_once = 1  # an item that fails fills the queue of events too

    def __init__(self, driver: LoopDriver, *args: Any, most: int, **kwargs: Any) -> None:
        StreamingWaiter.__init__(self, driver, BATCH_AHEAD)
        BatchWaiter.__init__(self, driver, *args, **kwargs)
        self._most = most
        self._streams: dict[Task, OpenStream] = {}  # of the committed attempts; they hold the texts
        self._run = driver.loop.create_task(self.run())
        self._run.add_done_callback(lambda _: wake(self._waiting))
        # its exception is raised to the consumer, if there is one
        self._run.add_done_callback(lambda run: run.cancelled() or run.exception())

    # the consumer's side

    def _resume(self) -> None:
        super()._resume()
        self._read_if_wanted()

    def results(self) -> BatchResult[Any]:
        """Return the results, once the batch is over. Raises the error that ended it."""
        if self._run.cancelled():
            raise closed("")
        return self._run.result()

    def ended(self) -> bool:
        return self.over() and self.results() is not None

    def only_results(self) -> bool:
        """Drop all texts, those that wait and those that arrive later. Returns True if no other task takes the results."""
        if not self.over():
            self.check_loop()
        self._only_results = True
        self._events = deque(event for event in self._events if isinstance(event[1], Result))
        self._resume()
        return not self._read_by_one

    def leave(self) -> None:
        self._run.cancel()

    def over(self) -> bool:
        return self._run.done()

    def idle(self) -> bool:
        return self.over() and super().idle()

    # called by the loop driver

    execute = StreamingWaiter.execute

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        stream = self._streams.pop(task, None)
        if stream is not None and isinstance(outcome, RequestError):
            outcome = interrupted(outcome, stream.text())
        super().finish(task, outcome, source, seconds)
        self._read_if_wanted()

    def _settle(self, result: Result[Any]) -> None:
        super()._settle(result)
        self._events.append((result.index, result))
        wake(self._waiting)

    def _stop(self, make_error: Callable[[], QRewardError]) -> None:
        self.end_whole()
        super()._stop(make_error)

    # reading

    def _take(self, feed: BatchFeed) -> bool:
        return self._room() > 0 and super()._take(feed)

    def _room(self) -> int:
        if len(self._events) >= BATCH_AHEAD:
            return 0
        room = super()._room()
        return min(room, self._most - len(self._live)) if self._most else room

    def _read_if_wanted(self) -> None:
        """Read on, if that was requested while there was no room."""
        if not self._feed.more_requested or self._room() <= 0:
            return
        if self._is_async:
            self._wanted.set()
        else:
            self.driver.loop.call_soon(self._read_later, self._feed)

    # the attempt's side

    def begin(self, task: Task, stream: OpenStream) -> None:
        before = self._streams.get(task)
        if before is not None and not self._only_results:
            self._events.append((task.index, StreamRestarted(before.text(), task.last_error)))
        self._streams[task] = stream

    def put(self, task: Task, chunks: list[Any]) -> bool:
        if not self._only_results:
            index = task.index
            self._events.extend((index, text) for chunk in chunks if (text := chunk.text))
        wake(self._waiting)
        return len(self._events) >= BATCH_AHEAD and not self._only_results


AnyStreamWaiter = StreamWaiter | BatchStreamWaiter


def interrupted(error: RequestError, text: str) -> StreamInterrupted:
    details = {name: getattr(error, name) for name in ("endpoint", "model", "status_code", "request_id")}
    broken = StreamInterrupted(f"the stream broke off after {len(text)} characters: {error}", text=text, **details)
    broken.__cause__ = error
    return broken


def closed(text: str) -> StreamInterrupted:
    """Return the error for a consumer that reads on after it has given up the stream."""
    return StreamInterrupted("the stream was left before its end, which closed it; read it in one loop, or by one iterator", text=text)
