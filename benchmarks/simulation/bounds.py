"""The lower bound on the makespan of a batch on a fleet of model servers. No scheduler can finish in less time.

The bound is the larger of two values: *fluid*, the least T until which all servers together can do the work of the batch, with requests
divisible at will; and the *longest request* on the server that can finish it first. Faults waste a share of the work. A request admitted
by a rate limit must still be served, for at least the time of the shortest request.
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
    """The statistics of a batch.

    Attributes:
        items: number of requests.
        mean, prompt: mean tokens of the outputs and of the prompts.
        shortest, longest: tokens of the shortest and the longest output.
    """

    items: int
    mean: float
    prompt: float
    shortest: float
    longest: float

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> Work:
        """The statistics of the jobs, except those that cannot be served at all."""
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
    """The supply of one server, in requests of this batch."""

    spec: Spec
    work: Work
    rate: Steps

    @classmethod
    def of(cls, spec: Spec, work: Work) -> Supply:
        return cls(spec, work, spec.capacity(work.mean))

    def until(self, when: float) -> float:
        """Most requests that the server can complete from 0 to ``when``."""
        spec, work = self.spec, self.work
        done = self.rate.integral(0.0, when) / (work.mean + spec.prefill) * kept(spec)
        admitted = when - alone(spec, work.shortest)
        for rate in spec.rates:
            cost = 1.0 if rate.unit == "requests" else work.mean + work.prompt
            done = min(done, rate.staircase(admitted) / cost if admitted >= 0 else 0.0)
        return done


def kept(spec: Spec) -> float:
    """Share of the work that is not lost to faults: a reset wastes half of the work of a request, an unreadable response all of it."""
    good = 1 - spec.resets - spec.broken - spec.hangs - spec.sudden
    return good / (good + spec.resets / 2 + spec.broken)


def alone(spec: Spec, tokens: float) -> float:
    """Seconds that a request of this length takes if it is alone on the server."""
    return (tokens + spec.prefill) / spec.law.speed(1, 0.0)


def lower_bound(specs: Sequence[Spec], work: Work) -> float:
    """The lower bound in seconds."""
    return max(fluid([Supply.of(spec, work) for spec in specs], work.items), min(alone(spec, work.longest) for spec in specs))


def fluid(supplies: Sequence[Supply], items: int) -> float:
    """The least time in seconds in which the supplies together complete this many requests.

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
