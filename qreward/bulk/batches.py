"""The batches of a bulk run: one of the client per model, or one of a scorer. They take lines from a queue as they can send them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from qreward.bulk.budget import Spent
from qreward.bulk.inputs import InputLine
from qreward.engine.batch import BatchWaiter
from qreward.errors import QRewardError
from qreward.judge.types import Scorer, Verdict
from qreward.results import EndpointStats, Result
from qreward.runtime import Runtime
from qreward.scheduler.outcome import Failure, FailureKind, Outcome
from qreward.scheduler.state import Attempt, BatchFeed, Pool, RequestOptions

WAITING = 1024
"""Lines of one model that wait to be taken by its batch. Reading goes no further while a model has so many."""
SCORING = 2048
"""Lines that a scorer has at once. They count as sent, so the run after a killed one may send as many again."""


class RunProtocol(Protocol):
    """What a batch needs of the run to which it belongs.

    Attributes:
        runtime: that of the client.
        request_options: scheduling options of each request.
        scheduling: the same as options of a call.
        read_on: set when lines were taken or are done, so that more can be read.
    """

    runtime: Runtime
    request_options: RequestOptions
    scheduling: Mapping[str, Any]
    read_on: asyncio.Event

    def start(self, entry: Entry) -> bool:
        """Take in that a line is to be sent. Returns False if it must not be."""

    def write(self, entry: Entry) -> bool:
        """Write that lines were started. Returns False if this one must not be sent."""

    def finish(self, entry: Entry, result: Result[Any]) -> None:
        """Take in the result of a line."""


class Entry:
    """A line that is being sent: a request, or the fields of an item for a scorer.

    ``reserved`` is what ``reserves`` attempts can cost.
    """

    __slots__ = ("content", "custom_id", "digest", "ordinal", "place", "reserved", "reserves", "started")

    def __init__(self, ordinal: int, line: InputLine, custom_id: str, content: Any, reserved: Spent) -> None:
        self.ordinal, self.digest, self.place = ordinal, line.digest, line.place
        self.custom_id, self.content = custom_id, content
        self.reserved, self.started = reserved, False
        self.reserves = 1


class LineQueue:
    """Lines that wait to be taken by a batch, as its asynchronous input."""

    def __init__(self, run: RunProtocol) -> None:
        self._run = run
        self._waiting: deque[Entry] = deque()
        self._changed = asyncio.Event()
        self._is_complete = False

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self._changed.set()

    @property
    def is_complete(self) -> bool:
        """True if there are no further lines, and all were taken."""
        return self._is_complete and not self._waiting

    def complete(self) -> None:
        """There are no further lines."""
        self._is_complete = True
        self._changed.set()

    def close(self) -> None:
        """Drop what waits; there are no further lines."""
        self._waiting.clear()
        self.complete()

    async def __aiter__(self) -> AsyncIterator[Entry]:
        while True:
            while self._waiting:
                entry = self._waiting.popleft()
                self._run.read_on.set()
                yield entry
            if self._is_complete:
                return
            self._changed.clear()
            await self._changed.wait()


class ModelBatch(BatchWaiter):
    """The batch of one model. A line counts as sent from just before its first attempt."""

    def __init__(self, run: RunProtocol, model: str, pool: Pool) -> None:
        runtime, self.queue = run.runtime, LineQueue(run)
        collecting = runtime.collecting({"on_result": self._on_line, "progress": False, "keep_results": False}, pool, (), model)
        super().__init__(runtime.driver(), pool, self.queue, lambda entry: entry.content, terms=run.request_options, **collecting)
        self._bulk = run
        self.carry = self._send
        self._entries: dict[int, Entry] = {}

    def _add(self, feed: BatchFeed, item: Any) -> None:
        self._entries[self._read] = item
        super()._add(feed, item)

    async def _send(self, attempt: Attempt) -> Outcome:
        entry = self._entries.get(attempt.task.index)
        if entry is not None and not entry.started:
            may_send = self._bulk.start(entry)
            if may_send:
                await asyncio.sleep(0)  # all lines that can be sent in this turn of the event loop are written at once
                may_send = self._bulk.write(entry)
            if not may_send:
                return Failure(FailureKind.UNSENDABLE, QRewardError("the run has stopped"))
        return await self.driver.backend.send(attempt.source.handle, attempt.task.payload)

    def stop(self) -> None:
        """Send no further line. Those that were sent are finished, retries included."""
        self.queue.close()
        if hasattr(self, "_feed"):  # else it has not begun, and ends at once
            self._feed.ended = True
            self._drop_unstarted()
            self._end_if_done()

    def _on_line(self, result: Result[Any]) -> None:
        self._bulk.finish(self._entries.pop(result.index), result)

    def endpoints(self) -> dict[str, EndpointStats]:
        return self._tallies.stats()


class ScorerBatch:
    """The batch of a judge or a reward model. A line counts as sent from when the scorer reads it, as it may need several requests."""

    def __init__(self, run: RunProtocol, scorer: Scorer) -> None:
        self._bulk, self._scorer, self.queue = run, scorer, LineQueue(run)
        self._entries: dict[int, Entry] = {}
        self._done = asyncio.Event()
        self._stats: Mapping[str, EndpointStats] = {}

    async def run(self) -> None:
        batch = await self._scorer.batch_score(self._items(), on_result=self._on_line, keep_results=False, **self._bulk.scheduling)
        self._stats = batch.stats.endpoints

    def stop(self) -> None:
        """Give the scorer no further line. Those that it has are finished."""
        self.queue.close()

    async def _items(self) -> AsyncIterator[Mapping[str, Any]]:
        index = 0
        async for entry in self.queue:
            while len(self._entries) >= SCORING:
                self._done.clear()
                await self._done.wait()
            if not (self._bulk.start(entry) and self._bulk.write(entry)):
                return
            self._entries[index] = entry
            index += 1
            yield entry.content

    def _on_line(self, result: Result[Verdict]) -> None:
        self._done.set()
        self._bulk.finish(self._entries.pop(result.index), result)

    def endpoints(self) -> Mapping[str, EndpointStats]:
        return self._stats


def new_batch(run: RunProtocol, entry: Entry, pool: Pool | None, scorer: Scorer | None) -> ModelBatch | ScorerBatch:
    """Return the batch of a line's model, whose endpoints are ``pool``; or, without a pool, that of the scorer."""
    if pool is not None:
        return ModelBatch(run, entry.content.model, pool)
    assert scorer is not None
    return ScorerBatch(run, scorer)
