"""Admission control of a fake endpoint: rate limits and concurrency slots."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from qreward.testing.spec import FakeEndpoint

_ROUNDING_ERROR = 1e-6  # in requests, tokens or milliseconds


class Bucket:
    """Applies one rate limit: ``per_minute`` in the long run, and ``burst`` at once. A bucket belongs to the running event loop."""

    def __init__(self, per_minute: float, burst: float) -> None:
        self.per_minute, self.burst = per_minute, burst
        self._full_at = -math.inf  # time at which the bucket is full again

    def wait(self, amount: float) -> float:
        """Return the seconds until the amount is admitted, if nothing else is taken meanwhile; an amount above ``burst`` is ``burst``."""
        missing = self.refilled_in() - (self.burst - min(amount, self.burst)) * 60 / self.per_minute
        return missing if missing > 1e-9 else 0.0

    def take(self, amount: float) -> None:
        now = asyncio.get_running_loop().time()
        self._full_at = max(self._full_at, now) + min(amount, self.burst) * 60 / self.per_minute

    def refilled_in(self) -> float:
        """Return the seconds until the bucket is full again."""
        return max(0.0, self._full_at - asyncio.get_running_loop().time())


class Rates:
    """Applies the rate limits of one endpoint. There may be a limit on requests, a limit on tokens, both limits, or no limit."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        limits = {"requests": (endpoint.rpm, endpoint.request_burst), "tokens": (endpoint.tpm, endpoint.token_burst)}
        self._buckets = {kind: Bucket(rate, burst) for kind, (rate, burst) in limits.items() if rate is not None}

    def admit(self, tokens: int) -> tuple[str, float] | None:
        """Charge one request to all buckets. If it exceeds a limit, charge none; return the name of the limit and the seconds to wait."""
        amounts = {"requests": 1, "tokens": tokens}
        seconds, kind = max(((bucket.wait(amounts[kind]), kind) for kind, bucket in self._buckets.items()), default=(0.0, ""))
        if seconds > 0:
            return kind, seconds
        for kind, bucket in self._buckets.items():
            bucket.take(amounts[kind])
        return None

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers with the limit per minute, the remaining amount, and the time until the bucket is full again."""
        found: dict[str, str] = {}
        for kind, bucket in self._buckets.items():
            left = math.floor(bucket.burst - bucket.refilled_in() * bucket.per_minute / 60 + _ROUNDING_ERROR)
            values = {"limit": f"{bucket.per_minute:.0f}", "remaining": f"{left}", "reset": duration(bucket.refilled_in())}
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
