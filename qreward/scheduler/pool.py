"""A pool is one route at run time: its sources, its queue, and what the answers of all its sources have in common.

Its balancer keeps the sources that may have a free slot, and chooses which of them takes the next task. If none has a free slot, the task
waits in the queue of the pool, from which the sources that get a free slot take tasks.

A slow source takes no new task if faster sources will have answered all that waits sooner (``Pool.patience``). The rule is earliest
completion time, as in list scheduling for unequal machines (HEFT, Topcuoglu et al., IEEE TPDS 2002). The length of an answer is not known
beforehand, so the rule is applied twice. A typical answer of the source must end before the faster sources have answered all that is left.
A long answer (see ``stats.LONG``) of a batch may take ``MARGIN`` times as long as one there. Equal sources are compared in the same way: a
concurrency limit that is far above what a source serves at once must not gather calls in its queue while the others have none.

While it held for items of batches only, ten steps of 24 calls at a server with room for four requests of 0.2 s beside one of 2.4 s took
104 s; now they take 15 s (``tests/scheduler/test_scheduler_ordinary.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from heapq import nsmallest
from itertools import islice
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from qreward.scheduler.estimate import CommonService
from qreward.scheduler.prefixes import Holders, Prefix
from qreward.scheduler.source import Source
from qreward.scheduler.stats import LONG
from qreward.scheduler.task import BatchFeed, Task
from qreward.scheduler.timer_wheel import TimerWheel
from qreward.settings.policies import LoadBalanceStrategy

if TYPE_CHECKING:
    from qreward.scheduler.queue import Queue

LOOK_AHEAD = 4096
"""Number of waiting tasks among which prefix affinity chooses. A larger number gains hardly anything (simulated)."""
MOST_COMPARED, RANKED_FOR = 4, 0.25
"""``MOST_COMPARED``: number of sources that are compared for a retry. In a larger pool, these are the best ones of a ranking that is made
again after ``RANKED_FOR`` seconds."""
MARGIN = 2.0
"""Factor on the time that the faster sources need for an item. A slower source is used if its own time for the item is at most the product.
With 1.3, half as many copies are made, but more capacity stays idle (simulated)."""
SWAY = 1.1
"""Factor by which the times that are compared may differ before a source is held back, because they change between two evaluations."""
REFRESH, SHARE = 0.1, 0.1
"""``REFRESH``: least number of seconds between two evaluations of the pool. ``SHARE``: share (0 to 1) of the time in which all that is left
is taken that passes between two evaluations."""
LONGEST = 5.0
"""Largest number of seconds between two evaluations of the pool."""
DECIDED, LOOPS = 8, 0.25
"""After ``DECIDED`` tasks it is decided anew whether workers make their next call when one is answered: whether more than a share ``LOOPS``
(0 to 1) of the calls came one by one, each after an answer. Then what waits never ends, so every slot counts: 64 such workers took 87 s
when a slow endpoint left calls to a fast one, and take 65 s (simulated). Calls that are made together come after one answer."""
LEAST_RATE = 1e-9  # requests per second; a difference of rates may be rounded to 0
BUSY = 10.0
"""Factor by which load makes the answers of a source slower at most. While more than that is left to do, sources need not be compared."""
UNKNOWN = 0.25
"""Share (0 to 1) of the timeout within which a source of unknown latency is expected to answer."""
COMPARED = 16
"""Number of sources with a free slot that are compared for one task. If there are more, the better half of the last comparison is compared
with others in turn, so that good sources are remembered (Mitzenmacher, Prabhakar and Shah, "Load Balancing with Memory", FOCS 2002)."""
EQUAL = 1.02
"""Expected times that differ by less than this factor count as equal. Of equal sources, the one that was offered first is chosen."""
EACH = 8
"""While prefix affinity is of no use, the prefix of one prompt in ``EACH`` is found, until prompts share a beginning that servers cache."""


class Balancer:
    """Keeps the sources of a pool that may have a free slot, and chooses the one with the lowest score: with the fewest requests in flight
    for its weight, unless a subclass has another rule. Of equal scores, the source that was offered first is chosen.

    The scheduler checks that the chosen source is ready. ``weights``: by source name; they take precedence over the sources' own.
    """

    by_speed = False
    """The balancer prefers fast sources. A slow source may then be left idle at the end of a batch."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self._weights = weights or {}
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

    def weight(self, source: Source) -> float:
        return self._weights.get(source.name, source.weight)

    def score(self, source: Source) -> float:
        return source.inflight / self.weight(source)

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


class WeightedRoundRobin(Balancer):
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


BALANCERS: dict[LoadBalanceStrategy, type[Balancer]] = {
    LoadBalanceStrategy.EXPECTED_FINISH: ExpectedFinish,
    LoadBalanceStrategy.LEAST_CONNECTIONS: Balancer,
    LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN: WeightedRoundRobin,
    LoadBalanceStrategy.ROUND_ROBIN: RoundRobin,
}


class Pool:
    """A pool is one route at run time. A source may be in several pools. The limits of a source apply to all of its pools together."""

    def __init__(self, name: str, sources: list[Source], balancer: Balancer, queue: Queue) -> None:
        self.name = name
        self.models: set[str] = set()  # the models that were routed to it; maintained by the fleet
        self.balancer = balancer
        self.queue = queue
        self.common = CommonService()
        self.compare_at = -inf  # when the sources are next compared, as to which of them leave tasks to faster ones
        self._others: dict[Source, tuple[float, Source]] = {}  # source -> rate and best of the others
        self._long = 0.0  # tokens of a long answer
        self._loops = False  # single tasks come one by one as others are answered, so what waits never ends
        self._counted = (0, 0)  # ended tasks and renewals when that was last decided
        self.batch_inflight = 0  # started tasks that came from a batch and have not ended
        self.live = 0  # tasks that have started and not ended
        self.ended = 0  # tasks that have ended, started or not
        self.answered_at = -inf  # when the latest answer of one of its sources came
        self.submitted_at = -inf  # when the latest single task came
        self.renewals = 0  # single tasks that came after an answer, and not together with others
        self.failing = 0  # tasks that have failed for the first time since ``answered_at``
        self.said = (-inf, "")  # a sentence about what its tasks wait for, and the time of it; belongs to ``why``
        self.feeds: dict[BatchFeed, None] = {}  # the open batches
        self.holders: Holders = Holders()  # which of its sources hold which prefixes
        self.affinity_look_ahead = 0  # oldest tasks of a batch or tenant among which a source chooses by prefix; 0 for one source
        self.look_ahead = LOOK_AHEAD
        self.down_since = inf  # time since which no source is alive; inf while a source is alive, or no batch is open
        self.due = -1  # belongs to the timer wheel
        self.prefix_of: Callable[[Any, bool], Prefix | None] | None = None
        """Function that returns the prefix of a payload's prompt, or None if the prompt has no prefix. If its second argument is True, the
        function returns a prefix only if the caller has named a group. The attribute is None if there is no prefix affinity."""
        self._looked = 0  # counts payloads, up to ``EACH``
        self.sources: list[Source] = []
        self._ranked: list[Source] = []
        self._ranked_until = -inf
        self._alive: Source | None = None  # the source that was found alive last
        for source in sources:
            self.join(source)

    def find_prefix(self, payload: Any) -> Prefix | None:
        """Return the prefix of a task's prompt, or None if it is unknown or not needed. A pool of one endpoint needs no prefixes."""
        if not self.affinity_look_ahead or self.prefix_of is None:
            return None
        if self.holders.is_affinity_useful():
            named_only = False
        else:
            self._looked = (self._looked + 1) % EACH
            named_only = self._looked > 0
        prefix = self.prefix_of(payload, named_only)
        if prefix is None:
            self.holders.unshared += 1
        return prefix

    def join(self, source: Source) -> None:
        self.sources.append(source)
        source.pools.append(self)
        self.set_look_ahead(self.look_ahead)

    def leave(self, source: Source) -> None:
        self.sources.remove(source)
        source.pools.remove(self)
        self.balancer.forget(source)
        self._ranked_until = -inf
        self.set_look_ahead(self.look_ahead)

    def set_look_ahead(self, tasks: int) -> None:
        """Set the number of waiting tasks among which the sources choose by prefix affinity; 0 turns prefix affinity off."""
        self.look_ahead = tasks
        self.affinity_look_ahead = tasks if len(self.sources) > 1 else 0

    def is_alive(self) -> bool:
        alive = self._alive
        if alive is None or self not in alive.pools or not alive.is_alive():
            alive = self._alive = next((source for source in self.sources if source.is_alive()), None)
        return alive is not None

    def best(self, now: float, task: Task, besides: Source | None = None) -> tuple[float, Source | None]:
        """Return the seconds in which a task is expected to be answered at the best source, and this source. ``besides`` is left out."""
        best, found = inf, None
        for source in self._promising(now):
            if source is not besides and not source.removed and (seconds := source.finishes_in(now, task, best)) < best:
                best, found = seconds, source
        return best, found

    def done_in(self, now: float, tasks: int) -> tuple[float, float] | None:
        """Return the least and the most seconds in which ``tasks`` more tasks are expected to be answered; None if that is unknown.

        Each source takes tasks from the time at which its limits and its health allow it, at its highest rate (``Source.rate``). The last
        task is answered after the mean time of an answer, or after a time that only one answer in twenty exceeds.
        """
        known = [
            (
                source.ready_at(now, slot=True) - now,
                source.latency.mean or (self.common.expected(now, source.service) if self.common.pace else 0.0),
                source,
            )
            for source in self.sources
        ]
        free = [(max(0.0, wait), source.rate(mean), mean, source) for wait, mean, source in known if mean and wait < inf]
        left, rate, until = float(tasks), 0.0, 0.0
        for wait, more, _, _ in sorted(free, key=lambda each: each[0]):
            if rate and left <= rate * (wait - until):
                break
            left -= rate * (wait - until)
            rate, until = rate + more, wait
        if not rate:
            return None
        taken = until + left / rate if tasks else 0.0
        return taken + min(mean for _, _, mean, _ in free), taken + max(source.latency.at(0.95) or mean for _, _, mean, source in free)

    def _promising(self, now: float) -> list[Source]:
        """Return the sources that are expected to answer first, without those that have failed since; all of them in a small pool."""
        if len(self.sources) <= MOST_COMPARED:
            return self.sources
        if now >= self._ranked_until or not self._ranked:
            self._ranked_until = now + RANKED_FOR
            ranked = [
                (max(0.0, source.ready_at(now) - now) + source.answers_in(now, self), place) for place, source in enumerate(self.sources)
            ]
            self._ranked = [self.sources[place] for _, place in nsmallest(MOST_COMPARED, ranked)]
        return self._ranked

    def failed(self, now: float, source: Source) -> None:
        """Record a failure that counts against a source: its place in the ranking is not right any more."""
        self.common.failed(now)
        if source in self._ranked:
            self._ranked.remove(source)

    def patience(self, now: float, source: Source, more: int = 0) -> float:
        """Return the seconds for which a task must have waited before a source takes it, if it was never sent; 0 if any task may be taken.

        A source that leaves tasks to others takes a single task that has waited for as long as its answer would have taken: the others
        are late. ``more`` tasks are about to wait.
        """
        if len(self.sources) == 1 or not self.balancer.by_speed:
            return 0.0
        if now >= self.compare_at:
            self.compare_at = now + max(REFRESH, min(SHARE * self._compare(now), LONGEST))
        single = more or self.queue.waiting
        if (others := self._others.get(source)) is None or (single and self._loops):
            return 0.0
        rate, fastest = others
        elsewhere = sum(other.queue.waiting for other in fastest.pools if other is not self)
        rest = (self.queue.left() + more + elsewhere) / rate
        seconds, long = source.answers_in(now, self), self._long
        late = seconds > SWAY * (rest + fastest.answers_in(now, self))
        if not (late or single):  # only the last items of a batch need to end together
            late = long * source.service.recent() > SWAY * MARGIN * (rest + long * fastest.service.recent())
        return seconds if late else 0.0

    def _compare(self, now: float) -> float:
        """Compare the sources. Returns the seconds until all items are taken; 0 if many items are left or too little is known."""
        self.common.count(now)
        self._others.clear()
        ended, renewals = self.ended - self._counted[0], self.renewals - self._counted[1]
        if ended >= DECIDED:
            self._loops, self._counted = renewals > LOOPS * ended, (self.ended, self.renewals)
        left = self.queue.left()
        self._long = self.common.lengths.at(1 - LONG) or 0.0
        if left == inf or not self._long:
            return 0.0
        known = [source for source in self.sources if source.service.recent() and source.health.is_back and source.available_soon(now)]
        rate = least = 0.0
        equal: list[Source] = []
        for expected, source in sorted([(self.common.expected(now, each.service), each) for each in known], key=itemgetter(0)):
            if rate and expected > SWAY * least and left / rate < BUSY * expected:
                self._others[source] = rate, equal[0]
            if not source.latency.mean:  # others have answered what was sent to it
                continue
            least = least or expected
            if expected <= SWAY * least:
                equal.append(source)
            rate += source.rate()
        if len(equal) > 1 and left / rate < BUSY * least:  # one of them may have room for more than it serves at once
            best, second = nsmallest(2, equal, key=lambda each: each.answers_in(now, self))
            for source in equal:
                self._others[source] = max(rate - source.rate(), LEAST_RATE), second if source is best else best
        return left / rate if rate else 0.0

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} {len(self.queue)} waiting, {self.sources}>"


class OutageTracker:
    """Decides when batch items fail because no source of their pool is alive. The timers of such batches are kept in ``wheel``.

    The ``timeout`` of a batch item starts when a source takes the item. Time in the queue does not count, because otherwise a long batch
    would time out in its own queue. This holds as long as one source of the pool is alive, even if that source is busy or rate limited.
    When no source is alive, the timeout of all waiting items starts. ``timeout`` seconds later the waiting items fail. Items that are read
    from the input afterwards fail too, until a source shows a sign of life.

    A source is alive unless it is out of service, half-open or removed, or five requests in a row have timed out without a sign of life.
    An answer, the first token of an answer and a rejection of a request are signs of life.
    """

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel
        self.down: dict[Pool, None] = {}  # the pools in an outage

    def enter(self, now: float, feed: BatchFeed) -> None:
        feed.opened_at = now
        feed.pool.feeds[feed] = None
        self._set_due(feed)

    def leave(self, feed: BatchFeed) -> None:
        pool = feed.pool
        pool.feeds.pop(feed, None)
        self._wheel.remove(feed)
        if not pool.feeds and pool.down_since < inf:
            self._end(pool)

    def check(self, now: float, pool: Pool) -> None:
        """Begin an outage of a pool if batches use the pool and none of its sources is alive."""
        if pool.feeds and pool.down_since == inf and not pool.is_alive():
            pool.down_since = now
            self.down[pool] = None
            for feed in pool.feeds:
                self._set_due(feed)

    def end(self, source: Source, sent_at: float = inf) -> None:
        """End the outages of a source's pools, because a request sent at ``sent_at`` showed a sign of life.

        Does nothing if the health of the source has changed since the request was sent.
        """
        if self.down and sent_at >= source.health.since:
            for pool in source.pools:
                if pool.down_since < inf:
                    self._end(pool)

    def postpone(self, now: float, feed: BatchFeed) -> bool:
        """Postpone the failure of a batch's waiting items, once, until the requests in flight should have been answered.

        Returns False if the failure was postponed before, or if no answer is expected.
        """
        assert feed.timeout is not None
        attempts = [(source, each) for source in feed.pool.sources for each in source.attempts if each.cancel_reason is None]
        until = max((each.sent_at + _usual(source, feed.timeout) for source, each in attempts), default=now)
        if feed.postponed or until <= now:
            return False
        feed.postponed = True
        self._wheel.add(feed, until)
        return True

    def _end(self, pool: Pool) -> None:
        pool.down_since = inf
        self.down.pop(pool, None)
        for feed in pool.feeds:
            feed.make_error, feed.postponed = None, False
            self._wheel.remove(feed)

    def _set_due(self, feed: BatchFeed) -> None:
        if feed.timeout is not None and feed.pool.down_since < inf and feed.make_error is None:
            self._wheel.move(feed, max(feed.pool.down_since, feed.opened_at) + feed.timeout)


def deadline(now: float, source: Source, pool: Pool, timeout: float, since: float) -> float:
    """Return the deadline of a batch item that a source takes now.

    During an outage the item's timeout (seconds) started when the outage began, or when the batch began to use the pool (``since``), if
    that was later. The item gets at least the 99th percentile latency of the source, so that a recovered source can answer it.
    """
    return min(now + timeout, max(pool.down_since + timeout, since + timeout, now + _usual(source, timeout)))


def _usual(source: Source, timeout: float) -> float:
    """Return the 99th percentile latency of a source, or a guess if it is unknown; at most ``timeout``."""
    return min(timeout, UNKNOWN * timeout if source.latency.p99 is None else source.latency.p99)
