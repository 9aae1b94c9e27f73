"""Admission control of a simulated server: concurrency caps, rate limits, outages, and random 503 responses.

A request is admitted only if no door refuses it. It is then charged to every rate limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, inf
from random import Random
from typing import Literal, Protocol

from qreward.scheduler.outcome import RateLimit
from simulation.steps import Steps

Hint = Literal["exact", "second"] | float | None
"""``Retry-After``: the exact time until admission, that time rounded up to whole seconds as in HTTP, a fixed number, or none."""


class Job:
    """The payload of one request of a simulation.

    Attributes:
        tokens: output tokens, the unit of work.
        prompt: prompt tokens.
        poison: 0 for a normal request. No server can serve the others: 1 fails or hangs, 2 yields an unreadable response.
    """

    __slots__ = ("poison", "prompt", "tokens")

    def __init__(self, tokens: float, prompt: int = 0, poison: int = 0) -> None:
        self.tokens = tokens
        self.prompt = prompt
        self.poison = poison


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit on requests or tokens.

    Args:
        amount: amount allowed per period.
        period: length of a period in seconds.
        burst: size of a token bucket that is full at first. None is a fixed window that starts again in each period of the clock.
        unit: unit of the limit.
        used: True charges output tokens once they are generated; False charges the whole request on admission.
        hint: ``Retry-After`` of a rejection.
        told: the headers of each response report the limit, the amount left when the request was admitted, and the time to the full refill.
    """

    amount: float
    period: float = 60.0
    burst: float | None = None
    unit: Literal["requests", "tokens"] = "requests"
    used: bool = False
    hint: Hint = None
    told: bool = False

    def allowed(self, until: float) -> float:
        """Return the largest amount that is admitted from 0 to ``until``."""
        if self.burst is not None:
            return self.burst + until * self.amount / self.period
        return self.amount * max(1, ceil(until / self.period))

    def staircase(self, until: float) -> float:
        """Return the largest amount that is admitted from 0 to ``until`` inclusive: a window that opens exactly at ``until`` counts."""
        return self.allowed(until) if self.burst is not None else self.amount * (floor(until / self.period) + 1)

    def door(self) -> Calendar | Bucket:
        return Calendar(self) if self.burst is None else Bucket(self, self.burst)

    def cost(self, job: Job) -> float:
        """Return the amount that is charged when a request is admitted."""
        if self.unit == "requests":
            return 1.0
        return job.prompt + (0.0 if self.used else job.tokens)

    def hinted(self, wait: float) -> float | None:
        """Return the ``Retry-After`` of a rejection, in seconds, if the request would be admitted after ``wait`` seconds."""
        if self.hint == "exact":
            return wait
        if self.hint == "second":
            return float(max(1, ceil(wait)))
        return self.hint


class Door(Protocol):
    """One reason to reject requests. ``granted`` counts the admitted amount in the unit of the door."""

    granted: float

    def refuses(self, now: float, held: int, job: Job) -> bool:
        """Return whether the request is rejected, if the server holds ``held`` other requests."""

    def hint(self, now: float, job: Job) -> float | None:
        """Return the ``Retry-After`` of the rejection, in seconds."""

    def admit(self, now: float, job: Job) -> None:
        """Charge a request that all doors have admitted."""

    def settle(self, now: float, job: Job) -> None:
        """Charge a request that has been answered."""


class _Free:
    """Base class: charges nothing and has no hint."""

    granted = 0.0

    def hint(self, _now: float, _job: Job) -> float | None:
        return None

    def admit(self, _now: float, _job: Job) -> None:
        pass

    def settle(self, _now: float, _job: Job) -> None:
        pass


class Cap(_Free):
    """A limit on the number of requests held at once."""

    def __init__(self, cap: Steps, told: float | None) -> None:
        self._cap, self._told = cap, told
        self._upcoming = iter(cap.changes())
        self._limit, self._next = cap(0.0), next(self._upcoming, inf)

    def refuses(self, now: float, held: int, _job: Job) -> bool:
        while now >= self._next:
            self._limit, self._next = self._cap(self._next), next(self._upcoming, inf)
        return held >= self._limit

    def hint(self, _now: float, _job: Job) -> float | None:
        return self._told


class Away(_Free):
    """An outage: all requests are rejected between two times."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._end = begin, end

    def refuses(self, now: float, _held: int, _job: Job) -> bool:
        return self._begin <= now < self._end


class Stray(_Free):
    """Random rejections that the server does not cause, such as those of a proxy."""

    def __init__(self, share: float, rng: Random) -> None:
        self._share, self._rng = share, rng

    def refuses(self, _now: float, _held: int, _job: Job) -> bool:
        return self._rng.random() < self._share


class Bucket:
    """A token bucket. Amounts charged after the response may make its level negative."""

    def __init__(self, rate: Rate, burst: float) -> None:
        self._rate, self._speed, self._burst = rate, rate.amount / rate.period, burst
        self._level, self._then = burst, 0.0
        self.granted = 0.0

    def _refill(self, now: float) -> None:
        self._level = min(self._burst, self._level + (now - self._then) * self._speed)
        self._then = now

    def _short(self, now: float, job: Job) -> float:
        self._refill(now)
        return min(self._rate.cost(job), self._burst) - self._level

    def refuses(self, now: float, _held: int, job: Job) -> bool:
        return self._short(now, job) > 1e-9

    def hint(self, now: float, job: Job) -> float | None:
        return self._rate.hinted(self._short(now, job) / self._speed)

    def admit(self, _now: float, job: Job) -> None:
        self._charge(self._rate.cost(job))

    def settle(self, now: float, job: Job) -> None:
        if self._rate.used:
            self._refill(now)
            self._charge(job.tokens)

    def says(self, now: float) -> RateLimit:
        """Return the limit as reported in the headers of a response."""
        self._refill(now)
        return RateLimit(self._rate.amount, max(0.0, floor(self._level)), (self._burst - self._level) / self._speed)

    def _charge(self, cost: float) -> None:
        self._level -= cost
        self.granted += cost


class Calendar:
    """A fixed window: an amount in each period of the clock."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._window, self._left = -1, 0.0
        self.granted = 0.0

    def _turn(self, now: float) -> None:
        window = int(now / self._rate.period)
        if window != self._window:
            self._window, self._left = window, self._rate.amount

    def refuses(self, now: float, _held: int, job: Job) -> bool:
        self._turn(now)
        return self._rate.cost(job) > self._left

    def hint(self, now: float, _job: Job) -> float | None:
        return self._rate.hinted(self._ends(now))

    def says(self, now: float) -> RateLimit:
        """Return the limit as reported in the headers of a response."""
        self._turn(now)
        return RateLimit(self._rate.amount, floor(self._left), self._ends(now))

    def _ends(self, now: float) -> float:
        return (int(now / self._rate.period) + 1) * self._rate.period - now

    def admit(self, _now: float, job: Job) -> None:
        cost = self._rate.cost(job)
        self._left -= cost
        self.granted += cost

    def settle(self, _now: float, _job: Job) -> None:
        pass
