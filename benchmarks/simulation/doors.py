"""Why a server turns a request away before it works on it: a cap, a rate, an outage, or nothing at all (a stray 503).

A door is asked with what the server holds; only when all doors agree is the request let in, and charged to each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, inf
from random import Random
from typing import Literal, Protocol

from qreward.scheduler.outcome import RateLimit
from simulation.steps import Steps

Hint = Literal["exact", "second"] | float | None
"""``Retry-After``: when it would be let in, that rounded up to whole seconds as HTTP has it, a fixed number, or none."""


class Job:
    """One request of a simulation: its payload.

    Attributes:
        prompt, tokens: its size; ``tokens`` are the output's, as work.
        poison: nobody can serve it: 1 fails or hangs, 2 breaks every parser.
    """

    __slots__ = ("poison", "prompt", "tokens")

    def __init__(self, tokens: float, prompt: int = 0, poison: int = 0) -> None:
        self.tokens = tokens
        self.prompt = prompt
        self.poison = poison


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit on requests or tokens a time.

    Args:
        amount: what is allowed a ``period`` (seconds).
        burst: a token bucket of that size, full at first; None is a window by the clock, which begins anew each period.
        unit: what is counted.
        used: output tokens are charged when they have been made; else the whole request when it comes.
        hint: what a reject says.
        told: every answer says the limit, what was left of it when the request was let in, and when all of it is back.
    """

    amount: float
    period: float = 60.0
    burst: float | None = None
    unit: Literal["requests", "tokens"] = "requests"
    used: bool = False
    hint: Hint = None
    told: bool = False

    def allowed(self, until: float) -> float:
        """The most that is let in from 0 to ``until``."""
        if self.burst is not None:
            return self.burst + until * self.amount / self.period
        return self.amount * max(1, ceil(until / self.period))

    def staircase(self, until: float) -> float:
        """Like ``allowed``, for what must be let in at ``until`` at the latest: a window that opens just then counts."""
        return self.allowed(until) if self.burst is not None else self.amount * (floor(until / self.period) + 1)

    def door(self) -> Calendar | Bucket:
        return Calendar(self) if self.burst is None else Bucket(self, self.burst)

    def cost(self, job: Job) -> float:
        """What is charged when a request is let in."""
        if self.unit == "requests":
            return 1.0
        return job.prompt + (0.0 if self.used else job.tokens)

    def hinted(self, wait: float) -> float | None:
        """What a reject says to somebody who would be let in after ``wait`` seconds."""
        if self.hint == "exact":
            return wait
        if self.hint == "second":
            return float(max(1, ceil(wait)))
        return self.hint


class Door(Protocol):
    """One reason to turn requests away. ``granted`` counts what was let in, in its own unit."""

    granted: float

    def refuses(self, now: float, held: int, job: Job) -> bool:
        """Whether a request is turned away by a server that holds ``held`` others."""

    def hint(self, now: float, job: Job) -> float | None:
        """What it is told."""

    def admit(self, now: float, job: Job) -> None:
        """It was let in, by all doors."""

    def settle(self, now: float, job: Job) -> None:
        """It was answered."""


class _Free:
    """Base: charges nothing and gives no hint."""

    granted = 0.0

    def hint(self, _now: float, _job: Job) -> float | None:
        return None

    def admit(self, _now: float, _job: Job) -> None:
        pass

    def settle(self, _now: float, _job: Job) -> None:
        pass


class Cap(_Free):
    """No more than so many held at once."""

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
    """Everything is turned away from one time to another."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._end = begin, end

    def refuses(self, now: float, _held: int, _job: Job) -> bool:
        return self._begin <= now < self._end


class Stray(_Free):
    """A small share is turned away for no reason of the server's: a proxy on the way."""

    def __init__(self, share: float, rng: Random) -> None:
        self._share, self._rng = share, rng

    def refuses(self, _now: float, _held: int, _job: Job) -> bool:
        return self._rng.random() < self._share


class Bucket:
    """A token bucket. What is charged afterwards may bring it into debt."""

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
        """What an answer tells of it now."""
        self._refill(now)
        return RateLimit(self._rate.amount, max(0.0, floor(self._level)), (self._burst - self._level) / self._speed)

    def _charge(self, cost: float) -> None:
        self._level -= cost
        self.granted += cost


class Calendar:
    """So much in each period of the clock, whenever in it."""

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
        """What an answer tells of it now."""
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
