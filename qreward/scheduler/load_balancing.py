"""Load balancing: a balancer chooses which of several sources with a free slot takes the next task. If no source has a free slot, no choice
is needed: the first source that gets a free slot takes the task.

Scores are kept in a heap with one valid entry per source, so that the cost of a choice hardly depends on the number of sources.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from operator import itemgetter

from qreward.scheduler.heap import IndexedHeap
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.state import Balancer, Pool, Source, Task
from qreward.settings.policies import LoadBalanceStrategy


class _Scored:
    """Base class of balancers that choose the source with the lowest score. Of equal scores, the source offered first is chosen."""

    by_speed = False

    def __init__(self) -> None:
        self._ready: IndexedHeap[Source] = IndexedHeap()

    def take(self, now: float, avoided: tuple[Source, ...], task: Task | None = None) -> Source | None:  # noqa: ARG002 - the protocol's
        return self._ready.take_outside(avoided)

    def score(self, source: Source) -> float:
        raise NotImplementedError

    def offer(self, now: float, pool: Pool, source: Source) -> None:  # noqa: ARG002 - the protocol's
        self._ready.put(source, self.score(source))

    def sent(self, source: Source) -> None:
        pass

    def forget(self, source: Source) -> None:
        self._ready.drop(source)


PER_E, LEAST = 50, 1e-9
"""Expected times that differ by less than about 1 / ``PER_E`` (2 %) count as equal, and equal sources take turns. ``LEAST``: seconds."""


class ExpectedFinish:
    """Chooses the source whose answer is expected soonest (see ``estimate``).

    A source that has the prefix of a task in its cache is expected to answer this task sooner; see ``PrefixCache.warm_share``.
    """

    by_speed = True

    def __init__(self) -> None:
        self._ready: IndexedHeap[Source] = IndexedHeap()

    def offer(self, now: float, pool: Pool, source: Source) -> None:
        self._ready.put(source, int(PER_E * log(max(LEAST, source.answers_in(now, pool)))))

    def take(self, now: float, avoided: tuple[Source, ...], task: Task | None = None) -> Source | None:
        self._refresh(now, task)
        best = self._ready.take_outside(avoided)
        if best is None or task is None or task.prefix is None or not self._ready:  # no choice, as usual when all sources are busy
            return best
        warm = min(self._warm(now, task, task.prefix, avoided), key=itemgetter(0), default=None)
        if warm is None or warm[0] >= best.answers_in(now, task.pool):
            return best
        self.offer(now, task.pool, best)
        self._ready.drop(warm[1])
        return warm[1]

    def _refresh(self, now: float, task: Task | None) -> None:
        """Compute one score anew, because scores change with age."""
        if task is not None and len(self._ready) > 1:
            self.offer(now, task.pool, self._ready.rotate())

    def _warm(self, now: float, task: Task, prefix: Prefix, avoided: tuple[Source, ...]) -> list[tuple[float, Source]]:
        """Return the sources with a free slot that have the longest cached part of a task's prefix, each with its expected finish."""
        for key, length in zip(reversed(prefix.keys), reversed(prefix.lengths), strict=True):
            holders = [source for source in task.pool.holders.of(key) if source in self._ready and source not in avoided]
            if holders:
                share = length / prefix.total
                pool = task.pool
                return [(each.answers_in(now, pool) * (1 - share * (1 - each.prefix_cache.warm_share())), each) for each in holders]
        return []

    def sent(self, source: Source) -> None:
        pass

    def forget(self, source: Source) -> None:
        self._ready.drop(source)


class LeastConnections(_Scored):
    """Chooses the source whose number of requests in flight, divided by its weight, is lowest."""

    def __init__(self, weights: dict[str, float]) -> None:
        super().__init__()
        self._weights = weights

    def score(self, source: Source) -> float:
        return source.inflight / self._weights.get(source.name, source.weight)


class WeightedRoundRobin(_Scored):
    """Chooses each source in proportion to its weight, and spreads these choices evenly over time.

    The source with the earliest deadline is chosen, as in Envoy's scheduler.

    A source that was unavailable does not catch up afterwards. If ``weights`` is None, this is plain round robin.
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


def make_balancer(strategy: LoadBalanceStrategy, weights: dict[str, float]) -> Balancer:
    """Return the balancer of a strategy. ``weights`` has weights by source name, which take precedence over the sources' own weights."""
    makers: dict[LoadBalanceStrategy, Callable[[], Balancer]] = {
        LoadBalanceStrategy.EXPECTED_FINISH: ExpectedFinish,
        LoadBalanceStrategy.LEAST_CONNECTIONS: lambda: LeastConnections(weights),
        LoadBalanceStrategy.ROUND_ROBIN: lambda: WeightedRoundRobin(None),
        LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN: lambda: WeightedRoundRobin(weights),
    }
    return makers[strategy]()
