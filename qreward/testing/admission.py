"""Admission control of a fake endpoint: rate limits (with aiolimiter) and concurrency slots. This module does not use HTTP."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from aiolimiter import AsyncLimiter

from qreward.testing.spec import FakeEndpoint

_BISECTIONS = 40  # number of halvings; after all of them, the error is 1e-12 of the size of the bucket

_ROUNDING_ERROR = 1e-6  # tolerance in tokens, or in milliseconds, with which the error of the bisection cannot change a rounded value


class Bucket:
    """Applies one rate limit."""

    def __init__(self, per_minute: float, burst: float) -> None:
        self.per_minute = per_minute
        self._burst = burst
        self._limiter = AsyncLimiter(burst, burst * 60 / per_minute)

    def admits(self, amount: float) -> bool:
        return self._limiter.has_capacity(min(amount, self._burst))

    async def take(self, amount: float) -> None:
        """Take an amount. Does not suspend if ``admits`` has just returned True for this amount."""
        await self._limiter.acquire(min(amount, self._burst))

    def available(self) -> float:
        """Return the amount of requests or tokens that could be taken now."""
        if self._limiter.has_capacity(self._burst):
            return self._burst
        low, high = 0.0, self._burst
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._limiter.has_capacity(middle) else (low, middle)
        return low

    def left(self) -> str:
        """Return the value of ``available()`` as text for a header: a whole number of requests or tokens, rounded down."""
        return f"{math.floor(self.available() + _ROUNDING_ERROR)}"

    def wait(self, amount: float) -> float:
        """Return the seconds until the amount is admitted, if nothing else is taken meanwhile."""
        return max(0.0, min(amount, self._burst) - self.available()) * 60 / self.per_minute

    def refilled_in(self) -> float:
        """Return the seconds until the bucket is full again."""
        return self.wait(self._burst)


class Rates:
    """Applies the rate limits of one endpoint. There may be a limit on requests, a limit on tokens, both limits, or no limit."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        limits = {"requests": (endpoint.rpm, endpoint.request_burst), "tokens": (endpoint.tpm, endpoint.token_burst)}
        self._buckets = {kind: Bucket(rate, burst) for kind, (rate, burst) in limits.items() if rate is not None}

    async def admit(self, tokens: int) -> tuple[str, float] | None:
        """Charge one request to all buckets, or to no bucket if the request exceeds a limit. Does not suspend."""
        if not self._buckets:
            return None
        amounts = {"requests": 1, "tokens": tokens}
        over = [(bucket.wait(amounts[kind]), kind) for kind, bucket in self._buckets.items() if not bucket.admits(amounts[kind])]
        if over:
            seconds, kind = max(over)
            return kind, seconds
        for kind, bucket in self._buckets.items():
            await bucket.take(amounts[kind])
        return None

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers with the limit per minute, the remaining amount, and the time until the bucket is full again."""
        found: dict[str, str] = {}
        for kind, bucket in self._buckets.items():
            values = {"limit": f"{bucket.per_minute:.0f}", "remaining": bucket.left(), "reset": duration(bucket.refilled_in())}
            found |= {f"x-ratelimit-{what}-{kind}": text for what, text in values.items()}
        return found


class Slot:
    """Holds the place of one request among the concurrent requests of an endpoint."""

    __slots__ = ("_admission", "due")

    def __init__(self, admission: RequestAdmission) -> None:
        self._admission = admission
        self.due = math.inf

    def free(self) -> None:
        """Release the slot. A second call has no effect."""
        self._admission.leave(self)


class RequestAdmission:
    """Applies a concurrency limit, with a FIFO queue of waiting requests."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.peak = 0
        self._slots: set[Slot] = set()
        self._waiting: deque[asyncio.Future[Slot]] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self._slots) >= self.limit

    def next_free(self) -> float:
        """Return the time at which the first of the slots in use is expected to be free; infinite if no slot is in use."""
        return min((slot.due for slot in self._slots), default=math.inf)

    async def enter(self) -> Slot:
        """Take a slot, first come first served. Suspends only if no slot is free."""
        if not self.full:
            return self._take()
        turn: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # this waiter has already received a slot
                turn.result().free()
            raise

    def leave(self, slot: Slot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
            self.hand_over()

    def hand_over(self) -> None:
        """Assign free slots to the waiters."""
        while self._waiting and not self.full:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._take())

    def _take(self) -> Slot:
        slot = Slot(self)
        self._slots.add(slot)
        self.peak = max(self.peak, len(self._slots))
        return slot


def duration(seconds: float) -> str:
    """Return seconds in OpenAI's format, rounded up to a millisecond. Examples are ``20ms``, ``1.5s`` and ``6m0s``."""
    milliseconds = math.ceil(seconds * 1000 - _ROUNDING_ERROR)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
