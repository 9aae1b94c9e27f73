"""Converts the scheduler's state and outcomes to the results and statistics that callers receive."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any, cast

from qreward.errors import QRewardError
from qreward.records import retries
from qreward.results import EndpointState, EndpointStats, Result, RouteLoad, with_trail
from qreward.scheduler.outcome import Answer
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source, SourceCounters, standing
from qreward.scheduler.stats import LatencyStats, Quantiles
from qreward.scheduler.task import Attempt, Task
from qreward.settings.policies import Endpoint


def result_of(task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> Result[object]:
    queued = 0.0 if task.sent_at is None else task.sent_at - task.born
    trail = () if task.trail is None else tuple(task.trail)
    if isinstance(outcome, Answer):
        assert source is not None
        return Result(task.index, outcome.value, None, source.name, seconds, queued, trail)
    endpoint = trail[-1].endpoint if trail else None
    return Result(task.index, None, with_trail(outcome, trail), endpoint, 0.0, queued, trail)


def stats_of(source: Source, now: float) -> EndpointStats:
    obstacle = standing(now, source)
    seconds = None if obstacle.seconds == inf else obstacle.seconds
    sharing = None if source.lease is None else source.lease.words(cast("Endpoint", source.endpoint).limits)
    state = EndpointState(source.inflight, source.window.limit, source.window.reason, obstacle.reason, seconds, sharing)
    return _stats(source.tally, source.latency, predicted_tokens=int(source.prefix_cache.predicted_tokens), state=state)


def _stats(counters: SourceCounters, latency: Quantiles | LatencyStats, **more: Any) -> EndpointStats:
    same = ("sent", "rejected", "retried", "hedged", "failed", "cancelled", "prompt_tokens", "cached_tokens")
    counts = {name: getattr(counters, name) for name in same}
    counts |= {"answered": counters.ok, "completion_tokens": counters.output_tokens}
    return EndpointStats(**counts, p50=latency.at(0.5), p95=latency.at(0.95), p99=latency.at(0.99), **more)


def load_of(pool: Pool) -> RouteLoad:
    """Return the load of a pool's sources. Slots of a source that is out of service do not count as capacity."""
    sources = list(pool.sources)  # a copy, because another thread may change them
    well = [source for source in sources if source.health.in_service and source.down_since is None]
    in_flight = sum(source.inflight for source in sources)
    return RouteLoad(in_flight, sum(source.window.limit for source in well), len(sources) - len(well), len(sources))


class Tallies:
    """Counts the results of one batch, in total and for each endpoint."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[SourceCounters, Quantiles]] = {}
        self.ok = 0
        self.failed = 0

    def add(self, result: Result[object]) -> None:
        """Count a finished item, which one request has answered."""
        self.ok += result.error is None
        self.failed += result.error is not None
        self.add_request(result)

    def add_request(self, result: Result[object]) -> None:
        if result.error is None and result.endpoint is not None:
            counters, latency = self._of(result.endpoint)
            counters.ok += 1
            latency.add(result.latency)
            if usage := result.usage:
                counters.prompt_tokens += usage.prompt_tokens or 0
                counters.output_tokens += usage.completion_tokens or 0
                counters.cached_tokens += usage.cached_tokens or 0
        if not result.has_trail:
            return
        for attempt in retries(result.attempts):
            self._of(attempt.endpoint)[0].retried += 1
        for attempt in result.attempts:
            counters, _ = self._of(attempt.endpoint)
            counters.hedged += attempt.hedge
            if attempt.outcome == "overloaded":
                counters.rejected += 1
            elif attempt.outcome == "cancelled":
                counters.cancelled += 1
            elif attempt.outcome != "ok":
                counters.failed += 1

    def add_cancelled(self, attempts: Iterable[Attempt | None]) -> None:
        for attempt in attempts:
            if attempt is not None:
                self._of(attempt.source.name)[0].cancelled += 1

    def _of(self, name: str) -> tuple[SourceCounters, Quantiles]:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = SourceCounters(), Quantiles()
        return found

    def stats(self) -> dict[str, EndpointStats]:
        for counters, _ in self._by_name.values():
            counters.sent = counters.ok + counters.rejected + counters.failed + counters.cancelled
        return {name: _stats(*found) for name, found in self._by_name.items()}


class ItemTallies(Tallies):
    """Counts the items of a batch, and apart from them the requests that they need."""

    def add(self, result: Result[object]) -> None:
        self.ok += result.error is None
        self.failed += result.error is not None
