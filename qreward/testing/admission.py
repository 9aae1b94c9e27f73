"""Who may come in: rates by aiolimiter, slots by a gate.

An ``AsyncLimiter(burst, burst * 60 / rpm)`` is a bucket of ``burst`` that leaks at ``rpm`` a minute. It says whether
there is room (``has_capacity``) but not how much; that is found by bisection, so the limiter stays the only truth.
Nothing here knows HTTP.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from datetime import UTC, datetime

from aiolimiter import AsyncLimiter

from qreward.testing.spec import FakeEndpoint

_BISECTIONS = 40  # leaves 1e-12 of the bucket

_HAIR = 1e-6  # of a token or a millisecond: what bisection leaves is no reason to round the other way


class Bucket:
    """One rate: ``per_minute`` in the long run, ``burst`` at once. Belongs to the running loop."""

    def __init__(self, per_minute: float, burst: float) -> None:
        self.per_minute = per_minute
        self._burst = burst
        self._limiter = AsyncLimiter(burst, burst * 60 / per_minute)

    def admits(self, amount: float) -> bool:
        return self._limiter.has_capacity(min(amount, self._burst))

    async def take(self, amount: float) -> None:
        """Take what ``admits`` has just allowed; does not suspend then."""
        await self._limiter.acquire(min(amount, self._burst))

    def room(self) -> float:
        """How much could be taken now."""
        if self._limiter.has_capacity(self._burst):
            return self._burst
        low, high = 0.0, self._burst
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._limiter.has_capacity(middle) else (low, middle)
        return low

    def left(self) -> str:
        """The same in whole requests or tokens, as a header says it."""
        return f"{math.floor(self.room() + _HAIR)}"

    def wait(self, amount: float) -> float:
        """Seconds until the amount is admitted, if nobody else takes anything."""
        return max(0.0, min(amount, self._burst) - self.room()) * 60 / self.per_minute

    def refilled_in(self) -> float:
        """Seconds until the bucket is as at the start."""
        return self.wait(self._burst)


class Rates:
    """The rates of one endpoint: of requests, of tokens, of both, or of none."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        self._buckets: dict[str, Bucket] = {}
        if endpoint.rpm is not None:
            self._buckets["requests"] = Bucket(endpoint.rpm, endpoint.request_burst)
        if endpoint.tpm is not None:
            self._buckets["tokens"] = Bucket(endpoint.tpm, endpoint.token_burst)

    async def admit(self, tokens: int) -> tuple[str, float] | None:
        """Charge a request, or charge nothing and say which rate is used up and for how many seconds. Does not suspend."""
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

    def headers(self, form: str = "openai") -> dict[str, str]:
        """The limit a minute, what is left now, and when all of it is back, as they are written in that form."""
        if form == "draft":
            return self._drafted()
        names = {"openai": "x-ratelimit-{what}-{kind}", "anthropic": "anthropic-ratelimit-{kind}-{what}"}[form]
        write = {"openai": duration, "anthropic": _moment}[form]
        found: dict[str, str] = {}
        for kind, bucket in self._buckets.items():
            told = {"limit": f"{bucket.per_minute:.0f}", "remaining": bucket.left(), "reset": write(bucket.refilled_in())}
            found |= {names.format(what=what, kind=kind): text for what, text in told.items()}
        return found

    def _drafted(self) -> dict[str, str]:
        bucket = self._buckets.get("requests")
        if bucket is None:
            return {}
        told = f'"requests";r={bucket.left()};t={math.ceil(bucket.refilled_in())}'
        return {"ratelimit": told, "ratelimit-policy": f'"requests";q={bucket.per_minute:.0f};w=60'}


class Slot:
    """A place in a gate. ``due`` is when it is expected to be free, on the clock of whoever set it."""

    __slots__ = ("_gate", "due")

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate
        self.due = math.inf

    def free(self) -> None:
        """Give the place back; a second time does nothing."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self)


class Gate:
    """Slots. ``limit`` may change at any time, see ``hand_over``; lowered, it stops nothing that is under way."""

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
        """When the first slot is due to be free; infinite if none is."""
        return min((slot.due for slot in self._slots), default=math.inf)

    async def enter(self) -> Slot:
        """Take a slot, first come first served; suspends only if there is none."""
        if not self.full:
            return self._take()
        turn: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # a slot had been handed over already
                turn.result().free()
            raise

    def leave(self, slot: Slot) -> None:
        self._slots.discard(slot)
        self.hand_over()

    def hand_over(self) -> None:
        """Give free slots to those who wait."""
        while self._waiting and not self.full:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._take())

    def _take(self) -> Slot:
        slot = Slot(self)
        self._slots.add(slot)
        self.peak = max(self.peak, len(self._slots))
        return slot


def _moment(seconds: float) -> str:
    """So many seconds from now as RFC 3339 writes it, rounded up to a second."""
    return datetime.fromtimestamp(math.ceil(time.time() + seconds), UTC).isoformat().replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: ``20ms``, ``1.5s``, ``6m0s``; rounded up to a millisecond."""
    milliseconds = math.ceil(seconds * 1000 - _HAIR)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
