"""Converts the scheduler's state and outcomes to the results and statistics that callers receive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, cast

from qreward.errors import QRewardError
from qreward.records import AttemptRecord, retries
from qreward.results import EndpointState, EndpointStats, Result, RouteLoad, with_trail
from qreward.scheduler.outcome import Answer
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source, standing
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
    """Return the statistics of a source since it was created, and its current state."""
    tally, obstacle = source.tally, standing(now, source)
    seconds = None if obstacle.seconds == inf else obstacle.seconds
    sharing = None if source.lease is None else source.lease.words(cast("Endpoint", source.handle).limits)
    state = EndpointState(source.inflight, source.window.limit, source.window.reason, obstacle.reason, seconds, sharing)
    names = ("sent", "rejected", "retried", "hedged", "failed", "cancelled", "prompt_tokens", "cached_tokens")
    counts = {name: getattr(tally, name) for name in names}
    counts |= {"answered": tally.ok, "completion_tokens": tally.output_tokens}
    counts["predicted_tokens"] = int(source.prefix_cache.predicted_tokens)
    return EndpointStats(**counts, **_quantiles(source.latency), state=state)


def _quantiles(latency: Quantiles | LatencyStats) -> dict[str, Any]:
    return {"p50": latency.at(0.5), "p95": latency.at(0.95), "p99": latency.at(0.99)}


def load_of(pool: Pool) -> RouteLoad:
    """Return the load of a pool's sources. Slots of a source that is out of service do not count as capacity."""
    sources = list(pool.sources)  # a copy, because another thread may change them
    well = [source for source in sources if source.health.in_service and source.down_since is None]
    in_flight = sum(source.inflight for source in sources)
    return RouteLoad(in_flight, sum(source.window.limit for source in well), len(sources) - len(well), len(sources))


class Tallies:
    """Counts the results of one batch, in total and for each endpoint."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Counters] = {}
        self.ok = 0
        self.failed = 0

    def add(self, result: Result[object]) -> None:
        """Count a finished item."""
        if result.error is None and result.endpoint is not None:
            self.ok += 1
            counters = self._of(result.endpoint)
            counters.answered += 1
            counters.latency.add(result.latency)
            if usage := result.usage:
                counters.prompt_tokens += usage.prompt_tokens or 0
                counters.completion_tokens += usage.completion_tokens or 0
                counters.cached_tokens += usage.cached_tokens or 0
        else:
            self.failed += 1
        if result.has_trail:
            self._add_trail(result.attempts)

    def _add_trail(self, attempts: Sequence[AttemptRecord]) -> None:
        for attempt in retries(attempts):
            self._of(attempt.endpoint).retried += 1
        for attempt in attempts:
            counters = self._of(attempt.endpoint)
            counters.hedged += attempt.hedge
            if attempt.outcome == "overloaded":
                counters.rejected += 1
            elif attempt.outcome == "cancelled":
                counters.cancelled += 1
            elif attempt.outcome != "ok":
                counters.failed += 1

    def _of(self, name: str) -> _Counters:
        counters = self._by_name.get(name)
        if counters is None:
            counters = self._by_name[name] = _Counters()
        return counters

    def stats(self) -> dict[str, EndpointStats]:
        return {name: counters.stats() for name, counters in self._by_name.items()}


class ItemTallies(Tallies):
    """Counts the results of a batch whose items may need several requests.

    ``ok`` and ``failed`` count items. All other numbers count requests.
    """

    def add(self, result: Result[object]) -> None:
        self.ok += result.error is None
        self.failed += result.error is not None

    def add_request(self, result: Result[object]) -> None:
        ok, failed = self.ok, self.failed
        super().add(result)
        self.ok, self.failed = ok, failed

    def add_cancelled(self, attempts: Iterable[Attempt | None]) -> None:
        for attempt in attempts:
            if attempt is not None:
                self._of(attempt.source.name).cancelled += 1


class _Counters:
    NAMES = ("answered", "rejected", "retried", "hedged", "failed", "cancelled", "prompt_tokens", "completion_tokens", "cached_tokens")
    __slots__ = (*NAMES, "latency")

    def __init__(self) -> None:
        self.answered = self.rejected = self.retried = self.hedged = self.failed = self.cancelled = 0
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.latency = Quantiles()

    def stats(self) -> EndpointStats:
        sent = self.answered + self.rejected + self.failed + self.cancelled
        return EndpointStats(sent=sent, **{name: getattr(self, name) for name in self.NAMES}, **_quantiles(self.latency))
