"""Conversion of the scheduler's state and outcomes to the results and statistics that callers receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple, cast

from qreward.errors import InvalidResponse, QRewardError
from qreward.results import AttemptRecord, EndpointState, EndpointStats, Result, RouteLoad, retries, with_trail
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.scheduler.state import Attempt, Pool, Source, Task, standing
from qreward.scheduler.stats import Quantiles

if TYPE_CHECKING:
    from qreward.engine.driver import Engine
    from qreward.scheduler.scheduler import Scheduler
    from qreward.settings.policies import Endpoint


def result_of(task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> Result[object]:
    """Return the result of a finished task."""
    queued = 0.0 if task.sent_at is None else task.sent_at - task.born
    trail = () if task.trail is None else tuple(task.trail)
    if isinstance(outcome, Answer):
        assert source is not None
        return Result(task.index, outcome.value, None, source.name, seconds, queued, trail)
    endpoint = trail[-1].endpoint if trail else None
    return Result(task.index, None, with_trail(outcome, trail), endpoint, 0.0, queued, trail)


def unexpected(attempt: Attempt, error: Exception) -> Failure:
    """Return the failure for a backend that raised, which a backend must not do."""
    wrapped = InvalidResponse(
        f"endpoint {attempt.source.name!r}: the HTTP backend failed: {type(error).__name__}", endpoint=attempt.source.name
    )
    wrapped.__cause__ = error
    return Failure(FailureKind.UNSENDABLE, wrapped)


def stats_of(source: Source, now: float) -> EndpointStats:
    """Return the statistics of a source since it was created, and its current state."""
    tally, obstacle = source.tally, standing(now, source)
    seconds = None if obstacle.seconds == inf else obstacle.seconds
    return _stats(
        source.latency.at,
        EndpointState(source.inflight, source.window.limit, source.window.reason, obstacle.reason, seconds, sharing_of(source)),
        sent=tally.sent,
        won=tally.ok,
        rejected=tally.rejected,
        retried=tally.retried,
        hedged=tally.hedged,
        failed=tally.failed,
        cancelled=tally.cancelled,
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.output_tokens,
    )


def sharing_of(source: Source) -> str | None:
    """Describe the process's share of the source's limits; None if the limits are not shared."""
    return None if source.lease is None else source.lease.words(cast("Endpoint", source.handle).limits)


def _stats(at: Callable[[float], float | None], state: EndpointState | None = None, **counts: int) -> EndpointStats:
    return EndpointStats(**counts, p50=at(0.5), p95=at(0.95), p99=at(0.99), state=state)


def load_of(pool: Pool) -> RouteLoad:
    """Return the load of a pool's sources. Slots of a source that is out of service do not count as capacity."""
    sources = list(pool.sources)  # a copy, because another thread may change them
    well = [source for source in sources if source.health.in_service and source.down_since is None]
    in_flight = sum(source.inflight for source in sources)
    return RouteLoad(in_flight, sum(source.window.limit for source in well), len(sources) - len(well), len(sources))


class QueueState(NamedTuple):
    """The queue of one route: its pattern, the number of queued requests, and the limit on queued single requests (None: no limit)."""

    name: str
    waiting: int
    capacity: int | None


class ClientState(NamedTuple):
    """The current state of a client. The sources are live objects and must not be changed."""

    queues: list[QueueState]
    sources: list[Source]
    hedge_budget: float


def state_of(engine: Engine[Scheduler], sources: list[Source], capacity: int | None) -> ClientState:
    """Return the state of a client. Can be called from any thread.

    Args:
        engine: the client's engine.
        sources: the sources of the client.
        capacity: number of single requests that may be queued for a route, or None for no limit.
    """
    with engine.lock:
        pools = {id(pool): pool for source in sources for pool in source.pools}.values()
        queues = [QueueState(pool.name[1:-1], len(pool.queue), capacity) for pool in pools]
        return ClientState(queues, sources, engine.scheduler.hedge_budget)


class Tallies:
    """The statistics of each endpoint for one batch."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Tally] = {}
        self.ok = 0
        self.failed = 0

    def add(self, result: Result[object]) -> None:
        """Count a finished item."""
        if result.error is None and result.endpoint is not None:
            self.ok += 1
            tally = self._of(result.endpoint)
            tally.won += 1
            tally.seconds.add(result.latency)
            if usage := result.usage:
                tally.prompt += usage.prompt_tokens or 0
                tally.completion += usage.completion_tokens or 0
        else:
            self.failed += 1
        if result.has_trail:
            self._add_trail(result.attempts)

    def _add_trail(self, attempts: Sequence[AttemptRecord]) -> None:
        for attempt in retries(attempts):
            self._of(attempt.endpoint).retried += 1
        for attempt in attempts:
            tally = self._of(attempt.endpoint)
            tally.hedged += attempt.hedge
            if attempt.outcome == "overloaded":
                tally.rejected += 1
            elif attempt.outcome == "cancelled":
                tally.cancelled += 1
            elif attempt.outcome != "ok":
                tally.failed += 1

    def _of(self, name: str) -> _Tally:
        tally = self._by_name.get(name)
        if tally is None:
            tally = self._by_name[name] = _Tally()
        return tally

    def stats(self) -> dict[str, EndpointStats]:
        """Return the statistics by endpoint name."""
        return {name: tally.stats() for name, tally in self._by_name.items()}


class _Tally:
    __slots__ = ("cancelled", "completion", "failed", "hedged", "prompt", "rejected", "retried", "seconds", "won")

    def __init__(self) -> None:
        self.won = self.rejected = self.failed = self.cancelled = self.retried = self.hedged = self.prompt = self.completion = 0
        self.seconds = Quantiles()

    def stats(self) -> EndpointStats:
        return _stats(
            self.seconds.at,
            sent=self.won + self.rejected + self.failed + self.cancelled,
            won=self.won,
            rejected=self.rejected,
            retried=self.retried,
            hedged=self.hedged,
            failed=self.failed,
            cancelled=self.cancelled,
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
        )
