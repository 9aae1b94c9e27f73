"""The lower bound on the makespan of a batch on a fleet of model servers. No scheduler can finish in less time.

The bound is the larger of two values: *fluid* (see ``fakes.lower_bound``), the least time in which all servers together can do
the work of the batch if requests could be divided at will; and the *longest request* on the server that can finish it first. Faults waste a
share of the work. A request admitted by a rate limit must still be served, for at least the time of the shortest request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from fakes.lower_bound import Resource, fluid

from simulation.doors import Job, Rate
from simulation.specs import Spec


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
        """Return the statistics of the jobs, except those that cannot be served at all."""
        items, tokens, prompts, shortest, longest = 0, 0.0, 0.0, inf, 0.0
        for job in jobs:
            if not job.poison:
                items += 1
                tokens += job.tokens
                prompts += job.prompt
                shortest, longest = min(shortest, job.tokens), max(longest, job.tokens)
        return cls(items, tokens / items, prompts / items, shortest, longest)


def resources_of(spec: Spec, work: Work) -> list[Resource]:
    """Return what limits one server, and how much of it a mean request of the batch uses."""
    capacity, last = spec.capacity(work.mean), alone(spec, work.shortest)
    found = [Resource(partial(capacity.integral, 0.0), [(work.mean + spec.prefill) / kept(spec)])]
    for rate in spec.rates:
        found.append(Resource(partial(_admitted, rate, last), [1.0 if rate.unit == "requests" else work.mean + work.prompt]))
    return found


def _admitted(rate: Rate, last: float, until: float) -> float:
    """Return the largest amount that a rate limit admits early enough for a last request of ``last`` seconds to be done by ``until``."""
    return rate.staircase(until - last) if until >= last else 0.0


def kept(spec: Spec) -> float:
    """Return the share of the work that is not lost to faults: a reset wastes half of a request's work, a broken response all of it."""
    good = 1 - spec.resets - spec.broken - spec.hangs - spec.sudden
    return good / (good + spec.resets / 2 + spec.broken)


def alone(spec: Spec, tokens: float) -> float:
    """Return the seconds that a request of this length takes if it is alone on the server."""
    return (tokens + spec.prefill) / spec.law.speed(1, 0.0)


def lower_bound(specs: Sequence[Spec], work: Work) -> float:
    """Return the lower bound in seconds.

    Raises:
        ValueError: the fleet can never do it.
    """
    bound = fluid([resources_of(spec, work) for spec in specs], work.items)
    if bound == inf:
        raise ValueError("the fleet can never do it")
    return max(bound, min(alone(spec, work.longest) for spec in specs))
