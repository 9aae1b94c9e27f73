"""One attempt at a stream: asked for, read, passed on piece by piece, and given up if nothing comes for too long.

Nothing is given out before the first token, so that until then an attempt may fail, or lose against another, unnoticed. With
the first token it is committed: the scheduler is told, and stops the others. When its receiver has no room, nothing more is
read, and no time limit runs but that of the whole. Knows tasks and the wire's streams; knows nothing of who consumes them.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, Protocol

from qreward.core.outcome import CANCELLED, Advertised, Answer, Failure, FailureKind, Outcome
from qreward.core.task import Attempt, Task
from qreward.engine.shell import Shell
from qreward.errors import RequestTimeout

LESSON = 64
"""Gaps between tokens after which they are told to the source, as the lock is taken for it."""


class Chunk(Protocol):
    """A piece of an answer."""

    text: str

    @property
    def has_output(self) -> bool: ...
    def build(self) -> Any: ...


class Opened(Protocol):
    """What ``Wire.stream`` gives, if not a ``Failure``: see ``qreward.wire.streams``."""

    limits: Advertised | None
    outcome: Outcome | None

    async def read(self) -> list[Any] | None: ...
    async def aclose(self) -> None: ...


class Receiver(Protocol):
    """Where the pieces go: a sink of the shell."""

    shell: Shell

    def begin(self, task: Task) -> None:
        """The first piece of an attempt is about to come; what another attempt gave before is void."""

    def put(self, task: Task, chunks: list[Any], /) -> bool:
        """Take pieces; True if ``room`` must be waited for before more."""

    async def room(self) -> None:
        """Wait until more is wanted."""


class Watch:
    """One timer for all the waits of a task, which is cancelled when one takes too long.

    The timer is not set anew for each token: when it goes off too early, it looks when it is due now.
    """

    __slots__ = ("_due", "_task", "_timer", "expired", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.loop = loop
        self.expired = False
        self._task = task
        self._due = inf
        self._timer: asyncio.TimerHandle | None = None

    def within(self, now: float, seconds: float) -> None:
        """Something must come within so many seconds."""
        due = self._due = now + seconds
        timer = self._timer
        if timer is None or timer.when() > due:
            if timer is not None:
                timer.cancel()
            self._timer = self.loop.call_at(due, self._look)

    def rest(self) -> None:
        """Nothing is waited for."""
        self._due = inf

    def close(self) -> None:
        self._due = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self.loop.time() >= self._due:
            self._due, self.expired = inf, True
            self._task.cancel()
        elif self._due != inf:
            self._timer = self.loop.call_at(self._due, self._look)


class Flow:
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
        self._watch = Watch(self._receiver.shell.loop, me)
        try:
            return await self._ask()
        except asyncio.CancelledError:
            if not self._watch.expired or me.uncancel() > before:  # it is not (only) our own timer
                raise
            return self._late()
        finally:
            self._watch.close()

    async def _ask(self) -> Outcome:
        attempt, shell, watch = self._attempt, self._receiver.shell, self._watch
        tempo = attempt.source.tempo
        self._limit = None if tempo is None else tempo.first_limit(attempt.overdue)
        if self._limit is not None:
            watch.within(watch.loop.time(), self._limit)
        wire: Any = shell.wire
        opened: Opened | Failure = await wire.stream(attempt.source.handle, attempt.task.payload)
        if isinstance(opened, Failure):
            return opened
        try:
            if opened.limits is not None:
                shell.opened(attempt, opened.limits)
            return await self._read(opened)
        finally:
            watch.close()
            await opened.aclose()

    async def _read(self, stream: Opened) -> Outcome:
        held: list[Any] = []
        begun = False
        while (chunks := await stream.read()) is not None:
            if begun:
                if chunks:  # else it is a sign of life, which moves no limit: a proxy gives it for a server that hangs
                    await self._pass_on(chunks)
                continue
            held += chunks
            if isinstance(stream.outcome, Failure) or not any(chunk.has_output for chunk in chunks):
                continue
            if not self._begin():
                return CANCELLED
            begun = True
            await self._pass_on(held)
        if isinstance(stream.outcome, Answer) and not begun:  # it says nothing: that is an answer, too
            if not self._begin():
                return CANCELLED
            await self._pass_on(held)
        if self._gaps:
            self._learn()
        assert stream.outcome is not None
        return stream.outcome

    def _begin(self) -> bool:
        """The first token is there; False if nobody waits for it any more."""
        attempt = self._attempt
        if not self._receiver.shell.commit(attempt):
            return False
        assert attempt.source.tempo is not None
        self._limit = attempt.source.tempo.gap_limit()
        self._receiver.begin(attempt.task)
        return True

    async def _pass_on(self, chunks: list[Any]) -> None:
        watch = self._watch
        now = watch.loop.time()
        if self._last is not None:
            self._gaps.append(now - self._last)
            if len(self._gaps) >= LESSON:
                self._learn()
        self._last = now
        if self._receiver.put(self._attempt.task, chunks):
            watch.rest()
            await self._receiver.room()
            self._last = None  # what comes next may have waited for us
            paused, now = now, watch.loop.time()
            self._attempt.held += now - paused
        assert self._limit is not None
        watch.within(now, self._limit)

    def _learn(self) -> None:
        tempo = self._attempt.source.tempo
        assert tempo is not None
        with self._receiver.shell.engine.lock:
            tempo.went_on(self._gaps)
        self._gaps.clear()

    def _late(self) -> Failure:
        name = self._attempt.source.name
        if self._attempt.committed:
            said = f"endpoint {name!r} sent nothing for {self._limit:.1f} s amid its answer, far longer than it ever pauses"
        else:
            said = f"no first token from endpoint {name!r} within {self._limit:.1f} s, far longer than it usually takes"
        return Failure(FailureKind.TIMEOUT, RequestTimeout(said, endpoint=name))
