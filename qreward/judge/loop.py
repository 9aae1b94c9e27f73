"""The calls of a judge: items that ask the same, in one batch or outside of batches, share their calls, and a decided item waits for no
further call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import copy_context
from copy import copy
from math import inf
from typing import Any, NamedTuple

import msgspec

from qreward.engine.background import report_error
from qreward.engine.batch import BatchWaiter, ResultSettings, as_ours, size_of
from qreward.engine.driver import LoopDriver, Waiter, result_of
from qreward.engine.instrumentation import LOG
from qreward.errors import STOPPED, BudgetExceeded, ClientClosed, ConfigError, DeadlineExceeded, QRewardError, RequestError, RequestTimeout
from qreward.judge.aggregation import Decide
from qreward.judge.cache import Cache, CacheEntry
from qreward.judge.calibration import Calibrator
from qreward.judge.calls import JudgeCall, evaluate
from qreward.judge.config import Budget
from qreward.judge.types import JudgeAnswer, Vote, one_by_one
from qreward.records import AttemptRecord, Usage, added
from qreward.results import Result, dollars, successful, with_trail
from qreward.scheduler.failure_policy import unanswered
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, RequestOptions, Task, TaskState
from qreward.scheduler.why import said

Running = dict[Hashable, "ItemCalls"]
"""The items whose calls are sent: of a batch, or of all calls outside of batches of one judge. The key is what they ask."""
LOOKED_UP = 64
"""Maximum number of items of a batch whose answers are looked up in the cache together."""

MOST_AHEAD = 8192
"""Number of tasks in the queue of one pool at which a batch with several pools reads no more items. Below this number, items are read
although a slow pool has a long queue, so that the faster pools get work."""

ACCOUNTED = ("ok", "unreadable", "overloaded", "quota", "unreachable", "unsuitable", "unsendable", "refused", "local")
"""Outcomes of attempts whose tokens the server has reported, if it reports tokens, or that no server has processed."""


class Spending:
    """Counts what a judge, which ``judge`` names, spends in all event loops."""

    def __init__(self, judge: str, budget: Budget | None, prices: Mapping[str, tuple[float, float]]) -> None:
        if budget is not None and budget.cost is not None and not prices:
            raise ConfigError(
                "budget: a limit in US dollars needs the price of the endpoints; set Endpoint(price=(dollars for a million prompt tokens, "
                "completion tokens)), or a budget of tokens"
            )
        self._judge, self.budget, self._prices = judge, budget, prices
        self.total, self._answers = Usage(0, 0, 0), 0
        self.is_logged, self._silent = False, ""

    def paid(self, usage: Usage | None, endpoint: str | None, attempts: Sequence[AttemptRecord] | None = None) -> Usage | None:
        """Count an answer of an endpoint, or None, and the failed attempts before it, and return its usage with the cost. The caller holds
        the engine's lock."""
        price = self._prices.get(endpoint or "")
        if endpoint is not None and usage is None:
            if price is not None or (self.budget is not None and self.budget.tokens is not None):
                self._silent = endpoint
        elif usage is not None and price is not None:
            cost = dollars(price, usage.prompt_tokens or 0, usage.completion_tokens or 0)
            usage = msgspec.structs.replace(usage, cost=cost)
        if attempts and (lost := sum(each.outcome not in ACCOUNTED for each in attempts)):
            usage = msgspec.structs.replace(usage or Usage(), unreported=lost)
        if usage is not None:
            self._answers += usage.prompt_tokens is not None
            self.total = added(self.total, msgspec.structs.replace(usage, total_tokens=usage.tokens)) or usage
        return usage

    def exceeded(self) -> BudgetExceeded | None:
        """Return the error of a request that may not be sent any more; None while the budget lasts.

        An attempt whose cost was not reported counts as much as the mean answer.
        """
        if self.budget is None:
            return None
        share = 1 + self.total.unreported / max(1, self._answers)
        cost, tokens, said = (self.total.cost or 0.0) * share, self.total.tokens * share, ""
        if self.budget.cost is not None and cost >= self.budget.cost:
            said = f"${cost:.4g} of ${self.budget.cost:g}"
        elif self.budget.tokens is not None and tokens >= self.budget.tokens:
            said = f"{tokens:.0f} of {self.budget.tokens} tokens"
        why = f"the budget of the judge {self._judge} is spent ({said}), so no request is sent; raise budget"
        if self._silent:
            why = f"endpoint {self._silent!r} reported no tokens, so the budget of the judge {self._judge} cannot be kept; leave out budget"
        elif not said:
            return None
        return BudgetExceeded(why)


class CallContext(NamedTuple):
    """What all items of one call of a judge's method have in common. ``batch`` is None outside of batches."""

    driver: LoopDriver
    running: Running
    calibrator: Calibrator
    spending: Spending
    cache: Cache | None
    options: RequestOptions
    pools: Mapping[str, Pool]
    batch: ItemBatch | None = None


class Invalid(NamedTuple):
    """An item that cannot be judged."""

    error: Exception
    extra: Mapping[str, Any] | None


class CallTask(Task):
    """Sends one call of an item once. ``earlier`` has the attempts of the tasks that sent it before."""

    __slots__ = ("call", "earlier", "format_name", "item", "place")

    def __init__(self, item: ItemCalls, place: int, call: JudgeCall, timeout: float | None, earlier: tuple[AttemptRecord, ...]) -> None:
        common, question = item.common, call.question
        pool, options = common.pools[question.model], common.options
        # in a batch, the waiter is the batch, which hands the outcome to the item
        super().__init__(question.request(call), pool, options.level, timeout, common.batch or item, 0, options.tenant)
        self.item, self.place, self.call, self.earlier = item, place, call, earlier
        self.format_name, self.hedge, self.prefix = question.answer_format.name, options.hedge, pool.find_prefix(self.payload)
        item.tasks[place] = self

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002 - the source does not matter
        """Return False if no item waits for the call any more, or the budget is spent. If the response format has changed, the request is
        made again."""
        item = self.item
        if item.tasks.get(self.place) is not self:
            return False
        if item.common.spending.budget is not None and (error := item.common.spending.exceeded()) is not None:
            del item.tasks[self.place]
            item.driver.later(lambda: item.receive(self.place, error))
            return False
        question = self.call.question
        if self.format_name != question.answer_format.name:
            self.format_name, self.payload = question.answer_format.name, question.request(self.call)
        if item.begun is None:
            item.queued, item.begun = now - self.born, now
        return True


class ItemCalls(Waiter):
    """Holds an item with the outcomes of its calls, and sends them: as part of a batch, or by itself.

    The first item that asks something sends the calls; equal items wait with it for the same outcome. The tokens are
    charged to the first item that waits. ``decide`` (see ``requests.ItemQuestions``) makes the outcome of the item from the outcomes of the
    calls, or None while it is undecided; items that ask the same have the same function. ``result`` makes what the caller receives: a
    ``Verdict`` or a ``Comparison``.
    """

    execute = None
    common: CallContext
    key: Hashable

    def __init__(self, calls: Sequence[JudgeCall], decide: Decide, result: Callable[..., Any], extra: Mapping[str, Any] | None) -> None:
        self.calls, self.decide, self.result, self.extra = calls, decide, result, extra
        self.outcomes: list[Any] = [None] * len(calls)
        self.index, self.queued, self.until = 0, 0.0, inf
        self.done = False
        self.ended: asyncio.Future[Any] | None = None  # of an item that is no item of a batch itself: what the caller receives, or an error
        self.timer: asyncio.TimerHandle | None = None
        self.sender: ItemCalls | None = None  # the item that sends the calls for this item
        # the other fields are used by the item that sends:
        self.waiting: list[ItemCalls] = []
        self.tasks: dict[int, CallTask] = {}  # place of a call -> the task that sends it
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None
        self.answered: AttemptRecord | None = None
        self.begun: float | None = None  # when its first request was sent

    async def judged(self, common: CallContext, born: float) -> Any:
        """Judge an item outside of batches, and return what the caller receives. ``born`` is when its timeout began. Raises its error."""
        timeout = common.options.timeout
        if common.cache is not None:
            await fill([self], common.cache)
        self.ended = common.driver.loop.create_future()
        try:
            self.begin(common, inf if timeout is None else born + timeout)
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

    def begin(self, common: CallContext, until: float = inf) -> None:
        """Send the calls without an outcome, or wait with an equal item whose calls are in flight."""
        if self.done:  # the batch has ended while the cache was read
            return
        self.common, self.driver, self.until = common, common.driver, until
        if any(self.outcomes) and (decided := self.decide(self.outcomes)) is not None:
            self.end(decided)
            return
        options = common.options
        self.key = (common.driver, options.level, options.tenant, self.decide, *[call.key for call in self.calls])
        sender = self.sender = common.running.setdefault(self.key, self)
        sender.waiting.append(self)
        if sender is not self:
            for item in sender.waiting if common.batch is None else ():  # their time may be over before that of others
                item.start_timer()
            return
        if common.batch is None:
            self.context = copy_context()
            self.driver.waiters[self] = None
        for place, call in enumerate(self.calls):
            if self.outcomes[place] is None and self.waiting:  # sending an earlier call may have ended the item
                self._send(place, call)

    def _send(self, place: int, call: JudgeCall, earlier: tuple[AttemptRecord, ...] = (), *, again: bool = False) -> None:
        """Submit a call, or append it to the feed of its pool in the batch, where a call that was sent before is put first."""
        batch, driver = self.common.batch, self.driver
        timeout = None if batch is None else self.common.options.timeout
        if (until := self.latest() if again or batch is None else inf) < inf:
            timeout = until - driver.engine.clock()
            if timeout <= 0:
                self.receive(place, self.late())
                return
        task = CallTask(self, place, call, timeout, earlier)
        if batch is None:
            driver.submit(task)
            return
        feed = batch.feeds[task.pool]
        failing = feed.make_error  # another thread may set it to None
        if failing is not None and feed.ahead():
            batch.finish(task, failing(), None, 0.0)
        elif not again:
            feed.add(task)
        else:
            self.start_timer()  # its deadline may pass while the request is still in the queue
            driver.refill(feed, [task])

    def latest(self) -> float:
        return max(item.until for item in self.waiting)

    def start_timer(self) -> None:
        timeout, driver = self.common.options.timeout, self.driver
        if self.timer is None and timeout is not None:
            now = driver.engine.clock()
            if self.until == inf:
                self.until = now + timeout
            self.timer = driver.loop.call_later(max(0.0, self.until - now), self._overdue)

    def _overdue(self) -> None:
        self.timer, sender, engine, cut = None, self.sender, self.driver.engine, list[AttemptRecord]()
        assert sender is not None
        with engine.lock:
            for task in sender.tasks.values():
                cut += [*(task.trail or ()), *unanswered(task, engine.clock())]
        late, trail = self.late(), (*sender.trail, *cut)
        decided = self.settled(late)
        if self.ended is not None and self.common.batch is None and len(sender.waiting) > 1:
            self.leave()
            if not self.ended.done():  # its caller may have been cancelled in this turn of the event loop
                self.ended.set_result(with_trail(late, trail) if decided is late else self.result(decided, None, cached=True))
        else:
            sender.trail, sender.endpoint = trail, cut[-1].endpoint if cut else sender.endpoint
            self.end(decided)

    def late(self) -> RequestTimeout:
        model, common = self.calls[0].question.model, self.common
        with self.driver.engine.lock:
            why = said(self.driver.engine.clock(), common.pools[model])
        return RequestTimeout(f"no verdict within {common.options.timeout:g} s; model {model!r}; {why}", model=model)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, CallTask)
        place, call, common, clock = task.place, task.call, self.common, self.driver.engine.clock
        if self.tasks.get(place) is not task:
            return
        del self.tasks[place]
        trail, answered = tuple(task.trail or ()), None if source is None else source.name
        answer, usage = (outcome.response, outcome.response.usage) if isinstance(outcome, Answer) else (outcome, None)
        with self.driver.engine.lock:
            paid = common.spending.paid(usage, answered, trail)
        endpoint = trail[-1].endpoint if trail and answered is None else answered
        step = evaluate(call, answer, task.format_name)
        if (reply := step.reply) is not None:
            if reply.fingerprint not in common.calibrator.weights:
                common.calibrator.note(reply.fingerprint)
            if common.cache is not None:
                key = call.key if isinstance(step.value, Vote) else None
                common.cache.keep(CacheEntry(call.question.cached_as, endpoint or "", reply, key))
        if step.unread:
            trail = (*trail, AttemptRecord(endpoint or "", "unreadable", seconds, 200, step.unread))
        self.usage = added(self.usage, paid)
        self.trail, self.endpoint = self.trail + trail, endpoint or self.endpoint
        trail = task.earlier + trail
        if step.again is not None and clock() < self.latest():
            self._send(place, step.again, trail, again=True)
            return
        value = self.late() if step.value is None else step.value
        if isinstance(value, RequestTimeout) and common.batch is None and task.deadline < self.latest():
            self._send(place, call, trail, again=True)  # for the items whose time is not over
            return
        if isinstance(value, RequestError):
            value.endpoint, value.attempts = value.endpoint or (trail[-1].endpoint if trail else None), trail
        elif source is not None:
            self.answered = successful(task.trail or (), source.name, seconds)
        self.receive(place, value)

    def receive(self, place: int, outcome: Any) -> None:
        """Take the outcome of a call."""
        if isinstance(outcome, BudgetExceeded) and not self.common.spending.is_logged:
            self.common.spending.is_logged = True  # not in ``bind``, under the engine's lock, because a log handler is the user's code
            LOG.warning("%s", outcome)
        self.outcomes[place] = outcome
        if self.waiting and (decided := self.decide(self.outcomes)) is not None:
            self.end(decided)

    def settled(self, late: QRewardError) -> Any:
        """Return the outcome of the item if its calls without an outcome end with ``late``: decided by the others if they suffice."""
        decided = self.decide([late if outcome is None else outcome for outcome in (self.sender or self).outcomes])
        return late if decided is None or isinstance(decided, QRewardError) else decided

    def end(self, decided: Any) -> None:
        """End the item and those that wait with it with the decided outcome or an error."""
        sender = self.sender or self
        if self.done and not sender.waiting:
            return
        waiting = sender.stop(decided if isinstance(decided, STOPPED) else None)
        if isinstance(decided, RequestTimeout) and sender.trail:
            decided = with_trail(decided, sender.trail)
        for number, item in enumerate(waiting or [self]):
            usage = None if number else sender.usage
            if isinstance(decided, QRewardError):
                outcome = copy(decided) if number else decided  # a copy, so that each receiver adds its own traceback
                outcome.__cause__, outcome.usage = decided.__cause__, usage
            else:
                outcome = item.result(decided, usage, cached=number > 0 or sender.begun is None)
            item.done, item.sender = True, None
            if item.timer is not None:
                item.timer.cancel()
            if self.common.batch is not None:
                self.common.batch.end_item(item, outcome, sender, pays=not number)
            if item.ended is not None and not item.ended.done():
                item.ended.set_result(outcome)

    def leave(self) -> None:
        """Stop waiting. Without waiting items, the requests are cancelled."""
        sender, self.sender, self.done = self.sender, None, True
        if self.timer is not None:
            self.timer.cancel()
        if sender is not None and self in sender.waiting:
            sender.waiting.remove(self)
            if not sender.waiting:
                sender.stop()

    def stop(self, error: QRewardError | None = None) -> list[ItemCalls]:
        """Cancel the requests that are left, and return the items that waited. ``error`` is the error of the engine with which they end."""
        driver, common, begun = self.driver, self.common, list[Task]()
        waiting, self.waiting, tasks, self.tasks = self.waiting, [], self.tasks, {}
        if common.running.get(key := getattr(self, "key", None)) is self:
            del common.running[key]
        driver.waiters.pop(self, None)
        for task in tasks.values():
            with driver.engine.lock:
                cut = (*(task.trail or ()), *unanswered(task, driver.engine.clock()))
                begun += [task] if task.state is not TaskState.NEW else []  # otherwise ``CallTask.bind`` returns False later
                self.usage = added(self.usage, common.spending.paid(None, None, cut))
            if common.batch is not None:
                common.batch.tallies.add_cancelled((task.attempt, task.copy))
        if begun:
            driver.withdraw(begun, error)
        return waiting

    def close(self) -> None:
        self.end(ClientClosed("the client was closed before the verdict was there"))

    def abandon(self) -> list[Task]:
        self.common.running.pop(self.key, None)  # it refers to the driver of the closed loop, which may be released twice
        return list(self.tasks.values())


class ItemBatch(BatchWaiter):
    """Sends the calls of many items.

    Args:
        prepare: makes the calls of an item, a ``ResponseGroup``, or ``Invalid``.
        tasks_per_item: pool -> number of calls for an item, which are fewer if items share them; None if it is not known.
        unit, waited: what an item is called, and the seconds of the deadline that have passed.
    """

    _items_at_once = 1
    _is_one_request = False

    def __init__(
        self,
        common: CallContext,
        items: Iterable[Any] | AsyncIterable[Any],
        prepare: Callable[[Any], Any],
        settings: ResultSettings,
        *,
        tasks_per_item: Mapping[Pool, int | None],
        unit: str,
        waited: float,
    ) -> None:
        options, size = common.options, size_of(items)
        if common.cache is not None and unit == "items":
            items, prepare = with_votes(items, prepare, common.cache), lambda item: item
        super().__init__(common.driver, next(iter(tasks_per_item)), items, prepare, options, settings, tasks_per_item, size)
        self.common, self._is_stopping = common._replace(running={}, batch=self), False
        self._stop_error: Callable[[], QRewardError] | None = None
        several = sum(filter(None, tasks_per_item.values())) != 1
        self.execute = self._send_timed if several and options.timeout is not None else None
        self.began -= waited
        self._unit = unit

    def _is_trying(self) -> bool:
        return False  # ``ItemCalls`` decides for each call, because the calls of an item may have different feeds

    def _take(self, feed: BatchFeed) -> bool:
        """Take items, each of which may have requests for several pools. Nothing is read while the queue of a pool is full."""
        if len(self.feeds) == 1:
            return super()._take(feed)
        if self._feed.ended or self._room() > 0:
            if not super()._take(self._feed) and self._feed.ahead():
                return False
            self._refill_feeds(but=feed)
            return feed.ahead() > 0 or feed.make_error is not None
        return feed.ahead() > 0

    def _room(self) -> int:
        """Return the number of items that may be read now: the shortest queue counts, while no queue is too long."""
        waiting = [each.ahead() for each in self.feeds.values()]
        return max(each.read_ahead for each in self.feeds.values()) - min(waiting) if max(waiting) < MOST_AHEAD else 0

    def _refill_feeds(self, but: BatchFeed | None = None) -> None:
        """Hand over the tasks that were read for the feeds, except for one feed."""
        for feed in self.feeds.values():
            if feed is not but and (feed.incoming or (self._is_async and feed is self._feed)):
                self.driver.refill(feed)

    def _queue_item(self, index: int, payload: Any) -> None:
        if isinstance(payload, Invalid):
            error = as_ours(payload.error, f"{self._unit[:-1]} {index}", "judged")
            self._settle(Result(index, None, error, None, 0.0, 0.0, (), payload.extra))
            return
        payload.index = index
        self._live[payload] = None
        if isinstance(payload, ItemCalls):
            payload.begin(self.common)
        else:
            self.driver.loop.create_task(self._rank(payload)).add_done_callback(report_error)

    async def _rank(self, group: Any) -> None:
        """Rank a group, and settle its result."""
        born, outcome = self.driver.engine.clock(), None
        try:
            outcome = await group.ranked(self._judged)
        except asyncio.CancelledError:  # the batch is stopping
            outcome = self._stop_error and self._stop_error()
        del self._live[group]
        if outcome is not None:
            answer, error = (None, outcome) if isinstance(outcome, QRewardError) else (JudgeAnswer(outcome), None)
            if error is not None:
                error.usage = group.usage
            self._settle(Result(group.index, answer, error, None, self.driver.engine.clock() - born, 0.0, (), group.extra))
        self._end_if_done()

    async def _judged(self, items: Sequence[ItemCalls]) -> Sequence[Any]:
        """Send the calls of pairs, and return their outcomes. Raises ``CancelledError`` if the batch is stopping."""
        if self._is_stopping:
            raise asyncio.CancelledError
        for item in items:
            item.common, item.driver, item.ended = self.common, self.driver, self.driver.loop.create_future()
        self._live.update(dict.fromkeys(items))
        if self.common.cache is not None:
            await fill(items, self.common.cache)
        for item in items:
            item.begin(self.common)
        self._refill_feeds()
        return [await item.ended for item in items if item.ended is not None]

    async def _send_timed(self, attempt: Attempt) -> Outcome:
        """Send an attempt. The timeout of an item starts with its first request."""
        task = attempt.task
        if isinstance(task, CallTask) and task.item.waiting:
            task.item.start_timer()
        return await self.driver.backend.send(attempt.source.endpoint, task.payload)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        assert isinstance(task, CallTask)
        item = task.item
        if item.tasks.get(task.place) is not task:
            return
        self.tallies.add(result_of(task, outcome, source, seconds))
        item.until = task.deadline if item.until == inf else item.until
        item.finish(task, outcome, source, seconds)

    def end_item(self, item: ItemCalls, outcome: Any, sender: ItemCalls, *, pays: bool) -> None:
        """Settle the result of an item. The attempts are told in the result of the item that pays for them."""
        self._live.pop(item, None)
        if item.ended is not None:  # a pair of a group
            return
        seconds, answer, error = 0.0, None, None
        endpoint, trail = (sender.endpoint, sender.trail) if pays else (None, ())
        if isinstance(outcome, QRewardError):
            error = outcome
        else:
            answer = JudgeAnswer(outcome)
            seconds = 0.0 if sender.begun is None else self.driver.engine.clock() - sender.begun
            trail = (*trail, sender.answered) if pays and sender.answered is not None else trail
        self._settle(Result(item.index, answer, error, endpoint, seconds, sender.queued, trail, item.extra))
        self._end_if_done()

    def _give_up(self, make_error: Callable[[], QRewardError] | None = None) -> None:
        self._is_stopping, self._stop_error = True, make_error
        self._close_feeds()
        for item in [each for each in self._live if isinstance(each, ItemCalls)]:
            if make_error is None:
                self._drop(item)
            else:
                error = make_error()
                item.end(item.settled(error) if isinstance(error, DeadlineExceeded) else error)

    def _drop(self, item: ItemCalls) -> None:
        del self._live[item]
        item.leave()
        if item.ended is not None:
            item.ended.cancel()

    def abandon(self) -> list[Task]:
        self._close_feeds()
        return [task for item in self.common.running.values() for task in item.tasks.values()]

    def _drop_unstarted(self) -> None:
        self._feed.ended = self._is_stopping = True
        with self.driver.engine.lock:
            started = {
                item
                for item in self.common.running.values()
                if item.begun is not None or any(task.state is not TaskState.NEW for task in item.tasks.values())
            }
        for item in [each for each in self._live if isinstance(each, ItemCalls)]:
            if item.sender not in started:
                self._drop(item)


async def fill(given: Iterable[ItemCalls | Any], cache: Cache) -> None:
    """Fill in the outcomes of calls whose answers are in the cache. Invalid items and groups are left as they are."""
    items = [item for item in given if isinstance(item, ItemCalls)]
    found = await cache.look_up([(call.key, call.question.cached_as) for item in items for call in item.calls])
    for item in items:
        for place, call in enumerate(item.calls):
            with suppress(Exception):  # of an answer that could be parsed when it was stored; the parser or the score function has changed
                item.outcomes[place] = call.question.vote(found[call.key], swapped=call.swapped) if call.key in found else None


async def with_votes(items: Iterable[Any] | AsyncIterable[Any], read: Callable[[Any], Any], cache: Cache) -> AsyncIterator[Any]:
    """Read the items of a batch, and yield them with their cached votes, which are looked up for up to ``LOOKED_UP`` items together, or one
    by one for an asynchronous input. If the input raises, the items before the exception are yielded first."""
    most = 1 if isinstance(items, AsyncIterable) else LOOKED_UP
    async with aclosing(one_by_one(items)) as inputs:
        while True:
            chunk, failure = list[Any](), None
            try:
                while len(chunk) < most:
                    chunk.append(read(await anext(inputs)))
            except Exception as error:  # also the end of the input
                failure = error
            await fill(chunk, cache)
            for item in chunk:
                yield item
            if isinstance(failure, StopAsyncIteration):
                return
            if failure is not None:
                raise failure
