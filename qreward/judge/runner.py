"""Run the requests of one item (``SingleRunner``) or of a batch (``BatchRunner``) for one caller.

Unlike in a plain ``BatchWaiter``, an item of ``BatchRunner`` may need several requests, to several models, and some of them more than once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextvars import copy_context
from math import inf
from typing import Any

from qreward.engine.batch import READ_AHEAD, BatchWaiter
from qreward.engine.driver import LoopDriver
from qreward.engine.snapshots import Tallies, result_of
from qreward.errors import BadRequest, ClientClosed, QRewardError
from qreward.judge.aggregation import Decide
from qreward.judge.cache_lookup import CachedItem, made
from qreward.judge.item_state import JudgeItem, JudgeRequest, Outcome, error_of
from qreward.judge.requests import Extra
from qreward.judge.sampling import JudgeModel
from qreward.judge.singleflight import Dispatcher, InflightRequest, Keep, SampleTask, late
from qreward.judge.types import Vote
from qreward.results import Result, Usage, with_trail
from qreward.scheduler.outcome import Answer
from qreward.scheduler.outcome import Outcome as Sent
from qreward.scheduler.state import Attempt, BatchFeed, Pool, RequestOptions, Source, Task, TaskState

MOST_AHEAD = 4096
"""The most requests in the longest queue of several models. Reading ahead for a slow model keeps the faster ones busy."""


class JudgeAnswer:
    """The outcome of an item, in the form in which ``Result`` takes an answer."""

    __slots__ = ("usage", "value")

    def __init__(self, value: Any, usage: Usage | None) -> None:
        self.value = value
        self.usage = usage

    def build(self) -> Any:
        return self.value

    def text(self) -> str:
        """The text of the first vote."""
        votes = self.value.votes
        return votes[0].text if votes else ""


class _Tallies(Tallies):
    """Counts items in the totals, and requests in the statistics of endpoints."""

    def add(self, result: Result[object]) -> None:
        self.ok += result.error is None
        self.failed += result.error is not None

    def add_request(self, result: Result[object]) -> None:
        ok, failed = self.ok, self.failed
        super().add(result)
        self.ok, self.failed = ok, failed

    def add_cancelled(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            self._of(attempt.source.name).cancelled += 1


class BatchRunner(Dispatcher, BatchWaiter):
    """Judges a batch of items. See :class:`BatchWaiter`.

    Args:
        asks: builds the requests of an item.
        extra: returns the fields of an item that its result carries.
        decide: aggregates the votes of an item.
        outcome: makes the user's result from the aggregated votes.
        table, pools, keep_answer: as for :class:`Dispatcher`.
        per_item: requests per item.
        size: number of items, if known.
    """

    def __init__(
        self,
        shell: LoopDriver,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        asks: Callable[[Any], Sequence[JudgeRequest]],
        extra: Extra,
        decide: Decide,
        outcome: Outcome,
        table: dict[Hashable, InflightRequest],
        pools: dict[JudgeModel, Pool],
        keep_answer: Keep | None,
        terms: RequestOptions,
        per_item: int,
        size: int | None,
        **kwargs: Any,
    ) -> None:
        BatchWaiter.__init__(self, shell, next(iter(pools.values())), items, asks, terms=terms, **kwargs)
        self._sit(shell, table, terms, pools, keep_answer)
        self.carry = self._carry if per_item > 1 else None
        self._decide, self._outcome, self._extra = decide, outcome, extra
        self._tallies: _Tallies = _Tallies()
        self._size, self._per_item = size, per_item
        self._polls: dict[JudgeItem, None] = {}
        self._others: dict[Pool, BatchFeed] = {}  # of the models whose pool is not that of the first model
        self._adding = False

    # reading

    def _read_now(self, feed: BatchFeed) -> bool:
        if self._feed.ended or self._room(feed) > 0:  # else another model's queue is full, and only the buffer is left
            super()._read_now(self._feed)
            self._refill(but=feed)
            return bool(feed.buffer) or feed.failing is not None
        return bool(feed.buffer)

    def _room(self, feed: BatchFeed) -> int:  # noqa: ARG002 - the shortest buffer of all decides
        waiting = [len(each.buffer) for each in self._feeds()]
        return READ_AHEAD - min(waiting) if max(waiting) < MOST_AHEAD else 0

    def _feeds(self) -> list[BatchFeed]:
        return [self._feed, *self._others.values()]

    def _feed_of(self, pool: Pool) -> BatchFeed:
        if pool is self._pool:
            return self._feed
        feed = self._others.get(pool)
        if feed is None:
            terms = self._terms
            feed = self._others[pool] = BatchFeed(pool, terms.level, self, self.shell.engine.clock(), terms.tenant, terms.timeout)
            feed.left = self._requests_left(pool)
            self.shell._locked(self.shell.engine.scheduler.attend, feed)
        return feed

    def _requests_left(self, pool: Pool) -> int | None:
        """An upper bound: items may share requests."""
        return None if self._size is None else self._size * self._per_item * list(self._pools.values()).count(pool) // len(self._pools)

    def _refill(self, but: BatchFeed | None = None) -> None:
        for feed in self._feeds():
            if feed is not but and feed.buffer and not feed.queued:
                self.shell.refill(feed)

    def _add(self, feed: BatchFeed, item: Any) -> None:
        if not self._read:
            self._feed.left = self._requests_left(self._pool)
        index = self._next_index()
        known = item if type(item) is CachedItem else made(item, self._prepare, self._extra)
        if isinstance(known.asks, Exception):
            self._settle(Result(index, None, _as_ours(known.asks, index), None, 0.0, 0.0, extra=known.extra))
            return
        poll = JudgeItem(known.asks, self._decide, self, index, self.shell.engine.clock(), inf, known.extra)
        self._polls[poll] = None
        self._adding = True
        self.begin(poll, known.votes)
        self._adding = False
        if isinstance(self._items, AsyncIterator):
            self._refill(but=feed)

    def send(self, inflight_request: InflightRequest, *, again: bool) -> None:
        feed = self._feed_of(self._pools[inflight_request.ask.judge_model])
        if feed.failing is not None and feed.buffer:
            self.finish(self.request(inflight_request, self._terms.timeout), feed.failing(), None, 0.0)
            return
        if self._adding:
            feed.buffer.append(self.request(inflight_request, self._terms.timeout))
            return
        timeout = self._terms.timeout
        if again and inflight_request.until < inf:
            timeout = inflight_request.until - self.shell.engine.clock()
            if inflight_request.timer is None:
                inflight_request.timer = self.shell.loop.call_later(timeout, self._flight_overdue, inflight_request)
        if feed.left is not None:
            feed.left += 1
        feed.buffer.appendleft(self.request(inflight_request, timeout))
        self.shell.refill(feed)

    def _flight_overdue(self, inflight_request: InflightRequest) -> None:
        """The time of a request that was sent again is over. It may still be in the queue."""
        inflight_request.timer = None
        self.release(inflight_request)
        self.timed_out(
            inflight_request,
            with_trail(late(self._terms.timeout, inflight_request.ask.judge_model.model), inflight_request.sample_request.trail),
        )

    # results

    async def _carry(self, attempt: Attempt) -> Sent:
        """Send an attempt. The timeout of an item with several requests starts with the first of them."""
        task = attempt.task
        if isinstance(task, SampleTask) and self._terms.timeout is not None:
            for poll, _ in task.inflight_request.seats:
                if poll.owner is self and poll.timer is None:
                    poll.until = task.deadline
                    self.watch_over(poll)
        return await self.shell.wire.send(attempt.source.handle, task.payload)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if task not in self.requests:
            return
        self._tallies.add_request(result_of(task, outcome, source, seconds))
        assert isinstance(task, SampleTask)
        for poll, _ in task.inflight_request.seats:
            if poll.begun is None:
                poll.born, poll.begun = task.born, task.sent_at
        super().finish(task, outcome, source, seconds)

    def release(self, inflight_request: InflightRequest) -> None:
        task = inflight_request.task
        if task is not None:
            self._tallies.add_cancelled(attempt for attempt in (task.attempt, task.copy) if attempt is not None)
        super().release(inflight_request)

    def decided(self, poll: JudgeItem, decided: Any) -> None:
        self._polls.pop(poll, None)
        begun = poll.begun
        queued = 0.0 if begun is None else begun - poll.born
        error = error_of(decided)
        if error is None:
            answer = JudgeAnswer(self._outcome(poll, decided), poll.usage)
            seconds = 0.0 if begun is None else self.shell.engine.clock() - begun
            result: Result[Any] = Result(poll.index, answer, None, poll.endpoint, seconds, queued, poll.trail, poll.extra)
        else:
            result = Result(poll.index, None, error, poll.endpoint, 0.0, queued, poll.trail, poll.extra)
        self._settle(result)
        self._end_if_done()

    # ending

    def _end_if_done(self) -> None:
        if not self._feed.ended or self._ending:
            return
        for feed in self._others.values():
            if not feed.ended:
                feed.ended = True
                self._end_trying(feed)
        if not self._polls and not self._done.done():
            self._done.set_result(None)

    def _leave(self, expiry: asyncio.TimerHandle | None) -> None:
        polls, self._polls = list(self._polls), {}
        for poll in polls:
            poll.leave()
        super()._leave(expiry)

    def abandon(self) -> list[Task]:
        for feed in self._feeds():
            self.shell.close_feed(feed)
        begun = [task for task in self.requests if task.state is not TaskState.NEW]
        self.requests.clear()
        return begun

    def _drop_unstarted(self) -> None:
        self._feed.ended = True
        for poll in list(self._polls):
            tasks = [inflight_request.task for inflight_request in poll.inflight.values()]
            if poll.begun is None and all(task is None or task.state is TaskState.NEW for task in tasks):
                del self._polls[poll]
                poll.leave()

    def _stop(self, why: Callable[[], QRewardError]) -> None:
        for feed in self._feeds():
            self.shell.close_feed(feed)
        for poll in list(self._polls):
            poll.end(why())
        super()._stop(why)


def _as_ours(error: Exception, index: int) -> QRewardError:
    if isinstance(error, QRewardError):
        error.args = (f"item {index}: {error}", *error.args[1:])
        return error
    wrapped = BadRequest(f"item {index} cannot be judged ({type(error).__name__}: {error}); see __cause__")
    wrapped.__cause__ = error
    return wrapped


class SingleRunner(Dispatcher):
    """Judges one item."""

    def __init__(
        self,
        shell: LoopDriver,
        table: dict[Hashable, InflightRequest],
        terms: RequestOptions,
        pools: dict[JudgeModel, Pool],
        keep: Keep | None,
        born: float,
    ) -> None:
        self._sit(shell, table, terms, pools, keep)
        self.context = copy_context()
        self._born = born
        self._poll: JudgeItem | None = None

    async def outcome(self, asks: Sequence[JudgeRequest], decide: Decide, known: Sequence[Vote | None]) -> tuple[JudgeItem, Any]:
        """Send the requests of an item and wait for the outcome.

        If the caller is cancelled, the requests that no other item waits for are cancelled too.

        Args:
            known: votes from the cache, by place.

        Returns:
            The item and its aggregated votes.

        Raises:
            QRewardError: the item failed.
        """
        shell = self.shell
        until = inf if self._terms.timeout is None else self._born + self._terms.timeout
        poll = self._poll = JudgeItem(asks, decide, self, 0, self._born, until)
        self._waiter = shell.loop.create_future()
        shell.sinks[self] = None
        try:
            self.begin(poll, known)
            decided = await self._waiter
        except GeneratorExit:  # discarded, perhaps by the garbage collector while this thread holds the engine's lock
            shell.later(self._leave)
            raise
        except BaseException:
            self._leave()
            raise
        self._leave()
        error = error_of(decided)
        if error is not None:
            raise error
        return poll, decided

    def _leave(self) -> None:
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.leave()
        self.shell.sinks.pop(self, None)

    def decided(self, poll: JudgeItem, decided: Any) -> None:  # noqa: ARG002 - there is one item
        if not self._waiter.done():
            self._waiter.set_result(decided)

    def send(self, inflight_request: InflightRequest, *, again: bool) -> None:  # noqa: ARG002 - the request of a single call is sent at once
        poll = self._poll
        timeout = self._terms.timeout
        if poll is not None and timeout is not None:
            timeout = poll.until - self.shell.engine.clock()
            if timeout <= 0:
                inflight_request.end(late(self._terms.timeout, inflight_request.ask.judge_model.model))
                return
        self.shell.submit(self.request(inflight_request, timeout))

    # called by the driver

    def start(self, attempt: Attempt) -> None:
        self.shell.spawn(attempt, self.context.copy())

    def read(self, feed: BatchFeed) -> bool:
        raise AssertionError(f"a single call has no feed: {feed}")

    def close(self) -> None:
        error = ClientClosed("the client was closed before the verdict was there")
        tasks, self.requests = list(self.requests), {}
        self.shell.withdraw(tasks, error)
        if self._poll is not None:
            self._poll.end(error)

    def abandon(self) -> list[Task]:
        tasks, self.requests = list(self.requests), {}
        return tasks
