"""The calls of a judge: equal calls are sent once, and an item that is decided waits for no further call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import copy_context
from copy import copy
from math import inf
from typing import Any

from qreward.engine.batch import BatchWaiter, as_ours
from qreward.engine.driver import LoopDriver, Waiter
from qreward.engine.snapshots import ItemTallies, result_of
from qreward.errors import ClientClosed, DeadlineExceeded, QRewardError, RequestError, RequestTimeout
from qreward.judge.calls import Again, Done, JudgeCall
from qreward.judge.spending import Spending
from qreward.records import AttemptRecord, Usage, added
from qreward.results import Result, successful, with_trail
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, RequestOptions, Task, TaskState
from qreward.scheduler.why import said

Decide = Callable[[Sequence[Any]], Any]
"""A function from the votes and errors of all calls of an item, None for those without an answer, to the outcome of the item; None while
it is undecided."""


Evaluate = Callable[[JudgeCall, Any, str | None], Done | Again]
"""A function from a call, its decoded answer or error, and the name of the endpoint, to what follows."""
Flights = dict[Hashable, "Flight"]
"""Key of a call -> its flight, for the calls of one judge in one event loop."""


class ItemCalls:
    """Holds an item and the outcomes of its calls."""

    __slots__ = (
        "answered", "begun", "born", "caller", "calls", "decide", "done", "endpoint", "extra", "index", "inflight", "outcomes", "sent",
        "timer", "trail", "until", "usage",
    )  # fmt: skip
    caller: SingleItem | ItemBatch

    def __init__(self, calls: Sequence[JudgeCall] | Exception, decide: Decide, extra: Mapping[str, Any] | None = None) -> None:
        self.calls, self.decide, self.extra = calls, decide, extra
        self.outcomes: list[Any] = [] if isinstance(calls, Exception) else [None] * len(calls)
        self.index, self.born, self.until = 0, 0.0, inf
        self.inflight: dict[int, Flight] = {}
        self.done = self.sent = False
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.answered: AttemptRecord | None = None
        self.begun: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    def begin(self, caller: SingleItem | ItemBatch, born: float, until: float = inf) -> None:
        """Send the calls without an outcome, or share equal calls that are in flight."""
        assert not isinstance(self.calls, Exception)
        self.caller, self.born, self.until = caller, born, until
        if self.outcomes.count(None) < len(self.outcomes) and self.settle():
            return
        table, (level, _, hedge, tenant, *_) = caller.flights, caller.options
        fresh = []
        for place, call in enumerate(self.calls):
            if self.outcomes[place] is not None:
                continue
            key = (call.key, call.judge_model.reads, call.swapped, level, tenant, hedge)
            flight = table.get(key)
            if flight is None:
                flight = table[key] = Flight(key, call, caller)
                fresh.append(flight)
            elif flight.caller is not caller:
                self.start_timer()  # the flight may end later
            flight.waiters.append((self, place))
            self.inflight[place] = flight
        for flight in fresh:
            if flight.waiters:  # sending an earlier request may have ended the item
                caller.enqueue(flight, again=False)

    def start_timer(self) -> None:
        timeout, driver = self.caller.options.timeout, self.caller.driver
        if self.timer is None and timeout is not None:
            now = driver.engine.clock()
            if self.until == inf:
                self.until = now + timeout
            self.timer = driver.loop.call_later(max(0.0, self.until - now), self._overdue)

    def _overdue(self) -> None:
        self.timer = None
        engine, cut = self.caller.driver.engine, list[AttemptRecord]()
        with engine.lock:
            for task in (flight.task for flight in dict.fromkeys(self.inflight.values())):
                cut += [] if task is None else [*(task.trail or ()), *unanswered(task, engine.clock())]
        self.end(self.late(), cut)

    def late(self) -> RequestTimeout:
        assert not isinstance(self.calls, Exception)
        model, engine = self.calls[0].model, self.caller.driver.engine
        with engine.lock:
            why = said(engine.clock(), self.caller.pools[model])
        return RequestTimeout(f"no verdict within {self.caller.options.timeout:g} s; model {model!r}; {why}", model=model)

    def settle(self) -> bool:
        """End the item if its outcomes decide it. Returns whether they do."""
        decided = self.decide(self.outcomes)
        if decided is not None:
            self.end(decided)
        return decided is not None

    def end(self, decided: Any, cut: Sequence[AttemptRecord] = ()) -> None:
        """End the item with its value or error. ``cut`` has the attempts of the tasks that did not end before its deadline."""
        if self.done:
            return
        self.leave(decided if isinstance(decided, ClientClosed | DeadlineExceeded) else None)
        if cut:
            self.trail, self.endpoint = (*self.trail, *cut), cut[-1].endpoint
        if isinstance(decided, QRewardError):
            decided.usage = self.usage
            if isinstance(decided, RequestTimeout) and self.trail:
                decided = with_trail(decided, self.trail)
        self.caller.end(self, decided)

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

    def charge(self, flight: Flight) -> None:
        self.sent = True
        self.usage, flight.usage = added(self.usage, flight.usage), None
        self.trail += flight.trail
        self.endpoint = flight.endpoint or self.endpoint
        self.answered = flight.answered or self.answered


class CallTask(Task):
    """Sends the call of a flight once, for its ``sender``. If the form of requests changes before it is sent, its payload is made again."""

    __slots__ = ("flight", "sender")

    def __init__(self, flight: Flight, timeout: float | None) -> None:
        options = flight.caller.options
        if flight.call.is_stale():
            flight.call = flight.call.current()
        super().__init__(flight.call.request(), flight.pool, options.level, timeout, flight.caller, 0, options.tenant)
        self.hedge, self.flight, self.sender = options.hedge, flight, flight.caller
        self.prefix = flight.pool.prefix_of_task(self.payload)
        flight.task = self

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002
        """Prepare the task just before the task is sent. Returns False if no item waits for the call any more."""
        flight = self.flight
        if flight.task is not self:
            return False
        if (error := flight.caller.spending.exceeded()) is not None:
            flight.task = None
            flight.caller.driver.later(lambda: flight.end(error))
            return False
        if flight.call.is_stale():
            flight.call = flight.call.current()
            self.payload = flight.call.request()
        return True


class Flight:
    """Holds one call until its value or final error, and the items that wait for it. The call may be sent several times."""

    __slots__ = ("_key", "answered", "call", "caller", "endpoint", "pool", "task", "trail", "usage", "waiters")

    def __init__(self, key: Hashable, call: JudgeCall, caller: SingleItem | ItemBatch) -> None:
        self._key, self.call, self.caller = key, call, caller
        self.pool = caller.pools[call.model]
        self.waiters: list[tuple[ItemCalls, int]] = []
        self.task: CallTask | None = None
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.answered: AttemptRecord | None = None

    def latest(self) -> float:
        return max([item.until for item, _ in self.waiters])

    def is_begun(self) -> bool:
        """Return whether the scheduler has started the task. Otherwise the task waits in the feed of a batch."""
        with self.caller.driver.engine.lock:
            return self.task is not None and self.task.state is not TaskState.NEW

    def leave(self, item: ItemCalls, error: QRewardError | None) -> None:
        """Remove an item that no longer waits. Without waiting items, the request is cancelled."""
        is_charged = bool(self.waiters) and self.waiters[0][0] is item
        self.waiters = [waiter for waiter in self.waiters if waiter[0] is not item]
        if is_charged:
            item.charge(self)
        if self.waiters:
            if all(other.caller is not self.caller for other, _ in self.waiters):
                self._hand_over()
            return
        self._close()
        if (task := self.task) is not None:
            begun, self.task = self.is_begun(), None
            engine = self.caller.driver.engine
            with engine.lock:
                cut = (*(task.trail or ()), *unanswered(task, engine.clock()))
            item.usage = added(item.usage, self.caller.spending.paid(None, None, cut))
            if isinstance(self.caller, ItemBatch):
                self.caller.tallies.add_cancelled((task.attempt, task.copy))
            if begun:  # otherwise ``CallTask.bind`` returns False later
                self.caller.driver.withdraw([task], error)

    def _hand_over(self) -> None:
        """Let the caller of a waiting item send the call. A task that was started continues; a task in a feed is replaced."""
        self.caller = self.waiters[0][0].caller
        if self.task is not None and self.is_begun():
            self.task.waiter = self.caller
        else:
            self.caller.enqueue(self, again=True)

    def end(self, outcome: Any, waiters: Sequence[tuple[ItemCalls, int]] | None = None) -> None:
        """Pass the outcome to these items, which wait; None for all items, which ends the flight."""
        if waiters is None:
            self._close()
            waiters, self.waiters = self.waiters, []
        for number, (item, place) in enumerate(waiters):
            if number == 0:
                item.charge(self)
            elif isinstance(outcome, QRewardError):  # a copy, so that each receiver adds its own traceback
                cause = outcome.__cause__
                outcome = copy(outcome)
                outcome.__cause__ = cause
            item.inflight.pop(place, None)
            if not item.done:
                item.outcomes[place] = outcome
                item.settle()

    def _close(self) -> None:
        if self.caller.flights.get(self._key) is self:
            del self.caller.flights[self._key]

    def finish(self, task: CallTask, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self.task, answer = None, outcome
        if task.trail:
            self.trail += tuple(task.trail)
            self.endpoint = self.trail[-1].endpoint
        if isinstance(outcome, Answer):
            assert source is not None
            answer, self.endpoint = outcome.value, source.name
            paid = self.caller.spending.paid(outcome.value.usage, source.name, task.trail)
            self.usage = added(self.usage, paid)
        elif task.trail:
            self.usage = added(self.usage, self.caller.spending.paid(None, None, task.trail))
        step = self.caller.evaluate(self.call, answer, self.endpoint)
        if step.unread:
            self.trail += (AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, step.unread),)
        if isinstance(step, Again) and self.caller.driver.engine.clock() < self.latest():
            self.call = step.call
            self.caller.enqueue(self, again=True)
            return
        value = (step.error or self.waiters[0][0].late()) if isinstance(step, Again) else step.value
        if isinstance(value, RequestError):
            value.endpoint, value.attempts = value.endpoint or self.endpoint, self.trail
        elif source is not None:
            self.answered = successful(task.trail or (), source.name, seconds)
        if isinstance(value, RequestTimeout):
            self._time_out(value, task)
        else:
            self.end(value)

    def _time_out(self, error: RequestTimeout, task: CallTask) -> None:
        """End the items whose deadline has passed. For the other items the call is sent again."""
        over = [waiter for waiter in self.waiters if waiter[0].caller is task.sender or waiter[0].until <= task.deadline]
        if len(over) == len(self.waiters):
            self.end(error)
            return
        self.waiters = [waiter for waiter in self.waiters if waiter not in over]
        self.end(error, over)
        if self.waiters and self.task is None:  # the end of one item may have ended other items
            self._hand_over()


class SingleItem(Waiter):
    execute = None

    def __init__(
        self,
        driver: LoopDriver,
        flights: Flights,
        evaluate: Evaluate,
        spending: Spending,
        options: RequestOptions,
        pools: Mapping[str, Pool],
    ) -> None:
        self.driver, self.flights, self.evaluate, self.spending = driver, flights, evaluate, spending
        self.options, self.pools = options, pools
        self.context = copy_context()

    async def ask(self, item: ItemCalls, born: float) -> Any:
        driver, timeout = self.driver, self.options.timeout
        self._item, self._ended = item, driver.loop.create_future()
        driver.waiters[self] = None
        try:
            item.begin(self, born, inf if timeout is None else born + timeout)
            decided = await self._ended
        except GeneratorExit:  # the coroutine is discarded, perhaps while this thread holds the engine's lock
            driver.later(self._leave)
            raise
        except BaseException:
            self._leave()
            raise
        self._leave()
        if isinstance(decided, QRewardError):
            raise decided
        return decided

    def _leave(self) -> None:
        self.driver.waiters.pop(self, None)
        self._item.leave()

    def enqueue(self, flight: Flight, *, again: bool) -> None:  # noqa: ARG002 - for a batch
        left = flight.latest() - self.driver.engine.clock()
        if left <= 0:
            flight.end(flight.waiters[0][0].late())
        else:
            self.driver.submit(CallTask(flight, None if left == inf else left))

    def end(self, item: ItemCalls, outcome: Any) -> None:  # noqa: ARG002 - there is one item
        if not self._ended.done():
            self._ended.set_result(outcome)

    def start(self, attempt: Attempt) -> None:
        self.driver.spawn(attempt, self.context.copy())

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, CallTask)
        if task is task.flight.task:
            task.flight.finish(task, outcome, source, seconds)

    def close(self) -> None:
        self._item.end(ClientClosed("the client was closed before the verdict was there"))

    def abandon(self) -> list[Task]:
        self.flights.clear()  # they refer to the driver of the closed loop
        return [flight.task for flight in self._item.inflight.values() if flight.caller is self and flight.task is not None]


class ItemBatch(BatchWaiter):
    """Sends the calls of many items. See :class:`BatchWaiter` for the other arguments."""

    _read_at_once = 1

    def __init__(
        self,
        driver: LoopDriver,
        flights: Flights,
        evaluate: Evaluate,
        spending: Spending,
        items: Iterable[Any] | AsyncIterable[Any],
        prepare: Callable[[Any], ItemCalls],
        *,
        answer_of: Callable[[ItemCalls, Any], Any] | None = None,
        per_model: Mapping[str, int | None],
        options: RequestOptions,
        pools: Mapping[str, Pool],
        size: int | None,
        waited: float,
        **kwargs: Any,
    ) -> None:
        per_pool: dict[Pool, int | None] = {}
        for model, count in per_model.items():  # fewer calls, if items share them
            before = per_pool.get(pools[model], 0)
            per_pool[pools[model]] = None if before is None or count is None else before + count
        several = None in per_pool.values() or sum(filter(None, per_pool.values())) > 1
        first = pools[next(iter(pools))]
        super().__init__(driver, first, items, prepare, request_options=options, calls=per_pool, **kwargs)
        self.flights, self.evaluate, self.spending, self.options, self.pools = flights, evaluate, spending, options, pools
        self.execute = self._send_timed if several and options.timeout is not None else None
        self._tallies = self.tallies = ItemTallies()
        self._size, self._waited, self._answer_of = size, waited, answer_of

    def _is_trying(self, feed: BatchFeed) -> bool:  # noqa: ARG002
        return False  # ``enqueue`` decides for each call, because the calls of an item may have different feeds

    def _put(self, feed: BatchFeed, index: int, payload: ItemCalls) -> None:  # noqa: ARG002
        payload.index = index
        if isinstance(payload.calls, Exception):
            error = as_ours(payload.calls, f"item {index}", "judged")
            self._settle(Result(index, None, error, None, 0.0, 0.0, extra=payload.extra))
        else:
            self._live[payload] = None
            payload.begin(self, self.driver.engine.clock())

    def enqueue(self, flight: Flight, *, again: bool) -> None:
        """Append a call to the feed of its pool. A call that was sent before is put first."""
        feed, timeout = self._feeds[flight.pool], self.options.timeout
        failing = feed.failing  # another thread may set it to None
        if failing is not None and feed.ahead():
            self.finish(CallTask(flight, timeout), failing(), None, 0.0)
        elif not again:
            feed.read(CallTask(flight, timeout))
        else:
            if (until := flight.latest()) < inf:
                timeout = until - self.driver.engine.clock()
            for item, _ in flight.waiters:  # their deadline may pass while the request is still in the queue
                item.start_timer()
            self.driver.refill(feed, [CallTask(flight, timeout)])

    async def _send_timed(self, attempt: Attempt) -> Outcome:
        """Send an attempt. The timeout of an item starts with its first request."""
        task = attempt.task
        if isinstance(task, CallTask):
            for item, _ in task.flight.waiters:
                if item.caller is self:
                    item.start_timer()
        return await self.driver.backend.send(attempt.source.handle, task.payload)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, CallTask)
        if task is not task.flight.task:
            return
        self.tallies.add_request(result_of(task, outcome, source, seconds))
        for item, _ in task.flight.waiters:
            if item.caller is self:
                item.until = task.deadline if item.until == inf else item.until
                if item.begun is None:
                    item.born, item.begun = task.born, task.sent_at
        task.flight.finish(task, outcome, source, seconds)

    def end(self, item: ItemCalls, outcome: Any) -> None:
        self._live.pop(item, None)
        queued, seconds, answer, trail, error = 0.0, 0.0, None, item.trail, None
        if item.begun is not None:
            queued = item.begun - item.born
        if isinstance(outcome, QRewardError):
            error = outcome
        else:
            assert self._answer_of is not None
            answer = self._answer_of(item, outcome)
            seconds = 0.0 if item.begun is None else self.driver.engine.clock() - item.begun
            trail = trail if item.answered is None else (*trail, item.answered)
        self._settle(Result(item.index, answer, error, item.endpoint, seconds, queued, trail, item.extra))
        self._end_if_done()

    def _give_up(self, make_error: Callable[[], QRewardError] | None = None) -> None:
        self._close_feeds()
        for item in list(self._live):
            item.leave() if make_error is None else item.end(make_error())
        self._live.clear()

    def abandon(self) -> list[Task]:
        self._close_feeds()
        self.flights.clear()
        flights = {flight for item in self._live for flight in item.inflight.values() if flight.caller is self}
        return [flight.task for flight in flights if flight.task is not None]

    def _drop_unstarted(self) -> None:
        self._feed.ended = True
        for item in list(self._live):
            if item.begun is None and not any(flight.is_begun() for flight in item.inflight.values()):
                del self._live[item]
                item.leave()
