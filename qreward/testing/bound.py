"""The time below which no scheduler can finish a bulk on a fleet. Pure arithmetic: nothing is sent.

The bound is the larger of two.

*Longest single.* Each request takes at least its service time on the endpoint that could be done with it first:
``max_j min_i earliest_i(s_ij)``, with ``s_ij = base_i + per_token_i * tokens_j`` and the phases of endpoint i.

*Fluid.* Endpoint i can spend, up to time T,

- slots: ``max_concurrency_i * integral of speed_i over [0, T]`` seconds of work (speed is 1, 1/factor when slow,
  0 when hanging, dead or failing), of which request j takes ``s_ij``;
- requests: ``burst_i + rpm_i / 60 * (T - shortest service)``, of which it takes 1 (the bucket fills while the endpoint
  refuses everything, but never above its burst; whoever is admitted last has still to be served);
- tokens: the same with ``tpm_i`` and ``burst_tokens_i``, of which it takes its prompt and completion tokens.

The bound is the smallest T for which requests, divisible at will, fit into that. With all requests alike it is the T at
which ``sum_i min_r supply_ir(T) / use_ir`` reaches their number. In general it is a linear program, taken from its dual so
that it never claims too much: for any prices ``y_ir >= 0``, a feasible T has
``sum_ir y_ir * supply_ir(T) >= sum_j min_i sum_r y_ir * use_irj``. Prices start at the binding resource of each endpoint
and are improved as in a market (tatonnement: Walras, Elements d'economie politique pure, 1874); the best T stands.

Left out, so the bound is low by them: faults, phases that begin with a request, whole slots, the time of rejections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import canonical, count_tokens, digest_of
from qreward.testing.timeline import Timeline

_NOTHING = 1e-9  # of a second, a request or a token: no limit can be felt below it
_FOREVER = 1e12  # seconds
_BISECTIONS = 60
_ROUNDS = 15
_SHARPNESS = (4, 8, 16, 32, 64, 128, 256)
_FAINT = 0.3  # of what an average request costs: where a price starts that is not binding on the average
_SAMPLE = 2048  # of (endpoint, request) pairs, on which prices are improved

Supply = Callable[[float], float]
Prices = list[list[float]]
"""By endpoint, and by resource of it."""


class Resource(NamedTuple):
    """Something of an endpoint that is used up: by each request (``uses``), out of what there is up to a time."""

    supply: Supply
    uses: list[float]


class Source(NamedTuple):
    """An endpoint as the bound sees it: seconds of service by request, and what it can run out of."""

    timeline: Timeline
    service: list[float]
    resources: list[Resource]


def lower_bound(endpoints: Iterable[FakeEndpoint], work: int | Sequence[Sequence[Any]]) -> float:
    """Seconds that a bulk takes at least on these endpoints, from a fresh start; infinite if it can never be done.

    Args:
        endpoints: of the fleet.
        work: the conversations of the bulk; or a number of requests, each then of the mean length and without a prompt.
    """
    lengths = _Lengths(work)
    if not lengths.count:
        return 0.0
    sources = [source for spec in endpoints if (source := _source(spec, lengths)).timeline.opens(0.0) < math.inf]
    if not sources:
        return math.inf
    each = range(len(lengths.prompts))
    longest = max(min(source.timeline.earliest(source.service[index]) for source in sources) for index in each)
    return max(longest, _fluid(sources, lengths.weight))


class _Lengths:
    """The requests: how many, and how long each would be on an endpoint. Alike ones are one entry of a higher ``weight``."""

    def __init__(self, work: int | Sequence[Sequence[Any]]) -> None:
        if isinstance(work, int):
            self.count = self.weight = work
            self.prompts, self._digests = [0], None
        else:
            self.count, self.weight = len(work), 1
            self.prompts = [count_tokens(canonical(messages)) for messages in work]
            self._digests = [digest_of(messages) for messages in work]

    def on(self, spec: FakeEndpoint) -> list[float]:
        """Output tokens of each."""
        if self._digests is None:
            return [spec.latency.tokens if spec.latency.sigma else round(spec.latency.tokens)]
        return [spec.latency.draw(digest) for digest in self._digests]


def _source(spec: FakeEndpoint, lengths: _Lengths) -> Source:
    timeline, tokens = Timeline(spec.phases), lengths.on(spec)
    service = [spec.latency.seconds(each) for each in tokens]
    shortest, resources = min(service), []
    if (slots := spec.max_concurrency) is not None:
        resources.append(Resource(lambda until: slots * timeline.work(until), service))
    if (rpm := spec.rpm) is not None:
        resources.append(Resource(lambda until: timeline.admissions(until - shortest, rpm / 60, spec.request_burst), [1.0] * len(tokens)))
    if (tpm := spec.tpm) is not None:
        charged = [min(prompt + each, spec.token_burst) for prompt, each in zip(lengths.prompts, tokens, strict=True)]
        resources.append(Resource(lambda until: timeline.admissions(until - shortest, tpm / 60, spec.token_burst), charged))
    return Source(timeline, service, [each for each in resources if max(each.uses) > _NOTHING])


def _fluid(sources: list[Source], weight: int) -> float:
    if not all(source.resources for source in sources):
        return 0.0  # one of them takes any number at once
    entries = len(sources[0].service)
    means = [[math.fsum(each.uses) / entries for each in source.resources] for source in sources]

    def served(until: float, source: Source, mean: list[float]) -> float:
        return min(each.supply(until) / use for each, use in zip(source.resources, mean, strict=True))

    pairs = list(zip(sources, means, strict=True))
    alike = _first(lambda until: sum(served(until, *pair) for pair in pairs) >= weight * entries)
    prices = [_binding(source, mean, min(alike, _FOREVER)) for source, mean in pairs]
    best = _bound_of(sources, prices, weight, range(entries))
    if entries > 1 and 0 < best < math.inf:
        best = max(best, _bound_of(sources, _improved(sources, prices, weight), weight, range(entries)))
    return best


def _binding(source: Source, mean: list[float], until: float) -> list[float]:
    """Prices of an endpoint at which only what it runs out of first costs anything, and an average request costs 1."""
    ratios = [each.supply(until) / use for each, use in zip(source.resources, mean, strict=True)]
    scarce = ratios.index(min(ratios))
    return [1 / use if index == scarce else 0.0 for index, use in enumerate(mean)]


def _bound_of(sources: list[Source], prices: Prices, weight: float, entries: range) -> float:
    """The smallest T that these prices do not rule out, each of the entries standing for ``weight`` requests."""
    demand = weight * math.fsum(min(_costs(sources, prices, index)) for index in entries)
    return _first(lambda until: _value(sources, prices, until) >= demand * (1 - 1e-12))


def _value(sources: list[Source], prices: Prices, until: float) -> float:
    return math.fsum(
        price * each.supply(until)
        for source, row in zip(sources, prices, strict=True)
        for price, each in zip(row, source.resources, strict=True)
        if price
    )


def _costs(sources: list[Source], prices: Prices, index: int) -> list[float]:
    """What one request costs at each endpoint."""
    return [
        sum([price * each.uses[index] for price, each in zip(row, source.resources, strict=True)])
        for source, row in zip(sources, prices, strict=True)
    ]


def _improved(sources: list[Source], prices: Prices, weight: int) -> Prices:
    """Better prices, found as a market finds them: what is wanted more than there is gets dearer, and the other way round.

    Requests are spread over the endpoints by ``cost ** -sharpness``, so that demand answers to prices smoothly; it gets sharper
    until each goes to the cheapest alone, which is the linear program.
    """
    entries = len(sources[0].service)
    sample = range(0, entries, max(1, entries * len(sources) // _SAMPLE))
    standing = weight * entries / len(sample)
    best, best_bound = prices, 0.0
    prices = [
        [price or _FAINT * entries / math.fsum(each.uses) for price, each in zip(*row, strict=True)] for row in _rows(prices, sources)
    ]
    for sharpness in _SHARPNESS:
        until = _bound_of(sources, prices, standing, sample)
        if not 0 < until < math.inf:
            break
        for _ in range(_ROUNDS):
            prices = _adjusted(sources, prices, until, sharpness, sample)
        bound = _bound_of(sources, prices, standing, sample)
        if bound > best_bound:
            best, best_bound = prices, bound
    return best


def _adjusted(sources: list[Source], prices: Prices, until: float, sharpness: float, sample: range) -> Prices:
    """One round of the market: prices times (load / supply), to a power at which it settles."""
    loads = [[0.0] * len(row) for row in prices]
    for index in sample:
        costs = _costs(sources, prices, index)
        least = max(min(costs), 1e-300)
        shares = [(least / cost) ** sharpness if cost > least else 1.0 for cost in costs]
        whole = sum(shares)
        for source, share, row in zip(sources, shares, loads, strict=True):
            if share > 1e-6 * whole:
                for number, each in enumerate(source.resources):
                    row[number] += share / whole * each.uses[index]
    ratios = [
        [load / supply if (supply := each.supply(until)) > 0 else 1.0 for load, each in zip(*row, strict=True)]
        for row in _rows(loads, sources)
    ]
    value = _value(sources, prices, until)
    spent = math.fsum(price * load for row in zip(prices, loads, strict=True) for price, load in zip(*row, strict=True))
    return [
        [price * min(8.0, max(0.02, ratio * value / spent)) ** (1 / (1 + sharpness)) for price, ratio in zip(*row, strict=True)]
        for row in zip(prices, ratios, strict=True)
    ]


def _rows(numbers: Prices, sources: list[Source]) -> Iterator[tuple[list[float], list[Resource]]]:
    for row, source in zip(numbers, sources, strict=True):
        yield row, source.resources


def _first(holds: Callable[[float], bool]) -> float:
    """The smallest time at which a condition that never ends again holds; infinite if it never does."""
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
