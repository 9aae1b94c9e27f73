"""The time below which no scheduler can finish a bulk on a fleet of model servers.

The larger of two: *fluid*, the least T at which what all servers can do until T makes up the bulk, requests being divisible at
will; and the *longest single* request on the server that could be done with it first. Faults take their share of the work
with them. Requests let in by a rate have still to be served, the shortest of them at least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from simulation.doors import Job
from simulation.specs import Spec
from simulation.steps import Steps

LONGEST = 1e7  # seconds
PRECISE = 1e-4  # seconds


@dataclass(frozen=True, slots=True)
class Work:
    """A bulk in figures.

    Attributes:
        items: requests.
        mean, prompt: tokens of an output and of a prompt, on the average.
        shortest, longest: tokens of an output.
    """

    items: int
    mean: float
    prompt: float
    shortest: float
    longest: float

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> Work:
        """Of those that can be served at all."""
        items, tokens, prompts, shortest, longest = 0, 0.0, 0.0, inf, 0.0
        for job in jobs:
            if not job.poison:
                items += 1
                tokens += job.tokens
                prompts += job.prompt
                shortest, longest = min(shortest, job.tokens), max(longest, job.tokens)
        return cls(items, tokens / items, prompts / items, shortest, longest)


@dataclass(frozen=True, slots=True)
class Supply:
    """What one server can do, in requests of this bulk."""

    spec: Spec
    work: Work
    rate: Steps

    @classmethod
    def of(cls, spec: Spec, work: Work) -> Supply:
        return cls(spec, work, spec.capacity(work.mean))

    def until(self, when: float) -> float:
        """Requests done at most from 0 to ``when``."""
        spec, work = self.spec, self.work
        done = self.rate.integral(0.0, when) / (work.mean + spec.prefill) * kept(spec)
        admitted = when - alone(spec, work.shortest)
        for rate in spec.rates:
            cost = 1.0 if rate.unit == "requests" else work.mean + work.prompt
            done = min(done, rate.staircase(admitted) / cost if admitted >= 0 else 0.0)
        return done


def kept(spec: Spec) -> float:
    """Share of the work that is not lost to faults: a reset takes half of a request's, an unreadable answer all of it."""
    good = 1 - spec.resets - spec.broken - spec.hangs - spec.sudden
    return good / (good + spec.resets / 2 + spec.broken)


def alone(spec: Spec, tokens: float) -> float:
    """Seconds that a request of this length takes with the server to itself."""
    return (tokens + spec.prefill) / spec.law.speed(1, 0.0)


def lower_bound(specs: Sequence[Spec], work: Work) -> float:
    """Seconds that the bulk takes at least."""
    return max(fluid([Supply.of(spec, work) for spec in specs], work.items), min(alone(spec, work.longest) for spec in specs))


def fluid(supplies: Sequence[Supply], items: int) -> float:
    """The least time in which they do so many.

    Raises:
        ValueError: they never do.
    """
    low, high = 0.0, 1.0
    while sum(supply.until(high) for supply in supplies) < items:
        low, high = high, 2 * high
        if high > LONGEST:
            raise ValueError("the fleet can never do it")
    while high - low > PRECISE:
        middle = (low + high) / 2
        low, high = (low, middle) if sum(supply.until(middle) for supply in supplies) >= items else (middle, high)
    return high
