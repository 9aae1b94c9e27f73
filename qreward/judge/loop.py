"""The loop of a judge: ``prepare`` gives the calls of an item, and ``evaluate`` says of each answer whether its call is done, or which call
is sent again. Equal calls in flight are sent once.

All objects of this module belong to one event loop. An item waits for one ``Flight`` for each of its calls. When the last item stops
waiting for a flight, its request is cancelled. A batch puts its requests into its feed, the queue from which the scheduler takes them. A
single call submits them to the driver, and so does a flight whose batch no longer needs it while other items wait. This module does not
know prompts, verdicts or caches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

from qreward.codecs.base import WireRequest
from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import LoopDriver, Waiter
from qreward.engine.snapshots import ItemTallies, result_of
from qreward.errors import BadRequest, ClientClosed, QRewardError, RequestError, RequestTimeout
from qreward.records import AttemptRecord, Usage, added
from qreward.results import Result, successful, with_trail
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, RequestOptions, Task, TaskState
from qreward.scheduler.why import said

MOST_AHEAD = 8192
"""Number of requests in the queue of one model at which a batch with several models reads no more items. Below this number, items are read
although a slow model has a long queue, so that the faster models get work."""


class Done(NamedTuple):
    """The call has its value, or its final error. ``reply`` is what the answer contained, and ``unread`` why it could not be read."""

    value: Any
    reply: Any = None
    unread: str = ""


class Again(NamedTuple):
    """Another call must be sent. ``error`` is the final error if there is no time for it; ``reply`` and ``unread`` are as in ``Done``."""

    call: ModelCall
    error: QRewardError | None = None
    reply: Any = None
    unread: str = ""


class ModelCall(Protocol):
    """One request to one model. It is not changed, except that its form may get stale while the call waits in a queue."""

    @property
    def key(self) -> Hashable: ...
    @property
    def swapped(self) -> bool: ...
    @property
    def model(self) -> str: ...
    def is_stale(self) -> bool: ...
    def current(self) -> ModelCall: ...
    def request(self) -> WireRequest: ...


Evaluate = Callable[[Any, Any, str | None], Done | Again]
"""A function from a call, its decoded answer or error, and the name of the endpoint that answered."""
Decide = Callable[[Sequence[Any]], Any]
"""A function from the values and errors of all calls of an item, None for those without an answer yet, to the value or error of the item.
It returns None while the item is undecided."""


class Flights:
    """Holds the calls in flight in one event loop. ``evaluate`` evaluates their answers."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate
        self.requests: dict[Hashable, Flight] = {}


@dataclass(slots=True, eq=False)
class Caller:
    """Holds what all items of one call or batch share.

    Attributes:
        options: options of each request; ``timeout`` is the number of seconds for an item.
        pools: model -> pool of its endpoints.
        end: receives an item with its value or error.
        batch: the batch that sends the requests; None for a single call.
    """

    driver: LoopDriver
    flights: Flights
    options: RequestOptions
    pools: Mapping[str, Pool]
    end: Callable[[ItemCalls, Any], None]
    batch: ItemBatch | None = None
    context: Context = field(default_factory=copy_context)


class ItemCalls:
    """Holds an item and the outcomes of its calls.

    Args:
        calls: the calls, or the exception that was raised while they were made.
        decide: see ``Decide``.
        extra: the fields of the item that its result returns.

    Attributes:
        outcomes: outcome of each call; None while the call is pending.
        born, begun, until: when the item arrived; when its first request was sent, or None; and its deadline, inf if it is not known yet.
            All are seconds on the engine's clock.
        inflight: index in ``calls`` -> the flight.
        done: True if the item has its outcome, or no caller waits for it.
        sent, usage, trail, endpoint, answered: whether a flight was charged to this item, and the tokens, failed attempts, last endpoint
            and last successful attempt of these flights. A shared flight is charged to one item only.
    """

    __slots__ = (
        "answered", "begun", "born", "caller", "calls", "decide", "done", "endpoint", "extra", "index", "inflight", "outcomes", "sent",
        "timer", "trail", "until", "usage",
    )  # fmt: skip
    caller: Caller

    def __init__(self, calls: Sequence[ModelCall] | Exception, decide: Decide, extra: Mapping[str, Any] | None = None) -> None:
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

    def begin(self, caller: Caller, born: float, until: float = inf) -> None:
        """Send the calls without an outcome, or share equal calls that are in flight."""
        assert not isinstance(self.calls, Exception)
        self.caller, self.born, self.until = caller, born, until
        known = len(self.outcomes) - self.outcomes.count(None)
        if known and self._is_decided():
            return
        table, (level, _, hedge, tenant, *_) = caller.flights.requests, caller.options
        fresh = []
        for place, call in enumerate(self.calls):
            if self.outcomes[place] is not None:
                continue
            key = (call.key, call.swapped, level, tenant, hedge)
            flight = table.get(key)
            if flight is None:
                flight = table[key] = Flight(key, call, caller)
                fresh.append(flight)
            elif flight.batch is None or flight.caller is not caller:
                self.start_timer()
            flight.waiters.append((self, place))
            self.inflight[place] = flight
        for flight in fresh:
            if flight.waiters:  # sending an earlier request may have ended the item
                flight.send()

    def start_timer(self) -> None:
        """Start a timer that ends the item at its deadline. A flight that the item shares may end later."""
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
        """Return the error of an item whose deadline has passed."""
        assert not isinstance(self.calls, Exception)
        model, engine = self.calls[0].model, self.caller.driver.engine
        with engine.lock:
            why = said(engine.clock(), self.caller.pools[model])
        return RequestTimeout(f"no verdict within {self.caller.options.timeout:g} s; model {model!r}; {why}", model=model)

    def record(self, place: int, outcome: Any) -> None:
        """Record the outcome of the call with the index ``place``. The outcome may decide the item."""
        self.inflight.pop(place, None)
        if self.done:
            return
        self.outcomes[place] = outcome
        if isinstance(outcome, ClientClosed):
            self.end(outcome)
        else:
            self._is_decided()

    def _is_decided(self) -> bool:
        decided = self.decide(self.outcomes)
        if decided is not None:
            self.end(decided)
        return decided is not None

    def end(self, decided: Any, cut: Sequence[AttemptRecord] = ()) -> None:
        """End the item with its value or error. ``cut`` has the attempts of the tasks that did not end before its deadline."""
        if self.done:
            return
        self.leave()
        if cut:
            self.trail, self.endpoint = (*self.trail, *cut), cut[-1].endpoint
        if isinstance(decided, QRewardError):
            decided.usage = self.usage
            if isinstance(decided, RequestTimeout) and self.trail:
                decided = with_trail(decided, self.trail)
        self.caller.end(self, decided)

    def leave(self) -> None:
        """Stop waiting for all flights."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.inflight:
            inflight, self.inflight = dict.fromkeys(self.inflight.values()), {}
            for flight in inflight:
                flight.leave(self)

    def charge(self, flight: Flight) -> None:
        """Add the failed attempts of a flight to this item, and the tokens that were not charged to another item."""
        self.sent = True
        self.usage, flight.usage = added(self.usage, flight.usage), None
        self.trail += flight.trail
        self.endpoint = flight.endpoint or self.endpoint
        self.answered = flight.answered or self.answered


class CallTask(Task):
    """Sends the call of a flight once. If the form of its requests changes before the task is sent, its payload is made again."""

    __slots__ = ("flight",)

    def __init__(self, flight: Flight, waiter: Any, timeout: float | None) -> None:
        options = flight.caller.options
        super().__init__(flight.call.request(), flight.pool, options.level, timeout, waiter, 0, options.tenant)
        self.hedge, self.flight = options.hedge, flight
        self.prefix = flight.pool.prefix_of_task(self.payload)

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002
        """Prepare the task just before the task is sent. Returns False if no item waits for the call any more."""
        flight = self.flight
        if flight.task is not self:
            return False
        if flight.call.is_stale():
            flight.call = flight.call.current()
            self.payload = flight.call.request()
        return True


class Flight(Waiter):
    """Holds one call until its value or final error, and the items that wait for it. The call may be sent several times.

    Attributes:
        call: the call to send next.
        waiters: the waiting items, each with the index of the call in the item. The flight is charged to the first item.
        batch: the batch that sends the requests; None if this object submits them, and receives the outcomes of the tasks.
        task: the task that is queued or being sent; None if there is none at the moment.
        usage, trail, endpoint, answered: as in ``ItemCalls``.
    """

    execute = None
    __slots__ = ("_key", "_until", "answered", "batch", "call", "caller", "driver", "endpoint", "pool", "task", "trail", "usage",
                 "waiters")  # fmt: skip

    def __init__(self, key: Hashable, call: ModelCall, caller: Caller) -> None:
        self._key, self.call, self.caller, self.batch = key, call, caller, caller.batch
        self.driver, self.pool = caller.driver, caller.pools[call.model]
        self.waiters: list[tuple[ItemCalls, int]] = []
        self.task: CallTask | None = None
        self._until = inf  # the deadline of the task, if no batch sends it
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.answered: AttemptRecord | None = None

    @property
    def context(self) -> Context:  # type: ignore[override]
        """The context variables of the caller."""
        return self.caller.context

    def send(self, *, again: bool = False) -> None:
        """Send the call, for the first time or again."""
        if self.call.is_stale():
            self.call = self.call.current()
        if self.batch is not None:
            self.batch.enqueue(self, again=again)
            return
        now = self.driver.engine.clock()
        self._until = self.latest()
        if self._until <= now:
            self.end(self.waiters[0][0].late())
            return
        self.driver.waiters[self] = None
        self.driver.submit(self.new_task(self, None if self._until == inf else self._until - now))

    def latest(self) -> float:
        """Return the latest deadline of the waiting items."""
        return max([item.until for item, _ in self.waiters])

    def new_task(self, waiter: Any, timeout: float | None) -> CallTask:
        """Create a task for the call, and make it the current task."""
        self.task = CallTask(self, waiter, timeout)
        return self.task

    # waiting items

    def leave(self, item: ItemCalls) -> None:
        """Remove an item that no longer waits. If only items of other callers wait, the flight leaves its batch and continues."""
        is_charged = bool(self.waiters) and self.waiters[0][0] is item
        self.waiters = [waiter for waiter in self.waiters if waiter[0] is not item]
        if is_charged:
            item.charge(self)
        if not self.waiters:
            self._close()
            self._cancel()
        elif self.batch is not None and all(other.caller is not self.caller for other, _ in self.waiters):
            self._leave_batch()

    def _leave_batch(self) -> None:
        """Leave the batch. A task that was started continues. A task that waits in the feed of the batch is replaced by a new task."""
        self.batch, self.caller = None, self.waiters[0][0].caller
        if self.task is not None and self.is_begun():
            self._until, self.task.waiter = self.task.deadline, self
            self.driver.waiters[self] = None
        else:
            self.send()

    def end(self, outcome: Any) -> None:
        """End the flight with a value or an error, and pass the outcome to all waiting items."""
        self._close()
        waiters, self.waiters = self.waiters, []
        self._pass_on(outcome, waiters)

    def _pass_on(self, outcome: Any, waiters: Sequence[tuple[ItemCalls, int]]) -> None:
        for number, (item, place) in enumerate(waiters):
            if number == 0:
                item.charge(self)
            elif isinstance(outcome, QRewardError):  # a copy, so that each receiver adds its own traceback
                cause = outcome.__cause__
                outcome = copy(outcome)
                outcome.__cause__ = cause
            item.record(place, outcome)

    def _close(self) -> None:
        requests = self.caller.flights.requests
        if requests.get(self._key) is self:
            del requests[self._key]
        self.driver.waiters.pop(self, None)

    def is_begun(self) -> bool:
        """Return whether the scheduler has started the task. Otherwise the task waits in the feed of a batch."""
        with self.driver.engine.lock:
            return self.task is not None and self.task.state is not TaskState.NEW

    def _cancel(self, error: QRewardError | None = None) -> None:
        if (task := self.task) is None:
            return
        begun, self.task = self.is_begun(), None
        if self.batch is not None:
            self.batch.tallies.add_cancelled((task.attempt, task.copy))
        if begun:  # otherwise ``CallTask.bind`` returns False later
            self.driver.withdraw([task], error)

    # called by the driver, or by the batch

    def start(self, attempt: Attempt) -> None:
        self.driver.spawn(attempt, self.context.copy())

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if task is not self.task:
            return
        self.task, answer = None, outcome
        if task.trail:
            self.trail += tuple(task.trail)
            self.endpoint = self.trail[-1].endpoint
        if isinstance(outcome, Answer):
            assert source is not None
            answer, self.endpoint = outcome.value, source.name
            self.usage = added(self.usage, outcome.value.usage)
        step = self.caller.flights.evaluate(self.call, answer, self.endpoint)
        if step.unread:
            self.trail += (AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, step.unread),)
        if isinstance(step, Again) and self.driver.engine.clock() < self.latest():
            self.call = step.call
            self.send(again=True)
            return
        value = (step.error or self.waiters[0][0].late()) if isinstance(step, Again) else step.value
        if isinstance(value, RequestError):
            value.endpoint, value.attempts = value.endpoint or self.endpoint, self.trail
        elif source is not None:
            self.answered = successful(task.trail or (), source.name, seconds)
        if isinstance(value, RequestTimeout):
            self._time_out(value)
        else:
            self.end(value)

    def _time_out(self, error: RequestTimeout) -> None:
        """End the items whose deadline has passed. For the other items the call is sent again."""
        over = [waiter for waiter in self.waiters if (waiter[0].caller is self.caller if self.batch else waiter[0].until <= self._until)]
        if len(over) == len(self.waiters):
            self.end(error)
            return
        self.waiters = [waiter for waiter in self.waiters if waiter not in over]
        self._pass_on(error, over)
        if self.waiters and self.task is None:  # the end of one item may have ended other items
            self._leave_batch()

    def close(self) -> None:
        error = ClientClosed("the client was closed before the verdict was there")
        self._cancel(error)
        self.end(error)

    def abandon(self) -> list[Task]:
        return [self.task] if self.task is not None and self.is_begun() else []


async def ask_one(
    item: ItemCalls,
    driver: LoopDriver,
    flights: Flights,
    options: RequestOptions,
    pools: Mapping[str, Pool],
    born: float,
) -> Any:
    """Send the calls of a single item, and return its value. Raises the error of the item. ``born`` is when the item arrived."""
    ended: asyncio.Future[Any] = driver.loop.create_future()
    caller = Caller(driver, flights, options, pools, lambda _, outcome: None if ended.done() else ended.set_result(outcome))
    try:
        item.begin(caller, born, inf if options.timeout is None else born + options.timeout)
        decided = await ended
    except GeneratorExit:  # the coroutine is discarded, perhaps while this thread holds the engine's lock
        driver.later(item.leave)
        raise
    except BaseException:
        item.leave()
        raise
    if isinstance(decided, QRewardError):
        raise decided
    return decided


class ItemBatch(BatchWaiter):
    """Sends the calls of many items. See :class:`BatchWaiter` for the other arguments.

    Args:
        items: the items; or ``ItemCalls`` objects, if the cache was asked for votes.
        prepare: makes an ``ItemCalls`` from an item of the input. It does not raise.
        answer_of: makes the answer of a result from an item and its value.
        per_model: model -> the largest number of calls to it for one item.
        waited: seconds of the deadline that have passed already.
    """

    _read_at_once = 1

    def __init__(
        self,
        driver: LoopDriver,
        flights: Flights,
        items: Iterable[Any] | AsyncIterable[Any],
        prepare: Callable[[Any], ItemCalls],
        *,
        answer_of: Callable[[ItemCalls, Any], Any],
        per_model: Mapping[str, int],
        options: RequestOptions,
        pools: Mapping[str, Pool],
        size: int | None,
        waited: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(driver, next(iter(pools.values())), items, prepare, request_options=options, **kwargs)
        self.caller = Caller(driver, flights, options, pools, self._end_item, self, self.context)
        self.execute = self._send_timed if sum(per_model.values()) > 1 and options.timeout is not None else None
        self._tallies = self.tallies = ItemTallies()
        self._size, self._waited, self._per_model, self._answer_of = size, waited, per_model, answer_of
        self._open: dict[ItemCalls, None] = {}
        self._feeds: dict[Pool, BatchFeed] = {}

    # reading

    def _read_now(self, feed: BatchFeed) -> bool:
        if self._feed.ended or self._room(feed) > 0:  # otherwise the queue of another model is full, and nothing is read
            if not super()._read_now(self._feed) and self._feed.ahead():
                return False
            self._refill(but=feed)
            return feed.ahead() > 0 or feed.failing is not None
        return feed.ahead() > 0

    def _room(self, feed: BatchFeed) -> int:
        if len(self._feeds) < 2:
            return feed.read_ahead - feed.ahead()
        waiting = [each.ahead() for each in self._feeds.values()]  # the shortest queue of all models counts
        return max(each.read_ahead for each in self._feeds.values()) - min(waiting) if max(waiting) < MOST_AHEAD else 0

    def _feed_of(self, pool: Pool) -> BatchFeed:
        feed = self._feeds.get(pool)
        if feed is None:
            options, is_first = self._request_options, pool is self._pool
            feed = (
                self._feed
                if is_first
                else BatchFeed(pool, options.level, self, self.driver.engine.clock(), options.tenant, options.timeout)
            )
            self._feeds[pool] = feed
            if self._size is not None:  # fewer requests, if items share them
                feed.left = self._size * sum(each for model, each in self._per_model.items() if self.caller.pools[model] is pool)
            if not is_first:
                self.driver.locked(self.driver.engine.scheduler.attend, feed)
        return feed

    def _refill(self, but: BatchFeed | None = None) -> None:
        for feed in list(self._feeds.values()):
            if feed is not but and feed.incoming:
                self.driver.refill(feed)

    def _add(self, feed: BatchFeed, item: Any) -> None:
        if not self._read:
            self._feed_of(self._pool)
        index = self._next_index()
        if type(item) is not ItemCalls:
            item = self._prepare(item)
        item.index = index
        if isinstance(item.calls, Exception):
            self._settle(Result(index, None, as_ours(item.calls, f"item {index}", "judged"), None, 0.0, 0.0, extra=item.extra))
            return
        self._open[item] = None
        item.begin(self.caller, self.driver.engine.clock())
        if self._is_async:
            self._refill(but=feed)

    # requests

    def enqueue(self, flight: Flight, *, again: bool) -> None:
        """Append a call to the feed of its model. A call that was sent before is put first."""
        feed, timeout = self._feed_of(flight.pool), self._request_options.timeout
        failing = feed.failing  # another thread may set it to None
        if failing is not None and feed.ahead():
            self.finish(flight.new_task(self, timeout), failing(), None, 0.0)
            return
        if not again:
            feed.read(flight.new_task(self, timeout))
            return
        if (until := flight.latest()) < inf:
            timeout = until - self.driver.engine.clock()
        for item, _ in flight.waiters:  # their deadline may pass while the request is still in the queue
            item.start_timer()
        self.driver.refill(feed, [flight.new_task(self, timeout)])

    async def _send_timed(self, attempt: Attempt) -> Outcome:
        """Send an attempt. The timeout of an item starts with its first request."""
        task = attempt.task
        if isinstance(task, CallTask):
            for item in self._own_items(task):
                item.start_timer()
        return await self.driver.backend.send(attempt.source.handle, task.payload)

    def _own_items(self, task: CallTask) -> list[ItemCalls]:
        return [item for item, _ in task.flight.waiters if item.caller is self.caller]

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, CallTask)
        if task is not task.flight.task:
            return
        self.tallies.add_request(result_of(task, outcome, source, seconds))
        for item in self._own_items(task):
            item.until = min(item.until, task.deadline)
            if item.begun is None:
                item.born, item.begun = task.born, task.sent_at
        task.flight.finish(task, outcome, source, seconds)

    # results

    def _end_item(self, item: ItemCalls, outcome: Any) -> None:
        self._open.pop(item, None)
        queued, seconds, answer, trail, error = 0.0, 0.0, None, item.trail, None
        if item.begun is not None:
            queued = item.begun - item.born
        if isinstance(outcome, QRewardError):
            error = outcome
        else:
            answer = self._answer_of(item, outcome)
            seconds = 0.0 if item.begun is None else self.driver.engine.clock() - item.begun
            trail = trail if item.answered is None else (*trail, item.answered)
        self._settle(Result(item.index, answer, error, item.endpoint, seconds, queued, trail, item.extra))
        self._end_if_done()

    # ending

    def _end_if_done(self) -> None:
        if not self._feed.ended or self._ending:
            return
        for feed in self._feeds.values():
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
        for flight in self._own_flights():
            flight.close()
        super().close()

    def abandon(self) -> list[Task]:
        self._close_feeds()
        return [task for flight in self._own_flights() for task in flight.abandon()]

    def _close_feeds(self) -> None:
        for feed in {self._pool: self._feed, **self._feeds}.values():
            self.driver.close_feed(feed)

    def _own_flights(self) -> list[Flight]:
        return [each for each in dict.fromkeys(each for item in self._open for each in item.inflight.values()) if each.batch is self]

    def _drop_unstarted(self) -> None:
        self._feed.ended = True
        for item in list(self._open):
            if item.begun is None and not any(flight.is_begun() for flight in item.inflight.values()):
                del self._open[item]
                item.leave()

    def _stop(self, make_error: Callable[[], QRewardError]) -> None:
        self._close_feeds()
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
