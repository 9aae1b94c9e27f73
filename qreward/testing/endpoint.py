"""What a fake server keeps of its endpoint: rate limits, concurrency slots, phases, the prefix cache, and the statistics that it shows."""

from __future__ import annotations

import asyncio
import math
from collections import deque

import msgspec

from qreward.testing.bodies import BYTES_PER_TOKEN
from qreward.testing.spec import FakeEndpoint, Phase, PrefixCache

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
        return max(0.0, self._full_at - asyncio.get_running_loop().time())


class Rates:
    """Applies the rate limits of one endpoint. There may be a limit on requests, a limit on tokens, both limits, or no limit."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        limits = {"requests": (endpoint.rpm, endpoint.request_burst), "tokens": (endpoint.tpm, max(1.0, endpoint.tpm or 1.0))}
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


def duration(seconds: float) -> str:
    """Return seconds in OpenAI's format, rounded up to a millisecond. Examples are ``20ms``, ``1.5s`` and ``6m0s``."""
    milliseconds = math.ceil(seconds * 1000 - _ROUNDING_ERROR)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


class RequestAdmission:
    """Applies a concurrency limit, with a FIFO queue of waiting requests."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.peak = 0
        self.slots: dict[object, float] = {}  # slot in use -> when it is expected to be free
        self._waiting: deque[asyncio.Future[object]] = deque()

    @property
    def in_flight(self) -> int:
        return len(self.slots)

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self.slots) >= self.limit

    async def enter(self) -> object:
        """Take a slot, first come first served. Suspends only if no slot is free."""
        turn: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.hand_over()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # this waiter has already received a slot
                self.leave(turn.result())
            raise

    def leave(self, slot: object) -> None:
        """Free a slot. A second call does nothing."""
        if self.slots.pop(slot, None) is not None:
            self.hand_over()

    def hand_over(self) -> None:
        while self._waiting and not self.full:
            turn = self._waiting.popleft()
            if not turn.done():
                self.slots[slot := object()] = math.inf
                self.peak = max(self.peak, len(self.slots))
                turn.set_result(slot)


class Timeline:
    """Computes which phase of one endpoint is active at a time, and when work ends. Times are in seconds, on the clock of ``origin``."""

    def __init__(self, phases: tuple[Phase, ...], origin: float = 0.0) -> None:
        ordered = sorted(phases, key=lambda phase: phase.behaviour != "dead")
        self._windows = [(origin + each.start, origin + (math.inf if each.end is None else each.end), each) for each in ordered]

    def at(self, now: float) -> Phase | None:
        """Return the phase that is active at the time ``now``; None in normal operation."""
        return next((phase for start, end, phase in self._windows if start <= now < end), None)

    def next_change(self, now: float) -> float:
        """Return the next time after ``now`` at which a phase begins or ends; infinite if there is no such time."""
        return min((time for start, end, _ in self._windows for time in (start, end) if time > now), default=math.inf)

    def plan(self, now: float, service: float) -> tuple[float, str | None]:
        """Return the time at which work ends, and the error that ends the work early; None if the work is completed."""
        while True:
            phase, until = self.at(now), self.next_change(now)
            if phase is not None and refuses(phase):
                return now, phase.behaviour
            speed = speed_in(phase)
            if speed and service <= (until - now) * speed:
                return now + service / speed, None
            if until == math.inf:
                return math.inf, None
            service -= (until - now) * speed
            now = until

    def opens(self, now: float) -> float:
        """Return the first time, not before ``now``, at which requests are admitted."""
        while refuses(self.at(now)):
            now = self.next_change(now)
        return now


def refuses(phase: Phase | None) -> bool:
    """Return whether the phase refuses new requests and ends the requests in flight."""
    return phase is not None and phase.behaviour in ("dead", "error_503", "error_500")


def speed_in(phase: Phase | None) -> float:
    """Return the seconds of work that are done per second in this phase."""
    if phase is None:
        return 1.0
    return 1 / phase.factor if phase.behaviour == "slow" else 0.0


class PromptCache:
    def __init__(self, spec: PrefixCache) -> None:
        self.tokens, self.block = spec.tokens, spec.block
        self._prefill = spec.prefill
        self.queried = self.hits = self.computed = 0
        self._running = 0
        self._blocks: dict[int, None] = {}  # hash of a prompt up to the end of a block; least recently used first

    @property
    def load(self) -> tuple[float, float, float]:
        return float(self._running), 0.0, len(self._blocks) * self.block / self.tokens

    async def serve(self, model: str, text: bytes, prompt: int, output: int) -> int:  # noqa: ARG002 - part of the interface
        keys = chain(model, text, self.block * BYTES_PER_TOKEN)[: (prompt - 1) // self.block]
        known = next((place for place, key in enumerate(keys) if key not in self._blocks), len(keys))
        for key in keys:
            self._blocks.pop(key, None)
            self._blocks[key] = None
        while len(self._blocks) * self.block > self.tokens:
            del self._blocks[next(iter(self._blocks))]
        cached = known * self.block
        self.queried += prompt
        self.hits += cached
        self.computed += prompt - cached
        self._running += 1
        try:
            await asyncio.sleep(self._prefill * (prompt - cached))
        finally:
            self._running -= 1
        return cached


def chain(model: str, text: bytes, size: int) -> list[int]:
    keys, previous = [], hash(model)
    for begin in range(0, len(text) - size + 1, size):
        previous = hash((previous, text[begin : begin + size]))
        keys.append(previous)
    return keys


class Seen(msgspec.Struct, frozen=True):
    """Holds the statistics of one endpoint since the fleet started, or since ``reset()``.

    Attributes:
        name: name of the endpoint.
        requests: POST requests that arrived at a route of the endpoint. GET requests are not counted.
        answered: successful responses.
        rejected: requests rejected for lack of a slot or because of a rate limit.
        errors: kind of error -> count. The kinds are the names of the faults and phases, and ``bad_request``, ``unauthorized``,
            ``unknown_model``, ``responder`` (the responder raised an exception) and ``backend`` (a NaN score made the whole list fail).
            ``dead`` counts the requests that were in flight when the endpoint died. A ``hang`` is counted when it begins.
        in_flight: requests that hold a slot now.
        peak_in_flight: largest number of requests that held a slot at once.
        disconnects: requests whose client disconnected before the client had the response.
        duplicates: requests with the same messages, or the same input, as an earlier request.
        tokens: tokens of the successful responses, as counted against ``tpm``. Chats and embeddings count the tokens of ``usage``.
            Decisions count the prompt tokens and one token per question. All other routes, and the kind ``nim``, count the prompt tokens.
        computed: prompt tokens that were computed, with ``prefix_cache``.
        cached: prompt tokens that were found in the ``prefix_cache``.
    """

    name: str
    requests: int = 0
    answered: int = 0
    rejected: int = 0
    errors: dict[str, int] = {}
    in_flight: int = 0
    peak_in_flight: int = 0
    disconnects: int = 0
    duplicates: int = 0
    tokens: int = 0
    computed: int = 0
    cached: int = 0
