"""An engine that probes its endpoints at intervals, to learn whether they are ready and how loaded they are.

Each loop driver has a probe loop with one timer. Due probes are claimed under the engine's lock, so that only one event loop probes an
endpoint, always the same event loop. If that event loop stops, another event loop takes the endpoint over. Without endpoints to probe,
there is no timer. This module decides when to probe. The backend makes the probe, and ``scheduler.probe_state`` interprets the result.
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
from qreward.scheduler.source import Source
from qreward.settings.policies import Endpoint

TIMEOUT = 5.0
"""Seconds after which a probe is cancelled. Its result is then empty."""
LOST_AFTER = 2 * TIMEOUT
"""Seconds after which a probe that has not reported is taken for lost, because its event loop has stopped."""
EARLY, LATE = 0.1, 0.5
"""``EARLY``: share (0 to 1) of the interval by which a probe may be early, so that probes are made together. ``LATE``: share of the
interval by which a probe must be late before another loop driver takes the endpoint over."""

_Probe = Callable[[Endpoint], Awaitable[ProbeResult]]


class _Schedule:
    """Records the probes of one source: what the results showed, the time of the next probe, the probe loop that makes the probes, and the
    problem that was logged last.
    """

    __slots__ = ("busy_until", "by", "next_at", "state", "trouble")

    def __init__(self, now: float) -> None:
        self.state = ProbeState()
        self.next_at = now
        self.busy_until = -inf
        self.by: ProbeLoop | None = None
        self.trouble: str | None = None

    def due(self, by: ProbeLoop, interval: float) -> float:
        return self.next_at if self.by in (None, by) else self.next_at + LATE * interval


class ProbingEngine(Engine[Scheduler]):
    """Probes its sources at the interval of their endpoints' ``probe`` setting, while event loops use the engine.

    A probe calls the backend's method ``look``. This method takes an endpoint, returns a ``scheduler.outcome.ProbeResult``, and must not
    raise. A backend without ``look`` makes no probes.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._schedules: dict[Source, _Schedule] = {}
        self._probe_loops: dict[LoopDriver, ProbeLoop] = {}

    def watch_over(self, sources: Callable[[], Iterable[Source]], on_result: Callable[[Source, ProbeResult], object] | None = None) -> None:
        """Set the sources to probe. Must be called before the engine is used in an event loop.

        Args:
            sources: returns the sources, whose handles are endpoints; called each time probes are claimed.
            on_result: function that is called, under the engine's lock, with the result of each probe; or None.
        """
        self._sources, self._on_result = sources, on_result

    def sources_changed(self) -> None:
        """Check again which probes are due, because the sources may have changed. Can be called from any thread."""
        for driver, probe_loop in list(self._probe_loops.items()):
            driver.later(probe_loop.go)

    def claim(self, by: ProbeLoop) -> tuple[list[Source], float]:
        """Return the sources that a probe loop must probe now, and the time of its next claim.

        The time is inf if the next claim is due only when ``sources_changed`` is called.
        """
        with self.lock:
            now, claimed, wake, schedules = self.clock(), [], inf, {}
            for source in self._sources():
                interval = cast("Endpoint", source.handle).probe
                if interval is None:
                    continue
                schedule = schedules[source] = self._schedules.get(source) or _Schedule(now)
                if now < schedule.busy_until:
                    wake = min(wake, now + interval)
                    continue
                if schedule.due(by, interval) <= now + EARLY * interval:
                    schedule.by, schedule.next_at, schedule.busy_until = by, now + interval, now + LOST_AFTER
                    claimed.append(source)
                wake = min(wake, schedule.due(by, interval))
            self._schedules = schedules
            return claimed, wake

    def seen(self, source: Source, result: ProbeResult) -> None:
        """Record the result of a probe."""
        schedule = self._schedules.get(source)
        if result.trouble is not None and schedule is not None and schedule.trouble != result.trouble:
            schedule.trouble = result.trouble
            LOG.warning("endpoint %r: its probe has no effect: %s", source.name, result.trouble)
        self.apply(partial(self._take, source=source, result=result))

    def _take(self, now: float, source: Source, result: ProbeResult) -> None:
        interval, schedule = cast("Endpoint", source.handle).probe, self._schedules.get(source)
        if interval is None or schedule is None or source.removed:
            return
        schedule.busy_until = -inf
        if self._on_result is not None:
            self._on_result(source, result)
        if result.cache_tokens is not None:
            source.prefix_cache.report_capacity(result.cache_tokens)
        effect = schedule.state.take(now, source, result, interval)
        if effect is ProbeEffect.LOST:
            self.scheduler.on_source_lost(now, source)
        if effect is not ProbeEffect.NONE:  # a lost source also needs its wake time
            self.scheduler.changed(now, source)

    def forget(self, driver: LoopDriver) -> None:
        """Remove a loop driver that has ended, and stop its probe loop."""
        if (ended := self._probe_loops.pop(driver, None)) is not None:
            ended.stop()
        super().forget(driver)

    def _open_driver(self) -> LoopDriver:
        driver = super()._open_driver()
        for other in [other for other in list(self._probe_loops) if other.loop.is_closed()]:
            self._probe_loops.pop(other, None)
        probe: _Probe | None = getattr(driver.backend, "look", None)
        if probe is not None:
            begun = self._probe_loops[driver] = ProbeLoop(self, driver, probe)
            begun.go()
        return driver


class ProbeLoop:
    """Makes the probes of one loop driver."""

    def __init__(self, engine: ProbingEngine, driver: LoopDriver, probe: _Probe) -> None:
        self._engine, self._loop, self._probe = engine, driver.loop, probe
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._over = False

    def go(self) -> None:
        """Start the probes that are due, and set the timer for the next probe. Must be called in the loop driver's event loop."""
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        claimed, wake = self._engine.claim(self)
        for source in claimed:
            task = self._loop.create_task(self._run(source), context=Context())  # an empty context does not keep the caller's alive
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        if wake < inf:
            self._timer = self._loop.call_later(max(0.0, wake - self._engine.clock()), self.go, context=Context())

    def stop(self) -> None:
        """Stop for good and cancel the probes under way."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._under_way:
            task.cancel()

    async def _run(self, source: Source) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                result = await self._probe(cast("Endpoint", source.handle))
        except TimeoutError:
            result = ProbeResult()
        except Exception as error:  # a failing probe must not make anything else fail
            result = ProbeResult(trouble=f"the probe raised {type(error).__name__}")
        self._engine.seen(source, result)
