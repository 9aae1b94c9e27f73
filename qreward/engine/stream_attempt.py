"""One streamed attempt: opened, read, passed on chunk by chunk, and cancelled if nothing arrives for too long.

Nothing is passed on before the first token, so that until then an attempt may fail, or lose against another attempt, unnoticed. At
the first token the attempt is committed, and the scheduler cancels the other attempts. While the receiver's buffer is full, nothing
more is read, and no time limit runs except that of the whole request. This module knows tasks and the backend's streams; it must not
know the consumer.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, Protocol

from qreward.engine.driver import LoopDriver
from qreward.errors import RequestTimeout
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome, RateLimitInfo
from qreward.scheduler.state import Attempt, Task

LESSON = 64
"""Number of gaps between tokens that are collected before they are recorded at the source, which takes the engine's lock."""


class Chunk(Protocol):
    """A piece of an answer."""

    text: str

    @property
    def has_output(self) -> bool: ...
    def build(self) -> Any: ...


class Opened(Protocol):
    """The stream that the backend's ``stream`` returns if it does not return a ``Failure``; see ``qreward.transport.stream``."""

    limits: RateLimitInfo | None
    outcome: Outcome | None

    async def read(self) -> list[Any] | None: ...
    async def aclose(self) -> None: ...


class Receiver(Protocol):
    """Receives the chunks of an attempt: a waiter of the loop driver."""

    shell: LoopDriver

    def begin(self, task: Task) -> None:
        """Called before the first chunk of a committed attempt. Text of an earlier attempt is void."""

    def put(self, task: Task, chunks: list[Any], /) -> bool:
        """Take chunks. Returns True if ``room`` must be awaited before the next ones."""

    async def room(self) -> None:
        """Wait until more chunks may be put."""

    def gone(self) -> None:
        """Called when the attempt has ended and its connection is closed."""


class InactivityTimer:
    """One timer for all waits of an asyncio task, which is cancelled when a wait takes too long.

    The timer is not set again for each token. If it fires before the current deadline, it is set again for that deadline.
    """

    __slots__ = ("_due", "_looks", "_task", "_timer", "expired", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.loop = loop
        self.expired = False
        self._task = task
        self._due = inf
        self._looks = inf  # when the timer fires
        self._timer: asyncio.TimerHandle | None = None

    def within(self, now: float, seconds: float) -> None:
        """Set the deadline to ``seconds`` after ``now``, in the event loop's time."""
        self._due = due = now + seconds
        if due < self._looks:
            self._set(due)

    def rest(self) -> None:
        """Remove the deadline."""
        self._due = inf

    def close(self) -> None:
        self._due = inf
        self._set(inf)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks, self._timer = when, None if when == inf else self.loop.call_at(when, self._look)

    def _look(self) -> None:
        self._looks, self._timer = inf, None
        if self.loop.time() >= self._due:
            self._due, self.expired = inf, True
            self._task.cancel()
        elif self._due != inf:
            self._set(self._due)


class StreamAttempt:
    """Carries out one streamed attempt, once."""

    __slots__ = ("_attempt", "_gaps", "_last", "_limit", "_receiver", "_watch")

    def __init__(self, attempt: Attempt, receiver: Receiver) -> None:
        self._attempt = attempt
        self._receiver = receiver
        self._limit: float | None = None  # seconds that the current wait may take
        self._last: float | None = None  # when the last chunk arrived, or None if reading has paused since
        self._gaps: list[float] = []

    async def run(self) -> Outcome:
        """Carry out the attempt. Must be awaited in a task that does nothing else meanwhile. Raises only ``CancelledError``."""
        me = asyncio.current_task()
        assert me is not None
        before = me.cancelling()
        self._watch = InactivityTimer(self._receiver.shell.loop, me)
        try:
            opened = await self._ask()
            return opened if isinstance(opened, Failure) else await self._read(opened)
        except asyncio.CancelledError:
            if not self._watch.expired or me.uncancel() > before:  # not (only) the inactivity timer cancelled
                raise
            return self._late()
        finally:
            self._watch.close()
            self._receiver.gone()

    async def _ask(self) -> Opened | Failure:
        attempt, shell, watch = self._attempt, self._receiver.shell, self._watch
        tempo = attempt.source.stream_timing
        self._limit = None if tempo is None else tempo.first_limit(attempt.overdue)
        if self._limit is not None:
            watch.within(watch.loop.time(), self._limit)
        wire: Any = shell.wire
        opened: Opened | Failure = await wire.stream(attempt.source.handle, attempt.task.payload)
        return opened

    async def _read(self, stream: Opened) -> Outcome:
        try:
            if stream.limits is not None:
                self._receiver.shell.opened(self._attempt, stream.limits)
            chunks = await self._read_first(stream)
            if chunks is not None and not self._begin():
                return CANCELLED
            while chunks is not None:
                # an empty list is a keep-alive, which does not extend the limit: proxies send them even when the server hangs
                if chunks and self._pass_on(chunks):
                    await self._rest()
                chunks = await stream.read()
            if self._gaps:
                self._learn()
            assert stream.outcome is not None
            return stream.outcome
        finally:
            self._watch.close()
            await stream.aclose()

    async def _read_first(self, stream: Opened) -> list[Any] | None:
        """Read up to and including the first token. Returns None if there is no answer."""
        held: list[Any] = []
        while (chunks := await stream.read()) is not None:
            held += chunks
            if not isinstance(stream.outcome, Failure) and any(chunk.has_output for chunk in chunks):
                return held
        return held if isinstance(stream.outcome, Answer) else None  # an answer without output is also an answer

    def _begin(self) -> bool:
        """Commit the attempt at its first token. Returns False if the attempt is no longer wanted."""
        attempt = self._attempt
        if not self._receiver.shell.commit(attempt):
            return False
        assert attempt.source.stream_timing is not None
        self._limit = attempt.source.stream_timing.gap_limit()
        self._receiver.begin(attempt.task)
        return True

    def _pass_on(self, chunks: list[Any]) -> bool:
        """Pass chunks on. Returns True if the receiver's buffer is full."""
        watch = self._watch
        now, last = watch.loop.time(), self._last
        self._last = now
        if last is not None:
            self._gaps.append(now - last)
            if len(self._gaps) >= LESSON:
                self._learn()
        if self._receiver.put(self._attempt.task, chunks):
            return True
        assert self._limit is not None
        watch.within(now, self._limit)
        return False

    async def _rest(self) -> None:
        """Wait until the receiver's buffer has room."""
        watch, attempt = self._watch, self._attempt
        watch.rest()
        attempt.holds_since = watch.loop.time()
        await self._receiver.room()
        self._last = None  # the next chunk may have arrived during the pause
        now = watch.loop.time()
        attempt.held, attempt.holds_since = attempt.held_until(now), None
        assert self._limit is not None
        watch.within(now, self._limit)

    def _learn(self) -> None:
        tempo = self._attempt.source.stream_timing
        assert tempo is not None
        with self._receiver.shell.engine.lock:
            tempo.went_on(self._gaps)
        if (watch := self._receiver.shell.watch) is not None:
            watch.gaps(self._attempt, self._gaps)
        self._gaps.clear()

    def _late(self) -> Failure:
        name = self._attempt.source.name
        if self._attempt.committed:
            said = f"endpoint {name!r} sent nothing for {self._limit:.1f} s amid its answer, far longer than it ever pauses"
        else:
            said = f"no first token from endpoint {name!r} within {self._limit:.1f} s, far longer than it usually takes"
        return Failure(FailureKind.TIMEOUT, RequestTimeout(said, endpoint=name))
