"""Load balancing: which of several sources with a free slot takes the next task. If none has one, the first to get one takes it.

Scores are kept in a heap with one valid entry per source, so that the cost of a choice hardly depends on the number of sources.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from random import Random

from qreward.scheduler.heap import IndexedHeap
from qreward.scheduler.state import Balancer, Source
from qreward.settings.policies import LoadBalanceStrategy


class _Scored:
    """Base class: lowest score first, earliest offered among equals."""

    by_speed = False

    def __init__(self) -> None:
        self._ready: IndexedHeap[Source] = IndexedHeap()
        self.take = self._ready.take_outside

    def score(self, source: Source) -> float:
        raise NotImplementedError

    def offer(self, source: Source) -> None:
        self._ready.put(source, self.score(source))

    def sent(self, source: Source) -> None:
        pass

    def forget(self, source: Source) -> None:
        self._ready.drop(source)


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
    makers: dict[LoadBalanceStrategy, Callable[[], Balancer]] = {
        LoadBalanceStrategy.EXPECTED_FINISH: ExpectedFinish,
        LoadBalanceStrategy.LEAST_CONNECTIONS: lambda: LeastConnections(weights),
        LoadBalanceStrategy.ROUND_ROBIN: lambda: WeightedRoundRobin(None),
        LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN: lambda: WeightedRoundRobin(weights),
        LoadBalanceStrategy.POWER_OF_TWO: lambda: PowerOfTwo(rng),
    }
    return makers[strategy]()
