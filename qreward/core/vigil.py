"""Watches what is under way: stops what is overdue, copies what seems to hang or ends a bulk, leaves alone who has gone silent.

What is to be copied, and when, is decided in ``duplicates``; here it is carried out.
"""

from __future__ import annotations

from math import inf

from qreward.core.commands import CANCEL
from qreward.core.dispatch import LOOK_LATER, Dispatch
from qreward.core.duplicates import Room
from qreward.core.pool import Pool
from qreward.core.silence import LEAST_INFLIGHT
from qreward.core.source import Source
from qreward.core.task import Attempt, Task, Why

STALLED = 0.1
"""Seconds by which a tick may be late. Beyond that nobody has listened: answers may lie unread, and nothing is called late."""


class Vigil(Dispatch):
    """The part of the scheduler that looks at attempts under way."""

    def _look(self, now: float, source: Source) -> None:
        """Stop attempts past their limit, copy those that seem to hang or have a right to a hedge, and look again in time."""
        if now >= source.silence.alarm_at(source.inflight, source.latency.mean):
            self._stuck(now, source)
        found = self._duplicates.inspect(now, source)
        for attempt in (*found.overdue, *(self._duplicates.behind(now, copy) for copy in found.again)):
            if attempt.why is None:
                attempt.why = Why.OVERDUE
                self.out.append((CANCEL, attempt))
        for attempt in found.hung:
            self._suspect(now, attempt)
        for attempt in found.late:
            self._hedge(now, attempt)
        source.look_after = self._duplicates.look_after(source)
        alarm = source.silence.alarm_at(source.inflight, source.latency.mean)
        soonest = min(found.next_at, alarm, now + source.look_after)
        if any(self._duplicates.may_be_copied(attempt) for attempt in (*found.hung, *found.late)):  # there was no room
            soonest = min(soonest, now + LOOK_LATER)
        source.check_at = max(soonest, now + min(LOOK_LATER, source.look_after / 8)) if source.inflight else inf

    def _stuck(self, now: float, source: Source) -> None:
        """A source has gone silent. What it holds is copied, as far as that is allowed; if it can be missed it is left alone."""
        innocent = sum(not (attempt.task.tries or attempt.task.suspected or attempt.committed) for attempt in source.attempts)
        if innocent < LEAST_INFLIGHT or source.is_last():
            source.silence.since = now
            return
        self._went_down(now, source, f"none of {source.inflight} requests in flight was answered for {now - source.silence.since:.1f} s")
        source.silence.since = inf
        source.health.stall(now)
        for attempt in list(source.attempts):
            if self._duplicates.may_be_copied(attempt):
                self._copy(now, attempt.task)
        self.lost(now, source)

    def _suspect(self, now: float, attempt: Attempt) -> None:
        task = attempt.task
        if task.pool.awaits(now, self._duplicates.others(task)) and self._duplicates.withdraw_for(now, attempt):
            task.suspected += 1
            self._copy(now, task)

    def _hedge(self, now: float, attempt: Attempt) -> None:
        """Copy a single call, if a source has room that nobody needs and is quick enough to be of use."""
        task = attempt.task
        if not self._duplicates.is_well(task.pool):
            return
        source = self._ready(now, task.pool, self._duplicates.others(task))
        if source is None:
            return
        usual = source.tempo.first(0.5) if task.streamed and source.tempo is not None else None
        if (usual or source.expected_finish()) < now - attempt.sent_at and self._duplicates.withdraw():
            self._send(now, task, source)
        self._offer(now, source)

    def _copy(self, now: float, task: Task) -> None:
        """Send a task to a second source, or let it wait for one ahead of what was never sent."""
        avoided = self._duplicates.others(task)
        avoided = (*avoided, *Room(now, task.pool).too_slow(avoided))
        source = self._ready(now, task.pool, avoided)
        if source is None:
            task.excluded = avoided
            task.pool.queue.put(task)
        else:
            self._send(now, task, source)
            self._offer(now, source)

    def _look_at_idle(self, now: float, pool: Pool) -> None:
        """Sources have room: what was held back from them may be theirs now, and the last items of bulks may be copied."""
        if pool.queue:
            for source in pool.sources:
                self._fill(now, source)
        if not pool.queue:
            for task, source in self._duplicates.tail(now, pool):
                self._send(now, task, source)
                self._offer(now, source)
        if any(source.ready_at(now) <= now for source in pool.sources):
            self._look_later(now, pool)
