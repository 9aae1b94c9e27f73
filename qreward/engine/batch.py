"""``BatchWaiter``, the waiter of a batch: it receives the outcomes of many tasks for one caller.

The items are read from an iterable as they are needed.

There is no asyncio task, future or coroutine per item. Memory holds the items in flight and a small read-ahead, plus the results
if they are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from functools import partial
from itertools import count, islice
from typing import Any, Protocol

from qreward.engine.background import report_error
from qreward.engine.driver import LoopDriver, Waiter
from qreward.engine.snapshots import Tallies, result_of
from qreward.errors import BadRequest, BatchCancelled, ClientClosed, DeadlineExceeded, QRewardError
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import READ_AHEAD, Attempt, BatchFeed, RequestOptions, Task
from qreward.scheduler.why import said, subject_of

MOST_AT_ONCE = 256
"""Maximum number of items that are read, or that fail unread, in one turn of the event loop."""

BEAT = 0.25
"""Seconds between two refreshes of the progress display, so that it is updated even when no item finishes."""

GROUPED_AT_ONCE = 128
"""Maximum number of items whose prompts have prefixes that are read in one turn of the event loop. It is smaller than ``MOST_AT_ONCE``,
because each of these items is also sorted into a group."""

MOST_AHEAD = 8192
"""Number of tasks in the queue of one pool at which a batch with several pools reads no more items. Below this number, items are read
although a slow pool has a long queue, so that the faster pools get work."""

FILL = 0.05
"""Seconds for which a batch whose prompts have prefixes reads ahead before it sends the first item."""

Prepare = Callable[[Any], Any]
"""Turns an item into a payload, or raises the ``QRewardError`` that becomes the item's result."""


class BatchProgress(Protocol):
    """Shows the progress of a batch."""

    def add(self, result: Result[Any]) -> None: ...
    def refresh(self) -> None: ...
    def close(self) -> None: ...


class BatchWaiter(Waiter):
    """Reads the items of one batch, and receives the outcomes of their tasks.

    Args:
        driver: the loop driver on which the batch runs.
        pool: the pool whose endpoints serve the batch.
        items: the input, which is read once, and only as fast as its items are sent.
        prepare: see ``Prepare``.
        request_options: options of each item.
        deadline: seconds after which unfinished items fail with ``DeadlineExceeded``, or None.
        on_result: called in the event loop with each result as soon as it is known.
        progress: receives each result, is refreshed every ``BEAT`` seconds, and is closed when the batch ends, however it ends.
        prices: endpoint name -> US dollars for a million prompt and completion tokens.
        keep: keep the results; if False, ``run`` returns an empty batch with its statistics.
        calls: pool -> the largest number of tasks that an item sends to it, or None. By default, one task to ``pool``.

    The input, ``on_result`` and ``progress`` are the caller's code. This code may raise any exception, and may run in the asyncio task of
    another caller. Every exception of the caller's code is caught and passed to ``_fail``, which ends only this batch.
    """

    execute: Callable[[Attempt], Awaitable[Outcome]] | None = None
    _numbers = count(1)
    _read_at_once = MOST_AT_ONCE  # items that are read before ``_room`` is asked again; 1 if an item may need several tasks
    _unit = "items"
    _waited = 0.0  # seconds of the deadline that had passed before ``run`` was called

    def __init__(
        self,
        driver: LoopDriver,
        pool: Pool,
        items: Iterable[Any] | AsyncIterable[Any],
        prepare: Prepare,
        *,
        request_options: RequestOptions,
        deadline: float | None,
        on_result: Callable[[Result[Any]], object] | None,
        progress: BatchProgress | None,
        prices: Mapping[str, tuple[float, float]],
        keep: bool,
        calls: Mapping[Pool, int | None] | None = None,
    ) -> None:
        self.driver, self.number = driver, next(self._numbers)
        self._pool, self._prepare, self._request_options = pool, prepare, request_options
        self._deadline, self._on_result, self._keep = deadline, on_result, keep
        self._progress, self._prices = progress, prices
        self._beat: asyncio.TimerHandle | None = None
        self.context = copy_context()
        self._size = size_of(items)
        self._is_async = hasattr(items, "__aiter__")
        self._items: Any = aiter(items) if self._is_async else iter(items)  # type: ignore[arg-type]
        self._read = 0  # items taken from the input
        self._results: list[Result[Any] | None] = []
        self._calls: Mapping[Pool, int | None] = calls or {pool: 1}
        self._live: dict[Any, None] = {}  # tasks without an outcome; in a subclass, items without a result
        self._ending = False  # items that were not read are being failed with an error
        self._tallies = Tallies()
        self._error: BaseException | None = None
        self._reader: asyncio.Task[None] | None = None
        self._done = driver.loop.create_future()
        if self._is_async:
            self._wanted = asyncio.Event()

    async def run(self) -> BatchResult[Any]:
        """Read and send the items, and wait for all results.

        Raises:
            BatchInterrupted: the input, closing the input, ``on_result`` or ``progress`` raised an ``Exception``, or raised
                ``CancelledError`` without being cancelled. Requests in flight were finished first.
            BaseException: the same code raised another exception, such as ``KeyboardInterrupt``. Requests in flight were cancelled.
        """
        driver, clock = self.driver, self.driver.engine.clock
        began = clock()
        self._fill_until = began + FILL
        self._feeds = {pool: self._new_feed(pool, count, began) for pool, count in self._calls.items()}
        self._feed = self._feeds[self._pool]
        expiry = driver.loop.call_later(self._deadline - self._waited, self._expire) if self._deadline is not None else None
        if self._is_async:
            self._reader = driver.loop.create_task(self._read_async(self._items))
            self._reader.add_done_callback(report_error)
        driver.waiters[self] = None
        try:
            if self._progress is not None:
                self._show_progress()
            # the first tasks are handed over with the batch; if they are read later, ``refill`` follows without a request for them
            self._feed.more_requested = not self.read(self._feed)
            driver.open(self._feed)
            await self._done
        except GeneratorExit:  # the coroutine was discarded, perhaps by the garbage collector while the engine's lock is held
            driver.later(partial(self._leave, expiry))
            raise
        except BaseException as interrupt:
            self._leave(expiry)
            interrupt.add_note(self._so_far())
            self._error = interrupt
            await self._close_input()
            if self._error is not interrupt:  # closing the input raised an exception such as KeyboardInterrupt, which takes precedence
                raise self._error from interrupt
            self._error = None
            raise
        self._leave(expiry)
        await self._close_input()
        stats = BatchStats(self._read, self._tallies.ok, self._tallies.failed, clock() - began, self._tallies.stats())
        batch = BatchResult([result for result in self._results if result is not None], stats)
        if self._prices:
            batch.priced(self._prices)
        self._results.clear()  # this object is part of reference cycles, so it lives until the next garbage collection
        error, self._error = self._error, None
        if error is None:
            return batch
        if not _is_only_ours(error):
            raise error
        what = f"{type(error).__name__}: {error}"
        raise BatchInterrupted(f"the batch stopped after {self._read} {self._unit} ({what}); .results holds what is done", batch) from error

    def _new_feed(self, pool: Pool, count: int | None, now: float) -> BatchFeed:
        options = self._request_options
        left = None if self._size is None or count is None else self._size * count
        feed = BatchFeed(pool, options.level, self, now, options.tenant, options.timeout, left=left)
        if pool is not self._pool:
            self.driver.locked(self.driver.engine.scheduler.attend, feed)
        return feed

    def _so_far(self) -> str:
        """Return the note that is added to the exception when a batch is cancelled, for example by Ctrl-C."""
        done = self._tallies.ok + self._tallies.failed
        items = f"{done} items" if self._size is None else f"{done} of {self._size} items"
        kept = "on_result received each of them" if self._on_result else "their results are lost; on_result receives each result at once"
        return f"{items} were done when the batch was given up; {kept}"

    def _leave(self, expiry: asyncio.TimerHandle | None) -> None:
        del self.driver.waiters[self]
        if expiry is not None:
            expiry.cancel()
        if self._reader is not None:
            self._reader.cancel()
        self._give_up()
        if self._beat is not None:
            self._beat.cancel()
        if self._progress is not None:
            self._call(self._progress.close)

    def _show_progress(self) -> None:
        if self._progress is not None:
            self._beat = self.driver.loop.call_later(BEAT, self._show_progress)
            if not self._call(self._progress.refresh):
                self._progress = None

    async def _close_input(self) -> None:
        if self._reader is not None:
            await asyncio.wait([self._reader])
        elif (close := getattr(self._items, "close", None)) is not None:
            self._call(close)

    def progress_at(self, now: float) -> dict[str, Any]:
        """Return the progress of the batch. Can be called from any thread."""
        ok, failed = self._tallies.ok, self._tallies.failed
        counts = {"ok": ok, "failed": failed, "done": ok + failed, "total": self._size, "in_flight": len(self._live)}
        feed: BatchFeed | None = getattr(self, "_feed", None)
        return {"number": self.number, "model": subject_of(self._pool), **counts, "seconds": 0.0 if feed is None else now - feed.opened_at}

    # guarded calls of the caller's code

    def _call(self, function: Callable[..., object], *arguments: Any) -> bool:
        """Call a function of the caller. Returns False if the function raised; no further item is then started."""
        try:
            function(*arguments)
        except BaseException as error:
            self._fail(error)
            self._drop_unstarted()
            return False
        return True

    def _fail(self, error: BaseException) -> None:
        """Handle an exception of the caller's code: read no more items.

        ``run`` raises the first error. An exception that must end the event loop (see ``_is_only_ours``) replaces an earlier error that
        concerns the batch alone, and ends the batch immediately.
        """
        self._feed.ended = True
        if self._error is None or (_is_only_ours(self._error) and not _is_only_ours(error)):
            self._error = error
        else:
            message = f"a batch that had failed with {type(self._error).__name__} failed again"
            self.driver.loop.call_exception_handler({"message": message, "exception": error})
        if not _is_only_ours(error) and not self._done.done():
            self._done.set_exception(error)
        self._end_if_done()

    # Waiter, called by the loop driver

    def start(self, attempt: Attempt) -> None:
        self.driver.spawn(attempt, self.context.copy(), self)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self._live.pop(task, None)
        self._settle(result_of(task, outcome, source, seconds))
        if not self._live:
            self._end_if_done()

    def close(self) -> None:
        self._stop(lambda: ClientClosed("the client was closed before this item was done"))

    def cancel(self, why: str) -> None:
        """End the batch: each item without a result gets ``BatchCancelled``. Called in the batch's event loop."""
        self._stop(lambda: BatchCancelled(f"the batch was cancelled before this item was done{why and ': '}{why}"))

    def abandon(self) -> list[Task]:
        self._close_feeds()
        left = list(self._live)
        self._live.clear()
        return left

    def _close_feeds(self) -> list[Task]:
        """Close the feeds, and return the tasks that waited in them."""
        return [task for feed in self._feeds.values() for task in self.driver.close_feed(feed)]

    def _give_up(self, make_error: Callable[[], QRewardError] | None = None) -> None:
        """End everything unfinished with an error, or forget it, because no caller waits for it."""
        left = self.abandon()
        if left:
            self.driver.withdraw(left, None if make_error is None else make_error())
        if make_error is not None:
            for task in left:
                self._end_task(task, result_of(task, make_error(), None, 0.0))

    # reading

    def read(self, feed: BatchFeed) -> bool:
        if self._is_async:
            self._wanted.set()
            return False
        if feed.failing is None or feed.ended:
            return self._read_now(feed)
        self.driver.loop.call_soon(self._read_on, feed)  # items fail as they are read, so the whole input could be read in one turn
        return False

    def _hand_out(self, but: BatchFeed | None = None) -> None:
        """Hand over the tasks that were read for the feeds, except for one feed."""
        for feed in self._feeds.values():
            if feed is not but and feed.incoming:
                self.driver.refill(feed)

    def _read_now(self, feed: BatchFeed) -> bool:
        """Read some items.

        Returns False if ``LoopDriver.refill`` is called later: after the next read, or when the consumer takes events.
        """
        if len(self._feeds) == 1:
            return self._read_more(feed)
        if self._feed.ended or self._room(feed) > 0:  # otherwise the queue of another pool is full, and nothing is read
            if not self._read_more(self._feed) and self._feed.ahead():
                return False
            self._hand_out(but=feed)
            return feed.ahead() > 0 or feed.failing is not None
        return feed.ahead() > 0

    def _read_more(self, feed: BatchFeed) -> bool:
        left = MOST_AT_ONCE if feed.read_ahead <= READ_AHEAD else GROUPED_AT_ONCE
        while not feed.ended and (most := min(left, self._room(feed), self._read_at_once)) > 0:
            left -= most
            self._read_some(feed, most)
        if feed.ended:
            self._end_if_done()
        elif feed.failing is None and (not feed.ahead() or self._is_filling(feed)):
            with self.driver.engine.lock:
                feed.take_in()
            self.driver.loop.call_soon(self._read_on, feed)
            return False
        return True

    def _read_some(self, feed: BatchFeed, most: int) -> None:
        count = 0
        try:
            for item in islice(self._items, most):
                count += 1
                self._add(feed, item)
                if feed.ended:  # by an error
                    break
            else:
                feed.ended = feed.ended or count < most
        except BaseException as error:  # items that were read before are still finished
            self._fail(error)

    def _is_filling(self, feed: BatchFeed) -> bool:
        """Return True while a new batch reads ahead and sends nothing yet.

        So many items of a group are read before endpoints take the first item of the group.
        """
        return feed.read_ahead > READ_AHEAD and self._room(feed) > 0 and self.driver.engine.clock() < self._fill_until

    def _room(self, feed: BatchFeed) -> int:
        """Return the number of items that may be read now. With several feeds, the shortest queue counts, while no queue is too long."""
        if len(self._feeds) == 1:
            return feed.read_ahead - feed.ahead()
        waiting = [each.ahead() for each in self._feeds.values()]
        return max(each.read_ahead for each in self._feeds.values()) - min(waiting) if max(waiting) < MOST_AHEAD else 0

    def _read_on(self, feed: BatchFeed) -> None:
        if not feed.ended and self._read_now(feed):
            self.driver.refill(feed)

    async def _read_async(self, items: AsyncIterator[Any]) -> None:
        try:
            await self._guarded(self._read_all(items))
            if (aclose := getattr(items, "aclose", None)) is not None:
                await self._guarded(aclose())
        except GeneratorExit as error:  # discarded, as in ``run``
            self.driver.later(partial(self._fail, error))
            raise
        self._feed.ended = True
        self._end_trying(self._feed)
        self._end_if_done()

    async def _guarded(self, work: Awaitable[object]) -> None:
        """Await code of the caller, and pass its exception to ``_fail``. Items that were already read are still finished."""
        try:
            await work
        except GeneratorExit:
            raise
        except BaseException as error:
            reader = self._reader
            assert reader is not None
            if not (isinstance(error, asyncio.CancelledError) and reader.cancelling()):  # otherwise ``_leave`` cancelled the reader
                self._fail(error)

    async def _read_all(self, items: AsyncIterator[Any]) -> None:
        feed = self._feed
        async for item in items:
            if feed.ended:  # by the deadline, or by an error of ``on_result``
                break
            self._add(feed, item)
            self.driver.refill(feed)
            if len(self._feeds) > 1:
                self._hand_out(but=feed)
            if not self._read % MOST_AT_ONCE:  # an input that never suspends must not block the event loop
                await asyncio.sleep(0)
            while self._room(feed) <= 0:
                self._wanted.clear()
                await self._wanted.wait()

    def _add(self, feed: BatchFeed, item: Any) -> None:
        index, self._read = self._read, self._read + 1
        if self._keep:
            self._results.append(None)
        failing = feed.failing  # another thread may set it to None
        if failing is not None and self._is_trying(feed):
            self._settle(Result(index, None, failing(), None, 0.0, 0.0))
            return
        try:
            payload = self._prepare(item)
        except Exception as error:  # may come from the item's own code, such as a message object that cannot be read
            self._settle(Result(index, None, as_ours(error, f"item {index}", "read"), None, 0.0, 0.0))
            return
        self._put(feed, index, payload)

    def _put(self, feed: BatchFeed, index: int, payload: Any) -> None:
        """Append the task of an item to the feed."""
        task = self._request_options.task(payload, self._pool, self, index)
        self._live[task] = None
        feed.read(task)

    def _is_trying(self, feed: BatchFeed) -> bool:
        """Return True if an item waits. Sending this item will show whether an endpoint has recovered."""
        return feed.ahead() > 0

    def _end_trying(self, feed: BatchFeed) -> None:
        """At the end of the input of a failing batch, let the waiting item fail too, because no later item can show a recovery."""
        if feed.failing is not None:
            self.driver.refill(feed)

    def _next_index(self) -> int:
        index, self._read = self._read, self._read + 1
        if self._keep:
            self._results.append(None)
        return index

    # results

    def _settle(self, result: Result[Any]) -> None:
        self._tallies.add(result)
        if self._progress is not None and not self._call(self._progress.add, result):
            self._progress = None
        if self._keep:
            self._results[result.index] = result
        if self._on_result is not None and not self._call(self._on_result, result):
            self._on_result = None

    def _end_task(self, task: Task, result: Result[Any]) -> None:  # noqa: ARG002 - for subclasses
        """Take the result of a task as the result of its item."""
        self._settle(result)

    def _drop_unstarted(self) -> None:
        for task in self._close_feeds():
            self._live.pop(task, None)

    def _end_if_done(self) -> None:
        if not self._feed.ended or self._ending:
            return
        for feed in self._feeds.values():
            if not feed.ended:
                feed.ended = True
                self._end_trying(feed)
        if not self._live and not self._done.done():
            self._done.set_result(None)

    # ending early

    def _expire(self) -> None:
        with self.driver.engine.lock:
            why = said(self.driver.engine.clock(), self._pool)
        self._stop(lambda: DeadlineExceeded(f"not done within the batch's deadline of {self._deadline:g} s; {why}"))

    def _stop(self, make_error: Callable[[], QRewardError]) -> None:
        self._ending = True
        self._give_up(make_error)
        self._end_unread(make_error)

    def _end_unread(self, make_error: Callable[[], QRewardError]) -> None:
        """Give an error to each item that was not read, if the size of the input is known.

        Items are handled in groups of ``MOST_AT_ONCE`` per turn of the event loop, because there may be millions.
        """
        for _ in range(MOST_AT_ONCE):
            if self._size is None or self._read >= self._size or self._error is not None or self._done.done():
                self._ending = False
                self._end_if_done()
                return
            self._settle(Result(self._next_index(), None, make_error(), None, 0.0, 0.0))
        self.driver.loop.call_soon(self._end_unread, make_error)


def size_of(items: object) -> int | None:
    """Return the number of items of an input, or None if the input does not know it."""
    return len(items) if hasattr(items, "__len__") else None  # a fraction of the time of ``isinstance(items, Sized)``


def as_ours(error: Exception, item: str, done: str) -> QRewardError:
    """Return the error of an invalid item, such as ``item 3``. ``done`` says what was to be done with it, such as ``read``."""
    if isinstance(error, QRewardError):
        error.args = (f"{item}: {error}", *error.args[1:])
        return error
    wrapped = BadRequest(f"{item} cannot be {done} ({type(error).__name__}: {error}); see __cause__")
    wrapped.__cause__ = error
    return wrapped


def _is_only_ours(error: BaseException) -> bool:
    """Return True for an error that concerns the batch alone. Other errors, such as ``KeyboardInterrupt``, must end the event loop."""
    return isinstance(error, Exception | asyncio.CancelledError | GeneratorExit)
