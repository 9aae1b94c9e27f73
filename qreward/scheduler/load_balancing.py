"""Load balancing: a balancer chooses which of several sources with a free slot takes the next task. If no source has a free slot, no choice
is needed: the first source that gets a free slot takes the task.

Scores are kept in a heap with one valid entry per source, so that the cost of a choice hardly depends on the number of sources.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from hashlib import blake2b
from math import ceil, log
from operator import itemgetter
from random import Random

from qreward.scheduler.heap import IndexedHeap
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.state import Balancer, Source, Task
from qreward.settings.policies import LoadBalanceStrategy


class _Scored:
    """Base class of balancers that choose the source with the lowest score. Of equal scores, the source offered first is chosen."""

    by_speed = False

    def __init__(self) -> None:
        self._ready: IndexedHeap[Source] = IndexedHeap()

    def take(self, avoided: tuple[Source, ...], task: Task | None = None) -> Source | None:  # noqa: ARG002 - for subclasses
        return self._ready.take_outside(avoided)

    def score(self, source: Source) -> float:
        raise NotImplementedError

    def offer(self, source: Source) -> None:
        self._ready.put(source, self.score(source))

    def sent(self, source: Source) -> None:
        pass

    def forget(self, source: Source) -> None:
        self._ready.drop(source)


class ExpectedFinish(_Scored):
    """Chooses the source whose answer is expected soonest.

    The expected time is the mean latency, converted from the load at which it was measured to the present load. Times that differ by less
    than about 13 % count as equal, so that small changes do not reorder the sources. A source that has not answered yet goes first. A
    source that has the prefix of a task in its cache is expected to answer this task sooner; see ``PrefixCache.warm_share``.
    """

    by_speed = True

    def take(self, avoided: tuple[Source, ...], task: Task | None = None) -> Source | None:
        best = self._ready.take_outside(avoided)
        if best is None or task is None or task.prefix is None or not self._ready:  # no choice, as usual when all sources are busy
            return best
        warm = min(self._warm(task, task.prefix, avoided), key=itemgetter(0), default=None)
        if warm is None or warm[0] >= _finish(best) or (warm[1].latency.mean and not best.latency.mean):
            return best
        self.offer(best)
        self._ready.drop(warm[1])
        return warm[1]

    def _warm(self, task: Task, prefix: Prefix, avoided: tuple[Source, ...]) -> list[tuple[float, Source]]:
        """Return the sources with a free slot that have the longest cached part of a task's prefix, each with its expected finish."""
        for key, length in zip(reversed(prefix.keys), reversed(prefix.lengths), strict=True):
            holders = [source for source in task.pool.holders.of(key) if source in self._ready and source not in avoided]
            if holders:
                share = length / prefix.total
                return [(_finish(source) * (1 - share * (1 - source.prefix_cache.warm_share())), source) for source in holders]
        return []

    def score(self, source: Source) -> float:
        seconds = source.expected_finish()
        return int(8 * log(seconds) + 1000) if seconds > 1e-9 else source.inflight / source.window.limit


def _finish(source: Source) -> float:
    """Return the seconds in which a source is expected to answer.

    If the source has not answered yet, the result is a number that grows with the load of the source.
    """
    return source.expected_finish() or 1.0 + source.inflight / source.window.limit


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


VIRTUAL = 256
"""Number of positions of each source on the ring, as in KubeAI."""
BOUND = 1.25
"""Factor on the mean number of requests in flight of all sources. A source with as many requests in flight as the factor times the mean, or
more, is passed over (Mirrokni, Thorup and Zadimoghaddam 2018; KubeAI)."""
HASHED = 1024.0
"""Number of characters at the beginning of a prompt that decide its position on the ring, if the caller has named no group (256 tokens, as
in the SGLang router)."""


class ConsistentHash(LeastConnections):
    """Chooses the source that follows the task's prefix on a ring of hashes (consistent hashing with bounded loads).

    If that source has no free slot, or many more requests in flight than the mean, the next source on the ring is chosen. The positions of
    a source depend on its name only, so several clients choose the same source for the same prefix key. A task without a prefix goes to
    the source with the fewest requests in flight.
    """

    def __init__(self, weights: dict[str, float]) -> None:
        super().__init__(weights)
        self._sources: set[Source] = set()
        self._ring: list[tuple[int, Source]] = []  # empty after a change of the sources

    def offer(self, source: Source) -> None:
        if source not in self._sources:
            self._sources.add(source)
            self._ring = []
        super().offer(source)

    def take(self, avoided: tuple[Source, ...], task: Task | None = None) -> Source | None:
        if task is None or task.prefix is None:
            return super().take(avoided)
        most = ceil(BOUND * (sum(source.inflight for source in self._sources) + 1) / max(1, len(self._sources)))
        seen = set(avoided)
        for source in self._from(_place(task.prefix)):
            if source not in seen and source in self._ready and source.inflight < most:
                self._ready.drop(source)
                return source
            seen.add(source)
            if len(seen) >= len(self._sources) + len(avoided):
                break
        return super().take(avoided)

    def forget(self, source: Source) -> None:
        super().forget(source)
        self._sources.discard(source)
        self._ring = []

    def _from(self, place: int) -> Iterator[Source]:
        """Iterate over the ring once, from a position on."""
        if not self._ring:
            ring = [(_hash(f"{source.name}#{number}"), source) for source in self._sources for number in range(VIRTUAL)]
            self._ring = sorted(ring, key=itemgetter(0))
        ring = self._ring
        start = bisect_left(ring, place, key=itemgetter(0))
        return (ring[(start + step) % len(ring)][1] for step in range(len(ring)))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _place(prefix: Prefix) -> int:
    """Return the position of a task on the ring."""
    if prefix.named:
        return _hash(str(prefix.keys[-1]))
    return _hash(str(prefix.keys[max(0, bisect_right(prefix.lengths, HASHED) - 1)]))


class PowerOfTwo:
    """Chooses the less loaded of two random sources (Mitzenmacher 2001).

    The load of a source is the used share of its concurrency limit times its mean latency.
    """

    by_speed = False

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._ready: list[Source] = []
        self._place: dict[Source, int] = {}

    def offer(self, source: Source) -> None:
        if source not in self._place:
            self._place[source] = len(self._ready)
            self._ready.append(source)

    def take(self, avoided: tuple[Source, ...], task: Task | None = None) -> Source | None:  # noqa: ARG002 - for other balancers
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
    """Return the balancer of a strategy. ``weights`` has weights by source name, which take precedence over the sources' own weights."""
    makers: dict[LoadBalanceStrategy, Callable[[], Balancer]] = {
        LoadBalanceStrategy.EXPECTED_FINISH: ExpectedFinish,
        LoadBalanceStrategy.LEAST_CONNECTIONS: lambda: LeastConnections(weights),
        LoadBalanceStrategy.ROUND_ROBIN: lambda: WeightedRoundRobin(None),
        LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN: lambda: WeightedRoundRobin(weights),
        LoadBalanceStrategy.POWER_OF_TWO: lambda: PowerOfTwo(rng),
        LoadBalanceStrategy.CONSISTENT_HASH: lambda: ConsistentHash(weights),
    }
    return makers[strategy]()
