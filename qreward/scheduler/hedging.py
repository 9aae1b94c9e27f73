"""When a request that is under way is sent to a second source as well: hedges, tail copies and suspected hangs.

One mechanism and one budget, but for what a silent source holds. The first answer counts and the other attempt is cancelled;
a first attempt is never stopped because it is slow (a copy that is not needed costs a request, a kill that was wrong costs all
that had been done), unless both seem to hang.

Hang    an attempt that takes 1.3 times as long as an answer of the length that one in a thousand exceeds: copied even
        while other work waits, ahead of it. The time doubles with each suspicion of the same task. Where the copy seems to
        hang as well, the one of the two that has done less makes way for another: a very long answer is not lost.
Hedge   a single call that takes longer than 95 % of its source's answers, or first tokens if it is streamed: copied if a
        quick source has room that nothing else wants (Dean and Barroso, "The Tail at Scale", CACM 2013).
Tail    the last requests of a bulk, once nothing waits: copied to a source with room where a fresh start would be done sooner
        by a quarter if the answer is a long one, the one with most to go first (LATE, Zaharia et al., OSDI 2008). Half of
        the reserve is left to hangs, and a quarter to those that are suspected for twice as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from qreward.scheduler.request import Attempt, Task, TaskState
from qreward.scheduler.stats.stalls import LEAST_SECONDS
from qreward.settings.policies import Hedge

if TYPE_CHECKING:
    from qreward.scheduler.endpoint_state import Source
    from qreward.scheduler.pool import Pool

LOOK_LEAST, LOOK_MOST = 1 / 64, 10.0
"""Seconds of age below which no attempt is looked at, and above which each is."""
HANG = 1.3
"""Times the extreme length after which an attempt is suspected."""
UNKNOWN = 4.0
"""Times the slowest known pace that a source is given which has not answered yet."""
MOST_DOUBLINGS = 4
GAIN = 1.25
"""Times the expected end of a copy that is still to go before a tail copy pays."""
EQUAL = 1.1
"""Times the pace of its own source up to which another is as quick: an answer that would be among the longest percent goes
there in the tail, for there it costs little to take it for hung."""
WORTH = 1.5
"""Times the quickest source's pace that one may be to get a copy: the quick ones have room soon, and a copy is made once."""
LEAST_GAIN = 0.5
"""Seconds still to go below which no tail copy pays."""
HEALTHY = 0.7
"""Share of a pool's sources that must be in service for hedges and tail copies (cf. gRPC A6, hedging throttling)."""


class Inspection:
    """What a look at a source's attempts has found.

    Attributes:
        overdue: past their time limit.
        hung: suspected to hang.
        again: copies that are suspected as well.
        late: single calls that have a right to a hedge.
        next_at: when one more will be.
    """

    __slots__ = ("again", "hung", "late", "next_at", "overdue")

    def __init__(self) -> None:
        self.overdue: list[Attempt] = []
        self.hung: list[Attempt] = []
        self.again: list[Attempt] = []
        self.late: list[Attempt] = []
        self.next_at = inf

    def sort(self, attempt: Attempt, now: float, limits: tuple[tuple[list[Attempt], float], ...]) -> None:
        """Put an attempt where the first limit that it has passed says, or remember when it will pass one."""
        for found, limit in limits:
            if now - attempt.sent_at >= limit:
                found.append(attempt)
                return
            self.next_at = min(self.next_at, attempt.sent_at + limit)


class HedgingPolicy:
    """Decides; the scheduler carries out.

    Args:
        policy: None for no duplicates at all.
        tries: failed attempts that end a task; the last of them is not made twice.
    """

    def __init__(self, policy: Hedge | None, tries: int) -> None:
        self.policy = policy
        self._tries = tries
        self._share = 0.0 if policy is None else policy.budget
        self._balance = 0.0 if policy is None else float(policy.reserve)

    # the budget

    @property
    def balance(self) -> float:
        """Copies that are left."""
        return self._balance

    def deposit(self) -> None:
        """A request was sent for the first time."""
        self._balance += self._share

    def withdraw(self, least: float = 0.0) -> bool:
        """Take one copy out of the budget, if that leaves ``least``."""
        if self._balance < 1 + least:
            return False
        self._balance -= 1
        return True

    def withdraw_for(self, now: float, suspect: Attempt) -> bool:
        """The same for an attempt that seems to hang. A quarter of the reserve is left to those that are twice as late as that."""
        if self.policy is None:
            return False
        certain = now - suspect.sent_at >= 2 * self._suspected_after(suspect)
        return self.withdraw(0.0 if certain else self.policy.reserve / 4)

    # which attempts take too long

    def look_after(self, source: Source) -> float:
        """Seconds after which the first attempt at a source may be worth a look."""
        hung = min((self.hung_after(source, pool) for pool in source.pools), default=inf)
        hedged = min(self.hedged_after(source), self.hedged_after(source, streamed=True))
        return max(LOOK_LEAST, min(LOOK_MOST, source.attempt_limit(0), hung, hedged, LEAST_SECONDS))

    def inspect(self, now: float, source: Source) -> Inspection:
        """Look at all attempts that are old enough to be worth it; they are oldest first."""
        found = Inspection()
        hedged_after = [self.hedged_after(source, streamed=streamed) if source.singles else inf for streamed in (False, True)]
        hung_after = {pool: self.hung_after(source, pool) for pool in source.pools}
        least = min(*hedged_after, source.attempt_limit(0), *hung_after.values())
        for attempt in source.attempts:
            if now - attempt.sent_at < least:
                found.next_at = min(found.next_at, attempt.sent_at + least)
                break
            if attempt.why is None:
                hung = hung_after.get(attempt.task.pool, inf) * _doubled(attempt.task)
                hedge = inf if attempt.task.feed is not None else hedged_after[attempt.task.streamed]
                found.sort(attempt, now, ((found.overdue, _limit(now, attempt)), *self._softer(attempt, found, hung, hedge)))
        return found

    def _softer(self, attempt: Attempt, found: Inspection, hung: float, hedge: float) -> tuple[tuple[list[Attempt], float], ...]:
        """The limits before the last one."""
        if attempt is attempt.task.copy:
            return ((found.again, 2 * hung),)
        return ((found.hung, hung), (found.late, hedge)) if self.may_be_copied(attempt) else ()

    @staticmethod
    def behind(now: float, copy: Attempt) -> Attempt:
        """Of two attempts that both seem to hang the one that has done less, which makes way for a third."""
        task = copy.task
        assert task.attempt is not None

        def done(attempt: Attempt) -> float:
            return (now - attempt.sent_at) / (_pace(attempt.source, task.pool) or inf)

        return min(copy, task.attempt, key=done)

    def _suspected_after(self, attempt: Attempt) -> float:
        return self.hung_after(attempt.source, attempt.task.pool) * _doubled(attempt.task)

    def hung_after(self, source: Source, pool: Pool) -> float:
        """Seconds after which an attempt is suspected for the first time."""
        if self.policy is None:
            return inf
        pace = _pace(source, pool)
        return HANG * pool.lengths.extreme * pace if pace else inf

    def hedged_after(self, source: Source, *, streamed: bool = False) -> float:
        """Seconds after which a single call gets a hedge: for its answer, or for the first token of one that comes in pieces."""
        policy = self.policy
        if policy is None:
            return inf
        if policy.after is not None:
            return policy.after
        if streamed and source.tempo is not None and (first := source.tempo.first(policy.quantile)) is not None:
            return first
        return inf if source.latency.slow is None else source.latency.at(policy.quantile) or inf

    def may_be_copied(self, attempt: Attempt) -> bool:
        """Whether an attempt is the only one of a task that may have two."""
        task = attempt.task
        if self.policy is None or not task.hedge or attempt.committed or task.tries + 1 >= self._tries:
            return False
        return task.attempt is attempt and task.copy is None and task.state is TaskState.SENT and attempt.why is None

    @staticmethod
    def others(task: Task) -> tuple[Source, ...]:
        """The sources that a copy must avoid."""
        assert task.attempt is not None
        origin = task.attempt.source
        return task.excluded if origin in task.excluded else (*task.excluded, origin)

    @staticmethod
    def is_well(pool: Pool) -> bool:
        """Whether so many sources are in service that spare room is really spare."""
        return pool.in_service >= HEALTHY * len(pool.sources)

    def tail(self, now: float, pool: Pool) -> Iterator[tuple[Task, Source]]:
        """Tail copies that pay, one at a time: the room is looked at anew after each."""
        if self.policy is None or not self.policy.tail or not self.is_well(pool):
            return
        room = CopyTargets(now, pool)
        for _, length, attempt in sorted(self._lasting(now, pool), key=lambda entry: -entry[0]):
            target = room.quickest(self.others(attempt.task))
            if target is None:
                continue
            pace = _pace(attempt.source, pool)
            quick = pool.lengths.pace(target.latency)
            age = now - attempt.sent_at
            hung = age > pool.lengths.rare * pace and quick <= EQUAL * pace
            if (hung or length * pace - age > GAIN * length * quick) and self.withdraw(self.policy.reserve / 2):
                yield attempt.task, target

    def _lasting(self, now: float, pool: Pool) -> Iterator[tuple[float, float, Attempt]]:
        """(seconds to go, length, attempt) of the tail's attempts."""
        lengths = pool.lengths
        for source in pool.sources:
            pace = _pace(source, pool)
            if not pace:
                continue
            for attempt in source.attempts:
                feed = attempt.task.feed
                if feed is None or not feed.ended or feed.buffer or attempt.task.pool is not pool or not self.may_be_copied(attempt):
                    continue
                done = (now - attempt.sent_at) / pace
                length = lengths.long(done)
                to_go = (length - done) * pace
                if to_go > LEAST_GAIN:
                    yield to_go, length, attempt


def _limit(now: float, attempt: Attempt) -> float:
    """Seconds that an attempt may take. No limit is learned for one that is being read: gaps have limits of their own."""
    source = attempt.source
    if attempt.committed:
        return (source.attempt_timeout or inf) + attempt.held_until(now)
    return source.attempt_limit(attempt.overdue)


def _doubled(task: Task) -> float:
    """Times the usual time that an attempt of a task is given before it is suspected again."""
    return 2.0 ** min(task.suspected, MOST_DOUBLINGS)


def _pace(source: Source, pool: Pool) -> float:
    """Seconds a token at a source, or what it may be if it has not answered yet; 0 if none has."""
    lengths = pool.lengths
    return lengths.pace(source.latency) or UNKNOWN * max((lengths.pace(other.latency) for other in pool.sources), default=0.0)


class CopyTargets:
    """Which sources of a pool copies may go to, quickest first. Made anew for each look."""

    def __init__(self, now: float, pool: Pool) -> None:
        self._paces = [(pool.lengths.pace(source.latency), place, source) for place, source in enumerate(pool.sources)]
        self._now = now
        self._slow: dict[tuple[Source, ...], tuple[Source, ...]] = {}
        self._in_service = sorted(entry for entry in self._paces if entry[0] and entry[2].worth_waiting_for(now))
        self._ready = [(pace, source) for pace, _, source in self._in_service if source.ready_at(now) <= now]

    def too_slow(self, avoided: tuple[Source, ...]) -> tuple[Source, ...]:
        """Sources besides the avoided to which no copy goes: of unknown pace, or much slower than the quickest that may be had."""
        slow = self._slow.get(avoided)
        if slow is None:
            most = self._most(avoided)
            slow = tuple(source for pace, _, source in self._paces if source not in avoided and not 0 < pace <= most) if most else ()
            self._slow[avoided] = slow
        return slow

    def quickest(self, avoided: tuple[Source, ...]) -> Source | None:
        """The quickest with room, if it is nearly as quick as any that is not avoided."""
        most = self._most(avoided)
        for place, (pace, source) in enumerate(self._ready):
            if pace > most:
                return None
            if source.ready_at(self._now) > self._now:  # it has got the last copies
                del self._ready[place]
                return self.quickest(avoided)
            if source not in avoided:
                return source
        return None

    def _most(self, avoided: tuple[Source, ...]) -> float:
        """Seconds a token up to which a source is quick enough; 0 if there is none."""
        return WORTH * next((pace for pace, _, source in self._in_service if source not in avoided), 0.0)
