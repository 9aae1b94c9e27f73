"""Merge waiting items into requests, and distribute each answer or error among the items of its request."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import Any, cast

from qreward.batching.collector import ALL, OVER, WAITING, Collector, KeyQueue, halves
from qreward.batching.in_flight import own_error
from qreward.codecs.rewards.base import MergeLimits, may_have_a_bad_item, splits
from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import LoopDriver, Waiter, result_of
from qreward.engine.instrumentation import REPORTED
from qreward.errors import ClientClosed, InvalidResponse, QRewardError, RequestError, RequestTimeout
from qreward.results import AttemptRecord, Result
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome
from qreward.scheduler.pool import Pool, deadline
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, RequestOptions, Task, TaskState
from qreward.scheduler.why import queue_full_error, timeout_error
from qreward.scoring import sizing
from qreward.scoring.merge_spec import MergeSpec
from qreward.scoring.sizing import EndpointLimits, LearnedLimits
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Priority

Class = tuple[int, bool]
"""The class of an item or request: its priority level, and whether it belongs to a batch. Items of one class share requests."""
AHEAD = 4 * sizing.MOST
"""Maximum number of items that batches read ahead. Reading continues when fewer than half of this number of items wait."""


class MergedItem(Task):
    """One item, as a task whose outcome its caller receives. The scheduler sends another task, the ``MergedRequest`` with the item."""

    __slots__ = ("_since", "arrived", "key", "merger", "request")
    cost = 1

    def __init__(self, payload: Any, pool: Pool, options: RequestOptions, waiter: Any, index: int, *, batch: bool = False) -> None:
        super().__init__(payload, pool, options.level, options.timeout, waiter, index, options.tenant)
        self.hedge = options.hedge
        self.key: Class = options.level, batch
        self.arrived = 0.0
        self.merger: RequestMerger | None = None
        self.request: MergedRequest | None = None
        self._since = 0, 0  # length of ``trail``, and number of ``sends``, of the request when the item joined it

    def attach(self, request: MergedRequest) -> None:
        self.detach()
        self.request = request
        self._since = 0 if request.trail is None else len(request.trail), request.sends

    def detach(self) -> None:
        """Remove the item from its merged request, and add the attempts that it made with the request to its own."""
        request = self.request
        if request is None:
            return
        self.request = None
        tried, sent = self._since
        self.sends += request.sends - sent
        if request.last_error is not None:
            self.last_error = request.last_error
        if request.trail is not None and len(request.trail) > tried:
            self.trail = [*(self.trail or ()), *request.trail[tried:]]

    def end(self, overdue_at: float | None = None) -> None:
        """Mark the item as over. ``overdue_at`` is the time at which its timeout has passed, if that is the reason."""
        request = self.request
        self.detach()
        if overdue_at is not None and request is not None:
            self.trail = [*(self.trail or ()), *unanswered(request, overdue_at)]
        self.state = OVER


@dataclass(slots=True, eq=False, repr=False)
class Split:
    """The split of a failed merged request into two parts. If both are answered, the request had too many items for ``source``."""

    source: Source | None  # the endpoint that refused the request; None if no endpoint refused it
    length: int  # number of items of the longer part
    others_served: bool = False  # other items of the request were answered, so an item is the cause if a part fails later
    open: int = 2  # parts that are not answered


class MergedRequest(Task):
    """One request with the items of several calls."""

    __slots__ = ("key", "members", "misconfigured", "refused_by", "split")

    def __init__(self, key: Class, merger: RequestMerger, members: Sequence[MergedItem] = (), split: Split | None = None) -> None:
        super().__init__(merger.spec.blank, merger.pool, key[0], None, merger, 0, merger.tenant)
        self.key, self.split = key, split
        self.members = list(members)  # including items that are over
        self.refused_by: Source | None = None  # the endpoint that refused the request
        self.misconfigured = False  # the endpoint of the last attempt is configured wrongly, so parts of the request would fail too

    def bind(self, now: float, source: Source) -> bool:
        """Fill the request just before it is sent. Return False if there are no items."""
        filled: bool = self.waiter.fill(now, self, source)
        return filled

    def left(self) -> list[MergedItem]:
        return [item for item in self.members if item.state is not OVER]

    def hold(self, items: list[MergedItem]) -> None:
        """Set the items of the next attempt. Observers see a request with one item as its call, and any other as a batch."""
        if len(items) > 1 and self.serial == items[0].serial > 0:  # was the call of this item, which now ends by itself
            items[0].end_reported = 0
        self.members, self.items, self.size = items, tuple(items), len(items)
        if not self.serial and len(items) == 1 and items[0].serial > 0:
            alone = items[0]
            self.serial, self.span, self.items, alone.end_reported = alone.serial, alone.span, (), REPORTED


class RequestMerger(Waiter):
    """Merges items into requests, and receives the outcomes of these requests."""

    def __init__(
        self,
        driver: LoopDriver,
        pool: Pool,
        spec: MergeSpec,
        tenant: str | None,
        known: LearnedLimits,
        *,
        config: Callable[[], ClientConfig],  # returns the current settings; its limit on waiting requests counts single items too
        idle: Callable[[], object],  # called when the merger has neither items nor batches left
    ) -> None:
        self.driver = driver
        self.context = Context()
        self.spec = spec
        self._known = known
        self._collector = Collector()
        self._unfilled: dict[Class, MergedRequest] = {}  # the request of each class with waiting items, until it is filled
        self._feeds: dict[int, BatchFeed] = {}  # priority level -> feed of the requests with items of batches
        self._limits: dict[Source, EndpointLimits] = {}  # for the items of this merger
        self._unread = 0.0  # number of items that batches have not added yet; inf if unknown
        self._sent_at = -inf  # when a merged request was last filled
        self.batches: dict[MergedBatchWaiter, None] = {}
        self.pool, self.tenant = pool, tenant
        self._config, self._idle = config, idle
        self._timer: TimerHandle | None = None
        self._timer_at = inf
        self._live: dict[MergedItem, None] = {}  # items that are not over
        self._soon = False

    @property
    def waiting(self) -> int:
        return self._collector.waiting

    def _forget_unfilled(self, request: MergedRequest) -> None:
        """Record that a merged request is filled or has ended."""
        if self._unfilled.get(request.key) is request:
            del self._unfilled[request.key]

    # adding items

    def add(self, items: list[MergedItem]) -> None:
        """Add items of one class. They are submitted in the next iteration of the event loop, so that all items of one iteration can be
        merged. The time limit of a single item starts now, that of a batch item when it is sent."""
        engine, watch, (_, batch) = self.driver.engine, self.driver.watch, items[0].key
        full: QRewardError | None = None
        if (most := self._config().max_queued) is not None and not batch:
            with engine.lock:
                queues = [queue for queue in self._collector.queues() if not queue.key[1]]
                single = sum(len(queue.items) - (queue.key in self._unfilled) for queue in queues)
                if single + self.pool.queue.waiting >= most:
                    full = queue_full_error(engine.clock(), self.pool, most)
        if full is not None:
            self._rest_if_idle()
            raise full
        if watch is not None:
            for item in items:
                watch.began(item)
        with engine.lock:
            now = engine.clock()
            for item in items:
                item.born = item.arrived = now
                item.merger = self
                if not batch and item.timeout is not None:
                    item.deadline = now + item.timeout
                self._collector.put(item)
        self.driver.waiters[self] = None
        self._live.update(dict.fromkeys(items))
        self._continue_soon()

    # submitting merged requests

    def _continue_soon(self) -> None:
        if not self._soon and not self.driver.loop.is_closed():
            self._soon = True
            self.driver.loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Let batches read ahead, and submit a merged request for each class that needs one."""
        self._soon = False
        if not self._live and not self.batches:
            return
        if self.waiting < AHEAD // 2:
            for batch in list(self.batches):
                batch.more()
        unread, engine = sum(batch.unread() for batch in self.batches), self.driver.engine
        with engine.lock:
            self._unread, pause_end = unread, -inf
            wanted = any(queue.key not in self._unfilled for queue in self._collector.queues())
            full = min((known.limits.items or sizing.MOST for known in self._limits.values()), default=sizing.MOST)
            if wanted and self.waiting < full:  # single items wait for others
                pause_end = self._sent_at + sizing.pause(self.pool)
            paused = pause_end > engine.clock()
        if wanted:
            self.driver.locked(self._submit_unfilled, paused)
        with engine.lock:
            wake = self._collector.next_deadline()
        wake = min(wake, pause_end) if paused else wake
        if wake != inf and (self._timer is None or wake < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = wake
            self._timer = self.driver.loop.call_later(max(0.0, wake - engine.clock()), self._tick)

    def _submit_unfilled(self, now: float, paused: bool) -> None:
        """Submit an unfilled merged request for each class with waiting items, and the next one if it is sent at once."""
        for key in sorted(queue.key for queue in self._collector.queues()):
            level, batch = key
            if paused and not batch and level >= Priority.NORMAL:
                continue
            while self._collector.queue(key) is not None and key not in self._unfilled:
                self._unfilled[key] = MergedRequest(key, self)
                self._submit_request(now, self._unfilled[key])

    def _submit_request(self, now: float, request: MergedRequest) -> None:
        """Submit a merged request. In a feed, a request with items goes before unfilled ones."""
        scheduler, (level, batch) = self.driver.engine.scheduler, request.key
        if not batch:
            request.state = TaskState.WAITING  # the state NEW is not used, because the queue limit counts items, not merged requests
            scheduler.submit(now, request)
            return
        feed = self._feeds.get(level)
        if feed is None:
            feed = self._feeds[level] = BatchFeed(self.pool, level, self, now, self.tenant)
        if request.members:
            feed.buffer.appendleft(request)
        else:
            feed.buffer.append(request)
        feed.ended = not self._unread
        feed.left = None if self._unread == inf else len(feed.buffer) + ceil((self.waiting + self._unread) / self.pool.common.length)
        scheduler.refill(now, feed)

    def _tick(self) -> None:
        self._timer = None
        now = self.driver.engine.clock()
        with self.driver.engine.lock:
            late = self._collector.due(now)
        self.end(late, partial(timeout_error, now), late=True)
        self._continue()

    # called by the loop driver

    async def execute(self, attempt: Attempt) -> Outcome:
        """Make one attempt. A failure that one item may have caused becomes ``REFUSED``: the request is split, not retried as a whole."""
        self._continue()
        request, source = cast("MergedRequest", attempt.task), attempt.source
        count = len(request.members)
        outcome: Outcome = await self.driver.backend.send(source.endpoint, request.payload)
        if not isinstance(outcome, Failure):
            return outcome
        kind, request.misconfigured = outcome.kind, outcome.misconfigured
        if kind is FailureKind.OVERLOADED and outcome.retry_after is None and source.inflight == 1:  # has no other request of this client
            with self.driver.engine.lock:
                if source in self._limits:
                    self._limits[source].record_rejection(count)
        if splits(outcome, count):
            request.refused_by = None if kind is FailureKind.TRANSIENT else source  # 424: the server failed, so its length is not wrong
            kind = FailureKind.REFUSED
        elif kind is FailureKind.TRANSIENT and isinstance(outcome.error, RequestError) and outcome.error.status_code is not None:
            with self.driver.engine.lock:
                if source in self._limits:
                    self._limits[source].record_failure(count)
            # sent whole once more, because most failures of servers are not the fault of an item
            if count > 1 and (request.split is not None or request.tries) and may_have_a_bad_item(outcome.error):
                kind = FailureKind.REFUSED
            elif request.split is not None and request.split.others_served:
                kind = FailureKind.LOCAL  # the retry does not count against the health of the endpoint
        return outcome if kind is outcome.kind else Failure(kind, outcome.error, limits=outcome.limits)

    def read(self, feed: BatchFeed) -> bool:  # noqa: ARG002 - merged requests are submitted when items are added
        return False

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        request = cast("MergedRequest", task)
        with self.driver.engine.lock:
            self._forget_unfilled(request)
            if isinstance(outcome, Answer) and source is not None:
                if source in self._limits:
                    self._limits[source].record_answer(self.driver.engine.clock(), len(request.members), seconds)
                if (split := request.split) is not None:
                    split.others_served = True
                    split.open -= 1
                    if not split.open and split.source in self._limits:
                        self._limits[split.source].record_refusal(split.length)
        if isinstance(outcome, Answer) and source is not None:
            self._share(request, outcome, source, seconds)
        elif isinstance(outcome, QRewardError):
            if len(request.members) > 1 and not request.misconfigured and may_have_a_bad_item(outcome):
                # in two halves; repeated splits finally send an invalid item alone
                items, attempts = request.left(), self._config().retry.attempts
                tries = max(0, attempts - 2) if request.tries >= attempts else 0
                parts, served = halves(items), request.split is not None and request.split.others_served
                split = Split(request.refused_by if len(items) > 1 else None, len(parts[0]), served)
                for part in filter(None, parts):
                    self._send_again(part, tries, split)
            else:  # a request without items fails if no endpoint is left that could fill it; then all waiting items fail
                items = request.left() if request.members else [item for item in self._live if item.state is WAITING]
                self.end(items, lambda _: outcome if len(items) == 1 else cast("QRewardError", own_error(outcome)))
        self._continue_soon()
        self._rest_if_idle()

    def close(self) -> None:
        self.end(self._live, lambda _: ClientClosed("the client was closed before the request was done"))

    def abandon(self) -> list[Task]:
        with self.driver.engine.lock:
            loaded = {item.request: None for item in self._live if item.request is not None}
            left: list[Task] = [*loaded, *self._unfilled.values()]
        self._live.clear()
        self.batches.clear()
        self._rest_if_idle()
        return left

    # filling a merged request

    def fill(self, now: float, request: MergedRequest, source: Source) -> bool:
        """Choose the items of a merged request just before it is sent. Return False if there are none."""
        self._forget_unfilled(request)
        items = request.left()
        limits = self._limits_at(source, items)
        if len(items) > 1:
            items = self._cut(items, limits)
        if request.split is None and not request.tries:
            items += self._take(now, request, source, items, limits)
        if not items:
            return False
        request.hold(items)
        calls = [item.payload for item in items]
        request.payload = self.spec.merged(calls)
        others = {self._limits_at(each, items) for each in self.pool.sources} - {limits}  # a hedge has the same items, so it must fit too
        request.hedge = all(item.hedge for item in items) and all(self.spec.fitting(other, calls) == len(calls) for other in others)
        self._sent_at = now
        return True

    def _take(self, now: float, request: MergedRequest, source: Source, before: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        most = ALL if limits.items is None else limits.items
        if self.spec.divides and source in self._limits:
            unread = AHEAD if self._unread == inf else self._unread  # an unknown rest is taken to be as long as what is read ahead
            waiting = self.waiting + len(before) + unread
            most = min(most, sizing.length(now, self.pool, waiting, source, self._limits))
        most = max(0, most - len(before))
        first = self._collector.first()
        level = before[0].level if before else -1 if first is None else first.key[0]
        taken: list[MergedItem] = []
        for queue in sorted((each for each in self._collector.queues() if each.key[0] == level), key=KeyQueue.order):
            taken += self._collector.take(most - len(taken), queue=queue)
        # only a short request gets items of other levels too: an urgent item must not wait for the answers to many others
        while len(taken) < min(most, sizing.LEAST - len(before)) and (first := self._collector.first()) is not None:
            taken += self._collector.take(min(most, sizing.LEAST - len(before)) - len(taken), queue=first)
        taken = [item for item in taken if item.deadline > now]  # the timer of the deadline ends items that are too late
        if taken:
            taken = self._cut([*before, *taken], limits)[len(before) :]
        for item in taken:
            if item.sent_at is None:
                item.sent_at = now
                if item.key[1]:
                    item.born, opened_at = now, item.waiter.took()
                    if item.timeout is not None:
                        item.deadline = deadline(now, source, self.pool, item.timeout, opened_at)
                        self._collector.add_deadline(item, item.deadline)
            item.attach(request)
        return taken

    def _cut(self, items: list[MergedItem], limits: MergeLimits) -> list[MergedItem]:
        """Return the first items, as many as fit into one request. Put the others back."""
        fits = self.spec.fitting(limits, [item.payload for item in items])
        if fits < len(items):
            for item in items[fits:]:
                item.detach()
            self._collector.put_back(items[fits:])
        return items[:fits]

    def _limits_at(self, source: Source, items: Sequence[MergedItem]) -> MergeLimits:
        known = self._limits.get(source)
        if known is None:
            some = items or self._collector.items()
            if not some:
                return MergeLimits()
            endpoint: Any = source.endpoint
            usual = self.spec.limits(endpoint, some[0].payload)
            known = self._limits[source] = self._known.at(source, usual, sizing.MOST if self.spec.divides else None)
        return known.limits

    # the outcome of a merged request

    def _share(self, request: MergedRequest, answer: Answer, source: Source, seconds: float) -> None:
        shares = self.spec.shares(answer.response, [item.payload for item in request.members])
        again: list[MergedItem] = []
        for item, share in zip(request.members, shares, strict=True):
            if item.state is OVER:
                continue
            if isinstance(share, InvalidResponse):
                item.detach()
                share.endpoint = source.name
                item.trail = [*(item.trail or ()), AttemptRecord(source.name, "transient", seconds, share.status_code, str(share))]
                if self._config().retry.attempts > 1:
                    item.last_error = share
                    again.append(item)
                    continue
            item.end()
            del self._live[item]
            self._report(item, share if isinstance(share, InvalidResponse) else Answer(share), source, seconds)
        for item in again:  # each item is sent alone, as an ordinary request
            self._send_again([item], 1, Split(None, 1, True))

    def _send_again(self, items: Sequence[MergedItem], tries: int, split: Split) -> None:
        request = MergedRequest(items[0].key, self, items, split)
        request.tries = tries
        for item in items:
            item.attach(request)
        request.last_error, request.sent_at = items[0].last_error, items[0].sent_at
        self.driver.locked(self._submit_request, request)

    def _report(self, item: MergedItem, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self.driver.watch is not None:
            self.driver.watch.done(item, outcome, source)
        item.waiter.finish(item, outcome, source, seconds)

    # ending early

    def end(self, items: Iterable[MergedItem], error_of: Callable[[MergedItem], QRewardError] | None = None, *, late: bool = False) -> None:
        """End items that wait or were sent. Withdraw merged requests whose items are then all over."""
        items = [item for item in items if item.state is not OVER]
        if not items:
            return
        engine = self.driver.engine
        with engine.lock:
            requests = {item.request: None for item in items if item.request is not None}
            for item in items:
                if item.state is WAITING:
                    self._collector.remove(item)
                item.end(engine.clock() if late else None)
                self._live.pop(item, None)
            empty: list[Task] = [request for request in requests if request.state is not OVER and not request.left()]
            errors = [] if error_of is None else list(map(error_of, items))
        if errors and isinstance(errors[0], RequestTimeout):
            for task in empty:
                task.deadline = engine.clock()
        self._withdraw(empty, errors[0] if errors else None)
        if error_of is None and self.driver.watch is not None:
            self.driver.watch.withdrawn(items)
        for item, error in zip(items, errors, strict=False):
            self._report(item, error, None, 0.0)
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
            unfilled, self._unfilled = self._unfilled, {}
            feeds, self._feeds = self._feeds, {}
        self._withdraw(list(unfilled.values()))
        with self.driver.engine.lock:
            for feed in feeds.values():
                self.driver.engine.scheduler.close_feed(feed)
        self.driver.waiters.pop(self, None)
        self._idle()

    def detach(self, batch: MergedBatchWaiter) -> None:
        self.batches.pop(batch, None)
        self._rest_if_idle()


class ItemWaiter:
    """Receives the results of the items of one call."""

    __slots__ = ("_done", "_left", "_results", "context", "driver")

    def __init__(self, driver: LoopDriver) -> None:
        self.driver = driver
        self.context = copy_context()

    async def results(self, merger: RequestMerger, items: list[MergedItem]) -> list[Result[Any]]:
        """Send the items, and return their results. Raises the first error. If the caller is cancelled, unfinished items are dropped."""
        self._results: list[Any] = [None] * len(items)
        self._left = len(items)
        self._done = self.driver.loop.create_future()
        merger.add(items)
        try:
            await self._done
        except GeneratorExit:  # the garbage collector may close this coroutine while the engine's lock is held
            self.driver.later(partial(merger.end, items))
            raise
        except BaseException:
            merger.end(items)
            raise
        return self._results

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self._done.done():
            return
        result = result_of(task, outcome, source, seconds)
        if result.error is not None:
            self._done.set_exception(result.error)
            return
        self._results[task.index] = result
        self._left -= 1
        if not self._left:
            self._done.set_result(None)


class MergedBatchWaiter(BatchWaiter):
    """A batch whose items share requests. They wait in the ``RequestMerger`` of their merge key, which ``find`` returns."""

    def __init__(self, *args: Any, spec: MergeSpec, find: Callable[..., RequestMerger], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._spec, self._find = spec, find
        self._mergers: dict[Hashable, RequestMerger] = {}

    def _leave(self) -> None:
        super()._leave()
        for merger in self._mergers.values():
            merger.detach(self)

    # called by the mergers

    def more(self) -> None:
        if self._feed.make_error is None and self._room() > 0:
            self.read(self._feed)

    def took(self) -> float:
        """Record that an item was sent for the first time. Returns when the batch began, in seconds."""
        if self._feed.left:
            self._feed.left -= 1
        return self._feed.opened_at

    def unread(self) -> float:
        if self._feed.ended:
            return 0
        return inf if self._size is None else max(0, self._size - self._count)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if task in self._live:  # otherwise the item was dropped while other items were being finished
            super().finish(task, outcome, source, seconds)

    def abandon(self) -> list[Task]:
        left: list[Any] = super().abandon()
        self._end(left)
        return left

    # reading

    def read(self, feed: BatchFeed) -> bool:
        self._end_trying(feed)
        return super().read(feed)

    def _take(self, feed: BatchFeed) -> bool:
        super()._take(feed)
        self._hand_over()
        if feed.ended:
            self._end_trying(feed)
        return True

    def _room(self) -> int:
        return AHEAD - len(self._feed.incoming) - sum(merger.waiting for merger in self._mergers.values())

    def _queue_item(self, index: int, payload: Any) -> None:
        item = MergedItem(payload, self._pool, self._request_options, self, index, batch=True)
        self._live[item] = None
        self._feed.add(item)
        if self._is_async:
            self._hand_over()

    def _hand_over(self) -> None:
        fresh: dict[Hashable, list[Any]] = {}
        for item in self._feed.incoming:
            fresh.setdefault(self._spec.key(item.payload), []).append(item)
        self._feed.incoming.clear()
        for key, items in fresh.items():
            if key not in self._mergers:
                self._mergers[key] = self._find(self.driver, self._pool, self._spec, self._request_options.tenant, key)
                self._mergers[key].batches[self] = None
            self._mergers[key].add(items)

    # ending early

    def _drop_unstarted(self) -> None:
        super()._drop_unstarted()
        unsent = self._waiting()
        for item in unsent:
            del self._live[item]
        self._end(unsent)

    def _is_trying(self) -> bool:
        return bool(self._feed.incoming or self._waiting())

    def _end_trying(self, feed: BatchFeed) -> None:
        """Fail the items that wait in the mergers if no endpoint is alive, but one, whose attempts show when an endpoint is back."""
        failing = feed.make_error
        if failing is not None:
            self._end(self._waiting()[not feed.ended :], lambda _: failing())

    def _end(self, items: list[MergedItem], error_of: Callable[[MergedItem], QRewardError] | None = None) -> None:
        for merger in self._mergers.values():
            merger.end([item for item in items if item.merger is merger], error_of)

    def _waiting(self) -> list[MergedItem]:
        return [item for item in self._live if item.state is WAITING]
