"""An engine that looks at its endpoints now and then: whether they are ready, and how much they have to do.

Each shell has a round with one timer; what is due is claimed under the engine's lock, so that each endpoint is looked at by one
shell at a time, the same one as long as that goes on. If its loop stops, another takes over. Where no endpoint wants to be looked
at there is no timer. Knows when to look and who is told; what a look is the wire knows, and what it means ``scheduler.probe_state``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, cast

from qreward.engine.driver import Engine, LoopDriver
from qreward.engine.instrumentation import LOG
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.probe_state import ProbeEffect, ProbeState
from qreward.scheduler.scheduler import Scheduler
from qreward.settings.policies import Endpoint

LONGEST_LOOK = 5.0
"""Seconds after which a look is given up; it then says nothing."""
GIVEN_UP = 2 * LONGEST_LOOK
"""Seconds after which nothing is heard any more of a look: its loop has stopped."""
EARLY, LATE = 0.1, 0.5
"""Shares of the interval by which a look may come early, to go with others, and late enough for another shell to take over."""

_Ask = Callable[[Endpoint], Awaitable[ProbeResult]]


class _Turn:
    """One source: what was seen of it, when it is looked at next, and who does it. ``trouble`` was logged last."""

    __slots__ = ("busy_until", "by", "next_at", "sight", "trouble")

    def __init__(self, now: float) -> None:
        self.sight = ProbeState()
        self.next_at = now
        self.busy_until = -inf
        self.by: ProbeLoop | None = None
        self.trouble: str | None = None

    def due(self, by: ProbeLoop, interval: float) -> float:
        return self.next_at if self.by in (None, by) else self.next_at + LATE * interval


class ProbingEngine(Engine[Scheduler]):
    """An engine whose sources are looked at as their endpoints' ``probe`` says, while it has loops.

    The wire is asked by its ``look``: an endpoint in, a ``scheduler.outcome.Look`` out, raising nothing. One that has none is not asked.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._sources: Callable[[], Iterable[Source]] = tuple
        self._hear: Callable[[Source, ProbeResult], object] | None = None
        self._turns: dict[Source, _Turn] = {}
        self._rounds: dict[LoopDriver, ProbeLoop] = {}

    def watch_over(self, sources: Callable[[], Iterable[Source]], hear: Callable[[Source, ProbeResult], object] | None = None) -> None:
        """Look at these, which are asked for each time. Their handles are endpoints. ``hear`` is called under the lock after each look."""
        self._sources, self._hear = sources, hear

    def look_around(self) -> None:
        """There may be others to look at. From any thread."""
        for shell, each in list(self._rounds.items()):
            shell.later(each.go)

    def claim(self, by: ProbeLoop) -> tuple[list[Source], float]:
        """Whom a round is to look at now, and when it is to ask again (inf: when it is told to)."""
        with self.lock:
            now, claimed, wake, turns = self.clock(), [], inf, {}
            for source in self._sources():
                interval = cast("Endpoint", source.handle).probe
                if interval is None:
                    continue
                turn = turns[source] = self._turns.get(source) or _Turn(now)
                if now < turn.busy_until:
                    wake = min(wake, now + interval)
                elif turn.due(by, interval) <= now + EARLY * interval:
                    turn.by, turn.next_at, turn.busy_until = by, now + interval, now + GIVEN_UP
                    claimed.append(source)
                    wake = min(wake, turn.next_at)
                else:
                    wake = min(wake, turn.due(by, interval))
            self._turns = turns
            return claimed, wake

    def seen(self, source: Source, look: ProbeResult) -> None:
        """Somebody has looked."""
        turn = self._turns.get(source)
        if look.trouble is not None and turn is not None and turn.trouble != look.trouble:
            turn.trouble = look.trouble
            LOG.warning("endpoint %r: its probe has no effect: %s", source.name, look.trouble)
        if not self.closed:
            self.act(partial(self._take, source=source, look=look))

    def forget(self, shell: LoopDriver) -> None:
        """A shell has ended, and its round with it."""
        ended = self._rounds.pop(shell, None)
        if ended is not None:
            ended.stop()
        super().forget(shell)

    def _open_shell(self) -> LoopDriver:
        shell = super()._open_shell()
        for other in [other for other in list(self._rounds) if other.loop.is_closed()]:
            self._rounds.pop(other, None)
        ask: _Ask | None = getattr(shell.wire, "look", None)
        if ask is not None:
            self._rounds[shell] = begun = ProbeLoop(self, shell, ask)
            begun.go()
        return shell

    def _take(self, now: float, source: Source, look: ProbeResult) -> None:
        interval, turn = cast("Endpoint", source.handle).probe, self._turns.get(source)
        if interval is None or turn is None or source.removed:
            return
        turn.busy_until = -inf
        if self._hear is not None:
            self._hear(source, look)
        change = turn.sight.take(now, source, look, interval)
        if change is ProbeEffect.LOST:
            self.scheduler.lost(now, source)
        if change is not ProbeEffect.NONE:  # also who is lost is to be woken in time
            self.scheduler.changed(now, source)


class ProbeLoop:
    """The looks that one shell takes."""

    def __init__(self, engine: ProbingEngine, shell: LoopDriver, ask: _Ask) -> None:
        self._engine = engine
        self._shell = shell
        self._ask = ask
        self._timer: asyncio.TimerHandle | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._over = False

    def go(self) -> None:
        """Begin the looks that are due, and come back when the next is. In the shell's loop."""
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        claimed, wake = self._engine.claim(self)
        loop = self._shell.loop
        for source in claimed:
            look = loop.create_task(self._look(source), context=Context())  # nothing of the caller's is kept by it
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
        if wake < inf:
            self._timer = loop.call_later(max(0.0, wake - self._engine.clock()), self.go, context=Context())

    def stop(self) -> None:
        """For good."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for look in self._looks:
            look.cancel()

    async def _look(self, source: Source) -> None:
        try:
            async with asyncio.timeout(LONGEST_LOOK):
                look = await self._ask(cast("Endpoint", source.handle))
        except TimeoutError:
            look = ProbeResult()
        except Exception as error:  # whatever goes wrong with it, a look is no reason for anything to fail
            look = ProbeResult(trouble=f"the look raised {type(error).__name__}")
        self._engine.seen(source, look)
