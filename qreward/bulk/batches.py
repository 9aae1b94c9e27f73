"""The batches of a bulk run: one batch per model, or one batch for a scorer.

Each batch has a queue of lines, and takes a line from the queue when it can send the line.

``LineRun`` is the base class of :class:`~qreward.bulk.run.BulkRun` and :class:`~qreward.bulk.keyed.KeyedRun`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from typing import Any

from qreward.bulk.budget import NOTHING, SpendingLimit, Spent
from qreward.bulk.inputs import InputLine
from qreward.bulk.journal import Journal, JournalFull
from qreward.bulk.report import kind_of_error
from qreward.bulk.requests import RequestReader
from qreward.bulk.settings import BulkSettings
from qreward.engine.batch import BatchWaiter
from qreward.errors import (
    BadRequest,
    BatchCancelled,
    BudgetExceeded,
    ClientClosed,
    ConfigError,
    InvalidResponse,
    NoEndpoint,
    QRewardError,
    RequestTimeout,
)
from qreward.judge.scorers import check_finite
from qreward.judge.types import Scorer, Verdict
from qreward.records import AttemptRecord
from qreward.results import EndpointStats, Result
from qreward.runtime import Runtime
from qreward.scheduler.outcome import Failure, FailureKind, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.task import Attempt, BatchFeed

WAITING = 1024
"""Maximum number of lines in a queue. The input is not read further while a line has to wait for room in its queue."""
ALL_FAILED = 100
"""Number of failed lines after which the run stops if no line has succeeded. The cause is then probably not in the lines."""
SCORING = 2048
"""Maximum number of lines that a scorer has at once. These lines count as sent. If the run is killed, the next run may send them again."""


class Entry:
    """A line that is to be sent or was sent.

    Attributes:
        ordinal: position of the line in the input, from 0.
        digest, place: as in :class:`~qreward.bulk.inputs.InputLine`.
        custom_id: identifier of the line in the output.
        content: the request, or the item for a scorer.
        reserved: maximum cost of all attempts of the line together.
        started: True if the journal has recorded the line as sent.
        attempts: the failed attempts of the line in provider batches.
    """

    __slots__ = ("attempts", "content", "custom_id", "digest", "ordinal", "place", "reserved", "started")

    def __init__(self, ordinal: int, line: InputLine, custom_id: str, content: Any, reserved: Spent) -> None:
        self.ordinal, self.digest, self.place = ordinal, line.digest, line.place
        self.custom_id, self.content = custom_id, content
        self.reserved, self.started = reserved, False
        self.attempts: tuple[AttemptRecord, ...] = ()


def _was_processed(error: QRewardError, attempts: Iterable[AttemptRecord]) -> bool:
    """Return False if no server can have processed a failed line.

    A last attempt that was cut off by the timeout counts as not processed where the line could not connect before.
    """
    if isinstance(error, BudgetExceeded):
        return False  # requests of the line may have been answered, but not all of them
    unreachable = set()
    for attempt in attempts:
        if attempt.outcome == "unreachable":
            unreachable.add(attempt.endpoint)
        elif attempt.outcome != "timeout" or attempt.endpoint not in unreachable:
            return True
    return not unreachable and (error.usage is not None or not isinstance(error, RequestTimeout | NoEndpoint))


class LineQueue(asyncio.Queue["Entry | None"]):
    """The lines that wait for one batch, which iterates over the queue. ``read_on`` is set whenever a line is taken."""

    def __init__(self, read_on: asyncio.Event) -> None:
        super().__init__()
        self._read_on = read_on

    @property
    def is_full(self) -> bool:
        return self.qsize() >= WAITING

    def complete(self) -> None:
        """Declare that no further lines will be added."""
        self.put_nowait(None)

    def close(self) -> None:
        """Drop the waiting lines, and declare that no further lines will be added."""
        while not self.empty():
            self.get_nowait()
        self.complete()

    async def __aiter__(self) -> AsyncIterator[Entry]:
        while (entry := await self.get()) is not None:
            self._read_on.set()
            yield entry


class ModelBatch(BatchWaiter):
    """Sends the lines of one model as a batch. A line is recorded as sent just before its first attempt."""

    def __init__(self, run: LineRun, model: str, pool: Pool) -> None:
        runtime, self.queue = run.runtime, LineQueue(run.read_on)
        collecting = runtime.collecting({"on_result": self._on_line, "progress": False, "keep_results": False}, pool, (), model)
        super().__init__(runtime.driver(), pool, self.queue, lambda entry: entry.content, request_options=run.request_options, **collecting)
        self._bulk = run
        self.execute = self._send
        self._entries: dict[int, Entry] = {}

    def _add(self, feed: BatchFeed, item: Any) -> None:
        self._entries[self._read] = item
        super()._add(feed, item)

    async def _send(self, attempt: Attempt) -> Outcome:
        entry = self._entries.get(attempt.task.index)
        if entry is not None and not entry.started:
            may_send = self._bulk.start(entry)
            if may_send:
                await asyncio.sleep(0)  # all lines of one turn of the event loop are then written together: 5 to 20 % less CPU time
                may_send = self._bulk.write(entry)
            if not may_send:
                return Failure(FailureKind.UNSENDABLE, QRewardError("the run has stopped"))
        return await self.driver.backend.send(attempt.source.handle, attempt.task.payload)

    def stop(self) -> None:
        """Send no further lines. Lines in flight are finished, with their retries."""
        self.queue.close()
        if self in self.driver.waiters:  # a batch that has not begun ends at once
            self._feed.ended = True
            self._drop_unstarted()
            self._end_if_done()

    def _on_line(self, result: Result[Any]) -> None:
        self._bulk.finish(self._entries.pop(result.index), result)

    def endpoints(self) -> dict[str, EndpointStats]:
        return self._tallies.stats()


class ScorerBatch:
    """Gives the lines to a judge or a reward model. A line is recorded as sent when the scorer takes it."""

    def __init__(self, run: LineRun, scorer: Scorer) -> None:
        self._bulk, self._scorer, self.queue = run, scorer, LineQueue(run.read_on)
        self._entries: dict[int, Entry] = {}
        self._done = asyncio.Event()
        self._stats: Mapping[str, EndpointStats] = {}

    async def run(self) -> None:
        batch = await self._scorer.batch_score(self._items(), on_result=self._on_line, keep_results=False, **self._bulk.scheduling)
        self._stats = batch.stats.endpoints

    def stop(self) -> None:
        """Give the scorer no further lines. The scorer finishes the lines that it has."""
        self.queue.close()

    async def _items(self) -> AsyncIterator[Mapping[str, Any]]:
        index = 0
        async for entry in self.queue:
            while len(self._entries) >= SCORING or not self._bulk.affords(1 + len(self._entries)):
                if not self._entries:
                    self._bulk.stop(f"the next line would probably pass max_cost or max_tokens ({self._bulk.budget})")
                    return
                self._done.clear()
                await self._done.wait()
            if not (self._bulk.start(entry) and self._bulk.write(entry)):
                return
            self._entries[index] = entry
            index += 1
            yield entry.content

    def _on_line(self, result: Result[Verdict]) -> None:
        self._done.set()
        try:
            if result.ok:
                check_finite(result.value)
        except InvalidResponse as error:
            result = Result(result.index, None, error, result.endpoint, 0.0, result.queued, result.attempts)
        self._bulk.finish(self._entries.pop(result.index), result)

    def endpoints(self) -> Mapping[str, EndpointStats]:
        return self._stats


class LineRun(ABC):
    """A run that sends lines through batches, one per model, and records each line in a journal.

    Args:
        runtime: runtime of the client.
        journal: the journal; the run closes it.
        settings: settings of the run.
        reader: object that turns lines into requests.
        scorer: judge or reward model that scores each line; None sends each line as a request.
        done_before: number of lines that were done before this run.

    Attributes:
        runtime: runtime of the client.
        scheduling: options of each request, as keyword arguments of a call.
        request_options: the same options, for the scheduler.
        budget: the limits of the run, and what is spent and reserved.
        attempts: maximum number of attempts per line.
        force: True if the run continues although its input or settings have changed, or results of an earlier batch are lost.
        has_read_all: True if the input was read to its end.
        read_on: event that is set when a line was taken from a queue or is done, so that the run may read more lines.
        errors: kind of error -> number of lines of this run that failed with it, and the message of the first of these errors.
    """

    def __init__(
        self, runtime: Runtime, journal: Journal, settings: BulkSettings, reader: RequestReader, scorer: Scorer | None, done_before: int
    ) -> None:
        self.runtime, self._journal, self._settings, self._scorer = runtime, journal, settings, scorer
        self._reader = reader
        self.scheduling: Mapping[str, Any] = settings.scheduling()
        hedge = {"hedge": False} if settings.is_limited else {}  # no hedges with a budget, because the cost of a hedge is not reserved
        self.request_options = runtime.request_options({**self.scheduling, **hedge})
        self.budget = SpendingLimit(settings.max_cost, settings.max_tokens, journal.spent_before)
        self.attempts, self.force = runtime.config.retry.attempts, settings.resume == "force"
        self.has_read_all = False
        self.read_on = asyncio.Event()
        self._sent = self._sent_again = 0
        self._batches: dict[Any, Any] = {}  # what serves the lines: a pool, None for the scorer, or the class of provider batches
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done_before, self._ok, self._failed = done_before, 0, 0
        self.errors: dict[str, tuple[int, str]] = {}
        self._reason: str | None = None
        self._is_flushing = False

    @property
    def is_stopping(self) -> bool:
        """True if no further lines may be sent."""
        return self._reason is not None

    def stop(self, reason: QRewardError | str) -> None:
        """Send no further lines. Lines in flight are finished and recorded."""
        if self._reason is None:
            self._reason = str(reason)
            for batch in self._batches.values():
                batch.stop()

    @abstractmethod
    def finish(self, entry: Entry, result: Result[Any], text: bytes | None = None, spent: Spent | None = None) -> None:
        """Record the result of a line.

        Args:
            entry: the line.
            result: result of the line.
            text: the result as a line of the output, without line break. If ``text`` is None, the line is made from ``result``.
            spent: cost of the line. If ``spent`` is None, the cost is computed from the usage and the attempts of the result.
        """

    @abstractmethod
    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Handle the end of a task of the run."""

    def start(self, entry: Entry) -> bool:
        """Record that a line is about to be sent. Returns False if the line must not be sent."""
        if self.is_stopping:
            return False
        try:
            self._journal.start(entry.ordinal, entry.digest, entry.reserved)
        except QRewardError as error:  # the disk is full, for example
            self.stop(error)
            return False
        entry.started = True
        return True

    def affords(self, lines: int) -> bool:
        """Return whether the limits of the run allow this number of lines of a scorer, if each costs as much as the mean line so far."""
        if not self._settings.is_limited:
            return True
        done, spent = self._done_before + self._ok + self._failed, self.budget.spent
        if not done:
            return lines == 1  # the first line shows what a line costs
        return self.budget.affords(Spent(spent.tokens * lines // done, spent.cost * lines / done))

    def write(self, entry: Entry) -> bool:
        """Write the records of ``start`` to the journal. Returns False if the line must not be sent."""
        try:
            self._journal.write()
        except QRewardError as error:
            entry.started = False
            self._journal.withdraw(entry.ordinal, entry.digest)
            self.stop(error)
            return False
        self.submitted((entry.ordinal,))
        return True

    def submitted(self, ordinals: Iterable[int]) -> None:
        """Count these lines as sent."""
        for ordinal in ordinals:
            self._sent += 1
            self._sent_again += ordinal in self._journal.unfinished

    def _batch_of(self, entry: Entry | None, kind: Any) -> Any:
        """Return the batch of a kind, which is a key of ``_batches``. If there is none yet, create it; ``entry`` is its first line."""
        batch = self._batches.get(kind)
        if batch is None:
            batch = self._batches[kind] = self._new_batch(entry, kind)
            self._begin(batch.run())
        return batch

    def _new_batch(self, entry: Entry | None, kind: Any) -> Any:
        if self._scorer is not None:
            return ScorerBatch(self, self._scorer)
        assert entry is not None
        return ModelBatch(self, entry.content.model, kind)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _leave_to_next_run(self, entry: Entry, result: Result[Any], spent: Spent = NOTHING) -> bool:
        """Stop the run and return True if a failed line has no result yet, so that the next run sends it: no server can have processed it,
        or the batch was cancelled or the client closed meanwhile. ``spent`` is the most that its attempts can have cost.
        """
        error = result.error
        if error is None or isinstance(error, BadRequest | ConfigError):
            return False
        is_cut_off = isinstance(error, BatchCancelled | ClientClosed)
        if entry.started and not is_cut_off:
            attempts = getattr(error, "attempts", ())  # an item of a judge that shared the request of an equal item has none of its own
            if _was_processed(error, (*result.attempts, *attempts)):
                return False
            self._journal.withdraw(entry.ordinal, entry.digest, spent)
        self.stop(f"no line can be sent: {error}")
        return True

    def _record(self, ordinal: int, digest: int, text: bytes, error: QRewardError | None, spent: Spent = NOTHING) -> int | None:
        """Record the result of a line. Returns the offset of the record in the journal, or None if the disk is full."""
        try:
            place = self._journal.finish(ordinal, digest, text, spent, ok=error is None)
        except JournalFull as full:
            self.stop(full)
            return None
        self._ok += error is None
        if error is not None:
            self._failed += 1
            kind = kind_of_error(error)
            times, example = self.errors.get(kind, (0, str(error)))
            self.errors[kind] = times + 1, example
        if self._failed >= ALL_FAILED and not self._ok and not self._done_before:
            what = f"the first {self._failed} lines have all failed; the last one: {error}"
            self.stop(f"{what}; correct the cause, then use --retry-failed (in Python: retry_failed=True) to send them again")
        if not self._is_flushing:  # all results of one turn of the event loop are written together
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        self.read_on.set()
        return place

    def _flush(self) -> None:
        self._is_flushing = False
        self._journal.flush()
