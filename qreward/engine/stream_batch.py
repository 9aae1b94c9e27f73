"""``BatchStreamSink``, the waiter of a batch of streams: it receives the chunks and outcomes of these streams for the caller."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import LoopDriver
from qreward.engine.stream_sink import OpenStream, StreamRestarted, StreamWaiter, closed, interrupted
from qreward.errors import QRewardError, RequestError
from qreward.results import BatchResult, Result
from qreward.scheduler.outcome import Answer
from qreward.scheduler.source import Source
from qreward.scheduler.task import BatchFeed, Task

AHEAD = 256  # number of events, of all streams together, that are queued for the consumer before reading pauses


class BatchStreamSink(StreamWaiter, BatchWaiter):
    """Receives the events of a batch of streams. Its constructor takes the arguments of :class:`BatchWaiter`, and ``most``."""

    _read_at_once = 1  # an item that fails fills the queue of events too

    def __init__(self, driver: LoopDriver, *args: Any, most: int, **kwargs: Any) -> None:
        StreamWaiter.__init__(self, driver)
        BatchWaiter.__init__(self, driver, *args, **kwargs)
        self._most = most
        self._streams: dict[Task, OpenStream] = {}  # of the committed attempts; they hold the texts
        self._only_results = False
        self._paused: deque[asyncio.Future[None]] = deque()
        self._read_again = False

    # the consumer's side

    def launch(self) -> BatchStreamSink:
        """Start reading and sending, in a new asyncio task. Must be called before any other method."""
        self._run = self.driver.loop.create_task(self.run())
        self._run.add_done_callback(self._ran)
        return self

    def _ran(self, run: asyncio.Task[BatchResult[Any]]) -> None:
        if not run.cancelled():
            run.exception()  # marks it as retrieved: it is raised to the consumer, if there is one
        self._arrived.give()

    async def ends(self) -> BatchResult[Any]:
        if not self.over():
            self._arrived.check_loop()
            await asyncio.wait([self._run])
        return self._batch()

    def ended(self) -> bool:
        return self._run.done() and self._batch() is not None

    def _batch(self) -> BatchResult[Any]:
        """Return the result of ``run``, or raise its exception."""
        if self._run.cancelled():
            raise closed("")
        return self._run.result()

    def took(self) -> None:
        if self._paused:
            self._resume()
        if self._read_again and len(self._events) < AHEAD // 2:
            self._read_soon()

    def hush(self) -> None:
        """Drop all queued text events, and all text events that arrive later. The results are still delivered."""
        if not self.over():
            self._arrived.check_loop()
        self._only_results = True
        self._events = deque(event for event in self._events if isinstance(event[1], Result))
        self._resume()

    def is_read(self) -> bool:
        """Return True if a consumer waits in ``take``."""
        return self._arrived.read

    def leave(self) -> None:
        self._run.cancel()

    def over(self) -> bool:
        return self._run.done()

    async def idle(self) -> None:
        while not self.over():
            await self._arrived.wait()
        await super().idle()

    def _resume(self) -> None:
        """Resume one paused stream for each event taken. Resume all streams if no events are queued or the texts are dropped."""
        paused = self._paused
        while paused and (not self._events or self._only_results or len(self._events) < AHEAD):
            waiter = paused.popleft()
            if not waiter.done():
                waiter.set_result(None)
                if self._events and not self._only_results:
                    return

    # called by the loop driver

    execute = StreamWaiter.execute

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        stream = self._streams.pop(task, None)
        if stream is not None and isinstance(outcome, RequestError):
            outcome = interrupted(outcome, stream.text())
        super().finish(task, outcome, source, seconds)
        if self._read_again:
            self._read_soon()

    def _settle(self, result: Result[Any]) -> None:
        super()._settle(result)
        self._events.append((result.index, result))
        self._arrived.give()

    def _stop(self, make_error: Callable[[], QRewardError]) -> None:
        self.end_whole()
        super()._stop(make_error)

    # reading

    def read(self, feed: BatchFeed) -> bool:
        return self._may_read(feed) and super().read(feed)

    def _read_now(self, feed: BatchFeed) -> bool:
        return self._may_read(feed) and super()._read_now(feed)

    def _may_read(self, feed: BatchFeed) -> bool:
        self._read_again = self._read_again or self._room(feed) <= 0
        return self._room(feed) > 0

    def _room(self, feed: BatchFeed) -> int:
        if len(self._events) >= AHEAD:
            return 0
        room = super()._room(feed)
        return min(room, self._most - len(self._live)) if self._most else room

    def _read_soon(self) -> None:
        if self._room(self._feed) <= 0:
            return
        self._read_again = False
        if self._is_async:
            self._wanted.set()
        else:
            self.driver.loop.call_soon(self._read_on, self._feed)

    # the attempt's side

    def begin(self, task: Task, stream: OpenStream) -> None:
        before = self._streams.get(task)
        if before is not None and not self._only_results:
            self._events.append((task.index, StreamRestarted(before.text(), task.last_error)))
        self._streams[task] = stream

    def put(self, task: Task, chunks: list[Any]) -> bool:
        if not self._only_results:
            index = task.index
            self._events.extend((index, text) for chunk in chunks if (text := chunk.text))
        self._arrived.give()
        return len(self._events) >= AHEAD and not self._only_results

    async def space(self) -> None:
        waiter = self.driver.loop.create_future()
        self._paused.append(waiter)
        await waiter
