"""An engine that probes its endpoints at intervals, to learn whether they are ready and how loaded they are.

One event loop of a client makes the probes. If that event loop ends, another event loop that uses the client takes over. ``ProbeState``
applies each result to the source of the server. The outcomes of requests take precedence over probes.

L1  If the server reports "ready" and did not report it before, the cooldown or the time out of service of its source ends, and one request
    is sent.
L2  If the server reported "ready", now reports "not ready", and has answered no request since the last probe, its source is sent only one
    request every 30 seconds until the server reports "ready". This is a cooldown, so that the source keeps its concurrency limit. If the
    server answers a request that was sent after a report of "not ready", this rule is suspended until the server reports "ready".
L3  If the server was full and is no longer full, the cooldown of its source ends, unless a ``Retry-After`` asks for a longer wait.
L4  While two probes in a row find many requests waiting inside the server, the concurrency limit of its source does not grow.

A probe that reports nothing changes nothing.
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
from qreward.scheduler.health import OPEN
from qreward.scheduler.outcome import ProbeResult
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source
from qreward.settings.policies import Endpoint

TIMEOUT = 5.0
"""Seconds after which a probe is cancelled. Its result is then empty."""
LONGEST_AWAY = 30.0
"""Maximum number of seconds for which no request is sent to a server that reports "not ready". Then one request is sent anyway."""
VALID, LEAST_VALID = 2.0, 2.0
"""``VALID``: number of probe intervals for which a probe result is valid. It is more than one, because the next probe may be late.
``LEAST_VALID``: number of seconds for which a probe result is valid at least."""
CROWD = 0.1
"""Minimum ratio of waiting items to running items at which a server counts as crowded. A lower ratio is usual."""


class ProbeState:
    """Keeps the state of the probes of one source, and applies each result to the source."""

    def __init__(self) -> None:
        self.trouble: str | None = None  # the problem of the probes that was logged last
        self._ready: bool | None = None
        self._full: bool | None = None
        self._crowded = False
        self._answers = self._requests = 0
        self._believed = False  # L2 applies: "ready" was reported, and no request sent after a later "not ready" was answered
        self._away_since = inf  # time of the first "not ready" since the last "ready"; inf if there is none
        self._asked_at = -inf  # time of the last "not ready" that came after a new request (a request sent since the probe before)
        self._held_until = -inf  # end of the last cooldown started by L2
        self._unready_at = -inf  # time of the last probe that did not report "ready"

    def take(self, now: float, source: Source, look: ProbeResult, interval: float) -> bool:
        """Apply the result of a probe that is made every ``interval`` seconds. Returns True if the availability of the source changed."""
        tally, valid_until = source.tally, now + max(LEAST_VALID, VALID * interval)
        answered, self._answers = tally.ok > self._answers, tally.ok
        asked, self._requests = tally.sent > self._requests, tally.sent
        was_ready, self._ready = self._ready, look.ready
        was_full, self._full = self._full, _is_full(look)
        was_crowded, self._crowded = self._crowded, (look.waiting or 0.0) >= max(1.0, CROWD * (look.running or 0.0))
        source.window.crowd(valid_until if was_crowded and self._crowded else -inf)
        if not look.ready:
            self._unready_at = now
        if look.ready is False:
            self._asked_at = now if asked else self._asked_at
            return self._is_away(now, source, valid_until, answered=answered)
        better = False
        if look.ready:
            better = was_ready is not True and self._is_back(now, source)
            self._believed, self._away_since = True, inf
        if was_full and self._full is False:
            better |= source.cooldown.ease(now)
        return better

    def _is_back(self, now: float, source: Source) -> bool:
        health = source.health
        if self._held_until > self._away_since:
            source.window.returned(now, source.inflight)
        of_another_kind = health.open_until > max(self._held_until, now + 1.5 * OPEN)  # away because its quota is used up
        tried = not of_another_kind and health.try_now(now, self._unready_at)
        return source.cooldown.ease(now) or tried

    def _is_away(self, now: float, source: Source, until: float, *, answered: bool) -> bool:
        health = source.health
        self._away_since = min(self._away_since, now)
        if source.proven > self._away_since:
            self._believed = False
        patient = now - max(self._away_since, self._asked_at) <= LONGEST_AWAY
        if answered or health.marked_unhealthy or not (self._believed and patient):
            return False
        self._held_until = until
        if not health.in_service:
            health.open_until = max(health.open_until, until)
            return False
        promising = source.available_soon(now)
        source.cooldown.hold(now, until - now)
        return promising


def _is_full(look: ProbeResult) -> bool | None:
    if look.waiting is None and (look.running is None or look.most is None):
        return None
    return bool(look.waiting) or (look.running is not None and look.most is not None and look.running >= look.most)


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
