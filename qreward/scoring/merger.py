"""Merge waiting items into requests, and distribute each answer or error among the items of its request."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from math import ceil, inf
from typing import Any, cast

from qreward.batching.collector import OVER, WAITING, halves
from qreward.batching.in_flight import own_error
from qreward.codecs.rewards.base import may_have_a_bad_item, splits
from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import LoopDriver
from qreward.engine.snapshots import result_of
from qreward.errors import ClientClosed, InvalidResponse, QRewardError, RequestError, RequestTimeout
from qreward.results import AttemptRecord, BatchResult, Result
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, RequestOptions, Task, TaskState
from qreward.scheduler.why import queue_full_error, timeout_error
from qreward.scoring import sizing
from qreward.scoring.merge_queue import MergedItem, MergedRequest, MergeQueue, Split
from qreward.scoring.merge_spec import MergeSpec
from qreward.scoring.sizing import LearnedLimits
from qreward.settings.policies import Priority

AHEAD = 4 * sizing.MOST
"""Maximum number of items that batches read ahead. Reading continues when fewer than half of this number of items wait."""


class RequestMerger:
    """Merges items into requests, and receives the outcomes of these requests (see ``engine.driver.Waiter``)."""

    def __init__(
        self,
        driver: LoopDriver,
        pool: Pool,
        spec: MergeSpec,
        known: LearnedLimits,
        *,
        attempts: int,  # failed attempts after which a merged request fails or is split
        most_waiting: int | None,  # requests that may wait for the pool, including single items
        idle: Callable[[], object],  # called when the merger has neither items nor batches left
    ) -> None:
        self.driver = driver
        self.context = Context()
        self.spec = spec
        self.queue = MergeQueue(pool, spec, known)
        self.batches: dict[MergedBatchWaiter, None] = {}
        self._pool, self._attempts, self._most_waiting, self._idle = pool, attempts, most_waiting, idle
        self._timer: TimerHandle | None = None
        self._timer_at = inf
        self._live: dict[MergedItem, None] = {}  # items that are not over
        self._soon = False

    # adding items

    def put(self, items: list[MergedItem], *, batch: bool = False) -> None:
        """Add items. They are submitted in the next iteration of the event loop, so that all items of one iteration can be merged."""
        engine, watch = self.driver.engine, self.driver.watch
        if self._most_waiting is not None and not batch:
            with engine.lock:
                if self.queue.waiting_in_pool() >= self._most_waiting:
                    raise queue_full_error(engine.clock(), self._pool, self._most_waiting)
        if watch is not None:
            for item in items:
                watch.began(item)
        with engine.lock:
            self.queue.put(engine.clock(), items, self, batch=batch)
        self.driver.waiters[self] = None
        self._live.update(dict.fromkeys(items))
        self._continue_soon()

    # submitting merged requests

    def _continue_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self.driver.loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Let batches read ahead, and submit a merged request for each lane that needs one."""
        self._soon = False
        if not self._live and not self.batches:
            return
        if self.queue.waiting < AHEAD // 2:
            for batch in list(self.batches):
                batch.more()
        unread, engine = sum(batch.unread() for batch in self.batches), self.driver.engine
        with engine.lock:
            wanted, pause_end = self.queue.needs(unread)
            paused = pause_end > engine.clock()
        if wanted:
            self.driver.locked(self._submit, paused)
        with engine.lock:
            wake = self.queue.deadlines.next()
        self._wake_at(min(wake, pause_end) if paused else wake)

    def _submit(self, now: float, paused: bool) -> None:
        """Submit an unfilled merged request for each lane with waiting items, and the next one if it is sent at once."""
        for lane in self.queue.lanes.values():
            if paused and lane.feed is None and lane.level >= Priority.NORMAL:
                continue
            while lane.waiting and lane.request is None:
                lane.request = MergedRequest(self._pool, lane, self)
                self._hand_in(now, lane.request)

    def _hand_in(self, now: float, request: MergedRequest) -> None:
        """Submit a merged request. In a lane of batches, a request with items goes before unfilled ones."""
        scheduler, feed, queue = self.driver.engine.scheduler, request.lane.feed, self.queue
        if feed is None:
            request.state = TaskState.WAITING  # the state NEW is not used, because the queue limit counts items, not merged requests
            scheduler.submit(now, request)
            return
        if request.members:
            feed.buffer.appendleft(request)
        else:
            feed.buffer.append(request)
        feed.ended = not queue.unread
        feed.left = None if queue.unread == inf else len(feed.buffer) + ceil((queue.waiting + queue.unread) / sizing.MOST)
        scheduler.refill(now, feed)

    def _wake_at(self, wake: float) -> None:
        if wake == inf or (self._timer is not None and wake >= self._timer_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake
        self._timer = self.driver.loop.call_later(max(0.0, wake - self.driver.engine.clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self.driver.engine.clock()
        with self.driver.engine.lock:
            late = self.queue.deadlines.due(now)
        self.end(late, partial(timeout_error, now), late=True)
        self._continue()

    # called by the loop driver

    def start(self, attempt: Attempt) -> None:
        self.driver.spawn(attempt, self.context.copy(), self)

    async def execute(self, attempt: Attempt) -> Outcome:
        """Make one attempt. A failure that one item may have caused becomes ``REFUSED``: the request is split, not retried as a whole."""
        self._continue()
        request, source = cast("MergedRequest", attempt.task), attempt.source
        count = len(request.members)
        outcome: Outcome = await self.driver.backend.send(source.handle, request.payload)
        if not isinstance(outcome, Failure):
            return outcome
        kind, request.misconfigured = outcome.kind, outcome.misconfigured
        if kind is FailureKind.OVERLOADED and outcome.retry_after is None and source.inflight == 1:
            with self.driver.engine.lock:
                self.queue.record_rejection(source, count)
        if splits(outcome, count):
            request.refused_by = source
            kind = FailureKind.REFUSED
        elif kind is FailureKind.TRANSIENT and isinstance(outcome.error, RequestError) and outcome.error.status_code is not None:
            # sent whole once more, because most failures of servers are not the fault of an item
            if count > 1 and (request.split is not None or request.tries) and may_have_a_bad_item(outcome.error):
                kind = FailureKind.REFUSED
            elif (
                request.split is not None and request.split.others_served
            ):  # LOCAL: the retry does not count against the health of the endpoint
                kind = FailureKind.LOCAL
        return outcome if kind is outcome.kind else Failure(kind, outcome.error, limits=outcome.limits)

    def read(self, feed: BatchFeed) -> bool:  # noqa: ARG002 - merged requests are submitted when items are added
        return False

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        request = cast("MergedRequest", task)
        with self.driver.engine.lock:
            self.queue.unqueue(request)
            if isinstance(outcome, Answer) and source is not None:
                self.queue.record_answer(request, source, seconds)
        if isinstance(outcome, Answer) and source is not None:
            self._share(request, outcome, source, seconds)
        elif isinstance(outcome, QRewardError):
            if len(request.members) > 1 and not request.misconfigured and may_have_a_bad_item(outcome):
                self._split(request)
            else:  # a request without items fails if no endpoint is left that could fill it; then all waiting items fail
                items = request.left() if request.members else [item for item in self._live if item.place is WAITING]
                self.end(items, lambda _: outcome if len(items) == 1 else cast("QRewardError", own_error(outcome)))
        self._continue_soon()
        self._rest_if_idle()

    def close(self) -> None:
        self.end(self._live, lambda _: ClientClosed("the client was closed before the request was done"))

    def abandon(self) -> list[Task]:
        with self.driver.engine.lock:
            loaded = {item.request: None for item in self._live if item.request is not None}
            left: list[Task] = [*loaded, *self.queue.unfilled()]
        self._live.clear()
        self.batches.clear()
        self._rest_if_idle()
        return left

    # the outcome of a merged request

    def _share(self, request: MergedRequest, answer: Answer, source: Source, seconds: float) -> None:
        shares = self.spec.shares(answer.value, [item.payload for item in request.members])
        again: list[MergedItem] = []
        for item, share in zip(request.members, shares, strict=True):
            if item.place is OVER:
                continue
            if isinstance(share, InvalidResponse) and self._attempts > 1:
                item.detach()
                item.trail = [*(item.trail or ()), AttemptRecord(source.name, "transient", seconds, share.status_code, str(share))]
                item.last_error = share
                again.append(item)
                continue
            item.end()
            del self._live[item]
            self._report(item, share if isinstance(share, InvalidResponse) else Answer(share), source, seconds)
        for item in again:  # each item is sent alone, as an ordinary request
            self._send_again([item], 1, Split(None, 1, True))

    def _split(self, request: MergedRequest) -> None:
        """Send the items again in two halves. Repeated splits finally send an invalid item alone."""
        items = request.left()
        tries = max(0, self._attempts - 2) if request.tries >= self._attempts else 0
        parts = halves(items)
        split = Split(
            request.refused_by if len(items) > 1 else None, len(parts[0]), request.split is not None and request.split.others_served
        )
        for part in filter(None, parts):
            self._send_again(part, tries, split)

    def _send_again(self, items: Sequence[MergedItem], tries: int, split: Split) -> None:
        request = MergedRequest(self._pool, items[0].lane, self, items, split)
        request.tries = tries
        for item in items:
            item.attach(request)
        request.last_error, request.sent_at = items[0].last_error, items[0].sent_at
        self.driver.locked(self._hand_in, request)

    def _report(self, item: MergedItem, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self.driver.watch is not None:
            self.driver.watch.done(item, outcome, source)
        item.waiter.finish(item, outcome, source, seconds)

    # ending early

    def end(self, items: Iterable[MergedItem], error_of: Callable[[MergedItem], QRewardError] | None = None, *, late: bool = False) -> None:
        """End items that wait or were sent. Withdraw merged requests whose items are then all over."""
        items = [item for item in items if item.place is not OVER]
        if not items:
            return
        engine = self.driver.engine
        empty: list[Task] = []
        with engine.lock:
            for item in items:
                request = item.request
                if item.place is WAITING:
                    self.queue.remove(item)
                item.end(engine.clock() if late else None)
                self._live.pop(item, None)
                if request is not None and request.lost_one() and request.state is not TaskState.DONE:
                    self.queue.unqueue(request)
                    empty.append(request)
            errors = [] if error_of is None else list(map(error_of, items))
        if errors and isinstance(errors[0], RequestTimeout):
            for task in empty:
                task.deadline = engine.clock()
        self._withdraw(empty, errors[0] if errors else None)
        if error_of is None and self.driver.watch is not None:
            self.driver.watch.withdrawn(items)
        for item, error in zip(items, errors, strict=False):
            self._report(item, error, None, 0.0)
        if not self.driver.loop.is_closed():
            self._continue_soon()
        self._rest_if_idle()

    def _withdraw(self, requests: list[Task], error: QRewardError | None = None) -> None:
        if requests and not self.driver.loop.is_closed():
            self.driver.withdraw(requests, error)

    def _rest_if_idle(self) -> None:
        """If neither items nor batches are left, cancel the timer, withdraw unfilled requests, and leave the loop driver."""
        if self._live or self.batches:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self.driver.engine.lock:
            unfilled = self.queue.unfilled()
            lanes, self.queue.lanes = self.queue.lanes, {}
        self._withdraw(unfilled)
        for lane in lanes.values():
            if lane.feed is not None:
                self.driver.close_feed(lane.feed)
        self.driver.waiters.pop(self, None)
        self._idle()

    def detach(self, batch: MergedBatchWaiter) -> None:
        self.batches.pop(batch, None)
        self._rest_if_idle()


class ItemWaiter:
    """Receives the results of the items of one call."""

    __slots__ = ("_left", "_results", "_waiter", "context", "driver")

    def __init__(self, driver: LoopDriver) -> None:
        self.driver = driver
        self.context = copy_context()

    async def results(self, merger: RequestMerger, items: list[MergedItem]) -> list[Result[Any]]:
        """Send the items, and return their results. Raises the first error. If the caller is cancelled, unfinished items are dropped."""
        self._results: list[Any] = [None] * len(items)
        self._left = len(items)
        self._waiter = self.driver.loop.create_future()
        merger.put(items)
        try:
            await self._waiter
        except GeneratorExit:  # the garbage collector may close this coroutine while the engine's lock is held
            self.driver.later(partial(merger.end, items))
            raise
        except BaseException:
            merger.end(items)
            raise
        return self._results

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self._waiter.done():
            return
        result = result_of(task, outcome, source, seconds)
        if result.error is not None:
            self._waiter.set_exception(result.error)
            return
        self._results[task.index] = result
        self._left -= 1
        if not self._left:
            self._waiter.set_result(None)


class _ItemOptions(RequestOptions):
    __slots__ = ()

    def task(self, payload: Any, pool: Pool, waiter: Any, index: int) -> MergedItem:
        return MergedItem(payload, pool, self, waiter, index)


class MergedBatchWaiter(BatchWaiter):
    """A batch whose items share requests. They wait in the ``RequestMerger`` of their merge key, which ``find`` returns."""

    def __init__(
        self,
        driver: LoopDriver,
        *args: Any,
        request_options: RequestOptions,
        spec: MergeSpec,
        find: Callable[[Hashable], RequestMerger],
        **kwargs: Any,
    ) -> None:
        super().__init__(driver, *args, request_options=_ItemOptions(*request_options), **kwargs)
        self._spec, self._find = spec, find
        self._mergers: dict[Hashable, RequestMerger] = {}

    async def run(self) -> BatchResult[Any]:
        try:
            return await super().run()
        finally:
            for merger in self._mergers.values():
                merger.detach(self)

    # called by the mergers

    @property
    def opened_at(self) -> float:
        return self._feed.opened_at

    def more(self) -> None:
        if self._feed.failing is None and self._room(self._feed) > 0:
            self.read(self._feed)

    def took(self) -> None:
        """Record that an item was sent for the first time."""
        if self._feed.left:
            self._feed.left -= 1

    def unread(self) -> float:
        if self._feed.ended:
            return 0
        return inf if self._size is None else max(0, self._size - self._read)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if task in self._live:  # otherwise the item was dropped while other items were being finished
            super().finish(task, outcome, source, seconds)

    def abandon(self) -> list[Task]:
        left = super().abandon()
        self._end(left)
        return left

    # reading

    def read(self, feed: BatchFeed) -> bool:
        self._end_trying(feed)
        return super().read(feed)

    def _read_now(self, feed: BatchFeed) -> bool:
        super()._read_now(feed)
        self._hand_over(feed)
        if feed.ended:
            self._end_trying(feed)
        return True

    def _room(self, feed: BatchFeed) -> int:
        return AHEAD - len(feed.incoming) - sum(merger.queue.waiting for merger in self._mergers.values())

    def _add(self, feed: BatchFeed, item: Any) -> None:
        super()._add(feed, item)
        if self._is_async:
            self._hand_over(feed)

    def _hand_over(self, feed: BatchFeed) -> None:
        fresh = self._by_key(feed.incoming)
        feed.incoming.clear()
        for key, items in fresh.items():
            if key not in self._mergers:
                self._mergers[key] = self._find(key)
                self._mergers[key].batches[self] = None
            self._mergers[key].put(items, batch=True)

    # ending early

    def _drop_unstarted(self) -> None:
        super()._drop_unstarted()
        unsent = self._waiting()
        for task in unsent:
            del self._live[task]
        self._end(unsent)

    def _is_trying(self, feed: BatchFeed) -> bool:
        return bool(feed.incoming or self._waiting())

    def _end_trying(self, feed: BatchFeed) -> None:
        """Fail the items that wait in the mergers if no endpoint is alive, but one, whose attempts show when an endpoint is back."""
        failing = feed.failing
        if failing is not None:
            self._end(self._waiting()[not feed.ended :], lambda _: failing())

    def _end(self, tasks: Iterable[Task], error_of: Callable[[MergedItem], QRewardError] | None = None) -> None:
        for key, items in self._by_key(tasks).items():
            if key in self._mergers:
                self._mergers[key].end(items, error_of)

    def _waiting(self) -> list[Task]:
        return [task for task in self._live if cast("MergedItem", task).place is WAITING]

    def _by_key(self, tasks: Iterable[Task]) -> dict[Hashable, list[MergedItem]]:
        groups: dict[Hashable, list[MergedItem]] = {}
        for task in tasks:
            groups.setdefault(self._spec.key(task.payload), []).append(cast("MergedItem", task))
        return groups
