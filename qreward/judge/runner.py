"""Judge one item (``SingleCall``) or a batch of items (``BatchRunner``) for one caller.

An item of a plain ``BatchWaiter`` is one request. An item of ``BatchRunner`` may need several requests to several models, and a request
may be sent more than once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from math import inf
from typing import Any

from qreward.engine.batch import BatchProgress, BatchWaiter
from qreward.engine.driver import LoopDriver
from qreward.engine.snapshots import ItemTallies, result_of
from qreward.errors import BadRequest, QRewardError
from qreward.judge.ranking import Ranking
from qreward.judge.requests import RequestBuilder
from qreward.judge.sampling import JudgeRequest, ReadItem
from qreward.judge.singleflight import Caller, JudgeItem, SampleTask, SharedRequest, SingleFlight
from qreward.judge.types import Comparison, Verdict, Vote
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.state import Attempt, BatchFeed, Pool, RequestOptions, Source, Task

MOST_AHEAD = 8192
"""Number of requests in the queue of one model at which a batch with several models reads no more items. Below this number, items are read
although a slow model has a long queue, so that the faster models get work."""


class SingleCall(Caller):
    """Judges one item."""

    def __init__(
        self,
        driver: LoopDriver,
        flights: SingleFlight,
        options: RequestOptions,
        pools: Mapping[str, Pool],
        builder: RequestBuilder,
        born: float,
    ) -> None:
        self.driver, self.flights, self.options, self.pools, self.decide = driver, flights, options, pools, builder.decide
        self.context = copy_context()
        self._builder, self._born = builder, born

    async def run(self, requests: Sequence[JudgeRequest], known: Sequence[Vote | None]) -> Any:
        """Send the requests of an item that have no cached vote, and return the verdict or comparison. Raises the error of the item.

        If the caller is cancelled, the requests for which no other item waits are cancelled too.
        """
        until = inf if self.options.timeout is None else self._born + self.options.timeout
        item = JudgeItem(self, requests, born=self._born, until=until)
        self._decided = self.driver.loop.create_future()
        try:
            item.begin(known)
            decided = await self._decided
        except GeneratorExit:  # the coroutine is discarded, perhaps while this thread holds the engine's lock
            self.driver.later(item.leave)
            raise
        except BaseException:
            item.leave()
            raise
        if isinstance(decided, QRewardError):
            raise decided
        return self._builder.result(decided, item.usage, cached=not item.sent)

    def on_decided(self, item: JudgeItem, outcome: Any) -> None:  # noqa: ARG002 - there is one item
        if not self._decided.done():
            self._decided.set_result(outcome)


class JudgeAnswer:
    """Holds a verdict, comparison or ranking as the answer of a ``Result``."""

    __slots__ = ("estimated", "usage", "value")

    def __init__(self, value: Verdict | Comparison | Ranking, *, estimated: bool = False) -> None:
        self.value, self.usage, self.estimated = value, value.usage, estimated

    def build(self) -> Verdict | Comparison | Ranking:
        return self.value

    def text(self) -> str:
        """Return the text of the first vote."""
        votes = getattr(self.value, "votes", ())
        return votes[0].text if votes else ""


class ResultCollector:
    """Collects the results of a batch of a cascade or of rankings, whose requests are sent by other batches.

    Args:
        on_result: function that receives each result; None for no function.
        progress: shows how many items are done; None for no display.
        keep: True if the results are kept for :meth:`batch`.
    """

    def __init__(self, on_result: Callable[[Result[Any]], object] | None, progress: BatchProgress | None, *, keep: bool) -> None:
        self._on_result, self._progress, self._keep = on_result, progress, keep
        self._results: dict[int, Result[Any]] = {}
        self._ok = self._failed = 0

    def add(self, result: Result[Any]) -> None:
        """Count a result, keep it, and pass it on. Raises what ``on_result`` and ``progress`` raise."""
        self._ok += result.ok
        self._failed += not result.ok
        if self._keep:
            self._results[result.index] = result
        if self._progress is not None:
            self._progress.add(result)
        if self._on_result is not None:
            self._on_result(result)

    def refresh(self) -> None:
        """Show the progress again."""
        if self._progress is not None:
            self._progress.refresh()

    def close(self) -> None:
        """End the progress."""
        if self._progress is not None:
            self._progress.close()

    def batch(self, stats: BatchStats) -> BatchResult[Any]:
        """Return the kept results in the order of the input, with these statistics and the counts of the results."""
        counted = replace(stats, items=self._ok + self._failed, ok=self._ok, failed=self._failed)
        return BatchResult([self._results[index] for index in sorted(self._results)], counted)

    def interrupted(self, error: BaseException, read: str, stats: BatchStats) -> BatchInterrupted:
        """Return the error of a batch that ``error`` stopped. ``read`` says how many items were read, such as ``8 groups``."""
        what = f"{type(error).__name__}: {error}"
        return BatchInterrupted(f"the batch stopped after {read} ({what}); .results holds what is done", self.batch(stats))


class BatchRunner(Caller, BatchWaiter):
    """Judges a batch of items. See :class:`BatchWaiter` for the other arguments.

    Args:
        driver, flights, options, pools: see :class:`Caller`.
        items: the items; or ``ReadItem`` objects, if the cache was asked for votes.
        builder: makes the requests of an item.
        size: number of items; None if the number is not known.
        waited: seconds of the deadline that have passed already.
    """

    has_feed = True
    _read_at_once = 1

    def __init__(
        self,
        driver: LoopDriver,
        flights: SingleFlight,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        builder: RequestBuilder,
        options: RequestOptions,
        pools: Mapping[str, Pool],
        size: int | None,
        waited: float = 0.0,
        **kwargs: Any,
    ) -> None:
        BatchWaiter.__init__(self, driver, next(iter(pools.values())), items, builder.read, request_options=options, **kwargs)
        self.flights, self.options, self.pools, self.decide = flights, options, pools, builder.decide
        self.execute = self._send_timed if builder.per_item > 1 else None
        self._tallies: ItemTallies = ItemTallies()
        self._size, self._builder, self._waited = size, builder, waited
        self._open: dict[JudgeItem, None] = {}
        self._others: dict[Pool, BatchFeed] = {}  # for the models that are not in the pool of the first model

    # reading

    def _read_now(self, feed: BatchFeed) -> bool:
        if self._feed.ended or self._room(feed) > 0:  # otherwise the queue of another model is full, and nothing is read
            if not super()._read_now(self._feed) and self._feed.ahead():
                return False
            self._refill(but=feed)
            return feed.ahead() > 0 or feed.failing is not None
        return feed.ahead() > 0

    def _room(self, feed: BatchFeed) -> int:  # noqa: ARG002 - the shortest buffer of all models counts
        feeds = self._feeds()
        waiting = [each.ahead() for each in feeds]
        return max(each.read_ahead for each in feeds) - min(waiting) if max(waiting) < MOST_AHEAD else 0

    def _feeds(self) -> list[BatchFeed]:
        return [self._feed, *self._others.values()]

    def _feed_of(self, pool: Pool) -> BatchFeed:
        if pool is self._pool:
            return self._feed
        feed = self._others.get(pool)
        if feed is None:
            options = self.options
            feed = self._others[pool] = BatchFeed(pool, options.level, self, self.driver.engine.clock(), options.tenant, options.timeout)
            feed.left = self._requests_left(pool)
            self.driver.locked(self.driver.engine.scheduler.attend, feed)
        return feed

    def _requests_left(self, pool: Pool) -> int | None:
        """Return the maximum number of requests that are left for a pool; None if the number is unknown.

        If items share requests, fewer requests are left.
        """
        if self._size is None:
            return None
        return self._size * sum(each for model, each in self._builder.per_model.items() if self.pools[model] is pool)

    def _refill(self, but: BatchFeed | None = None) -> None:
        for feed in self._feeds():
            if feed is not but and feed.incoming:
                self.driver.refill(feed)

    def _add(self, feed: BatchFeed, item: Any) -> None:
        if not self._read:
            self._feed.left = self._requests_left(self._pool)
        index = self._next_index()
        known = item if type(item) is ReadItem else self._prepare(item)
        if isinstance(known.requests, Exception):
            error = as_ours(known.requests, f"item {index}", "judged")
            self._settle(Result(index, None, error, None, 0.0, 0.0, extra=known.extra))
            return
        judged = JudgeItem(self, known.requests, index=index, born=self.driver.engine.clock(), extra=known.extra)
        self._open[judged] = None
        judged.begin(known.votes)
        if self._is_async:
            self._refill(but=feed)

    # requests

    def enqueue(self, request: SharedRequest, *, again: bool) -> None:
        """Append a request to the feed of its model. A request that was sent before is put first."""
        feed, timeout = self._feed_of(request.pool), self.options.timeout
        failing = feed.failing  # another thread may set it to None
        if failing is not None and feed.ahead():
            self.finish(request.new_task(self, timeout), failing(), None, 0.0)
            return
        if not again:
            feed.read(request.new_task(self, timeout))
            return
        if (until := request.latest()) < inf:
            timeout = until - self.driver.engine.clock()
        for item, _ in request.waiters:  # their deadline may pass while the request is still in the queue
            item.start_timer()
        self.driver.refill(feed, [request.new_task(self, timeout)])

    def withdrawn(self, task: Task) -> None:
        self._tallies.add_cancelled((task.attempt, task.copy))

    async def _send_timed(self, attempt: Attempt) -> Outcome:
        """Send an attempt. The timeout of an item starts with its first request."""
        task = attempt.task
        if isinstance(task, SampleTask) and self.options.timeout is not None:
            for item in self._own_items(task):
                item.start_timer()
        return await self.driver.backend.send(attempt.source.handle, task.payload)

    def _own_items(self, task: SampleTask) -> list[JudgeItem]:
        return [item for item, _ in task.request.waiters if item.caller is self]

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, SampleTask)
        if task is not task.request.task:
            return
        self._tallies.add_request(result_of(task, outcome, source, seconds))
        for item in self._own_items(task):
            item.until = min(item.until, task.deadline)
            if item.begun is None:
                item.born, item.begun = task.born, task.sent_at
        task.request.finish(task, outcome, source, seconds)

    # results

    def on_decided(self, item: JudgeItem, outcome: Any) -> None:
        self._open.pop(item, None)
        queued, seconds, answer, trail = 0.0 if item.begun is None else item.begun - item.born, 0.0, None, item.trail
        error = outcome if isinstance(outcome, QRewardError) else None
        if error is None:
            answer = JudgeAnswer(self._builder.result(outcome, item.usage, cached=not item.sent))
            seconds = 0.0 if item.begun is None else self.driver.engine.clock() - item.begun
            trail = trail if item.answered is None else (*trail, item.answered)
        self._settle(Result(item.index, answer, error, item.endpoint, seconds, queued, trail, item.extra))
        self._end_if_done()

    # ending

    def _end_if_done(self) -> None:
        if not self._feed.ended or self._ending:
            return
        for feed in self._others.values():
            if not feed.ended:
                feed.ended = True
                self._end_trying(feed)
        if not self._open and not self._done.done():
            self._done.set_result(None)

    def _leave(self, expiry: asyncio.TimerHandle | None) -> None:
        items, self._open = list(self._open), {}
        for item in items:
            item.leave()
        super()._leave(expiry)

    def close(self) -> None:
        for request in self._own_requests():
            request.close()
        super().close()

    def abandon(self) -> list[Task]:
        for feed in self._feeds():
            self.driver.close_feed(feed)
        return [task for request in self._own_requests() for task in request.abandon()]

    def _own_requests(self) -> list[SharedRequest]:
        requests = dict.fromkeys(request for item in self._open for request in item.inflight.values())
        return [request for request in requests if request.batch is self]

    def _drop_unstarted(self) -> None:
        self._feed.ended = True
        for item in list(self._open):
            if item.begun is None and not any(request.is_begun() for request in item.inflight.values()):
                del self._open[item]
                item.leave()

    def _stop(self, make_error: Callable[[], QRewardError]) -> None:
        for feed in self._feeds():
            self.driver.close_feed(feed)
        self._ending = True  # after the last open item, the items that were not read get an error too
        for item in list(self._open):
            item.end(make_error())
        super()._stop(make_error)


def as_ours(error: Exception, item: str, done: str) -> QRewardError:
    """Return the error of an invalid item. The message begins with ``item``, such as ``item 3``. ``done`` is ``judged`` or ``ranked``."""
    if isinstance(error, QRewardError):
        error.args = (f"{item}: {error}", *error.args[1:])
        return error
    wrapped = BadRequest(f"{item} cannot be {done} ({type(error).__name__}: {error}); see __cause__")
    wrapped.__cause__ = error
    return wrapped
