"""The scheduler: one queue a pool, pulled by the sources; events and ``now`` in, commands in ``out``.

Rules that hold between any two calls:
1. work conservation: while a task waits, no source that it may go to is able to take it;
2. a source never has more in flight than its window, and is never asked before ``ready_at``;
3. every task submitted or taken from a feed gets exactly one FINISH, unless it is withdrawn or has nothing to send (``Task.load``);
4. every SEND is answered by exactly one event; later ones are ignored.
What an outcome means is in ``aftermath``; when a source may be asked is in ``source``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from qreward.core import endings
from qreward.core.aftermath import Verdict, remember
from qreward.core.balance import Balancer
from qreward.core.commands import CANCEL, FINISH
from qreward.core.outcome import Advertised, Answer, Outcome
from qreward.core.pool import ONLINE, Pool
from qreward.core.source import Source
from qreward.core.task import Attempt, Feed, State, Task, Why
from qreward.core.vigil import STALLED, Vigil

LOOK_ANEW = 32
"""Answers after which it is found out anew what takes too long at a source."""


class Scheduler(Vigil):
    """Decides what is sent where and when: takes the inputs, and says what follows from them."""

    # inputs: work

    def submit(self, now: float, task: Task) -> None:
        """Take in a single task; it is sent at once if a source has room."""
        task.pool.online_until = now + ONLINE
        self._start(now, task)
        self._place(now, task)

    def open(self, _now: float, feed: Feed) -> None:
        """Take in a bulk; its input is asked for by ``MORE``."""
        self._ask(feed)

    def refill(self, now: float, feed: Feed) -> None:
        """The shell has put tasks into a feed's buffer, or marked it as ended."""
        feed.asked = False
        if feed.buffer:
            feed.pool.queue.put_feed(feed)
            self._check(now, feed.pool)
            self.pump(now, feed.pool)

    def close_feed(self, feed: Feed) -> list[Task]:
        """End a bulk; what was read ahead is returned, and was never started."""
        feed.ended = True
        feed.pool.queue.drop_feed(feed)
        rest = list(feed.buffer)
        feed.buffer.clear()
        return rest

    def withdraw(self, _now: float, tasks: Iterable[Task]) -> None:
        """The caller does not want them any more: no FINISH follows, and what is under way is stopped."""
        for task in tasks:
            if task.state is not State.DONE:
                self._end(task)

    # inputs: what became of it

    def event(self, now: float, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt ended. Reports after the first are ignored."""
        source, task = attempt.source, attempt.task
        if attempt.ended:
            return
        attempt.ended = True
        del source.attempts[attempt]
        source.inflight -= 1
        source.singles -= task.feed is None
        if not source.inflight:
            source.check_at = inf
            self.wheel.remove(source)
        if isinstance(outcome, Answer):
            self._answered(now, attempt, outcome)
        else:
            verdict = self._aftermath.of(now, attempt, outcome)
            if source.tokens is not None:
                self.tokens.settle(attempt, None)
            if task.holds(attempt):
                task.drop(attempt)
                self._go_on(now, task, verdict)
            if verdict.lost:
                if not source.health.in_service:
                    self._went_down(now, source, endings.described(outcome))
                    self._aftermath.budget.grant(source.inflight)
                self.lost(now, source)
        self._fill(now, source)

    def commit(self, now: float, attempt: Attempt) -> None:
        """The caller is to be given an answer in pieces: no other attempt may take the place of this one while it goes on.

        ``attempt.committed`` then says whether it is so: another may have been quicker, or nobody waits any more. If it fails
        afterwards, so does its task, unless that ``restarts``.
        """
        task = attempt.task
        if attempt.ended or attempt.why is not None or not task.holds(attempt):
            return
        attempt.committed = True
        if task.copy is not None:
            self._beat(now, task, attempt)
            task.attempt, task.copy = attempt, None
        elif task.state is State.QUEUED:  # for a copy
            task.state = State.SENT
            task.pool.queue.take_back(task)
        attempt.source.began(now, attempt.sent_at)

    def opened(self, now: float, attempt: Attempt, limits: Advertised) -> None:
        """An answer that comes in pieces told of rate limits at its head."""
        attempt.source.advertised(now, attempt.sent_at, limits, used=0)
        self._fill(now, attempt.source)

    def tick(self, now: float) -> None:
        """Do what is due. Call it at ``next_wake`` or later."""
        wake = self.wheel.next_wake()
        stalled = wake is not None and now - wake > STALLED and not self._stalled  # a loop that is always late is not waited for twice
        self._stalled = stalled
        for item in self.wheel.pop_due(now):
            if isinstance(item, Task):
                if item.state is not State.DONE:  # another that was due has ended it
                    self._task_due(now, item)
            elif isinstance(item, Source):
                if stalled:
                    item.check_at = max(item.check_at, now + STALLED)
                elif now >= item.check_at:
                    self._look(now, item)
                self._wake(item, item.check_at)
                self._fill(now, item)
            elif isinstance(item, Pool):
                if not stalled:
                    self._look_at_idle(now, item)
                elif item.due < 0:
                    self.wheel.add(item, now + STALLED)

    def next_wake(self) -> float | None:
        """When ``tick`` is to be called next, or None. It may be a little earlier than needed, never later."""
        return self.wheel.next_wake()

    # inputs: the fleet

    def join(self, now: float, source: Source, pool: Pool) -> None:
        """A source begins to serve a pool."""
        self._enrol(source, pool)
        self.changed(now, source)

    def _enrol(self, source: Source, pool: Pool) -> None:
        pool.join(source)
        pool.queue.cost = self._cost
        source.look_after = self._duplicates.look_after(source)

    def changed(self, now: float, source: Source) -> None:
        """A source may have become able to take work: joined, marked healthy, its limits raised."""
        self._fill(now, source)

    def leave(self, now: float, source: Source, pool: Pool) -> None:
        """A source ceases to serve a pool; what it has in flight is finished."""
        pool.leave(source)
        self._reclaim(now, pool)

    def reroute(self, now: float, pool: Pool, sources: Sequence[Source], balancer: Balancer) -> None:
        """A pool gets other sources and another way to choose; what waits in it stays."""
        pool.balancer = balancer
        for source in sources:  # before others leave: a pool without any source would fail what waits
            if source not in pool.sources:
                self._enrol(source, pool)
        for source in [source for source in pool.sources if source not in sources]:
            self.leave(now, source, pool)
        for source in sources:
            self.changed(now, source)

    def resize(self, sources: Sequence[Source]) -> None:
        """Tell the retry budget how much can be in flight."""
        self._aftermath.budget.capacity = sum(source.window.limit for source in sources)

    # what follows

    def _answered(self, now: float, attempt: Attempt, answer: Answer) -> None:
        source, task = attempt.source, attempt.task
        source.answered(now, attempt.sent_at, answer, attempt.held)
        if source.down_since is not None and source.health.is_back:
            self._came_back(now, source)
        task.pool.lengths.add(now - attempt.sent_at - attempt.held, answer.output_tokens, source.latency)
        if source.tally.ok % LOOK_ANEW == 0:
            source.look_after = self._duplicates.look_after(source)
        if source.tokens is not None:
            self.tokens.settle(attempt, answer)
        if task.holds(attempt):
            attempt.won = True
            if task.copy is not None:
                self._beat(now, task, attempt)
            self._end(task, None if answer.output_tokens is None else float(answer.output_tokens + (answer.prompt_tokens or 0)))
            self.out.append((FINISH, task, answer, source, now - attempt.sent_at))

    def _beat(self, now: float, task: Task, winner: Attempt) -> None:
        """One of two attempts has answered: the other is not needed any more."""
        loser = task.other(winner)
        assert loser is not None
        remember(loser, "cancelled", now, detail=f"endpoint {winner.source.name!r} answered first")
        if loser.why is None:
            loser.why = Why.BEATEN
            self.out.append((CANCEL, loser))

    def _go_on(self, now: float, task: Task, verdict: Verdict) -> None:
        if task.attempt is not None and not verdict.final:  # another attempt is under way: it decides
            return
        if verdict.error is not None:
            self._finish(task, verdict.error)
        elif task.state is State.QUEUED:  # it waits for a second attempt, which is now its only one
            return
        elif verdict.wait > 0:
            task.state = State.WAITING
            self.wheel.move(task, min(now + verdict.wait, task.deadline))
        else:
            self._place(now, task)

    def _task_due(self, now: float, task: Task) -> None:
        if now >= task.deadline:
            self._finish(task, endings.timed_out(task))
            return
        if task.timeout is not None:
            self.wheel.add(task, task.deadline)
        self._place(now, task)
