"""What must hold in a scheduler after every input, checked from the outside: from its inputs, its commands and public state.

Bookkeeping here is independent of the scheduler's own, so that the two can disagree. Knows nothing of servers or scenarios.
"""

from __future__ import annotations

from collections import deque
from math import inf
from sys import float_info
from typing import Any, cast

from qreward.errors import QRewardError
from qreward.scheduler.limits.rate import MinuteLimit
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.queue import Queue, should_take
from qreward.scheduler.scheduler import CANCEL, FINISH, MORE, SEND, Command, Scheduler
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, CancelReason, Task, TaskState
from qreward.scheduler.timer_wheel import PER_SECOND

BUCKET = 1 / PER_SECOND
ROUNDING = 1e-9
DAWDLE = 0.5
"""Longest time in seconds by which the clock's owner may be late, and a look that is put off for it."""


class WatchedSource(Source):
    """A source that looks, at the very moment of each send, whether it may be asked."""

    __slots__ = ()

    def sent(self, now: float, attempt: Attempt) -> None:
        assert self.ready_at(now) <= now, f"{self} is sent to at {now}, but is ready only at {self.ready_at(now)}"
        super().sent(now, attempt)
        assert self.inflight <= self.window.limit, f"{self} holds more than its window"


class Rate:
    """The real sends of the last minute, and a leaky bucket over those since the last reject: what a configured limit allows."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.sends: deque[float] = deque()
        self.level, self.then = 0.0, -inf

    def sent(self, now: float, *, spaced: bool) -> None:
        self.sends.append(now)
        while self.sends[0] <= now - 60:
            self.sends.popleft()
        assert len(self.sends) <= max(1.0, 60 * self.rate), f"{len(self.sends)} requests in a minute at {self.rate}/s, {now}"
        self.level = max(0.0, self.level - (now - self.then) * self.rate) + 1 if spaced else 0.0
        self.then = now
        rounding = ROUNDING + 8 * float_info.epsilon * abs(now) * self.rate  # a time of weeks is exact to less than a microsecond
        assert self.level <= self.rate * self.burst + 1 + rounding, f"{self.level} requests above {self.rate}/s at {now}"


class Watch:
    """Shadow of one scheduler. Call ``after`` when an input has returned."""

    def __init__(self, scheduler: Scheduler, *, thorough: bool = True) -> None:
        self.scheduler = scheduler
        self.thorough = thorough
        self.sources: dict[Source, None] = {}
        self.pools: dict[Pool, None] = {}
        self.feeds: dict[BatchFeed, None] = {}
        self.open: dict[Task, None] = {}  # started, and neither finished nor withdrawn
        self.live: dict[Attempt, None] = {}  # sent, and no end reported
        self.sends: list[tuple[float, Attempt]] = []
        self.cancels: dict[Attempt, None] = {}
        self.finished: dict[Task, Answer | QRewardError] = {}
        self.withdrawn: dict[Task, None] = {}
        self.asked: dict[BatchFeed, None] = {}  # MORE without refill
        self.trace: list[tuple[Any, ...]] = []
        self._stay_away: dict[Source, float] = {}
        self._rates: dict[Source, Rate] = {}

    # what goes in

    def event(self, now: float, attempt: Attempt, outcome: Outcome) -> None:
        """Note an outcome before it is given to the scheduler."""
        if attempt not in self.live:
            return
        del self.live[attempt]
        self.cancels.pop(attempt, None)
        alone = all(other.source is not attempt.source for other in self.live)
        if alone and isinstance(outcome, Failure) and outcome.kind is FailureKind.OVERLOADED and outcome.retry_after:
            until = now + outcome.retry_after
            self._stay_away[attempt.source] = max(self._stay_away.get(attempt.source, -inf), until)

    def withdraw(self, task: Task) -> None:
        if task not in self.finished:
            self.open.pop(task, None)
            self.withdrawn[task] = None

    # what comes out

    def after(self, now: float) -> list[Command]:
        """Take the commands of an input, and check everything."""
        out, self.scheduler.out = self.scheduler.out, []
        for command in out:
            self._command(now, command)
        if self.thorough:
            self._check_counts()
            self._check_open_tasks()
            wake = self.scheduler.next_wake()
            if wake is None or wake > now:  # else a tick is overdue
                self._check_deadlines(now)
                self._check_no_idle_source(now)
            assert wake is not None or self.live or not self.open, "tasks are open, nothing is under way, and nobody will wake"
        return out

    def _command(self, now: float, command: Command) -> None:
        what, subject = command[:2]
        if what == SEND:
            self._sent(now, subject)
        elif what == CANCEL:
            assert subject in self.live, "an attempt that is not under way is cancelled"
            assert subject not in self.cancels, "an attempt is cancelled twice"
            self.cancels[subject] = None
            self.trace.append((now, "cancel", subject.task.index, subject.source.name))
        elif what == FINISH:
            self._finished(now, subject, command[2], command[3])
        else:
            assert what == MORE
            assert subject not in self.asked or subject.make_error is not None, "a feed is asked for more while it is being asked"
            self.asked[subject] = None
            self.trace.append((now, "more", subject.waiter))

    def _sent(self, now: float, attempt: Attempt) -> None:
        task, source = attempt.task, attempt.source
        self.trace.append((now, "send", task.index, source.name))
        assert task not in self.finished, "a finished task is sent"
        assert task not in self.withdrawn, "a withdrawn task is sent"
        assert attempt not in self.live
        assert attempt.sent_at == now
        assert source in task.pool.sources, f"{source} does not serve {task.pool}"
        assert all(other.task is not task or other.source is not source for other in self.live), "a copy goes to the source that has it"
        assert source not in task.unfit, f"{source} has said that it cannot serve the task"
        assert not source.health.marked_unhealthy, f"{source} is marked down"
        assert now >= self._stay_away.get(source, -inf), f"{source} asked us to stay away until {self._stay_away[source]}, it is {now}"
        if isinstance(source.requests, MinuteLimit):
            rate = self._rates.setdefault(source, Rate(source.requests.rate, source.requests.burst))
            rate.sent(now, spaced=source.tally.rejected > 0)
        self.live[attempt] = None
        self.open[task] = None
        self.sends.append((now, attempt))

    def _finished(self, now: float, task: Task, outcome: Answer | QRewardError, source: Source | None) -> None:
        assert task not in self.finished, "a task finishes twice"
        assert task not in self.withdrawn, "a withdrawn task finishes"
        assert isinstance(outcome, Answer | QRewardError)
        assert (source is not None) == isinstance(outcome, Answer)
        self.open.pop(task, None)
        self.finished[task] = outcome
        self.trace.append((now, "finish", task.index, type(outcome).__name__, str(outcome) if isinstance(outcome, QRewardError) else ""))

    # what must hold between inputs

    def _check_counts(self) -> None:
        held = dict.fromkeys(self.sources, 0)
        for attempt in self.live:
            held[attempt.source] += 1
        for source, count in held.items():
            assert source.inflight == count, f"{source} believes {source.inflight} in flight, but {count} are"
        for pool in self.pools:
            well = [source.health for source in pool.sources if source.health.in_service]
            assert all(not health.marked_unhealthy and health.open_until == -inf for health in well)
        timed = sum(item.due >= 0 for items in (self.open, self.sources, self.pools, self.feeds) for item in items)
        assert len(self.scheduler.wheel) == timed, "the wheel holds something dead, or lost something"

    def _check_open_tasks(self) -> None:
        under_way: dict[Task, list[Attempt]] = {}
        for attempt in self.live:
            if attempt.task in self.open and attempt.cancel_reason is not CancelReason.BEATEN:  # which may come before the winner has ended
                under_way.setdefault(attempt.task, []).append(attempt)
        for attempt in self.live:
            assert attempt.cancel_reason is not None or attempt.source.due >= 0, "an attempt has no time limit"
        for task in self.open:
            assert task.timeout is None or task.due >= 0, "a task's timeout is not watched"
            held = under_way.get(task, [])
            known = [attempt for attempt in (task.attempt, task.copy) if attempt is not None]
            assert held == known, "a task has other attempts than it knows of"
            assert len({attempt.source for attempt in held}) == len(held), "a task is twice at one source"
            if task.state is TaskState.SENT:
                assert task.attempt is not None, "a task is under way without an attempt"
            elif task.state is TaskState.WAITING:
                assert task.due >= 0, "a task waits for a time that never comes"
            else:
                assert task.state is TaskState.QUEUED
                assert any(source not in task.unfit and not source.health.marked_unhealthy for source in task.pool.sources), (
                    f"a task waits in {task.pool} although {task.unfit} cannot serve it, and nobody else is there"
                )

    def _check_deadlines(self, now: float) -> None:
        for task in self.open:
            assert task.deadline + BUCKET > now, f"a task is open at {now}, its deadline was {task.deadline}"

    def _check_no_idle_source(self, now: float) -> None:
        """Work conservation. A source that became ready since the last bucket of the wheel is woken at the next.

        What is left to quicker sources is decided anew at every look at the pool.
        """
        for source in self.sources:
            if source.ready_at(now) > now or now < source.due * BUCKET <= now + BUCKET:
                continue
            for feed in self.feeds:
                able = feed.buffer and source in feed.pool.sources and not _may_hold_back(now, feed.pool, source)
                assert not able, f"{source} is idle while {feed.pool} has input"
            for task in self.open:
                if (task.feed is not None or task.sent_at is None) and _may_hold_back(now, task.pool, source):
                    continue
                able = task.state is TaskState.QUEUED and source in task.pool.sources
                if able and task.sent_at is not None:
                    able = should_take(source, task, now) and task.attempt is None
                    able = able and not (task.failures and task.pool.due >= 0)  # what is best changes; a look at the pool is planned
                assert not able, f"{source} is idle at {now} while a task waits in {task.pool}"

    def check_all_over(self) -> None:
        """At the end of everything nothing is left behind."""
        assert not self.open, f"{len(self.open)} tasks have no end"
        assert not self.live, f"{len(self.live)} attempts are left"
        assert all(source.inflight == 0 for source in self.sources)
        assert not len(self.scheduler.wheel), "the wheel is not empty"
        for feed in self.feeds:
            assert not feed.buffer, "input was read and left lying"


def _may_hold_back(now: float, pool: Pool, source: Source) -> bool:
    """Whether a pool keeps new items from a source, or did until its last look."""
    feeds = cast("Queue", pool.queue)._feeds()
    ending = all(feed.ended or feed.left is not None for feed in feeds)  # or there are only retries of its items
    if pool.due >= 0 and ending:
        return True
    return pool.patience(now, source) > 0
