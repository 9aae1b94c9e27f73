"""Load balancing: a balancer keeps the sources of one pool that may have a free slot, and chooses which of them takes the next task.

If no source has a free slot, the task waits in the queue of the pool, from which the sources that get a free slot take tasks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.prefixes import Holders, Prefix
from qreward.settings.policies import LoadBalanceStrategy

if TYPE_CHECKING:
    from qreward.scheduler.pool import Pool
    from qreward.scheduler.source import Source
    from qreward.scheduler.task import Task

COMPARED = 16
"""Number of sources with a free slot that are compared for one task. If there are more, the better half of the last comparison is compared
with others in turn, so that good sources are remembered (Mitzenmacher, Prabhakar and Shah, "Load Balancing with Memory", FOCS 2002)."""
EQUAL = 1.02
"""Expected times that differ by less than this factor count as equal. Of equal sources, the one that was offered first is chosen."""


class Balancer:
    """Keeps the sources of a pool that may have a free slot, and chooses the one with the lowest score.

    Of equal scores, the source that was offered first is chosen. The scheduler checks that the chosen source is ready.
    """

    by_speed = False
    """The balancer prefers fast sources. A slow source may then be left idle at the end of a batch."""

    def __init__(self) -> None:
        self._free: OrderedDict[Source, None] = OrderedDict()  # sources that may have a free slot, the one offered last first

    def offer(self, source: Source) -> None:
        self._free[source] = None
        self._free.move_to_end(source, last=False)

    def forget(self, source: Source) -> None:
        self._free.pop(source, None)

    def take(self, now: float, pool: Pool, avoided: tuple[Source, ...] = (), task: Task | None = None) -> Source | None:
        """Remove and return the best source outside of ``avoided``, or None. ``task`` is None if the task is not known yet.

        The source is not chosen again until it is offered again.
        """
        best = self._best(now, pool, avoided, task)
        if best is not None:
            del self._free[best]
        return best

    def sent(self, source: Source) -> None:
        """Record that a source was sent a task of this pool."""

    def score(self, source: Source) -> float:
        raise NotImplementedError

    def _best(self, now: float, pool: Pool, avoided: tuple[Source, ...], task: Task | None) -> Source | None:  # noqa: ARG002
        return min([source for source in reversed(self._free) if source not in avoided], key=self.score, default=None)


class ExpectedFinish(Balancer):
    """Chooses the source whose answer is expected soonest (see ``estimate``).

    A source that has the prefix of a task in its cache is expected to answer this task sooner; see ``PredictedCache.warm_share``. A source
    whose circuit breaker is half-open comes first for a task that was not sent before, because only a request can show that it is back.
    """

    by_speed = True

    def _best(self, now: float, pool: Pool, avoided: tuple[Source, ...], task: Task | None) -> Source | None:
        free = self._free
        if len(free) < 2:  # as usual while all sources are busy
            source = next(iter(free), None)
            return None if source in avoided else source
        share, warm = self._warm(pool.holders, task.prefix) if task is not None and task.prefix is not None else (0.0, ())
        many = len(free) > COMPARED
        compared: Iterable[Source] = dict.fromkeys([*islice(free, COMPARED), *warm]) if many else free
        found, best = None, inf
        scores: list[tuple[float, int, Source]] = []
        may_test = not avoided and (task is None or task.sent_at is None)  # neither a copy nor a retry is a test
        for source in compared:
            seconds = 0.0 if may_test and source.health.half_open else source.answers_in(now, pool)
            if source in warm:
                seconds *= 1 - share * (1 - source.prefix_cache.warm_share())
            if many:
                scores.append((seconds, len(scores), source))
            if seconds <= EQUAL * best and source not in avoided:
                found, best = source, min(best, seconds)
        if many:
            for _, _, source in sorted(scores)[COMPARED // 2 :]:
                free.move_to_end(source)
            if found is None:  # all of the compared sources are avoided
                found = next((source for source in free if source not in avoided), None)
        return found

    def _warm(self, holders: Holders, prefix: Prefix) -> tuple[float, tuple[Source, ...]]:
        """Return the share (0 to 1) of a prompt that is cached longest at sources with a free slot, and these sources."""
        if holders.is_affinity_useful(prefix):
            for key, length in zip(reversed(prefix.keys), reversed(prefix.lengths), strict=True):
                found = tuple([source for source in holders.of(key) if source in self._free])
                if found:
                    return length / prefix.total, found
        return 0.0, ()


class LeastConnections(Balancer):
    """Chooses the source whose number of requests in flight, divided by its weight, is lowest."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        super().__init__()
        self._weights = weights or {}

    def weight(self, source: Source) -> float:
        return self._weights.get(source.name, source.weight)

    def score(self, source: Source) -> float:
        return source.inflight / self.weight(source)


class WeightedRoundRobin(LeastConnections):
    """Chooses each source in proportion to its weight, and spreads these choices evenly over time.

    The source with the earliest deadline is chosen, as in Envoy's scheduler. A source that was unavailable does not catch up afterwards.
    """

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        super().__init__(weights)
        self._due: dict[str, float] = {}  # by name of the source
        self._time = 0.0

    def offer(self, source: Source) -> None:
        super().offer(source)
        self._due.setdefault(source.name, self._time + 0.5 / self.weight(source))

    def score(self, source: Source) -> float:
        return max(self._time, self._due.get(source.name, 0.0))

    def sent(self, source: Source) -> None:
        self._time = self.score(source)
        self._due[source.name] = self._time + 1 / self.weight(source)


class RoundRobin(WeightedRoundRobin):
    """Chooses the sources in turn."""

    def weight(self, source: Source) -> float:  # noqa: ARG002 - all are equal
        return 1.0


def make_balancer(strategy: LoadBalanceStrategy, weights: dict[str, float]) -> Balancer:
    """Return the balancer of a strategy. ``weights`` has weights by source name, which take precedence over the sources' own weights."""
    if strategy is LoadBalanceStrategy.EXPECTED_FINISH:
        return ExpectedFinish()
    if strategy is LoadBalanceStrategy.LEAST_CONNECTIONS:
        return LeastConnections(weights)
    return WeightedRoundRobin(weights) if strategy is LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN else RoundRobin()
