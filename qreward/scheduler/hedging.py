"""Decides when a request in flight is also sent to a second source: hedges, tail copies and suspected hangs.

A *copy* is a second attempt at a task whose first attempt goes on. The first answer counts, and the other attempt is cancelled. Copies are
charged to one budget, except those of the attempts at a stalled source. ``docs/design/duplicates.md`` gives the reasons.

Hang    An attempt that takes 1.3 times as long as an answer of the 99.9th percentile length, and longer than 99 % of its source's answers,
        is suspected to hang. It is copied ahead of all work that waits. Each suspicion doubles that time for the task.
Hedge   A request outside of a batch is copied if it takes longer than 95 % of its source's answers (if streamed: of its source's first
        tokens), and if a source with a free slot is expected to answer a copy well before it (Dean and Barroso, CACM 2013).
Tail    Once the queue is empty, the last requests of a batch are copied to sources with a free slot, those with the most remaining time
        first (LATE, Zaharia et al., OSDI 2008), if the attempt needs more than 1.25 times as long as the copy to finish a long answer. The
        answer of a copy is taken to be at most as long as the 99.9th percentile, however long the attempt takes. Its speed is
        the mean of two: that of the latest answers of its source, and that expected at the present load, because a source that was full
        a moment ago may be faster now.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from math import inf
from operator import itemgetter

from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.stats import LEAST_SECONDS
from qreward.scheduler.task import Attempt, Task, TaskState
from qreward.settings.policies import Hedge

KEPT = 10_000
"""Number of latest requests whose share of the budget is kept, so that a long quiet time does not allow thousands of copies at once."""
LOOK_LEAST, LOOK_MOST = 1 / 64, 10.0
"""Ages in seconds below which no attempt is inspected, and above which every attempt is."""
HANG = 1.3
"""See the rule. Without its second condition, a busy client copied up to 4 % of its requests in vain."""
NEVER = 3.0
"""An attempt that takes ``NEVER`` times the 99.9th percentile of the answers of its source may be given up before its time limit. With 1.3,
three of 3,000 answers of up to 2,000 tokens were given up at a source that was merely slow."""
UNKNOWN = 4.0
"""A source that has not answered yet is assumed to need ``UNKNOWN`` times the seconds of the slowest known source of the pool."""
GAIN = 1.25
"""A tail copy is made if the attempt still needs more than ``GAIN`` times the time of the copy."""
EQUAL = 1.1
"""An attempt past the 99th percentile length is also copied to a source that needs at most ``EQUAL`` times the seconds per token."""
WORTH = 1.5
"""A source that needs more than ``WORTH`` times the seconds per token of the fastest source gets no tail copies."""


class Overdue(IntEnum):
    """The limit that an attempt has passed. The scheduler acts on lower values first."""

    TIMED_OUT = 0
    HUNG = 1
    LATE = 2


class HedgingPolicy:
    """Decides which attempts are copied, and owns the budget of copies. ``tries`` failed attempts end a task; its last is not copied."""

    def __init__(self, policy: Hedge | None, tries: int) -> None:
        self.policy = policy
        self._tries = tries
        self._share = 0.0 if policy is None else policy.budget
        self.balance = 0.0 if policy is None else float(policy.reserve)  # copies that the budget allows, without its share of ``sends``
        self._most = self.balance + KEPT * self._share
        self.sends = 0  # requests that were sent for the first time since a copy was last asked for

    # the budget

    def withdraw(self, least: float = 0.0) -> bool:
        """Take one copy from the budget. Returns False, and takes nothing, if less than ``least`` would be left."""
        self.balance, self.sends = min(self._most, self.balance + self._share * self.sends), 0
        if self.balance < 1 + least:
            return False
        self.balance -= 1
        return True

    # which attempts take too long

    def look_after(self, source: Source) -> float:
        hung = min((self.hung_after(source, pool) for pool in source.pools), default=inf)
        hedged = min(self.hedged_after(source), self.hedged_after(source, streamed=True))
        return max(LOOK_LEAST, min(LOOK_MOST, source.attempt_limit(0), hung, hedged, LEAST_SECONDS))

    def inspect(self, now: float, source: Source) -> tuple[list[tuple[Overdue, Attempt]], float]:
        """Return the attempts of a source that have passed a limit, and the time at which the next one passes one."""
        found, next_at = [], inf
        hedged_after = [self.hedged_after(source, streamed=streamed) for streamed in (False, True)]
        hung_after = {pool: self.hung_after(source, pool) for pool in source.pools}
        new = source.latency.p99 is None
        least = 0.0 if new else min(*hedged_after, source.attempt_limit(0), *hung_after.values())
        for attempt in source.attempts:
            age, task = now - attempt.sent_at, attempt.task
            if age < least:
                next_at = min(next_at, attempt.sent_at + least)
                break
            if attempt.cancel_reason is not None:
                continue
            limits = [(Overdue.TIMED_OUT, _limit(now, attempt))]
            if self.may_be_copied(attempt):
                limits.append((Overdue.HUNG, hung_after.get(task.pool, inf) * 2.0**task.suspected))
                late = inf if task.feed is not None else hedged_after[task.streamed]
                limits.append((Overdue.LATE, min(late, (task.deadline - attempt.sent_at) / 2) if new else late))
            for kind, limit in limits:
                if age >= limit:
                    found.append((kind, attempt))
                    break
                next_at = min(next_at, attempt.sent_at + limit)
        return sorted(found, key=itemgetter(0)), next_at

    def hung_after(self, source: Source, pool: Pool) -> float:
        if self.policy is None:
            return inf
        pace = _pace(source, pool)
        return max(HANG * pool.common.lengths.p999 * pace, source.latency.p99 or 0.0) if pace else inf

    def hedged_after(self, source: Source, *, streamed: bool = False) -> float:
        """Return the seconds without an answer, or without a first token if streamed, after which a request is hedged."""
        policy = self.policy
        if policy is None:
            return inf
        if policy.after is not None:
            return policy.after
        if streamed and source.stream_timing is not None and (first := source.stream_timing.first(policy.quantile)) is not None:
            return first
        if source.latency.p99 is not None:
            return source.latency.at(policy.quantile) or inf
        known = [other.latency.at(policy.quantile) or 0.0 for pool in source.pools for other in pool.sources if other is not source]
        return UNKNOWN * max(known, default=0.0) or inf

    def may_be_copied(self, attempt: Attempt) -> bool:
        """Return whether an attempt is the only attempt of its task in flight, and the task may have a copy."""
        task = attempt.task
        if self.policy is None or not task.hedge or attempt.committed or task.tries + 1 >= self._tries:
            return False
        return task.attempt is attempt and task.copy is None and task.state is TaskState.SENT and attempt.cancel_reason is None

    @staticmethod
    def others(task: Task) -> tuple[Source, ...]:
        """Return the sources that a copy of the task must avoid."""
        assert task.attempt is not None
        return (task.attempt.source, *task.unfit, *(source for source, _ in task.failures))

    def tail(self, now: float, pool: Pool) -> Iterator[tuple[Task, Source]]:
        """Yield (task, source) for each tail copy to be made. The caller must send each copy before it requests the next copy."""
        if self.policy is None or not self.policy.tail:
            return
        quick = {source: _pace_of_copy(now, source, pool) for source in pool.sources if source.service.recent()}
        most = WORTH * min((quick[source] for source in quick if source.available_soon(now)), default=0.0)
        targets = [source for source in sorted(quick, key=quick.__getitem__) if quick[source] <= most and source.ready_at(now) <= now]
        lasting: list[tuple[float, Attempt]] = []  # attempts of the last requests of batches, and their remaining seconds
        for source in pool.sources:
            pace = _pace(source, pool)
            for attempt in source.attempts if pace else ():
                feed = attempt.task.feed
                if feed is not None and feed.ended and not feed.buffer and attempt.task.pool is pool and self.may_be_copied(attempt):
                    age = now - attempt.sent_at
                    lasting.append((pool.common.lengths.long(age / pace) * pace - age, attempt))
        lasting.sort(key=lambda entry: -entry[0])
        kept = self.policy.reserve / 2 if len(lasting) > self.balance else 0.0  # once the budget is enough for all, nothing is kept
        for _, attempt in lasting:
            others = self.others(attempt.task)
            target = next((source for source in targets if source not in others and source.ready_at(now) <= now), None)
            if target is not None and self.gains(now, attempt, _pace_of_copy(now, target, pool)) and self.withdraw(kept):
                yield attempt.task, target

    def is_late(self, now: float, attempt: Attempt, target: Source) -> bool:
        """Return whether a request outside of a batch is hedged at ``target``, now that the usual time of an answer has passed."""
        pool, waited = attempt.task.pool, now - attempt.sent_at
        usual = target.stream_timing.first(0.5) if attempt.task.streamed and target.stream_timing is not None else None
        if usual is None and pool.common.lengths.p99 < inf and self.policy is not None and self.policy.after is None:
            return self.gains(now, attempt, target.service.recent())
        return (usual or max(target.latency.mean, target.answers_in(now, pool) if pool.common.pace else 0.0)) < waited

    @staticmethod
    def gains(now: float, attempt: Attempt, quick: float) -> bool:
        """Return whether a copy with ``quick`` seconds per token is expected to be answered well before the attempt, if both are long."""
        pool = attempt.task.pool
        pace, age = _pace(attempt.source, pool), now - attempt.sent_at
        if age > pool.common.lengths.p99 * pace and quick <= EQUAL * pace:
            return True
        length = pool.common.lengths.long(age / pace) if pace else 0.0
        return length * pace - age > GAIN * min(length, pool.common.lengths.p999) * quick


def stalls_at(source: Source) -> float:
    """Return the time at which a source counts as stalled if no answer comes before (see ``StallDetector``)."""
    mean, new = source.latency.mean, not source.latency.mean
    if new:
        others = [other.latency.mean for pool in source.pools for other in pool.sources if other.latency.p99 is not None]
        mean = UNKNOWN * max(others, default=0.0)
    return source.silence.alarm_at(source.counted_at, source.inflight, mean, source.inflight_seconds, new=new)


def _limit(now: float, attempt: Attempt) -> float:
    """Return the seconds that an attempt may take. The gaps of a stream that is being delivered have a limit of their own.

    An attempt leaves time for another one before the deadline, once it takes much longer than nearly all answers of its source (see
    ``NEVER``), also if it has a copy, which may hang as well.
    """
    source, task = attempt.source, attempt.task
    if attempt.committed:
        return (source.attempt_timeout or inf) + attempt.held_until(now)
    limit, usual = source.attempt_limit(attempt.overdue), source.latency.p99
    if usual is None:
        return limit
    last = task.deadline - attempt.sent_at - 2.0 * usual
    return limit if last >= limit else min(limit, max(NEVER * (source.latency.at(0.999) or inf), last))


def _pace(source: Source, pool: Pool) -> float:
    """Return the seconds per token at a source; a high guess before its first answer, and 0 before the first answer in the pool."""
    return source.service.recent() or UNKNOWN * max((other.service.recent() for other in pool.sources), default=0.0)


def _pace_of_copy(now: float, source: Source, pool: Pool) -> float:
    """Return the expected seconds per token of a copy: the mean of those of the latest answers and those at the present load.

    Whether load slows the source is not known. ``docs/design/duplicates.md`` says what each of the two alone costs.
    """
    recent = source.service.recent()
    return min(recent, (recent + source.answers_in(now, pool) / pool.common.typical) / 2)
