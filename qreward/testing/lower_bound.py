"""The lower bound on the makespan of a batch, the timeline of an endpoint's phases, and parsed requests with their service times.

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
and are improved as in a market (tatonnement: Walras, Elements d'economie politique pure, 1874); the largest T is used.

The bound ignores faults, phases that begin with a request, the integrality of slots, and the time lost to rejections. Each of
these can only make the true minimum larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from qreward.testing import responders
from qreward.testing.responders import ChatRequest, EmbeddingsRequest
from qreward.testing.spec import FakeEndpoint, Latency, Phase
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
        """Begin the phases whose ``after_requests`` is reached; True if there was one.

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
        """The earliest time at which a request of ``service`` seconds can be done, if it is sent at the best time from 0 on."""
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
        """Requests (or tokens) that a bucket, full at 0, admits until a time; none while the endpoint refuses all requests.

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


_NOTHING = 1e-9  # seconds, requests or tokens: a resource used less than this cannot limit anything
_FOREVER = 1e12  # seconds
_BISECTIONS = 60
_ROUNDS = 15
_SHARPNESS = (4, 8, 16, 32, 64, 128, 256)
_FAINT = 0.3  # of the cost of an average request: initial price of a resource that is not binding on average
_SAMPLE = 2048  # (endpoint, request) pairs on which prices are improved

Supply = Callable[[float], float]
Prices = list[list[float]]
"""By endpoint, and by resource of the endpoint."""


class Resource(NamedTuple):
    """A limited resource of an endpoint: the supply until a time, and the amount that each request uses."""

    supply: Supply
    uses: list[float]


class ServerModel(NamedTuple):
    """An endpoint: its phases, the service time of each request in seconds, and its limited resources."""

    timeline: Timeline
    service: list[float]
    resources: list[Resource]


def lower_bound(endpoints: Iterable[FakeEndpoint], work: int | Sequence[Sequence[Any]]) -> float:
    """The shortest time in seconds in which these endpoints, freshly started, can serve a batch; infinite if they never can.

    Args:
        endpoints: the endpoints of the fleet.
        work: the conversations of the batch, or a number of requests. Requests given as a number have the mean length and no prompt.
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
    """The requests: their number, and the length of each on an endpoint. Equal requests are one entry with a higher ``weight``."""

    def __init__(self, work: int | Sequence[Sequence[Any]]) -> None:
        if isinstance(work, int):
            self.count = self.weight = work
            self.prompts, self._digests = [0], None
        else:
            self.count, self.weight = len(work), 1
            self.prompts = [count_tokens(canonical(messages)) for messages in work]
            self._digests = [digest_of(messages) for messages in work]

    def on(self, spec: FakeEndpoint) -> list[float]:
        """Output tokens of each entry on an endpoint."""
        if self._digests is None:
            return [spec.latency.tokens if spec.latency.sigma else round(spec.latency.tokens)]
        return [spec.latency.draw(digest) for digest in self._digests]


def _source(spec: FakeEndpoint, lengths: _Lengths) -> ServerModel:
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
    return ServerModel(timeline, service, [each for each in resources if max(each.uses) > _NOTHING])


def _fluid(sources: list[ServerModel], weight: int) -> float:
    if not all(source.resources for source in sources):
        return 0.0  # an endpoint without limits serves any number of requests at once
    entries = len(sources[0].service)
    means = [[math.fsum(each.uses) / entries for each in source.resources] for source in sources]

    def served(until: float, source: ServerModel, mean: list[float]) -> float:
        return min(each.supply(until) / use for each, use in zip(source.resources, mean, strict=True))

    pairs = list(zip(sources, means, strict=True))
    alike = _first(lambda until: sum(served(until, *pair) for pair in pairs) >= weight * entries)
    prices = [_binding(source, mean, min(alike, _FOREVER)) for source, mean in pairs]
    best = _bound_of(sources, prices, weight, range(entries))
    if entries > 1 and 0 < best < math.inf:
        best = max(best, _bound_of(sources, _improved(sources, prices, weight), weight, range(entries)))
    return best


def _binding(source: ServerModel, mean: list[float], until: float) -> list[float]:
    """Prices of an endpoint at which only its binding resource has a price, and an average request costs 1."""
    ratios = [each.supply(until) / use for each, use in zip(source.resources, mean, strict=True)]
    scarce = ratios.index(min(ratios))
    return [1 / use if index == scarce else 0.0 for index, use in enumerate(mean)]


def _bound_of(sources: list[ServerModel], prices: Prices, weight: float, entries: range) -> float:
    """The smallest T that these prices do not rule out. Each entry counts for ``weight`` requests."""
    demand = weight * math.fsum(min(_costs(sources, prices, index)) for index in entries)
    return _first(lambda until: _value(sources, prices, until) >= demand * (1 - 1e-12))


def _value(sources: list[ServerModel], prices: Prices, until: float) -> float:
    return math.fsum(
        price * each.supply(until)
        for source, row in zip(sources, prices, strict=True)
        for price, each in zip(row, source.resources, strict=True)
        if price
    )


def _costs(sources: list[ServerModel], prices: Prices, index: int) -> list[float]:
    """The cost of one request at each endpoint."""
    return [
        sum([price * each.uses[index] for price, each in zip(row, source.resources, strict=True)])
        for source, row in zip(sources, prices, strict=True)
    ]


def _improved(sources: list[ServerModel], prices: Prices, weight: int) -> Prices:
    """Improve prices as in a market: the price of a resource rises if demand exceeds supply, and falls otherwise.

    Requests are spread over the endpoints by ``cost ** -sharpness``, so that demand follows prices smoothly. Sharpness grows
    until each request goes to the cheapest endpoint alone, which is the linear program.
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


def _adjusted(sources: list[ServerModel], prices: Prices, until: float, sharpness: float, sample: range) -> Prices:
    """One round of price updates: each price times (load / supply), to a power at which the rounds converge."""
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


def _rows(numbers: Prices, sources: list[ServerModel]) -> Iterator[tuple[list[float], list[Resource]]]:
    for row, source in zip(numbers, sources, strict=True):
        yield row, source.resources


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


class ListRequest(NamedTuple):
    """A list of items to score, label, rank or embed, and the response.

    Attributes:
        model: None if the request names no model.
        items: number of items.
        body: body of the response.
        failure: error that is returned instead of the body, after the service time; None for success.
    """

    model: str | None
    items: int
    body: bytes
    failure: Problem | None = None

    def made(self) -> bytes:
        """The body of the response. Raises the failure if there is one."""
        if self.failure is not None:
            raise self.failure
        return self.body


T = TypeVar("T", ChatRequest, EmbeddingsRequest)


class Job(NamedTuple):
    """A parsed request and the work to serve it.

    Attributes:
        asked: the request.
        digest: digest of its messages or its input.
        prompt: prompt tokens.
        length: output tokens of one choice.
        completion: output tokens of all choices.
        service: service time in seconds.
    """

    asked: ChatRequest | EmbeddingsRequest | ListRequest
    digest: bytes
    prompt: int
    length: int
    completion: int
    service: float

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion

    @property
    def items(self) -> int:
        """Number of items in the request; 1 for a chat."""
        if isinstance(self.asked, ListRequest):
            return self.asked.items
        return len(self.asked.items()) if isinstance(self.asked, EmbeddingsRequest) else 1


class Problem(Exception):
    """An error response.

    Attributes:
        status: HTTP status.
        body: body of the response.
        kind: name under which the error is counted.
        ready_at: time at which a retry can succeed; None if no ``Retry-After`` header is sent.
    """

    def __init__(self, status: int, body: bytes, kind: str, ready_at: float | None = None) -> None:
        super().__init__(kind)
        self.status = status
        self.body = body
        self.kind = kind
        self.ready_at = ready_at


def chat_job(body: bytes, latency: Latency) -> Job:
    """Parse a chat request. Raises :class:`Problem` (400)."""
    asked = _read(responders.read_chat, body)
    encoded = canonical(asked.messages)
    digest = sha256(encoded).digest()
    length = latency.draw(digest)
    return Job(asked, digest, count_tokens(encoded), length, length * (asked.n or 1), latency.seconds(length))


def embeddings_job(body: bytes, latency: Latency) -> Job:
    """Parse an embeddings request. Raises :class:`Problem` (400)."""
    asked = _read(responders.read_embeddings, body)
    prompt = sum(count_tokens(canonical(each)) for each in asked.items())
    return Job(asked, sha256(canonical(asked.input)).digest(), prompt, 0, 0, latency.base)


def _read(read: Callable[[bytes], T], body: bytes) -> T:
    try:
        return read(body)
    except ValueError as error:
        raise Problem(400, responders.error(str(error), "invalid_request_error"), "bad_request") from None
