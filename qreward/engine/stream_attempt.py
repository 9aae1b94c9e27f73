"""One attempt at a stream: asked for, read, passed on piece by piece, and given up if nothing comes for too long.

Nothing is given out before the first token, so that until then an attempt may fail, or lose against another, unnoticed. With
the first token it is committed: the scheduler is told, and stops the others. When its receiver has no room, nothing more is
read, and no time limit runs but that of the whole. Knows tasks and the wire's streams; knows nothing of who consumes them.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, Protocol

from qreward.engine.driver import LoopDriver
from qreward.errors import RequestTimeout
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome, RateLimitInfo
from qreward.scheduler.request import Attempt, Task

LESSON = 64
"""Gaps between tokens after which they are told to the source, as the lock is taken for it."""


class Chunk(Protocol):
    """A piece of an answer."""

    text: str

    @property
    def has_output(self) -> bool: ...
    def build(self) -> Any: ...


class Opened(Protocol):
    """What ``Wire.stream`` gives, if not a ``Failure``: see ``qreward.transport.stream``."""

    limits: RateLimitInfo | None
    outcome: Outcome | None

    async def read(self) -> list[Any] | None: ...
    async def aclose(self) -> None: ...


class Receiver(Protocol):
    """Where the pieces go: a sink of the shell."""

    shell: LoopDriver

    def begin(self, task: Task) -> None:
        """The first piece of an attempt is about to come; what another attempt gave before is void."""

    def put(self, task: Task, chunks: list[Any], /) -> bool:
        """Take pieces; True if ``room`` must be waited for before more."""

    async def room(self) -> None:
        """Wait until more is wanted."""

    def gone(self) -> None:
        """The attempt has ended, and its connection is closed."""


class InactivityTimer:
    """One timer for all the waits of a task, which is cancelled when one takes too long.

    The timer is not set anew for each token: when it goes off too early, it looks when it is due now.
    """

    __slots__ = ("_due", "_looks", "_task", "_timer", "expired", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.loop = loop
        self.expired = False
        self._task = task
        self._due = inf
        self._looks = inf  # when the timer goes off
        self._timer: asyncio.TimerHandle | None = None

    def within(self, now: float, seconds: float) -> None:
        """Something must come within so many seconds."""
        self._due = due = now + seconds
        if due < self._looks:
            self._set(due)

    def rest(self) -> None:
        """Nothing is waited for."""
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
    """Carries out one attempt, once."""

    __slots__ = ("_attempt", "_gaps", "_last", "_limit", "_receiver", "_watch")

    def __init__(self, attempt: Attempt, receiver: Receiver) -> None:
        self._attempt = attempt
        self._receiver = receiver
        self._limit: float | None = None  # seconds for what is waited for now
        self._last: float | None = None  # when the last piece came, unless reading has paused since
        self._gaps: list[float] = []

    async def run(self) -> Outcome:
        """To be awaited in a task that serves nothing else. Raises nothing but ``CancelledError``."""
        me = asyncio.current_task()
        assert me is not None
        before = me.cancelling()
        self._watch = InactivityTimer(self._receiver.shell.loop, me)
        try:
            opened = await self._ask()
            return opened if isinstance(opened, Failure) else await self._read(opened)
        except asyncio.CancelledError:
            if not self._watch.expired or me.uncancel() > before:  # it is not (only) our own timer
                raise
            return self._late()
        finally:
            self._watch.close()
            self._receiver.gone()

    async def _ask(self) -> Opened | Failure:
        attempt, shell, watch = self._attempt, self._receiver.shell, self._watch
        tempo = attempt.source.tempo
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
                if chunks and self._pass_on(chunks):  # none is a sign of life, which moves no limit: proxies give it for servers that hang
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
        """All up to the first token; None if there is no answer."""
        held: list[Any] = []
        while (chunks := await stream.read()) is not None:
            held += chunks
            if not isinstance(stream.outcome, Failure) and any(chunk.has_output for chunk in chunks):
                return held
        return held if isinstance(stream.outcome, Answer) else None  # it says nothing: that is an answer, too

    def _begin(self) -> bool:
        """The first token is there; False if nobody waits for it any more."""
        attempt = self._attempt
        if not self._receiver.shell.commit(attempt):
            return False
        assert attempt.source.tempo is not None
        self._limit = attempt.source.tempo.gap_limit()
        self._receiver.begin(attempt.task)
        return True

    def _pass_on(self, chunks: list[Any]) -> bool:
        """Give pieces out; True if the receiver has no room for more."""
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
        """Wait until there is room."""
        watch, attempt = self._watch, self._attempt
        watch.rest()
        attempt.holds_since = watch.loop.time()
        await self._receiver.room()
        self._last = None  # what comes next may have waited for us
        now = watch.loop.time()
        attempt.held, attempt.holds_since = attempt.held_until(now), None
        assert self._limit is not None
        watch.within(now, self._limit)

    def _learn(self) -> None:
        tempo = self._attempt.source.tempo
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
