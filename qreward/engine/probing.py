"""An engine that probes its endpoints at intervals, to learn whether they are ready and how loaded they are.

One event loop of a client makes the probes. If that event loop ends, another event loop that uses the client takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Any, cast

from qreward.engine.driver import Engine, LoopDriver
from qreward.engine.instrumentation import LOG
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.probe_state import ProbeState
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source
from qreward.settings.policies import Endpoint

TIMEOUT = 5.0
"""Seconds after which a probe is cancelled. Its result is then empty."""


class ProbingEngine(Engine[Scheduler]):
    """Probes its sources at the interval of their endpoints' ``probe`` setting, by the method ``look`` of a backend that has one."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._prober: LoopDriver | None = None  # whose event loop makes the probes
        self._states: dict[Source, ProbeState] = {}
        self._probes: dict[Source, asyncio.Task[None] | asyncio.TimerHandle] = {}  # the probe under way, or the timer of the next one

    def watch_over(self, sources: Callable[[], Iterable[Source]], on_result: Callable[[Source, ProbeResult], object] | None = None) -> None:
        """Set the sources to probe, and what is called with each result, under the engine's lock. Must be called before the first use."""
        self._sources, self._on_result = sources, on_result

    def sources_changed(self) -> None:
        """Start all probes anew, because the sources may have changed. Can be called from any thread."""
        if (prober := self._prober) is not None:
            prober.later(partial(self._start, prober))

    def forget(self, driver: LoopDriver) -> None:
        """Remove a loop driver that has ended. If it made the probes, another one takes over."""
        super().forget(driver)
        if driver is self._prober:
            self._stop()
            self._prober = None
            for other in self.drivers()[:1]:
                other.later(partial(self._probe_in, other))

    def release_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Release what closed event loops held. If one of them made the probes, ``loop``, in which this is called, takes over."""
        super().release_closed(loop)
        driver = self.driver_in(loop)
        if driver is not None and self._prober is not None and self._prober.loop.is_closed():
            self._probe_in(driver)

    def _open_driver(self) -> LoopDriver:
        driver = super()._open_driver()
        self._probe_in(driver)
        return driver

    def _probe_in(self, driver: LoopDriver) -> None:
        if hasattr(driver.backend, "look") and (self._prober is None or not self._prober.loop.is_running()):
            self._prober = driver
            # tasks of a closed event loop cannot be cancelled
            self._probes = {source: probe for source, probe in self._probes.items() if isinstance(probe, asyncio.TimerHandle)}
            self._start(driver)

    def _start(self, driver: LoopDriver) -> None:
        """Probe all sources now, and then at their intervals."""
        if self._prober is not driver:
            return
        self._stop()
        for source in self.probed():
            self._begin(driver, source)

    def probed(self) -> list[Source]:
        with self.lock:
            sources = [source for source in self._sources() if interval(source) is not None]
            self._states = {source: self._states.get(source) or ProbeState() for source in sources}
        return sources

    def _stop(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        self._probes.clear()

    def _begin(self, driver: LoopDriver, source: Source) -> None:
        if self._prober is driver and not self.closed:  # an empty context does not keep the caller's alive
            self._probes[source] = driver.loop.create_task(self._probe(driver, source), context=Context())

    async def _probe(self, driver: LoopDriver, source: Source) -> None:
        look: Callable[[Endpoint], Awaitable[ProbeResult]] = driver.backend.look  # type: ignore[attr-defined]
        began = driver.loop.time()
        try:
            async with asyncio.timeout(TIMEOUT):
                result = await look(cast("Endpoint", source.endpoint))
        except TimeoutError:
            result = ProbeResult()
        except Exception as error:  # a failing probe must not make anything else fail
            result = ProbeResult(trouble=f"the probe raised {type(error).__name__}")
        self.seen(source, result)
        if (every := interval(source)) is not None and not source.removed and self._probes.get(source) is asyncio.current_task():
            self._probes[source] = driver.loop.call_at(began + every, self._begin, driver, source, context=Context())

    def seen(self, source: Source, result: ProbeResult) -> None:
        state = self._states.get(source)
        if result.trouble is not None and state is not None and state.trouble != result.trouble:
            state.trouble = result.trouble
            LOG.warning("endpoint %r: its probe has no effect: %s", source.name, result.trouble)

        def take(now: float) -> None:
            every, state = interval(source), self._states.get(source)
            if every is None or state is None or source.removed:
                return
            if self._on_result is not None:
                self._on_result(source, result)
            if result.cache_tokens is not None:
                source.prefix_cache.report_capacity(result.cache_tokens)
            if state.take(now, source, result, every):
                self.scheduler.on_source_lost(now, source)
                self.scheduler.changed(now, source)

        self.apply(take)


def interval(source: Source) -> float | None:
    """Return the seconds between two probes of a source, or None if it is not probed."""
    return cast("Endpoint", source.endpoint).probe
