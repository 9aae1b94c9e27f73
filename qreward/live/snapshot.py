"""``Snapshot``, one document with the state of a client, and ``SnapshotMaker``, which makes it in any thread."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import cast

from pydantic import BaseModel, ConfigDict, Field

from qreward.engine.batch import BatchWaiter, endpoint_stats
from qreward.engine.driver import Engine, LoopDriver
from qreward.results import EndpointState, EndpointStats, Explanation, ReasonCode, RouteState, dollars
from qreward.scheduler.pool import Pool
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source, standing
from qreward.scheduler.why import KEPT, explain, reason_of, route_of, waiting_in
from qreward.settings.policies import Endpoint

VERSION = 1
"""Version of the document. Fields may be added without a new version."""
BLOCKED = 1.0
"""Seconds by which an event loop must be late to count as blocked."""
SPAN, APART = 10.0, 0.5
"""Rates are those since the oldest earlier snapshot of the last ``SPAN`` seconds. Earlier snapshots are ``APART`` seconds apart."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Totals(_Part):
    """Counts since the client was created, of one endpoint or of all. Rates are those of the last seconds."""

    in_flight: int = 0
    sent: int = 0
    answered: int = 0
    rejected: int = Field(0, description="requests that were turned away: 429, 503 and 529")
    failed: int = 0
    server_errors: int = Field(0, description="failures with a status of 500 or more")
    retried: int = 0
    hedged: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    answers_per_second: float = 0.0
    tokens_per_second: float = Field(0.0, description="output tokens, as reported by the server")
    waiting: int = Field(0, description="items that have no result and are not in flight; 0 for an endpoint")


class EndpointSnapshot(Totals):
    """The state of one endpoint."""

    name: str
    models: list[str] = Field(description="patterns of the routes that it serves")
    state: ReasonCode = Field(description="ready, or why it takes no request now")
    why: str = Field(description="the state in words, with numbers")
    ready_in: float | None = Field(description="seconds until it can take a request; None if an event must come first")
    limit: int = Field(description="requests that may be in flight now")
    limit_why: str = Field(description="the reason for the last change of the limit")
    limit_changes: dict[str, int] = Field(description="number of changes of the limit, by direction and reason")
    pace: float | None = Field(description="requests a second that it can take at present; None before its first answer")
    p50: float | None = Field(description="seconds of an answer")
    p95: float | None
    cached_share: float | None = Field(description="share (0 to 1) of prompt tokens that were cached; None without prompt tokens")
    cost: float | None = Field(description="US dollars; None without a price")
    last_failure: str | None = Field(description="kind of its last failure; the text of the server is left out")
    last_failure_ago: float | None
    sharing: str | None = Field(description="its share of limits that processes share")


class ModelSnapshot(_Part):
    """The work of one route."""

    route: str
    models: list[str] = Field(description="models that were requested from the route")
    waiting: int
    in_flight: int
    state: ReasonCode
    why: str
    eta: tuple[float, float] | None = Field(description="seconds in which what waits is expected to be done: least and most")
    endpoints: list[str]


class BatchSnapshot(_Part):
    """The progress of one batch."""

    number: int
    model: str = Field(description="models of the route, or its pattern")
    done: int
    ok: int
    failed: int
    total: int | None
    in_flight: int = Field(description="items that were read and have no result")
    seconds: float


class LoopSnapshot(_Part):
    """One event loop that uses the client."""

    thread: int = Field(description="identifier of its thread, as in threading.get_ident()")
    lag: float = Field(description="seconds by which it is late")
    blocked: bool


class Snapshot(_Part):
    """The state of one client at one moment. ``model_dump_json`` writes it, and ``model_json_schema`` describes it.

    Example:
        >>> from qreward import QRewardClient
        >>> QRewardClient(["http://127.0.0.1:8000/v1"]).snapshot().totals.in_flight
        0
    """

    version: int = VERSION
    at: float = Field(description="time of the wall clock in seconds")
    pid: int
    totals: Totals
    models: list[ModelSnapshot]
    endpoints: list[EndpointSnapshot]
    batches: list[BatchSnapshot]
    loops: list[LoopSnapshot]
    lag: float = Field(description="seconds by which the latest event loop is late")
    cost: float | None = Field(description="US dollars of all answers; None if no endpoint has a price")
    why: list[str] = Field(description="one sentence for each kind of work that waits")


COUNTS = (
    "sent", "rejected", "failed", "server_errors", "retried", "hedged", "cancelled", "prompt_tokens", "output_tokens", "cached_tokens",
)  # fmt: skip
"""Counts of an endpoint that are fields of its tally."""


class SnapshotMaker:
    """Makes the explanations and the snapshots of one client."""

    def __init__(self, engine: Engine[Scheduler], sources: Callable[[], list[Source]], prices: Mapping[str, tuple[float, float]]) -> None:
        self._engine, self._sources, self._prices = engine, sources, prices
        self.reasons: dict[object, Explanation] = {}
        self._counted: tuple[float, Mapping[str, int]] = (-inf, {})
        self._seen: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()  # time, and answers and tokens by endpoint

    def explain(self, pools: Iterable[Pool] | None = None) -> list[Explanation]:
        """Return why work waits: for some routes, or for all routes with work that waits."""
        found = self._elsewhere(self._engine.drivers())
        with self._engine.lock:
            now = self._engine.clock()
            made = [explain(now, pool) for pool in (self.pools() if pools is None else pools)]
        return found + [each for each in made if pools is not None or each.waiting or each.in_flight or each.is_stuck]

    def for_progress(self, pools: Callable[[], Sequence[Pool]]) -> Callable[[int, bool], RouteState]:
        """Return a function for ``start_progress``: the state of routes, if items are left, and with a reason if nothing moves."""

        def state(left: int, is_quiet: bool) -> RouteState:
            chosen = pools()
            with self._engine.lock:
                now = self._engine.clock()  # other work of the routes may go first
                found = [(pool.done_in(now, left), pool.done_in(now, max(left, waiting_in(pool)))) for pool in chosen if left]
            bands = [(least[0], most[1]) for least, most in found if least is not None and most is not None]
            eta = (min(least for least, _ in bands), max(most for _, most in bands)) if bands else None
            why = "; ".join(each.text for each in self.explain(chosen) if each.is_stuck) if is_quiet else ""
            in_flight, window, down, endpoints = map(sum, zip(*map(load_of, chosen), strict=True)) if chosen else (0, 0, 0, 0)
            return RouteState(in_flight, window, down, endpoints, eta, why)

        return state

    def _elsewhere(self, drivers: Iterable[LoopDriver]) -> list[Explanation]:
        late = max((driver.lag() for driver in drivers), default=0.0)
        found = list(self.reasons.values())
        if late >= BLOCKED:
            text = f"the event loop is blocked for {late:.1f} s by code that does not yield; nothing is sent or read meanwhile"
            found.insert(0, Explanation("", "event_loop", text))
        return found

    def waiting_for(self) -> Mapping[str, int]:
        """Return how many items wait, by reason. The numbers may be a moment old."""
        if (now := self._engine.clock()) >= self._counted[0] + KEPT:
            counts = Counter[str]()
            for each in self.explain():
                counts[each.code] += each.waiting
            self._counted = now, counts
        return self._counted[1]

    def pools(self) -> list[Pool]:
        return list(dict.fromkeys(pool for source in self._sources() for pool in source.pools))

    def take(self) -> Snapshot:
        """Return the present state. Can be called from any thread, also if an event loop is blocked."""
        engine, sources, drivers = self._engine, self._sources(), self._engine.drivers()
        elsewhere = self._elsewhere(drivers)
        with engine.lock:
            now = engine.clock()
            rates = self._rates(now, sources)
            endpoints = [self._endpoint(now, source, *rates[source.name]) for source in sources]
            explained = [(pool, explain(now, pool)) for pool in self.pools()]
            models = [
                ModelSnapshot(
                    route=why.route,
                    models=sorted(pool.models),
                    waiting=why.waiting,
                    in_flight=why.in_flight,
                    state=why.code,
                    why=why.text,
                    eta=pool.done_in(now, why.waiting),
                    endpoints=[source.name for source in pool.sources],
                )
                for pool, why in explained
            ]
        batches = [waiter for driver in drivers for waiter in list(driver.waiters) if isinstance(waiter, BatchWaiter)]
        loops = [LoopSnapshot(thread=each.thread, lag=(lag := each.lag()), blocked=lag >= BLOCKED) for each in drivers]
        sums = {name: sum(getattr(each, name) for each in endpoints) for name in Totals.model_fields}
        costs = [each.cost for each in endpoints if each.cost is not None]
        return Snapshot(
            at=time.time(),
            pid=os.getpid(),
            totals=Totals(**sums | {"waiting": sum(each.waiting for each in models)}),
            models=models,
            endpoints=endpoints,
            batches=[BatchSnapshot(**batch.progress_at(now)) for batch in batches],
            loops=loops,
            lag=max((each.lag for each in loops), default=0.0),
            cost=sum(costs) if costs else None,
            why=[each.text for each in (*elsewhere, *(why for _, why in explained)) if each.is_stuck],
        )

    def _endpoint(self, now: float, source: Source, answers: float, tokens: float) -> EndpointSnapshot:
        tally, reason, endpoint = source.tally, reason_of(now, source), cast("Endpoint", source.endpoint)
        counts = {name: getattr(tally, name) for name in COUNTS}
        price, fault = self._prices.get(source.name), source.fault
        return EndpointSnapshot(
            name=source.name,
            models=[route_of(pool) for pool in source.pools],
            state=reason.code,
            why=reason.text,
            ready_in=reason.ready_in,
            in_flight=source.inflight,
            limit=source.window.limit,
            limit_why=source.window.reason,
            limit_changes={f"{way} {why}": times for (way, why), times in source.window.changes.items()},
            pace=source.rate() if source.latency.mean else None,
            answers_per_second=answers,
            tokens_per_second=tokens,
            p50=source.latency.at(0.5),
            p95=source.latency.at(0.95),
            **counts,
            answered=tally.ok,
            cached_share=tally.cached_tokens / tally.prompt_tokens if tally.prompt_tokens else None,
            cost=None if price is None else dollars(price, tally.prompt_tokens, tally.output_tokens),
            last_failure=None if fault is None else fault.shown,
            last_failure_ago=None if fault is None else now - fault.at,
            sharing=None if source.lease is None else source.lease.words(endpoint.limits),
        )

    def _rates(self, now: float, sources: list[Source]) -> dict[str, tuple[float, float]]:
        """Return the answers and output tokens of each endpoint in a second."""
        counts = {source.name: (source.tally.ok, source.tally.output_tokens) for source in sources}
        seen = self._seen
        while len(seen) > 1 and now - seen[0][0] > SPAN:
            seen.popleft()
        then, before = seen[0] if seen else (now, counts)
        if not seen or now - seen[-1][0] >= APART:
            seen.append((now, counts))
        passed = max(now - then, APART)
        return {
            name: (max(0, ok - before.get(name, (0, 0))[0]) / passed, max(0, tokens - before.get(name, (0, 0))[1]) / passed)
            for name, (ok, tokens) in counts.items()
        }


def stats_of(source: Source, now: float) -> EndpointStats:
    obstacle = standing(now, source)
    seconds = None if obstacle.seconds == inf else obstacle.seconds
    sharing = None if source.lease is None else source.lease.words(cast("Endpoint", source.endpoint).limits)
    state = EndpointState(source.inflight, source.window.limit, source.window.reason, obstacle.reason, seconds, sharing)
    return endpoint_stats(source.tally, source.latency, predicted_tokens=int(source.prefix_cache.predicted_tokens), state=state)


def load_of(pool: Pool) -> tuple[int, int, int, int]:
    """Return the first four fields of a pool's ``RouteState``. Slots of a source that is out of service do not count as capacity."""
    sources = list(pool.sources)  # a copy, because another thread may change them
    well = [source for source in sources if source.health.in_service and source.down_since is None]
    in_flight = sum(source.inflight for source in sources)
    return in_flight, sum(source.window.limit for source in well), len(sources) - len(well), len(sources)
