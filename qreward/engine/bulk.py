"""One caller that waits for many tasks, read from an iterable as they are needed.

There is no task, future or coroutine per item. Memory is what is in flight and a small read-ahead, plus the results if
they are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sized
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from qreward.core.outcome import Answer, Outcome
from qreward.core.pool import Pool
from qreward.core.source import Source
from qreward.core.task import Attempt, Feed, Task, Terms
from qreward.engine.report import Tallies, result_of
from qreward.engine.shell import Shell
from qreward.engine.unattended import tell
from qreward.errors import BadRequest, BatchInterrupted, ClientClosed, DeadlineExceeded, QRewardError
from qreward.results import BatchResult, BatchStats, Result

READ_AHEAD = 32
MOST_AT_ONCE = 1024
"""Items looked at before the event loop gets its turn, if none of them can be sent."""

BEAT = 0.25
"""Seconds between two looks at progress, so that it moves although no item gets done."""

Prepare = Callable[[Any], Any]
"""Makes an item into a payload, or raises the ``QRewardError`` that is the item's result."""


class Meter(Protocol):
    """Who shows how far a batch is."""

    def add(self, result: Result[Any]) -> None: ...
    def refresh(self) -> None: ...
    def close(self) -> None: ...


class Bulk:
    """The sink of a batch.

    Args:
        items: the input; it is read to the end, once, and no faster than it is sent.
        terms: of each item.
        prepare: see ``Prepare``.
        on_result: called with each result as it is known, in the event loop.
        progress: told each result, looked at now and then, and closed when the batch ends, however it ends.
        prices: endpoint -> US dollars for a million prompt and completion tokens.
        keep: keep the results; if not, ``run`` returns an empty batch with its statistics.
    """

    carry: Callable[[Attempt], Awaitable[Outcome]] | None = None

    def __init__(
        self,
        shell: Shell,
        pool: Pool,
        items: Iterable[Any] | AsyncIterable[Any],
        prepare: Prepare,
        *,
        terms: Terms,
        deadline: float | None,
        on_result: Callable[[Result[Any]], object] | None,
        progress: Meter | None,
        prices: Mapping[str, tuple[float, float]],
        keep: bool,
    ) -> None:
        self.shell = shell
        self._pool, self._prepare, self._terms = pool, prepare, terms
        self._deadline, self._on_result, self._keep = deadline, on_result, keep
        self._progress, self._prices = progress, prices
        self._beat: asyncio.TimerHandle | None = None
        self.context = copy_context()
        self._size = len(items) if isinstance(items, Sized) else None
        self._items: Iterator[Any] | AsyncIterator[Any] = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        self._read = 0  # items taken from the input
        self._results: list[Result[Any] | None] = []
        self._live: dict[Task, None] = {}
        self._tallies = Tallies()
        self._input_error: BaseException | None = None
        self._done = shell.loop.create_future()
        self._wanted = asyncio.Event()

    async def run(self) -> BatchResult[Any]:
        """Read, send, wait for all. Raises ``BatchInterrupted`` if the input or ``on_result`` does, else only if cancelled."""
        shell, clock = self.shell, self.shell.engine.clock
        began = clock()
        self._feed = Feed(self._pool, self._terms.level, self, began, self._terms.tenant)
        self._feed.left = self._size
        expiry = shell.loop.call_later(self._deadline, self._expire) if self._deadline is not None else None
        reader = shell.loop.create_task(self._read_async()) if isinstance(self._items, AsyncIterator) else None
        if reader is not None:
            reader.add_done_callback(tell)
        shell.sinks[self] = None
        try:
            self._show_progress()
            shell.open(self._feed)
            await self._done
        except GeneratorExit:  # thrown away, perhaps by the garbage collector amid our own work, where the lock is held
            shell.later(partial(self._leave, expiry))
            raise
        except BaseException as error:
            self._leave(expiry)
            error.add_note(self._so_far())
            await self._close_input(reader)
            raise
        self._leave(expiry)
        await self._close_input(reader)
        stats = BatchStats(self._read, self._tallies.ok, self._tallies.failed, clock() - began, self._tallies.stats())
        batch = BatchResult([result for result in self._results if result is not None], stats).priced(self._prices)
        self._results.clear()  # this sink is in cycles, and lives on until the garbage collector comes
        if self._input_error is not None:
            what = f"{type(self._input_error).__name__}: {self._input_error}"
            raise BatchInterrupted(
                f"the batch stopped after {self._read} items ({what}); .results holds what is done", batch
            ) from self._input_error
        return batch

    def _so_far(self) -> str:
        """What those are told who see a batch being cancelled, as by Ctrl-C."""
        done = self._tallies.ok + self._tallies.failed
        items = f"{done} items" if self._size is None else f"{done} of {self._size} items"
        kept = "on_result was told each of them" if self._on_result else "their results are gone: on_result is told each when it is done"
        return f"{items} were done when the batch was given up; {kept}"

    def _leave(self, expiry: asyncio.TimerHandle | None) -> None:
        del self.shell.sinks[self]
        if expiry is not None:
            expiry.cancel()
        self.shell.withdraw(self.abandon())
        if self._beat is not None:
            self._beat.cancel()
        if self._progress is not None:
            self._progress.close()

    def _show_progress(self) -> None:
        if self._progress is not None:
            self._beat = self.shell.loop.call_later(BEAT, self._show_progress)
            self._progress.refresh()

    async def _close_input(self, reader: asyncio.Task[None] | None) -> None:
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])
        if isinstance(self._items, Iterator) and (close := getattr(self._items, "close", None)) is not None:
            close()

    # the shell's side

    def start(self, attempt: Attempt) -> None:
        self.shell.spawn(attempt, self.context.copy(), self)

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self._live.pop(task, None)
        self._settle(result_of(task, outcome, source, seconds))
        self._end_if_done()

    def close(self) -> None:
        self._stop(lambda: ClientClosed("the client was closed before this item was done"))

    def abandon(self) -> list[Task]:
        self.shell.close_feed(self._feed)
        left = list(self._live)
        self._live.clear()
        return left

    # reading

    def read(self, feed: Feed) -> bool:
        if isinstance(self._items, AsyncIterator):
            self._wanted.set()
            return False
        looked_at = 0
        while self._room(feed) > 0 and not feed.ended and looked_at < MOST_AT_ONCE:
            looked_at += 1
            try:
                item = next(self._items)
            except StopIteration:
                feed.ended = True
            except Exception as error:  # the caller's code; what it read so far is still finished
                self._input_error, feed.ended = error, True
            else:
                self._add(feed, item)
        if feed.ended:
            self._end_if_done()
        elif not feed.buffer:
            self.shell.loop.call_soon(self._read_on, feed)
            return False
        return True

    def _room(self, feed: Feed) -> int:
        """Items that may be read now."""
        return READ_AHEAD - len(feed.buffer)

    def _read_on(self, feed: Feed) -> None:
        if not feed.ended and self.read(feed):
            self.shell.refill(feed)

    async def _read_async(self) -> None:
        feed = self._feed
        assert isinstance(self._items, AsyncIterator)
        try:
            async for item in self._items:
                if feed.ended:  # by a deadline, or by ``on_result``
                    break
                self._add(feed, item)
                self.shell.refill(feed)
                while self._room(feed) <= 0:
                    self._wanted.clear()
                    await self._wanted.wait()
        except Exception as error:  # the caller's code; what it read so far is still finished
            self._input_error = error
        finally:
            if (aclose := getattr(self._items, "aclose", None)) is not None:
                await aclose()
        feed.ended = True
        self._end_if_done()

    def _add(self, feed: Feed, item: Any) -> None:
        index = self._next_index()
        try:
            payload = self._prepare(item)
        except Exception as error:  # among others of an item's own code, such as a message object that cannot be read
            self._settle(Result(index, None, _as_ours(error, index), None, 0.0, 0.0))
            return
        task = self._terms.task(payload, self._pool, self, index)
        self._live[task] = None
        feed.buffer.append(task)

    def _next_index(self) -> int:
        index, self._read = self._read, self._read + 1
        if self._keep:
            self._results.append(None)
        return index

    # results

    def _settle(self, result: Result[Any]) -> None:
        self._tallies.add(result)
        if self._progress is not None:
            self._progress.add(result)
        if self._keep:
            self._results[result.index] = result
        if self._on_result is not None and self._input_error is None:
            try:
                self._on_result(result)
            except (KeyboardInterrupt, SystemExit):  # they end the loop
                raise
            except BaseException as error:  # the caller's code: stop reading, finish what is under way, then tell
                self._input_error = error
                self._drop_unstarted()

    def _drop_unstarted(self) -> None:
        for task in self.shell.close_feed(self._feed):
            self._live.pop(task, None)

    def _end_if_done(self) -> None:
        if self._feed.ended and not self._live and not self._done.done():
            self._done.set_result(None)

    # ending early

    def _expire(self) -> None:
        self._stop(lambda: DeadlineExceeded(f"not done within the batch's deadline of {self._deadline:g} s"))

    def _stop(self, why: Callable[[], QRewardError]) -> None:
        left = self.abandon()
        self.shell.withdraw(left, why())
        for task in left:
            self._settle(result_of(task, why(), None, 0.0))
        while self._size is not None and self._read < self._size and self._input_error is None:
            self._settle(Result(self._next_index(), None, why(), None, 0.0, 0.0))
        self._end_if_done()


def _as_ours(error: Exception, index: int) -> QRewardError:
    if isinstance(error, QRewardError):
        error.args = (f"item {index}: {error}", *error.args[1:])
        return error
    wrapped = BadRequest(f"item {index} cannot be read ({type(error).__name__}: {error}); see __cause__")
    wrapped.__cause__ = error
    return wrapped
