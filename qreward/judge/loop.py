"""The calls of a judge: equal calls of one batch, or outside of batches, are sent once, and a decided item waits for no further call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import copy_context
from copy import copy
from math import inf
from typing import Any, NamedTuple

from qreward.engine.background import report_error
from qreward.engine.batch import BatchWaiter, ResultSettings, as_ours, size_of
from qreward.engine.driver import LoopDriver, Waiter, result_of
from qreward.errors import BatchCancelled, ClientClosed, DeadlineExceeded, QRewardError, RequestError, RequestTimeout
from qreward.judge.cache import Cache
from qreward.judge.calls import Again, Done, JudgeCall
from qreward.judge.spending import Spending
from qreward.judge.types import JudgeAnswer, one_by_one
from qreward.records import AttemptRecord, Usage, added
from qreward.results import Result, successful, with_trail
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, RequestOptions, Task, TaskState
from qreward.scheduler.why import said

Evaluate = Callable[[JudgeCall, Any, str, str | None], Done | Again]
"""A function from a call, its decoded answer or error, its response format, and the name of the endpoint, to what follows."""
Flights = dict[Hashable, "Flight"]
"""Key of a call -> its flight: of the calls of a batch, or of all calls outside of batches of one judge."""
LOOKED_UP = 64
"""Maximum number of items of a batch whose answers are looked up in the cache together."""


class Calling(NamedTuple):
    """What all items of one call of a judge's method have in common. ``batch`` is None outside of batches."""

    driver: LoopDriver
    flights: Flights
    evaluate: Evaluate
    spending: Spending
    cache: Cache | None
    options: RequestOptions
    pools: Mapping[str, Pool]
    batch: ItemBatch | None = None


class Invalid(NamedTuple):
    """An item that cannot be judged."""

    error: Exception
    extra: Mapping[str, Any] | None


class ItemCalls:
    """Holds an item and the outcomes of its calls. ``decide`` makes the outcome of the item from them, or None while it is undecided, and
    ``result`` what the caller receives. ``extra`` has the fields that are not judged. ``ended`` receives what the caller receives, or an
    error, for an item that is no item of a batch itself."""

    __slots__ = (
        "answered", "begun", "born", "calls", "common", "decide", "done", "ended", "endpoint", "extra", "index", "inflight", "outcomes",
        "result", "sent", "timer", "trail", "until", "usage",
    )  # fmt: skip
    common: Calling

    def __init__(
        self,
        calls: Sequence[JudgeCall],
        decide: Callable[[Sequence[Any]], Any],
        result: Callable[..., Any],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.calls, self.decide, self.result, self.extra = calls, decide, result, extra
        self.outcomes: list[Any] = [None] * len(calls)
        self.index, self.born, self.until = 0, 0.0, inf
        self.inflight: dict[int, Flight] = {}
        self.done = self.sent = False
        self.ended: asyncio.Future[Any] | None = None
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.answered: AttemptRecord | None = None
        self.begun: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    async def judged(self, common: Calling, born: float) -> Any:
        """Judge an item outside of batches, and return what the caller receives. ``born`` is when its timeout began. Raises its error."""
        timeout = common.options.timeout
        if common.cache is not None:
            await fill([self], common.cache)
        self.ended = common.driver.loop.create_future()
        try:
            self.begin(common, born, inf if timeout is None else born + timeout)
            result = await self.ended
        except GeneratorExit:  # the coroutine is discarded, perhaps while this thread holds the engine's lock
            common.driver.later(self.leave)
            raise
        except BaseException:
            self.leave()
            raise
        if isinstance(result, QRewardError):
            raise result
        return result

    def begin(self, common: Calling, born: float, until: float = inf) -> None:
        """Send the calls without an outcome, or share equal calls that are in flight."""
        if self.done:  # the batch has ended while the cache was read
            return
        self.common, self.born, self.until = common, born, until
        if any(self.outcomes) and (decided := self.decide(self.outcomes)) is not None:
            self.end(decided)
            return
        level, _, hedge, tenant, *_ = common.options
        fresh = []
        for place, call in enumerate(self.calls):
            if self.outcomes[place] is not None:
                continue
            key = (common.driver, call.key, call.judge_model.reads, call.swapped, level, tenant, hedge)
            flight = common.flights.get(key)
            if flight is None:
                flight = common.flights[key] = Flight(key, call, common)
                fresh.append(flight)
            elif common.batch is None:
                self.start_timer()  # the flight may end later
            flight.items.append((self, place))
            self.inflight[place] = flight
        for flight in fresh:
            if flight.items:  # sending an earlier request may have ended the item
                flight.send()

    def start_timer(self) -> None:
        timeout, driver = self.common.options.timeout, self.common.driver
        if self.timer is None and timeout is not None:
            now = driver.engine.clock()
            if self.until == inf:
                self.until = now + timeout
            self.timer = driver.loop.call_later(max(0.0, self.until - now), self._overdue)

    def _overdue(self) -> None:
        self.timer = None
        engine, cut = self.common.driver.engine, list[AttemptRecord]()
        with engine.lock:
            for task in (flight.task for flight in dict.fromkeys(self.inflight.values())):
                cut += [] if task is None else [*(task.trail or ()), *unanswered(task, engine.clock())]
        late = self.late()
        self.trail, self.endpoint = (*self.trail, *cut), cut[-1].endpoint if cut else self.endpoint
        self.end(late)

    def late(self) -> RequestTimeout:
        model, common = self.calls[0].judge_model.model, self.common
        with common.driver.engine.lock:
            why = said(common.driver.engine.clock(), common.pools[model])
        return RequestTimeout(f"no verdict within {common.options.timeout:g} s; model {model!r}; {why}", model=model)

    def end(self, decided: Any) -> None:
        """End the item with its decided outcome or its error."""
        if self.done:
            return
        self.leave(decided if isinstance(decided, BatchCancelled | ClientClosed | DeadlineExceeded) else None)
        if isinstance(decided, QRewardError):
            decided.usage = self.usage
            if isinstance(decided, RequestTimeout) and self.trail:
                decided = with_trail(decided, self.trail)
        else:
            decided = self.result(decided, self.usage, cached=not self.sent)
        if self.common.batch is not None:
            self.common.batch.end_item(self, decided)
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(decided)

    def leave(self, error: QRewardError | None = None) -> None:
        """Stop waiting for all flights. ``error`` is the error of the engine with which the item ends."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.inflight:
            inflight, self.inflight = dict.fromkeys(self.inflight.values()), {}
            for flight in inflight:
                flight.leave(self, error)


class CallTask(Task):
    """Sends the call of a flight once."""

    __slots__ = ("flight", "form")

    def __init__(self, flight: Flight, timeout: float | None) -> None:
        options, model = flight.common.options, flight.call.judge_model
        pool, waiter = flight.common.pools[model.model], flight.common.batch or flight
        super().__init__(flight.call.request(), pool, options.level, timeout, waiter, 0, options.tenant)
        self.form, self.hedge, self.flight = model.format, options.hedge, flight
        self.prefix = pool.prefix_of_task(self.payload)
        flight.task = self

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002
        """Return False if no item waits for the call any more, or the budget is spent. If the response format has changed, the request is
        made again."""
        flight = self.flight
        if flight.task is not self:
            return False
        if (error := flight.common.spending.exceeded()) is not None:
            flight.task = None
            flight.driver.later(lambda: flight.end(error))
            return False
        if self.form != flight.call.judge_model.format:
            self.form, self.payload = flight.call.judge_model.format, flight.call.request()
        return True


class Flight(Waiter):
    """Holds one call until its value or final error, and the items that wait for it, the first of which pays for it. The call may be sent
    several times: by the batch of its items, or by itself."""

    __slots__ = ("_key", "call", "common", "context", "driver", "endpoint", "items", "task", "trail", "until")
    execute = None

    def __init__(self, key: Hashable, call: JudgeCall, common: Calling) -> None:
        self._key, self.call, self.common, self.driver = key, call, common, common.driver
        self.items: list[tuple[ItemCalls, int]] = []
        self.task: CallTask | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        if common.batch is None:
            self.context = copy_context()
            self.driver.waiters[self] = None

    def latest(self) -> float:
        return max([item.until for item, _ in self.items])

    def send(self, *, again: bool = False) -> None:
        if self.common.batch is not None:
            self.common.batch.enqueue(self, again=again)
            return
        self.until = self.latest()  # when the time of the task is over
        left = self.until - self.driver.engine.clock()
        if left <= 0:
            self.end(self.items[0][0].late())
        else:
            self.driver.submit(CallTask(self, None if left == inf else left))

    def is_begun(self) -> bool:
        """Return whether the scheduler has started the task. Otherwise the task waits in the feed of a batch."""
        with self.driver.engine.lock:
            return self.task is not None and self.task.state is not TaskState.NEW

    def leave(self, item: ItemCalls, error: QRewardError | None) -> None:
        """Remove an item that no longer waits. Without waiting items, the request is cancelled."""
        if not self.items:  # it has ended
            return
        self.items = [waiting for waiting in self.items if waiting[0] is not item]
        if self.items:
            return
        self._land()
        task, self.task, engine = self.task, None, self.driver.engine
        if task is not None:
            with engine.lock:
                begun, cut = task.state is not TaskState.NEW, (*(task.trail or ()), *unanswered(task, engine.clock()))
            item.usage = added(item.usage, self.common.spending.paid(None, None, cut))
            if self.common.batch is not None:
                self.common.batch.tallies.add_cancelled((task.attempt, task.copy))
            if begun:  # otherwise ``CallTask.bind`` returns False later
                self.driver.withdraw([task], error)

    def _land(self) -> list[tuple[ItemCalls, int]]:
        """Forget the flight, so that it is shared no more, and return the items that waited."""
        self.common.flights.pop(self._key, None)
        self.driver.waiters.pop(self, None)
        items, self.items = self.items, []
        return items

    def end(self, outcome: Any, items: Sequence[tuple[ItemCalls, int]] | None = None) -> None:
        """Pass the outcome to these items, which wait; None for all items, which ends the flight."""
        for number, (item, place) in enumerate(self._land() if items is None else items):
            if number and isinstance(outcome, QRewardError):  # a copy, so that each receiver adds its own traceback
                cause = outcome.__cause__
                outcome = copy(outcome)
                outcome.__cause__ = cause
            item.inflight.pop(place, None)
            if not item.done:
                item.outcomes[place] = outcome
                if (decided := item.decide(item.outcomes)) is not None:
                    item.end(decided)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, CallTask)
        if task is not self.task:
            return
        self.task, answer, paid = None, outcome, None
        trail, common, payer = tuple(task.trail or ()), self.common, self.items[0][0]
        if isinstance(outcome, Answer):
            assert source is not None
            answer, self.endpoint = outcome.value, source.name
            paid = common.spending.paid(outcome.value.usage, source.name, trail)
        elif trail:
            self.endpoint = trail[-1].endpoint
            paid = common.spending.paid(None, None, trail)
        step = common.evaluate(self.call, answer, task.form, self.endpoint)
        if step.unread:
            trail = (*trail, AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, step.unread))
        self.trail, payer.trail = self.trail + trail, payer.trail + trail
        payer.sent, payer.usage, payer.endpoint = True, added(payer.usage, paid), self.endpoint or payer.endpoint
        if isinstance(step, Again) and self.driver.engine.clock() < self.latest():
            self.call = step.call
            self.send(again=True)
            return
        value = (step.error or payer.late()) if isinstance(step, Again) else step.value
        if isinstance(value, RequestError):
            value.endpoint, value.attempts = value.endpoint or self.endpoint, self.trail
        elif source is not None:
            payer.answered = successful(task.trail or (), source.name, seconds)
        if not isinstance(value, RequestTimeout) or common.batch is not None or self.latest() <= self.until:
            self.end(value)
            return
        over = [each for each in self.items if each[0].until <= self.until]
        self.items = [each for each in self.items if each not in over]
        self.end(value, over)
        if self.items:  # the end of one item may have ended other items
            self.send(again=True)  # for the items whose time is not over

    def close(self) -> None:
        for item, _ in self.items:
            item.end(ClientClosed("the client was closed before the verdict was there"))

    def abandon(self) -> list[Task]:
        self._land()  # it refers to the driver of the closed loop
        return [] if self.task is None else [self.task]


class ItemBatch(BatchWaiter):
    """Sends the calls of many items.

    Args:
        prepare: makes the calls of an item, a ``ResponseGroup``, or ``Invalid``.
        per_model: name of a model -> number of calls for an item; None if it is not known.
        unit, waited: what an item is called, and the seconds of the deadline that have passed.
    """

    _items_at_once = 1
    _is_one_request = False

    def __init__(
        self,
        common: Calling,
        items: Iterable[Any] | AsyncIterable[Any],
        prepare: Callable[[Any], Any],
        settings: ResultSettings,
        *,
        per_model: Mapping[str, int | None],
        unit: str,
        waited: float,
    ) -> None:
        options, pools, size = common.options, common.pools, size_of(items)
        per_pool: dict[Pool, int | None] = {}
        for model, count in per_model.items():  # fewer calls, if items share them
            before = per_pool.get(pools[model], 0)
            per_pool[pools[model]] = None if before is None or count is None else before + count
        several = None in per_pool.values() or sum(filter(None, per_pool.values())) > 1
        first = pools[next(iter(pools))]
        if common.cache is not None and unit == "items":
            items, prepare = with_votes(items, prepare, common.cache), lambda item: item
        super().__init__(common.driver, first, items, prepare, options, settings, per_pool, size)
        self.common, self._is_stopping = common._replace(flights={}, batch=self), False
        self._stop_error: Callable[[], QRewardError] | None = None
        self.execute = self._send_timed if several and options.timeout is not None else None
        self._waited, self._unit, self.tallies = waited, unit, self._tallies

    def _is_trying(self) -> bool:
        return False  # ``enqueue`` decides for each call, because the calls of an item may have different feeds

    def _put(self, index: int, payload: Any) -> None:
        if isinstance(payload, Invalid):
            error = as_ours(payload.error, f"{self._unit[:-1]} {index}", "judged")
            self._settle(Result(index, None, error, None, 0.0, 0.0, extra=payload.extra))
            return
        payload.index = index
        self._live[payload] = None
        if isinstance(payload, ItemCalls):
            payload.begin(self.common, self.driver.engine.clock())
        else:
            self.driver.loop.create_task(self._rank(payload)).add_done_callback(report_error)

    async def _rank(self, group: Any) -> None:
        """Judge the pairs of a group, round after round, and settle its result. When the batch is stopping, no round begins."""
        born, outcome = self.driver.engine.clock(), None
        try:
            while (pairs := group.next_pairs()) and not self._is_stopping:
                await self._round(group, pairs)
            outcome = group.outcome() if not pairs else self._stop_error and self._stop_error()
        except asyncio.CancelledError:  # a pair was dropped
            pass
        del self._live[group]
        if outcome is not None:
            answer, error = (None, outcome) if isinstance(outcome, QRewardError) else (JudgeAnswer(outcome), None)
            if error is not None:
                error.usage = group.usage
            self._settle(Result(group.index, answer, error, None, self.driver.engine.clock() - born, 0.0, (), group.extra))
        self._end_if_done()

    async def _round(self, group: Any, pairs: Sequence[Any]) -> None:
        items: dict[Any, ItemCalls] = {}
        for pair in pairs:
            item = group.item(pair)
            if isinstance(item, Invalid):
                group.record(pair, as_ours(item.error, f"pair {pair}", "judged"), None)
            else:
                items[pair], item.common, item.ended = item, self.common, self.driver.loop.create_future()
        self._live.update(dict.fromkeys(items.values()))
        if self.common.cache is not None:
            await fill(items.values(), self.common.cache)
        for item in items.values():
            item.begin(self.common, self.driver.engine.clock())
        self._hand_out()
        for pair, item in items.items():
            assert item.ended is not None
            group.record(pair, await item.ended, item.usage)

    def enqueue(self, flight: Flight, *, again: bool) -> None:
        """Append a call to the feed of its pool. A call that was sent before is put first."""
        feed, timeout = self._feeds[self.common.pools[flight.call.judge_model.model]], self.common.options.timeout
        failing = feed.failing  # another thread may set it to None
        if failing is not None and feed.ahead():
            self.finish(CallTask(flight, timeout), failing(), None, 0.0)
        elif not again:
            feed.read(CallTask(flight, timeout))
        else:
            if (until := flight.latest()) < inf:
                timeout = until - self.driver.engine.clock()
            for item, _ in flight.items:  # their deadline may pass while the request is still in the queue
                item.start_timer()
            self.driver.refill(feed, [CallTask(flight, timeout)])

    async def _send_timed(self, attempt: Attempt) -> Outcome:
        """Send an attempt. The timeout of an item starts with its first request."""
        task = attempt.task
        if isinstance(task, CallTask):
            for item, _ in task.flight.items:
                item.start_timer()
        return await self.driver.backend.send(attempt.source.endpoint, task.payload)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, CallTask)
        if task is not task.flight.task:
            return
        self.tallies.add(result_of(task, outcome, source, seconds))
        for item, _ in task.flight.items:
            item.until = task.deadline if item.until == inf else item.until
            if item.begun is None:
                item.born, item.begun = task.born, task.sent_at
        task.flight.finish(task, outcome, source, seconds)

    def end_item(self, item: ItemCalls, outcome: Any) -> None:
        self._live.pop(item, None)
        if item.ended is not None:  # a pair of a group
            return
        queued, seconds, answer, trail, error = 0.0, 0.0, None, item.trail, None
        if item.begun is not None:
            queued = item.begun - item.born
        if isinstance(outcome, QRewardError):
            error = outcome
        else:
            answer = JudgeAnswer(outcome)
            seconds = 0.0 if item.begun is None else self.driver.engine.clock() - item.begun
            trail = trail if item.answered is None else (*trail, item.answered)
        self._settle(Result(item.index, answer, error, item.endpoint, seconds, queued, trail, item.extra))
        self._end_if_done()

    def _item_calls(self) -> list[ItemCalls]:
        return [each for each in self._live if isinstance(each, ItemCalls)]

    def _give_up(self, make_error: Callable[[], QRewardError] | None = None) -> None:
        self._is_stopping, self._stop_error = True, make_error
        self._close_feeds()
        for item in self._item_calls():
            if make_error is None:
                self._drop(item)
            else:
                item.end(make_error())

    def _drop(self, item: ItemCalls) -> None:
        del self._live[item]
        item.leave()
        if item.ended is not None:
            item.ended.cancel()

    def abandon(self) -> list[Task]:
        self._close_feeds()
        return [flight.task for flight in self.common.flights.values() if flight.task is not None]

    def _drop_unstarted(self) -> None:
        self._feed.ended = self._is_stopping = True
        for item in self._item_calls():
            if item.begun is None and not any(flight.is_begun() for flight in item.inflight.values()):
                self._drop(item)


async def fill(items: Iterable[ItemCalls], cache: Cache) -> None:
    """Fill in the outcomes of calls whose answers are in the cache."""
    found = await cache.look_up([(call.key, call.judge_model.cached_as) for item in items for call in item.calls])
    for item in items:
        for place, call in enumerate(item.calls):
            with suppress(Exception):  # of an answer that could be parsed when it was stored; the parser or the score function has changed
                item.outcomes[place] = call.judge_model.vote(found[call.key], swapped=call.swapped) if call.key in found else None


async def with_votes(items: Iterable[Any] | AsyncIterable[Any], read: Callable[[Any], Any], cache: Cache) -> AsyncIterator[Any]:
    """Read the items of a batch, and yield them with their cached votes, which are looked up for up to ``LOOKED_UP`` items together, or one
    by one for an asynchronous input. If the input raises, the items before the exception are yielded first."""
    most, failure, ended = 1 if isinstance(items, AsyncIterable) else LOOKED_UP, None, False
    async with aclosing(one_by_one(items)) as inputs:
        while not ended:
            chunk: list[Any] = []
            try:
                while len(chunk) < most:
                    chunk.append(read(await anext(inputs)))
            except StopAsyncIteration:
                ended = True
            except Exception as error:
                ended, failure = True, error
            await fill([item for item in chunk if isinstance(item, ItemCalls)], cache)
            for item in chunk:
                yield item
    if failure is not None:
        raise failure
