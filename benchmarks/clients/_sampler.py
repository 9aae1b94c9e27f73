"""CPU time of a client by package. A timer of CPU time samples the running frame; garbage collection is timed exactly.

A sample costs some microseconds and is taken every few milliseconds, so it distorts the figures far less than a tracing profiler, which
adds a cost to each Python call. C code is counted for the Python frame that called it (a socket's ``send`` for asyncio).
"""

from __future__ import annotations

import gc
import signal
import time
from collections import defaultdict
from types import FrameType
from typing import Any

INTERVAL = 0.001  # seconds of CPU time; the kernel may make it longer, so a sample counts with the time since the last sample
CALLER = ("__main__", "_harness", "_sampler", "_openai", "_ours", "bare", "litellm_router")


class Sampler:
    """Takes samples from its creation until :meth:`stop`. Works only in the main thread, and needs ``SIGPROF``."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._collecting: float | None = None  # when the present collection began; None without one
        self._collected = self._charged = 0.0
        gc.callbacks.append(self._watch_gc)
        self._before = signal.signal(signal.SIGPROF, self._look)
        signal.siginterrupt(signal.SIGPROF, False)
        self._last = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def stop(self) -> dict[str, float]:
        """Stop sampling. Returns the share of each package, largest first; the sum is 1."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)
        gc.callbacks.remove(self._watch_gc)
        self._seconds["gc"] = self._collected
        total = sum(self._seconds.values()) or 1.0
        return {name: seconds / total for name, seconds in sorted(self._seconds.items(), key=lambda item: -item[1])}

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        now = time.process_time()
        collected = self._collected + (now - self._collecting if self._collecting is not None else 0.0)
        self._seconds[_package(frame)] += now - self._last - (collected - self._charged)
        self._last, self._charged = now, collected

    def _watch_gc(self, phase: str, _info: dict[str, Any]) -> None:
        # a signal that came during a collection is handled when this function begins, so the collection is still open then
        now = time.process_time()
        if phase == "start":
            self._collecting = now
        elif self._collecting is not None:
            self._collected += now - self._collecting
            self._collecting = None


def _package(frame: FrameType | None) -> str:
    """Return the package of the innermost frame: ``aiohttp``, ``asyncio``, ``qreward.scheduler``, ..."""
    name = str(frame.f_globals.get("__name__", "?")) if frame else "?"
    if name in CALLER:
        return "caller"
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "qreward" else parts[0]
