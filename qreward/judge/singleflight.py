"""Share identical requests between items: each request is in flight only once, for all items that wait for its answer.

All objects of this module belong to one event loop. ``SingleFlight`` maps keys to the requests in flight. An item waits for one
``SharedRequest`` for each request that it needs. When the last item stops waiting, the request is cancelled.

A batch puts its requests into its feed, the queue from which the scheduler takes them. Requests of single calls are submitted to the driver
one by one. If a batch no longer needs a request, but other items wait for it, the request is submitted to the driver too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import Context
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Any

from qreward.engine.driver import LoopDriver, Waiter
from qreward.errors import ClientClosed, QRewardError, RequestTimeout
from qreward.judge.aggregation import Decide, SampleOutcome
from qreward.judge.cache import CacheEntry
from qreward.judge.sampling import JudgeRequest, SampleRequest
from qreward.judge.types import Vote
from qreward.records import added
from qreward.results import AttemptRecord, Usage, with_trail
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import Attempt, Pool, RequestOptions, Source, Task, TaskState

if TYPE_CHECKING:
    import asyncio


class SingleFlight:
    """Holds the requests that one judge has in flight in one event loop.

    ``keep`` is a function that receives each answer, including answers that could not be parsed.
    """

    def __init__(self, keep: Callable[[CacheEntry], object] | None) -> None:
        self.keep = keep
        self.requests: dict[Hashable, SharedRequest] = {}


class Caller:
    """The base of ``SingleCall`` and ``BatchRunner``. A caller is one call or one batch whose items are judged.

    Attributes:
        has_feed: True if requests are sent through :meth:`enqueue`, and not submitted to the driver.
        driver: driver of the event loop.
        flights: the requests in flight in this event loop.
        options: options of each request; ``timeout`` is the number of seconds for an item.
        pools: judge model -> pool of its endpoints.
        decide: aggregates the outcomes of the requests of an item, including the requests without an outcome yet.
        context: context variables of the caller.
    """

    has_feed = False
    driver: LoopDriver
    flights: SingleFlight
    options: RequestOptions
    pools: Mapping[str, Pool]
    decide: Decide
    context: Context

    def on_decided(self, item: JudgeItem, outcome: Any) -> None:
        """Receive the outcome or error of an item."""

    def enqueue(self, request: SharedRequest, *, again: bool) -> None:
        """Send a request through the feed of the batch. ``again`` is True if the request was sent before."""

    def withdrawn(self, task: Task) -> None:
        """Receive a task of the batch that is cancelled because no item waits for it."""


class JudgeItem:
    """Holds an item and the outcomes of its requests.

    Attributes:
        born: when the item arrived, on the engine's clock.
        begun: when the first request of the item was sent; None before that.
        until: the deadline on the engine's clock; inf if the deadline is not known yet.
        extra: the fields of the item that its result returns.
        outcomes: outcome of each request; None while the request is pending.
        inflight: index in ``requests`` -> the request in flight.
        done: True if the item has its outcome, or no caller waits for it.
        usage, trail, endpoint, answered: tokens, failed attempts, last endpoint and last successful attempt of the requests that are
            charged to this item. A shared request is charged to one item only.
        sent: True if a request was charged to this item.
    """

    __slots__ = (
        "_timer", "answered", "begun", "born", "caller", "done", "endpoint", "extra", "index", "inflight", "outcomes", "requests", "sent",
        "trail", "until", "usage",
    )  # fmt: skip

    def __init__(
        self,
        caller: Caller,
        requests: Sequence[JudgeRequest],
        *,
        index: int = 0,
        born: float,
        until: float = inf,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.caller, self.requests, self.index, self.born, self.until, self.extra = caller, requests, index, born, until, extra
        self.outcomes: list[SampleOutcome] = [None] * len(requests)
        self.inflight: dict[int, SharedRequest] = {}
        self.done = self.sent = False
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.answered: AttemptRecord | None = None
        self.begun: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, known: Sequence[Vote | None] = ()) -> None:
        """Send the requests of the item, or share equal requests that are in flight.

        ``known`` has the cached vote of each request, or None.
        """
        for place, vote in enumerate(known):
            if vote is not None:
                self.record(place, vote)
        if self.done:
            return
        caller = self.caller
        table, options = caller.flights.requests, caller.options
        fresh = []
        for place, request in enumerate(self.requests):
            if self.outcomes[place] is not None:
                continue
            key = (request.key, request.swapped, options.level, options.tenant, options.hedge)
            shared = table.get(key)
            if shared is None:
                shared = table[key] = SharedRequest(key, request, caller)
                fresh.append(shared)
            elif shared.batch is not caller:
                self.start_timer()
            shared.waiters.append((self, place))
            self.inflight[place] = shared
        for shared in fresh:
            if shared.waiters:  # sending an earlier request may have ended the item
                shared.send()

    def start_timer(self) -> None:
        """Start a timer that ends the item at its deadline. A request that the item shares may end later."""
        timeout, driver = self.caller.options.timeout, self.caller.driver
        if self._timer is None and timeout is not None:
            now = driver.engine.clock()
            if self.until == inf:
                self.until = now + timeout
            self._timer = driver.loop.call_later(max(0.0, self.until - now), self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        now, cut = self.caller.driver.engine.clock(), list[AttemptRecord]()
        with self.caller.driver.engine.lock:
            for task in (shared.task for shared in dict.fromkeys(self.inflight.values())):
                cut += [] if task is None else [*(task.trail or ()), *unanswered(task, now)]
        self.end(self.late(), cut)

    def late(self) -> RequestTimeout:
        """Return the error of an item whose deadline has passed."""
        model = self.requests[0].judge_model.model
        return RequestTimeout(f"no verdict within {self.caller.options.timeout:g} s; model {model!r}", model=model)

    def record(self, place: int, outcome: SampleOutcome) -> None:
        """Record the outcome of the request with the index ``place``. The outcome may decide the item."""
        self.inflight.pop(place, None)
        if self.done:
            return
        self.outcomes[place] = outcome
        decided = outcome if isinstance(outcome, ClientClosed) else self.caller.decide(self.outcomes)
        if decided is not None:
            self.end(decided)

    def end(self, decided: Any, cut: Sequence[AttemptRecord] = ()) -> None:
        """End the item with its outcome or error. The item stops waiting for the requests that are still in flight.

        ``cut`` has the attempts of the tasks that did not end before the deadline of the item.
        """
        if self.done:
            return
        self.leave()
        if cut:
            self.trail, self.endpoint = (*self.trail, *cut), cut[-1].endpoint
        if isinstance(decided, QRewardError):
            decided.usage = self.usage
            if isinstance(decided, RequestTimeout) and self.trail:
                decided = with_trail(decided, self.trail)
        self.caller.on_decided(self, decided)

    def leave(self) -> None:
        """Stop waiting for all requests in flight."""
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        inflight, self.inflight = dict.fromkeys(self.inflight.values()), {}
        for shared in inflight:
            shared.leave(self)

    def charge(self, sample: SampleRequest) -> None:
        """Add the failed attempts of a request to this item, and the tokens that were not charged to another item."""
        self.sent = True
        self.usage = added(self.usage, sample.usage)
        sample.usage = None
        self.trail += sample.trail
        self.endpoint = sample.endpoint or self.endpoint
        self.answered = sample.answered or self.answered


class SampleTask(Task):
    """Sends a shared request once. If the response format changes before the task is sent, its payload is made again."""

    __slots__ = ("request",)

    def __init__(self, request: SharedRequest, waiter: Any, timeout: float | None) -> None:
        options = request.options
        super().__init__(request.sample.call(), request.pool, options.level, timeout, waiter, 0, options.tenant)
        self.hedge = options.hedge
        self.prefix = request.pool.prefix_of_task(self.payload)
        self.request = request

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002
        """Prepare the task just before the task is sent. Returns False if no item waits for the request any more."""
        if self.request.task is not self:
            return False
        if self.request.sample.is_stale():
            self.payload = self.request.sample.call()
        return True


class SharedRequest(Waiter):
    """Holds one request and the items that wait for it. If no batch sends the request, this object receives the outcome of the task.

    Attributes:
        request: the request.
        sample: the state of the request. The state is kept when the request is sent again.
        waiters: the waiting items, each with the index of the request in the item. The request is charged to the first item.
        batch: the batch that sends the request, or None.
        task: the task that is queued or being sent; None if there is none at the moment.
    """

    execute = None
    __slots__ = ("_key", "_until", "batch", "context", "driver", "flights", "options", "pool", "request", "sample", "task", "waiters")

    def __init__(self, key: Hashable, request: JudgeRequest, caller: Caller) -> None:
        self._key, self.request, self.sample = key, request, SampleRequest(request)
        self.flights, self.driver = caller.flights, caller.driver
        self.options, self.pool, self.context = caller.options, caller.pools[request.judge_model.model], caller.context
        self.waiters: list[tuple[JudgeItem, int]] = []
        self.batch: Caller | None = caller if caller.has_feed else None
        self.task: SampleTask | None = None
        self._until = inf  # the deadline of the task, if no batch sends it

    # sending

    def send(self, *, again: bool = False) -> None:
        """Send the request, for the first time or again."""
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

    def new_task(self, waiter: Any, timeout: float | None) -> SampleTask:
        """Create a task for the request, and make it the current task."""
        self.task = SampleTask(self, waiter, timeout)
        return self.task

    # waiting items

    def leave(self, item: JudgeItem) -> None:
        """Remove an item that no longer waits.

        If no item waits, the request is cancelled. If only items of other callers wait, the request leaves its batch and continues.
        """
        paid = bool(self.waiters) and self.waiters[0][0] is item
        self.waiters = [waiter for waiter in self.waiters if waiter[0] is not item]
        if paid:
            item.charge(self.sample)
        if not self.waiters:
            self._close()
            self._cancel()
        elif self.batch is not None and all(other.caller is not self.batch for other, _ in self.waiters):
            self._leave_batch()

    def _leave_batch(self) -> None:
        """Leave the batch. A task that was started continues. A task that waits in the feed of the batch is replaced by a new task."""
        self.batch, self.context = None, self.waiters[0][0].caller.context
        task = self.task
        if task is not None and self.is_begun():
            self._until, task.waiter = task.deadline, self
            self.driver.waiters[self] = None
        else:
            self.send()

    def end(self, outcome: SampleOutcome) -> None:
        """End the request with a vote or an error, and pass the outcome to all waiting items."""
        self._close()
        waiters, self.waiters = self.waiters, []
        self._pass_on(outcome, waiters)

    def _pass_on(self, outcome: SampleOutcome, waiters: Sequence[tuple[JudgeItem, int]]) -> None:
        for number, (item, place) in enumerate(waiters):
            if number == 0:
                item.charge(self.sample)
            elif isinstance(outcome, QRewardError):  # a copy, so that each receiver adds its own traceback
                cause = outcome.__cause__
                outcome = copy(outcome)
                outcome.__cause__ = cause
            item.record(place, outcome)

    def _close(self) -> None:
        if self.flights.requests.get(self._key) is self:
            del self.flights.requests[self._key]
        self.driver.waiters.pop(self, None)

    def is_begun(self) -> bool:
        """Return whether the scheduler has started the task. Otherwise the task waits in the feed of a batch."""
        with self.driver.engine.lock:
            return self.task is not None and self.task.state is not TaskState.NEW

    def _cancel(self, error: QRewardError | None = None) -> None:
        task, begun = self.task, self.is_begun()
        self.task = None
        if task is not None and self.batch is not None:
            self.batch.withdrawn(task)
        if task is not None and begun:  # otherwise ``SampleTask.bind`` returns False later
            self.driver.withdraw([task], error)

    # called by the driver, or by the batch

    def start(self, attempt: Attempt) -> None:
        self.driver.spawn(attempt, self.context.copy())

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if task is not self.task:
            return
        self.task = None
        evaluated = self.sample.evaluate(task, outcome, source, seconds)
        if self.flights.keep is not None and isinstance(outcome, Answer):
            assert self.sample.reply is not None
            assert source is not None
            request = self.sample.request
            key = request.key if isinstance(evaluated, Vote) else None
            self.flights.keep(CacheEntry(request.judge_model.cached_as, source.name, self.sample.reply, key))
        if evaluated is None and self.driver.engine.clock() < self.latest():
            self.send(again=True)
        elif isinstance(evaluated, RequestTimeout):
            self._time_out(evaluated)
        else:
            self.end(evaluated or self.sample.error)

    def _time_out(self, error: RequestTimeout) -> None:
        """End the items whose deadline has passed. For the other items the request is sent again."""
        batch, until = self.batch, self._until
        over = [waiter for waiter in self.waiters if (waiter[0].caller is batch if batch else waiter[0].until <= until)]
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
