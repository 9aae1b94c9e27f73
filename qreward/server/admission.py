"""Admission limits of the server: request rate, queue length, memory. A request over a limit is rejected with a retry time; none waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiolimiter import AsyncLimiter

from qreward.batching.reward_buffer import RewardBuffer
from qreward.server.config import ServerConfig
from qreward.server.http_errors import busy

_BISECTIONS = 24  # leaves 1e-7 of a request
_FREED = 1.0
"""Retry time in seconds while memory is full; when memory will be freed cannot be predicted."""


class Admission:
    """The limits of one server.

    Args:
        config: the limits.
        buffer: the buffer whose queue length is limited.

    Attributes:
        pending: bytes of the requests that are being read or wait for their response.
    """

    def __init__(self, config: ServerConfig, buffer: RewardBuffer) -> None:
        self._config = config
        self._buffer = buffer
        self._limiter: AsyncLimiter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pending = 0

    async def enter(self) -> None:
        """Admit a scoring request before its body is read, or raise ``HTTPError``. Never waits."""
        if (seconds := self._buffer.room_in(1)) > 0:
            raise busy("queue_full", f"{self._buffer.waiting} completions wait to be scored, which is all that may", seconds)
        if (rate := self._config.rate) is None:
            return
        limiter = self._its_limiter(rate)
        if not limiter.has_capacity(1):
            raise busy("rate_limited", f"more than {rate:g} requests came in a second", _wait(limiter, rate))
        await limiter.acquire(1)  # does not suspend: it has capacity

    @contextmanager
    def hold(self) -> Iterator[MemoryReservation]:
        """The memory of one request. It is released when the context ends."""
        held = MemoryReservation(self)
        try:
            yield held
        finally:
            self.pending -= held.bytes

    def grow(self, count: int) -> None:
        """Reserve ``count`` more bytes, or raise ``HTTPError``."""
        if self.pending + count > self._config.max_pending_bytes:
            raise busy("memory_full", f"requests of {self.pending} bytes are pending, and there is no room for more", _FREED)
        self.pending += count

    def _its_limiter(self, rate: float) -> AsyncLimiter:
        loop = asyncio.get_running_loop()
        if self._limiter is None or self._loop is not loop:  # a limiter belongs to one event loop
            at_once = max(1.0, rate)
            self._limiter, self._loop = AsyncLimiter(at_once, at_once / rate), loop
        return self._limiter


class MemoryReservation:
    """The memory reserved for one request.

    Attributes:
        bytes: the reserved bytes.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.bytes = 0

    def grow(self, count: int) -> None:
        """Reserve ``count`` more bytes, or raise ``HTTPError``."""
        self._admission.grow(count)
        self.bytes += count


def _wait(limiter: AsyncLimiter, rate: float) -> float:
    """Seconds until one request is allowed. The limiter reports only whether an amount fits, so the free capacity is found by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if limiter.has_capacity(middle) else (low, middle)
    return (1.0 - low) / rate
