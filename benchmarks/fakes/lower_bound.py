"""The lower bound on the makespan of a batch. The code only computes: it uses no sockets and no clock, and sends nothing.

The makespan is the time until the last request of the batch is done. No scheduler can finish a batch on a fleet in less than the lower
bound. The lower bound is the larger of two values.

*Longest request.* No request can be done before the earliest time at which an endpoint can finish it. For the whole batch, the bound is
``max_j min_i earliest_i(s_ij)``. Here ``s_ij = base_i + per_token_i * tokens_j`` is the service time of request j on endpoint i, and
``earliest_i`` takes the phases of endpoint i into account.

*Fluid.* Up to time T, endpoint i can supply up to three resources. Each request uses some of them:

- Slots: the supply is ``max_concurrency_i * integral of speed_i over [0, T]`` seconds of work. The speed is 1 in normal operation,
  1/factor when slow, and 0 when hanging, dead or failing. Request j uses ``s_ij`` seconds of work.
- Requests: the supply is ``burst_i + rpm_i / 60 * (T - shortest service)``. The shortest service time is subtracted because the last
  admitted request must still be served. The bucket also fills while the endpoint refuses everything, but never above its burst. A
  request uses 1.
- Tokens: the supply has the same form, with ``tpm_i`` and a burst of a minute. A request uses its prompt and completion tokens.

The fluid bound is the smallest T at which the requests fit into these supplies, if a request may be divided among endpoints. If all
requests are alike, this is the T at which ``sum_i min_r supply_ir(T) / use_ir`` reaches the number of requests, where r is a resource.

In general, the smallest T is the solution of a linear program. The code solves its dual, because any solution of the dual, even a poor one,
gives a bound that is not too high. For any prices ``y_ir >= 0``, a feasible T satisfies
``sum_ir y_ir * supply_ir(T) >= sum_j min_i sum_r y_ir * use_irj``. At first, only the binding resource of each endpoint has a price. Then
the prices are improved one at a time (coordinate ascent). The bound is the largest T that was found.

The bound ignores faults, phases that begin with the n-th request, the fact that a slot serves whole requests, and the time lost to
rejections. Each of these effects can only make the true minimum larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from qreward.testing.bodies import canonical, count_tokens, digest_of
from qreward.testing.endpoint import Timeline, refuses, speed_in
from qreward.testing.spec import FakeEndpoint, Phase

_NEGLIGIBLE = 1e-9  # seconds, requests or tokens; a resource of which no request uses a larger amount cannot limit anything
_FOREVER = 1e12  # seconds that count as infinite
_BISECTIONS = 60  # number of halvings in the search for a time
_ROUNDS = 2  # number of times that each step is tried on each price
_STEPS = (3.0, 1.5, 1.2, 1.08, 1.03, 1.01)  # factors by which a price is raised and lowered
_INITIAL_PRICE = 0.01  # cost of an average request in a resource that is not binding, before the prices are improved
_SAMPLE = 1024  # number of (endpoint, request) pairs on which prices are improved

Prices = list[float]
"""The price of each resource. The resources of the first endpoint come first, then the resources of the second endpoint, and so on."""


class SupplyTimeline(Timeline):
    """Also computes how much an endpoint can do from the time 0 on."""

    def earliest(self, service: float) -> float:
        """Return the earliest time at which a request of ``service`` seconds can be done, if the request is sent at the best time."""
        start = 0.0
        while start < math.inf:
            end, error = self.plan(start, service)
            if error is None:
                return end
            start = self.opens(end)
        return math.inf

    def work(self, until: float) -> float:
        """Return the seconds of work that one slot can do between the time 0 and ``until``."""
        return sum((end - start) * speed_in(phase) for start, end, phase in self._spans(until))

    def admissions(self, until: float, rate: float, burst: float) -> float:
        """Return the number of requests (or tokens) that a bucket admits from the time 0 to ``until``.

        The bucket is full at the time 0. It fills by ``rate`` per second, up to ``burst``. While the endpoint refuses all requests, the
        bucket admits nothing, but still fills.
        """
        if until < 0:
            return 0.0
        admitted, level = 0.0, burst
        for start, end, phase in self._spans(until):
            filled = level + rate * (end - start)
            admitted, level = (admitted, min(burst, filled)) if refuses(phase) else (admitted + filled, 0.0)
        return admitted if refuses(self.at(until)) else admitted + level

    def _spans(self, until: float) -> Iterator[tuple[float, float, Phase | None]]:
        start = 0.0
        while start < until:
            end = min(until, self.next_change(start))
            yield start, end, self.at(start)
            start = end


class Resource(NamedTuple):
    """Describes a limited resource of an endpoint.

    Attributes:
        supply: function that returns the amount which the endpoint can supply from the time 0 until a time.
        uses: amount that each request uses.
    """

    supply: Callable[[float], float]
    uses: list[float]

    def mean(self) -> float:
        return math.fsum(self.uses) / len(self.uses)


def lower_bound(endpoints: Iterable[FakeEndpoint], work: int | Sequence[Sequence[Any]]) -> float:
    """Return the shortest time in seconds in which these endpoints, freshly started, can serve a batch; infinite if they never can.

    Args:
        endpoints: the endpoints of the fleet.
        work: the conversations of the batch, or the number of requests. If only the number is given, each request has an output of the
            mean length and no prompt.
    """
    count = work if isinstance(work, int) else len(work)
    if not count:
        return 0.0
    prompts = [0] if isinstance(work, int) else [count_tokens(canonical(messages)) for messages in work]
    digests = None if isinstance(work, int) else [digest_of(messages) for messages in work]
    longest, resources = [math.inf] * len(prompts), []
    for spec in endpoints:
        timeline = SupplyTimeline(spec.phases)
        if timeline.opens(0.0) == math.inf:
            continue
        if digests is not None:
            tokens: list[float] = [spec.latency.draw(digest) for digest in digests]
        else:
            tokens = [spec.latency.tokens if spec.latency.sigma else round(spec.latency.tokens)]
        service = [spec.latency.seconds(each) for each in tokens]
        longest = [min(known, timeline.earliest(each)) for known, each in zip(longest, service, strict=True)]
        resources.append(_resources(spec, timeline, service, [prompt + each for prompt, each in zip(prompts, tokens, strict=True)]))
    return max(*longest, fluid(resources, count / len(prompts))) if resources else math.inf


def _resources(spec: FakeEndpoint, timeline: SupplyTimeline, service: list[float], tokens: list[float]) -> list[Resource]:
    """Return the limited resources of an endpoint.

    Args:
        spec: the settings of the endpoint.
        timeline: the phases of the endpoint.
        service: service time of each request in seconds.
        tokens: prompt and completion tokens of each request.
    """
    last = min(service)  # the last admitted request must still be served
    found = []
    if (slots := spec.max_concurrency) is not None:
        found.append(Resource(lambda until: slots * timeline.work(until), service))
    if (rpm := spec.rpm) is not None:
        found.append(Resource(lambda until: timeline.admissions(until - last, rpm / 60, spec.request_burst), [1.0] * len(tokens)))
    if (tpm := spec.tpm) is not None:
        burst = max(1.0, tpm)
        charged = [min(each, burst) for each in tokens]
        found.append(Resource(lambda until: timeline.admissions(until - last, tpm / 60, burst), charged))
    return [each for each in found if max(each.uses) > _NEGLIGIBLE]


def fluid(endpoints: Sequence[Sequence[Resource]], weight: float) -> float:
    """Return the shortest time in which the supplies can serve the requests, if a request may be divided among endpoints.

    The time is infinite if the supplies never suffice.

    Args:
        endpoints: the limited resources of each endpoint, for the same requests. An endpoint without limited resources serves all requests
            at once.
        weight: number of requests of the batch that each of the given requests represents.
    """
    if not all(endpoints):
        return 0.0
    return _DualProgram(endpoints, weight).bound()


class _DualProgram:
    """Holds the resources of all endpoints in one list, and finds prices that make the dual of the linear program large."""

    def __init__(self, endpoints: Sequence[Sequence[Resource]], weight: float) -> None:
        self.endpoints = endpoints
        self.resources = [resource for endpoint in endpoints for resource in endpoint]
        self.owners = [place for place, endpoint in enumerate(endpoints) for _ in endpoint]
        self.requests = range(len(self.resources[0].uses))
        self.weight = weight

    def bound(self) -> float:
        prices = self._binding()
        best = self._bound_of(prices, self.requests)
        if len(self.requests) > 1 and 0 < best < math.inf:
            best = max(best, self._bound_of(self._improved(prices), self.requests))
        return best

    def _binding(self) -> Prices:
        """Return the initial prices. Only the binding resource of each endpoint has a price, at which an average request costs 1.

        Suppose that all requests were average. At the time at which all requests would be served, the binding resource of an endpoint is
        the scarcest one.
        """
        means = [[resource.mean() for resource in endpoint] for endpoint in self.endpoints]

        def served(until: float) -> list[list[float]]:
            rows = zip(self.endpoints, means, strict=True)
            return [[each.supply(until) / use for each, use in zip(*row, strict=True)] for row in rows]

        wanted = self.weight * len(self.requests)
        until = min(_first(lambda until: sum(map(min, served(until))) >= wanted), _FOREVER)
        prices = []
        for row, uses in zip(served(until), means, strict=True):
            binding = row.index(min(row))
            prices += [1 / use if place == binding else 0.0 for place, use in enumerate(uses)]
        return prices

    def _costs(self, prices: Prices, request: int) -> list[float]:
        """Return the cost of one request at each endpoint."""
        costs = [0.0] * len(self.endpoints)
        for owner, price, resource in zip(self.owners, prices, self.resources, strict=True):
            costs[owner] += price * resource.uses[request]
        return costs

    def _value(self, prices: Prices, until: float) -> float:
        return math.fsum([price * each.supply(until) for price, each in zip(prices, self.resources, strict=True) if price])

    def _bound_of(self, prices: Prices, requests: range) -> float:
        """Return the lower bound for the whole batch that these prices give. The bound is computed from a sample of the requests."""
        demand = math.fsum([min(self._costs(prices, request)) for request in requests])
        demand *= self.weight * len(self.requests) / len(requests) * (1 - 1e-12)
        return _first(lambda until: self._value(prices, until) >= demand)

    def _improved(self, prices: Prices) -> Prices:
        """Return prices that give a bound at least as high.

        Each price is changed in turn, by factors that come closer and closer to 1. A change that raises the bound is kept.
        """
        sample = self.requests[:: max(1, len(self.requests) * len(self.endpoints) // _SAMPLE)]
        prices = [price or _INITIAL_PRICE / each.mean() for price, each in zip(prices, self.resources, strict=True)]
        best = self._bound_of(prices, sample)
        for step in _STEPS:
            for place in list(range(len(prices))) * _ROUNDS:
                for factor in (step, 1 / step):
                    trial = [*prices[:place], prices[place] * factor, *prices[place + 1 :]]
                    bound = self._bound_of(trial, sample)
                    if best < bound < math.inf:
                        prices, best = trial, bound
        return prices


def _first(holds: Callable[[float], bool]) -> float:
    """Return the smallest time at which a monotone condition holds; infinite if the condition never holds."""
    if holds(0.0):
        return 0.0
    high = 1e-3
    while not holds(high):
        high *= 2
        if high > _FOREVER:
            return math.inf
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low
