"""An engine that probes its endpoints at intervals: whether they are ready, and how loaded they are.

Each loop driver has a probe loop with one timer. Due probes are claimed under the engine's lock, so that one event loop at a time
probes an endpoint, and the same one each time. If that event loop stops, another takes over. If no endpoint is to be probed, there is
no timer. This module decides when to probe. The backend makes the probe, and ``scheduler.probe_state`` interprets the result.
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
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.probe_state import ProbeEffect, ProbeState
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.state import Source
from qreward.settings.policies import Endpoint

LONGEST_LOOK = 5.0
"""Seconds after which a probe is cancelled. Its result is then empty."""
GIVEN_UP = 2 * LONGEST_LOOK
"""Seconds after which a probe that has not reported is taken for lost, because its event loop has stopped."""
EARLY, LATE = 0.1, 0.5
"""Shares of the interval: how early a probe may be made, so that probes are made together, and how late a probe must be before another
loop driver takes the endpoint over."""

_Ask = Callable[[Endpoint], Awaitable[ProbeResult]]


class _Turn:
    """The probes of one source: their results, the time of the next one, the probe loop that makes it, and the trouble logged last."""

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
    """An engine that probes its sources at the interval of their endpoints' ``probe`` setting, while it has event loops.

    A probe calls ``look`` of the backend, which takes an endpoint and returns a ``scheduler.outcome.ProbeResult``, and must not raise.
    A backend without ``look`` makes no probes.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._sources: Callable[[], Iterable[Source]] = tuple
        self._hear: Callable[[Source, ProbeResult], object] | None = None
        self._turns: dict[Source, _Turn] = {}
        self._rounds: dict[LoopDriver, ProbeLoop] = {}

    def watch_over(self, sources: Callable[[], Iterable[Source]], hear: Callable[[Source, ProbeResult], object] | None = None) -> None:
        """Set the sources to probe.

        Args:
            sources: returns the sources, whose handles are endpoints; called each time probes are claimed.
            hear: called under the engine's lock with the result of each probe, or None.
        """
        self._sources, self._hear = sources, hear

    def look_around(self) -> None:
        """Check again which probes are due, because the sources may have changed. Can be called from any thread."""
        for shell, each in list(self._rounds.items()):
            shell.later(each.go)

    def claim(self, by: ProbeLoop) -> tuple[list[Source], float]:
        """Return the sources that a probe loop must probe now, and when it must claim again (inf: when ``look_around`` is called)."""
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
        """Record the result of a probe."""
        turn = self._turns.get(source)
        if look.trouble is not None and turn is not None and turn.trouble != look.trouble:
            turn.trouble = look.trouble
            LOG.warning("endpoint %r: its probe has no effect: %s", source.name, look.trouble)
        if not self.closed:
            self.act(partial(self._take, source=source, look=look))

    def forget(self, shell: LoopDriver) -> None:
        """Remove a loop driver that has ended, and stop its probe loop."""
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
            self.scheduler.on_source_lost(now, source)
        if change is not ProbeEffect.NONE:  # a lost source must be woken in time as well
            self.scheduler.changed(now, source)


class ProbeLoop:
    """The probes that one loop driver makes."""

    def __init__(self, engine: ProbingEngine, shell: LoopDriver, ask: _Ask) -> None:
        self._engine = engine
        self._shell = shell
        self._ask = ask
        self._timer: asyncio.TimerHandle | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._over = False

    def go(self) -> None:
        """Start the probes that are due, and set the timer for the next. Must be called in the loop driver's event loop."""
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        claimed, wake = self._engine.claim(self)
        loop = self._shell.loop
        for source in claimed:
            look = loop.create_task(self._look(source), context=Context())  # so that the caller's context is not kept alive
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
        if wake < inf:
            self._timer = loop.call_later(max(0.0, wake - self._engine.clock()), self.go, context=Context())

    def stop(self) -> None:
        """Stop for good and cancel the probes under way."""
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
        except Exception as error:  # a failing probe must not make anything else fail
            look = ProbeResult(trouble=f"the look raised {type(error).__name__}")
        self._engine.seen(source, look)
