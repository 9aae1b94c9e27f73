"""Load balancing: which of several sources with a free slot takes the next task. If none has one, the first to get one takes it.

Scores are kept in a heap with one valid entry per source, so that the cost of a choice hardly depends on the number of sources.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import log
from random import Random
from typing import TYPE_CHECKING, Protocol

from qreward.settings.policies import LoadBalanceStrategy

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source


class Balancer(Protocol):
    """The sources of one pool that may have a free slot. The caller of ``take`` checks the source, and offers it again when it has one.

    Attributes:
        by_speed: it prefers fast sources, so that a slow one may be left out at the end of a batch.
    """

    by_speed: bool

    def offer(self, source: Source) -> None:
        """Add a source that has a free slot, or whose score has changed."""

    def take(self, avoided: tuple[Source, ...]) -> Source | None:
        """Remove and return the best source that is not avoided."""

    def sent(self, source: Source) -> None:
        """A source was sent a task of this pool."""

    def forget(self, source: Source) -> None:
        """Remove a source that has left the pool."""


class _Scored:
    """Base class: lowest score first, earliest offered among equals. A heap entry is valid while its score is the current one."""

    by_speed = False

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Source]] = []
        self._current: dict[Source, tuple[float, int]] = {}
        self._number = 0

    def score(self, source: Source) -> float:
        raise NotImplementedError

    def offer(self, source: Source) -> None:
        score = self.score(source)
        held = self._current.get(source)
        if held is not None and held[0] == score:
            return
        self._number += 1
        self._current[source] = (score, self._number)
        heappush(self._heap, (score, self._number, source))
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [(score, number, source) for source, (score, number) in self._current.items()]
            heapify(self._heap)

    def take(self, avoided: tuple[Source, ...]) -> Source | None:
        heap, current = self._heap, self._current
        aside: list[tuple[float, int, Source]] = []
        found = None
        while heap:
            entry = heappop(heap)
            source = entry[2]
            if current.get(source) != entry[:2]:
                continue
            if source in avoided:
                aside.append(entry)
                continue
            del current[source]
            found = source
            break
        for entry in aside:
            heappush(heap, entry)
        return found

    def sent(self, source: Source) -> None:
        pass

    def forget(self, source: Source) -> None:
        self._current.pop(source, None)


class ExpectedFinish(_Scored):
    """Soonest expected answer: the mean latency, growing with the used share of the concurrency limit.

    Rounding to 1/8 in the logarithm (13 %) keeps small changes from reordering. A source that has not answered yet goes first.
    """

    by_speed = True

    def score(self, source: Source) -> float:
        seconds = source.expected_finish()
        return int(8 * log(seconds) + 1000) if seconds > 1e-9 else source.inflight / source.window.limit


class LeastConnections(_Scored):
    """Fewest requests in flight, divided by the weight."""

    def __init__(self, weights: dict[str, float]) -> None:
        super().__init__()
        self._weights = weights

    def score(self, source: Source) -> float:
        return source.inflight / self._weights.get(source.name, source.weight)


class WeightedRoundRobin(_Scored):
    """Each source in proportion to its weight, spread evenly: earliest deadline first, as in Envoy's scheduler.

    A source that was unavailable does not catch up afterwards. Without weights this is plain round robin.
    """

    def __init__(self, weights: dict[str, float] | None) -> None:
        super().__init__()
        self._weights = weights
        self._next: dict[Source, float] = {}
        self._time = 0.0

    def _step(self, source: Source) -> float:
        return 1.0 if self._weights is None else 1.0 / self._weights.get(source.name, source.weight)

    def score(self, source: Source) -> float:
        due = self._next.get(source)
        if due is None:
            due = self._next[source] = self._time + self._step(source) / 2
        elif due < self._time:
            due = self._next[source] = self._time
        return due

    def sent(self, source: Source) -> None:
        due = self.score(source)
        self._time = max(self._time, due)
        self._next[source] = due + self._step(source)

    def forget(self, source: Source) -> None:
        super().forget(source)
        self._next.pop(source, None)


class PowerOfTwo:
    """The less loaded of two random sources (Mitzenmacher 2001). Load is the used share of the concurrency limit times the mean latency."""

    by_speed = False

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._ready: list[Source] = []
        self._place: dict[Source, int] = {}

    def offer(self, source: Source) -> None:
        if source not in self._place:
            self._place[source] = len(self._ready)
            self._ready.append(source)

    def take(self, avoided: tuple[Source, ...]) -> Source | None:
        aside = [source for source in avoided if source in self._place]
        for source in aside:
            self.forget(source)
        ready, found = self._ready, None
        if ready:
            found = min((ready[self._rng.randrange(len(ready))], ready[self._rng.randrange(len(ready))]), key=_load)
            self.forget(found)
        for source in aside:
            self.offer(source)
        return found

    def sent(self, source: Source) -> None:
        pass

    def forget(self, source: Source) -> None:
        place = self._place.pop(source, None)
        if place is None:
            return
        last = self._ready.pop()
        if last is not source:
            self._ready[place] = last
            self._place[last] = place


def _load(source: Source) -> float:
    return (source.inflight + 1) / source.window.limit * max(source.latency.mean, 1e-6)


def make_balancer(strategy: LoadBalanceStrategy, weights: dict[str, float], rng: Random) -> Balancer:
    """Return the balancer of a strategy. ``weights`` are by source name and take precedence over the sources' own weights."""
    match strategy:
        case LoadBalanceStrategy.EXPECTED_FINISH:
            return ExpectedFinish()
        case LoadBalanceStrategy.LEAST_CONNECTIONS:
            return LeastConnections(weights)
        case LoadBalanceStrategy.ROUND_ROBIN:
            return WeightedRoundRobin(None)
        case LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN:
            return WeightedRoundRobin(weights)
        case LoadBalanceStrategy.POWER_OF_TWO:
            return PowerOfTwo(rng)
