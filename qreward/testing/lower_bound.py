"""The lower bound on the makespan of a batch, and the timeline of an endpoint's phases.

Pure: no sockets, no clock, nothing is sent.

No scheduler can finish a batch on a fleet in less than the lower bound, which is the larger of two values.

*Longest request.* Each request takes at least its service time on the endpoint that can finish it first:
``max_j min_i earliest_i(s_ij)``, with ``s_ij = base_i + per_token_i * tokens_j`` and the phases of endpoint i.

*Fluid.* Up to time T, endpoint i can supply

- slots: ``max_concurrency_i * integral of speed_i over [0, T]`` seconds of work (speed is 1, 1/factor when slow,
  0 when hanging, dead or failing), of which request j uses ``s_ij``;
- requests: ``burst_i + rpm_i / 60 * (T - shortest service)``, of which it uses 1 (the bucket fills while the endpoint
  refuses everything, but never above its burst; the last admitted request must still be served);
- tokens: the same with ``tpm_i`` and ``burst_tokens_i``, of which it uses its prompt and completion tokens.

The bound is the smallest T for which requests, divisible at will, fit into these supplies. If all requests are alike, it is the T
at which ``sum_i min_r supply_ir(T) / use_ir`` reaches their number. In general it is a linear program, solved by its dual so
that the bound is never too high: for any prices ``y_ir >= 0``, a feasible T satisfies
``sum_ir y_ir * supply_ir(T) >= sum_j min_i sum_r y_ir * use_irj``. Prices start at the binding resource of each endpoint
and are improved one by one (coordinate ascent); the largest T is used.

The bound ignores faults, phases that begin with a request, the integrality of slots, and the time lost to rejections. Each of
these can only make the true minimum larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from qreward.testing.spec import FakeEndpoint, Phase
from qreward.testing.text import canonical, count_tokens, digest_of

_ERRORS = ("dead", "error_503", "error_500")


class TimeWindow(NamedTuple):
    """A phase with its absolute start and end, in seconds."""

    start: float
    end: float
    phase: Phase


class Timeline:
    """The phases of one endpoint. All times are in seconds on the clock of ``origin``, the time at which the endpoint started.

    Example:
        >>> slow = Timeline((Phase(behaviour="slow", factor=8, start=1, end=2),))
        >>> slow.plan(0.5, 0.5625)
        (1.5, None)
    """

    def __init__(self, phases: tuple[Phase, ...], origin: float = 0.0) -> None:
        self._windows = [_window(phase, origin) for phase in phases if phase.after_requests is None]
        self._waiting = [phase for phase in phases if phase.after_requests is not None]

    def count(self, requests: int, now: float) -> bool:
        """Begin the phases whose ``after_requests`` is reached. Returns True if a phase began.

        Args:
            requests: requests that have arrived so far.
            now: the present time.
        """
        if not self._waiting:
            return False
        begun = [phase for phase in self._waiting if phase.after_requests is not None and requests >= phase.after_requests]
        self._waiting = [phase for phase in self._waiting if phase not in begun]
        self._windows.extend(_window(phase, now) for phase in begun)
        return bool(begun)

    def at(self, now: float) -> Phase | None:
        """The active phase at a time; None in normal operation."""
        active = [window.phase for window in self._windows if window.start <= now < window.end]
        return next((phase for phase in active if phase.behaviour == "dead"), active[0] if active else None)

    def next_change(self, now: float) -> float:
        """The next time at which a phase begins or ends; infinite if there is none."""
        return min((time for window in self._windows for time in window[:2] if time > now), default=math.inf)

    def plan(self, now: float, service: float) -> tuple[float, str | None]:
        """The end of ``service`` seconds of work that begins at ``now``, and the error that ends it, or None."""
        if not self._windows:
            return now + service, None
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
        """The first time from ``now`` on at which requests are admitted."""
        while refuses(self.at(now)):
            now = self.next_change(now)
        return now

    def earliest(self, service: float) -> float:
        """The earliest time at which a request of ``service`` seconds can be done, whenever it is sent."""
        start = 0.0
        while start < math.inf:
            end, error = self.plan(start, service)
            if error is None:
                return end
            start = self.opens(end)
        return math.inf

    def work(self, until: float) -> float:
        """Seconds of work that one slot can do between 0 and ``until``."""
        return sum((end - start) * speed_in(phase) for start, end, phase in self._spans(until))

    def admissions(self, until: float, rate: float, burst: float) -> float:
        """The number of requests (or tokens) that a bucket, full at 0, admits until a time. It admits nothing while the endpoint
        refuses all requests.

        The bucket fills by ``rate`` per second up to ``burst``, also while nothing is admitted.
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


def refuses(phase: Phase | None) -> bool:
    """Whether the phase refuses new requests and ends those in flight."""
    return phase is not None and phase.behaviour in _ERRORS


def speed_in(phase: Phase | None) -> float:
    """Seconds of work done per second in this phase."""
    if phase is None:
        return 1.0
    return 1 / phase.factor if phase.behaviour == "slow" else 0.0


def _window(phase: Phase, origin: float) -> TimeWindow:
    end = math.inf if phase.end is None else origin + phase.end
    return TimeWindow(origin + phase.start, end, phase)


_NEGLIGIBLE = 1e-9  # seconds, requests or tokens: a resource used less than this cannot limit anything
_FOREVER = 1e12  # seconds
_BISECTIONS = 60
_ROUNDS = 2
_STEPS = (3.0, 1.5, 1.2, 1.08, 1.03, 1.01)
_INITIAL_PRICE = 0.01  # of the cost of an average request: initial price of a resource that is not binding on average
_SAMPLE = 1024  # (endpoint, request) pairs on which prices are improved

Prices = list[float]
"""By resource, in the order of the endpoints and of the resources of each."""


class Resource(NamedTuple):
    """A limited resource of an endpoint: the supply until a time, and the amount that each request uses."""

    supply: Callable[[float], float]
    uses: list[float]

    def mean(self) -> float:
        return math.fsum(self.uses) / len(self.uses)


def lower_bound(endpoints: Iterable[FakeEndpoint], work: int | Sequence[Sequence[Any]]) -> float:
    """The shortest time in seconds in which these endpoints, freshly started, can serve a batch; infinite if they never can.

    Args:
        endpoints: the endpoints of the fleet.
        work: the conversations of the batch, or a number of requests. Requests given as a number have the mean length and no prompt.
    """
    count = work if isinstance(work, int) else len(work)
    if not count:
        return 0.0
    prompts = [0] if isinstance(work, int) else [count_tokens(canonical(messages)) for messages in work]
    digests = None if isinstance(work, int) else [digest_of(messages) for messages in work]
    longest, resources = [math.inf] * len(prompts), []
    for spec in endpoints:
        timeline = Timeline(spec.phases)
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


def _resources(spec: FakeEndpoint, timeline: Timeline, service: list[float], tokens: list[float]) -> list[Resource]:
    """The resources of an endpoint, from the service time and the tokens of each request."""
    last = min(service)  # the last admitted request must still be served
    found = []
    if (slots := spec.max_concurrency) is not None:
        found.append(Resource(lambda until: slots * timeline.work(until), service))
    if (rpm := spec.rpm) is not None:
        found.append(Resource(lambda until: timeline.admissions(until - last, rpm / 60, spec.request_burst), [1.0] * len(tokens)))
    if (tpm := spec.tpm) is not None:
        charged = [min(each, spec.token_burst) for each in tokens]
        found.append(Resource(lambda until: timeline.admissions(until - last, tpm / 60, spec.token_burst), charged))
    return [each for each in found if max(each.uses) > _NEGLIGIBLE]


def fluid(endpoints: Sequence[Sequence[Resource]], weight: float) -> float:
    """The shortest time in which the supplies can serve the requests, if a request may be divided; infinite if they never can.

    Args:
        endpoints: the resources of each endpoint, for the same requests. An endpoint without resources serves all requests at once.
        weight: number of requests that each of these requests stands for.
    """
    if not all(endpoints):
        return 0.0
    return _DualProgram(endpoints, weight).bound()


class _DualProgram:
    """The resources of all endpoints in one list, and the prices that make the dual of the linear program as large as possible."""

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
        """Prices at which only the binding resource of each endpoint has a price, and an average request costs 1.

        The binding resource is the scarcest one at the time at which all requests would be served if all were average.
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
        """The cost of one request at each endpoint."""
        costs = [0.0] * len(self.endpoints)
        for owner, price, resource in zip(self.owners, prices, self.resources, strict=True):
            costs[owner] += price * resource.uses[request]
        return costs

    def _value(self, prices: Prices, until: float) -> float:
        return math.fsum([price * each.supply(until) for price, each in zip(prices, self.resources, strict=True) if price])

    def _bound_of(self, prices: Prices, requests: range) -> float:
        """The lower bound that these prices give for the whole batch, from a sample of its requests."""
        demand = math.fsum([min(self._costs(prices, request)) for request in requests])
        demand *= self.weight * len(self.requests) / len(requests) * (1 - 1e-12)
        return _first(lambda until: self._value(prices, until) >= demand)

    def _improved(self, prices: Prices) -> Prices:
        """Raise the bound by changing one price after the other, as long as that helps, in steps that become smaller."""
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
    """The smallest time at which a monotone condition holds; infinite if it never does."""
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
