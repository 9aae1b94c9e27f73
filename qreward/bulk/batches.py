"""The batches of a bulk run: one batch per model, or one batch for a scorer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from math import inf
from typing import Any

from qreward.bulk.budget import NOTHING, SpendingLimit, Spent, is_free, spent_by
from qreward.bulk.inputs import Line
from qreward.bulk.journal import Journal, JournalFull
from qreward.bulk.outputs import failure_line, success_line, verdict_line
from qreward.bulk.requests import BulkSettings, RequestReader
from qreward.engine.batch import BatchWaiter, ResultSettings, Tallies
from qreward.errors import (
    BadRequest,
    BatchCancelled,
    ClientClosed,
    ConfigError,
    ConnectionFailed,
    InvalidResponse,
    NoEndpoint,
    QRewardError,
    Rejected,
    RequestTimeout,
)
from qreward.judge.judge import Judge
from qreward.judge.reward_model import RewardModelScorer
from qreward.judge.types import Scorer, Verdict, check_finite
from qreward.progress import ProgressMeter
from qreward.records import AttemptRecord
from qreward.results import EndpointStats, Result, Usage, dollars, merged_stats
from qreward.runtime import Runtime
from qreward.scheduler.outcome import Failure, FailureKind, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.task import Attempt, TaskState

WAITING = 1024
"""Maximum number of lines in all queues of a run. The input is not read further while so many lines wait."""
MOST_BATCHES = 64
"""Number of batches from which on the lines of further models share one batch per route."""
ALL_FAILED = 100
"""Number of lines of a batch that fail one after another until the batch is given up. The cause is then probably not in the lines. Lines
whose content is at fault do not count, but the run stops if so many have failed before any line was done."""
ALL_REJECTED = 4
"""Number of lines of a batch that fail one after another, because servers rejected them until their timeouts, before the batch is given up.
A server may reject one line for ever; if that ended the batch, no later run could go on."""
ALL_AGAIN = 2 * ALL_REJECTED
"""The same number for lines that had failed in an earlier run too. If they end the batch, the first ``ALL_REJECTED`` of them stay failed,
so that they do not end it in every run."""
_COLUMNS = "if a column has another name than its field, map the field to the column with the setting columns"
SCORING = 2048
"""Maximum number of lines that a scorer has at once, and of a round of a cascade. These lines count as sent. If the run is killed, the next
run may send them again."""


def _was_processed(error: QRewardError, attempts: Sequence[AttemptRecord]) -> bool:
    """Return False if no server can have processed a failed line."""
    if isinstance(error, Rejected):
        return False  # requests of the line may have been answered, but not all of them
    longest: dict[str, float] = {}  # endpoint -> longest time of a rejection; what was cut off sooner was not processed
    for attempt in attempts:
        if is_free(attempt) and attempt.outcome != "ok":
            longest[attempt.endpoint] = max(attempt.latency, longest.get(attempt.endpoint, 0.0))
        elif attempt.outcome != "timeout" or attempt.latency > longest.get(attempt.endpoint, -1.0):
            return True
    return not attempts and (error.usage is not None or not isinstance(error, RequestTimeout | NoEndpoint))


class LineQueue(asyncio.Queue["Line | None"]):
    """The lines that wait for one batch, which iterates over the queue. None ends it. A line that leaves the queue is released in ``room``,
    which all queues of a run share.

    ``failed`` and ``again`` are the lines of the batch that have failed one after another, for a reason that is probably not in them.
    """

    def __init__(self, room: asyncio.Semaphore) -> None:
        super().__init__()
        self._room = room
        self.given_up = ""  # why the lines of the batch that were not sent are left to the next run
        self.restart()

    def restart(self) -> None:
        """Called when a line has succeeded."""
        self.failed = 0  # lines that had not failed in an earlier run
        self.again: list[int] = []  # keys of lines that servers rejected now and in an earlier run: they stay failed, unless all lines fail

    def close(self) -> list[Line]:
        """End the batch, and return the lines that it has not taken."""
        left = [line for _ in range(self.qsize()) if (line := self.get_nowait()) is not None]
        for _ in left:
            self._room.release()
        self.put_nowait(None)
        return left

    async def take(self) -> Line | None:
        """Wait for the next line. Returns None after the last one, however often it is called."""
        line = await self.get()
        if line is None:
            self.put_nowait(None)
        else:
            self._room.release()
        return line

    async def __aiter__(self) -> AsyncIterator[Line]:
        while (line := await self.take()) is not None:
            yield line


class ModelBatch(BatchWaiter):
    """Sends the lines of one model as a batch. A line is recorded as sent just before its first attempt."""

    def __init__(self, run: LineRun, pool: Pool) -> None:
        runtime, self.queue = run.runtime, LineQueue(run.room)
        settings = ResultSettings(on_result=self._on_line, keep=False)
        super().__init__(runtime.engine.driver(), pool, self.queue, lambda line: line.content, run.request_options, settings)
        self._bulk, self.pool, self.tallies = run, pool, run.tallies
        self.execute = self._send
        self._entries: dict[int, Line] = {}

    def _add(self, item: Any) -> None:
        self._entries[self._count] = item
        super()._add(item)

    async def _send(self, attempt: Attempt) -> Outcome:
        line = self._entries.get(attempt.task.index)
        is_copy = attempt.task.copy is attempt  # its failure must not end the attempt that is in flight
        if (self._bulk.has_ended(self) and not is_copy) or (
            line is not None and not line.started and not await self._bulk.start(line, at_once=False)
        ):
            return Failure(FailureKind.UNSENDABLE, Rejected("the run has stopped"))
        try:
            return await self.driver.backend.send(attempt.source.endpoint, attempt.task.payload)
        finally:
            if self._bulk.has_ended(self):
                self.driver.loop.call_soon(self._drop_waiting)  # the line, if it would be sent again

    def stop(self) -> None:
        """Send no further requests. The batch waits for those in flight, and leaves the other lines to the next run."""
        left = self.queue.close()
        if self in self.driver.waiters:  # a batch that has not begun ends at once
            self.finish_started()
            self._drop_waiting()
        for task in self._live:
            task.hedge = False  # no copies of what is in flight
        in_flight = {task.index for task in self._live}
        left += [self._entries.pop(index) for index in [*self._entries] if index not in in_flight]
        for line in left:
            self._bulk.drop(self, line)

    def _drop_waiting(self) -> None:
        """End the lines that wait for their next attempt."""
        if waiting := [task for task in self._live if task.state < TaskState.SENT and task.attempt is None]:
            self.driver.withdraw(waiting, error := Rejected("the run has stopped"))
            for task in waiting:
                self.finish(task, error, None, 0.0)

    def _on_line(self, result: Result[Any]) -> None:
        self._bulk.finish(self, self._entries.pop(result.index, None), result)


_SCORING_FOR: ContextVar[ScorerBatch | None] = ContextVar("_SCORING_FOR", default=None)


class ScorerBatch:
    """Gives the lines to a judge or a reward model. A line is recorded as sent when the scorer takes it."""

    pool = None

    def __init__(self, run: LineRun, scorer: Scorer) -> None:
        self._bulk, self._scorer, self.queue = run, scorer, LineQueue(run.room)
        self._is_built_in = isinstance(scorer, Judge | RewardModelScorer)  # an item is in one batch of the engine
        self._next: Line | None = None  # was taken from the queue, and not yet by the scorer
        self._entries: dict[int, Line] = {}

    async def run(self) -> None:
        _SCORING_FOR.set(self)
        while await self._peek() is not None and not self._bulk.has_ended(self):
            batch = await self._scorer.batch_score(self._items(), on_result=self._on_line, keep_results=False, **self._bulk.scheduling)
            self._bulk.scored = merged_stats([self._bulk.scored, batch.stats.endpoints])
            if self._is_built_in and self.queue.given_up:
                for line in self._entries.values():  # these were not sent
                    self._bulk.drop(self, line)
            elif self._entries:
                self._bulk.stop(f"the scorer has ended without a result for {len(self._entries)} of its items")

    def stop(self) -> None:
        """Give the scorer no further lines. It finishes the lines that it has; a judge that is given up, only those that it has sent."""
        self.queue.close()
        if not self._is_built_in or not self.queue.given_up:  # of another scorer it is not known which items it has sent
            return
        for each in list(self._bulk.runtime.engine.driver().waiters):
            if isinstance(each, BatchWaiter) and each.context.get(_SCORING_FOR) is self:
                each.finish_started()

    async def _peek(self) -> Line | None:
        """Return the next line, or None after the last one."""
        self._next = self._next or await self.queue.take()
        return self._next

    async def _items(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the lines. A scorer that is not built in may need all items of its batch before it has results, as a cascade does. So it
        gets the lines in rounds. A round ends where the next line would wait for a result."""
        index = 0
        while (line := await self._peek()) is not None:
            while len(self._entries) >= SCORING or not self._bulk.budget.affords_lines(1 + len(self._entries)):
                if not self._entries:
                    self._bulk.stop(f"the next line would probably pass max_cost or max_tokens ({self._bulk.budget})")
                if not self._is_built_in or not self._entries:
                    return
                await self._bulk.next_result()
            if self._bulk.has_ended(self) or not await self._bulk.start(line):
                return
            self._next, self._entries[index] = None, line
            index += 1
            yield line.content
            if not self._is_built_in and self._entries and self._bulk.has_read_all and self.queue.empty():
                return

    def _on_line(self, result: Result[Verdict]) -> None:
        try:
            if result.ok:
                check_finite(result.value)
        except InvalidResponse as error:
            result = Result(result.index, None, error, result.endpoint, 0.0, result.queued, result.attempts)
        self._bulk.finish(self, self._entries.pop(result.index, None), result)


class LineRun:
    """A run that sends lines through batches, one per model, and records each line in a journal."""

    def __init__(
        self, runtime: Runtime, journal: Journal, settings: BulkSettings, reader: RequestReader, scorer: Scorer | None, done_before: int
    ) -> None:
        self.runtime, self._journal, self._settings, self._scorer, self._reader = runtime, journal, settings, scorer, reader
        self.scheduling: Mapping[str, Any] = {name: getattr(settings, name) for name in ("timeout", "priority", "tenant")}
        hedge = {"hedge": False} if settings.is_limited else {}  # no hedges with a budget, because the cost of a hedge is not reserved
        self.request_options = runtime.request_options({**self.scheduling, **hedge})
        self.budget = SpendingLimit(settings.max_cost, settings.max_tokens, journal.spent_before, journal.paid_before)
        self.attempts, self.force = runtime.config.retry.attempts, settings.resume == "force"
        self.has_read_all = False
        self.room = asyncio.Semaphore(WAITING)  # for lines in queues
        self._settled = asyncio.Event()  # set when a reservation is settled
        self._meter: ProgressMeter | None = None
        self.tallies = Tallies()  # of all lines without a scorer
        self.scored: Mapping[str, EndpointStats] = {}  # the statistics of all batches of a scorer
        self._sent = self._sent_again = 0
        self._batches: dict[Any, Any] = {}  # by pool and model, None for the scorer, the class of provider batches
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done_before, self._ok, self._failed_first = done_before, 0, 0
        self._last_success: dict[Pool | None, float] = {}
        self.errors: dict[str, tuple[int, str]] = {}
        self._reason: str | None = None
        self._is_flushing = False
        self.failure: BaseException | None = None  # of the run itself

    @property
    def is_stopping(self) -> bool:
        return self._reason is not None

    def stop(self, reason: QRewardError | str) -> None:
        """Send no further lines. Lines in flight are finished and recorded."""
        if self._reason is None:
            self._reason = str(reason)
            for batch in self._batches.values():
                batch.stop()

    def given_up(self) -> list[str]:
        return [batch.queue.given_up for batch in self._batches.values() if batch.queue.given_up]

    def has_ended(self, batch: Any) -> bool:
        """Return whether a batch must send nothing more."""
        return self.is_stopping or (batch is not None and bool(batch.queue.given_up))

    def give_up(self, batch: Any, line: Line, reason: str) -> None:
        """Send no further lines of a batch, because of that of ``line``. The next run sends them. The run goes on with other batches."""
        if batch is None:
            self.stop(reason)
            return
        if self.has_ended(batch):
            return
        queue = batch.queue
        queue.given_up = reason if self._scorer is not None else f"model {line.content.model!r}: {reason}"
        for key in queue.again[ALL_REJECTED if queue.failed < ALL_REJECTED and len(queue.again) >= ALL_AGAIN else 0 :]:
            self._journal.withdraw(key)
        if self._scorer is None:
            batch.stop()
        else:  # it has no other batch
            self.stop(reason)

    def drop(self, batch: Any, line: Line) -> None:
        """Leave a line to the next run, because it was not sent when its batch ended."""
        self.settle(line.reserved, NOTHING)
        if line.started:
            self._journal.withdraw(line.key)
        self.left(batch, line)

    def left(self, batch: Any, line: Line) -> None:
        """Called for a line that is left to the next run because its batch was given up."""

    def finish(self, batch: Any, line: Line | None, result: Result[Any], text: bytes | None = None, spent: Spent | None = None) -> None:
        """Record the result of a line. ``batch`` is None for a line of a provider batch.

        If no line of the batch can be sent any more, record none, and give up the batch; stop the run if the batch was cancelled or the
        client closed meanwhile. The next run sends such a line, and a failed line that no server can have processed.
        """
        error = result.error
        if line is None:  # the batch was ended before it took all lines
            self.stop(f"no line can be sent: {error}")
            return
        is_cut_off = isinstance(error, BatchCancelled | ClientClosed)
        if is_cut_off and line.started:
            spent = line.reserved  # as in the journal, where the line stays without a result
        elif spent is None:
            spent = self._cost_of(line, result) if line.started else NOTHING
        self.settle(line.reserved, spent)
        if is_cut_off:
            self.stop(f"no line can be sent: {error}")
        elif error is not None:
            self._finish_failed(batch, line, error, result, spent)
        else:
            if text is None:
                names = line.custom_id, line.identifier
                text = success_line(*names, result.body) if self._scorer is None else verdict_line(*names, result.value)
            self._record(line, text, result, spent)
            self._ok += 1
            if batch is not None:
                batch.queue.restart()
                self._last_success[batch.pool] = self.runtime.clock()
        line.content = None  # the piece of the input that is being read keeps all of its lines

    def _finish_failed(self, batch: Any, line: Line, error: QRewardError, result: Result[Any], spent: Spent) -> None:
        attempts = (*result.attempts, *getattr(error, "attempts", ()))  # an item with the shared request of a judge has none of its own
        is_final = isinstance(error, BadRequest | ConfigError) or (line.started and _was_processed(error, attempts))
        if not (is_final or (line.started and self._goes_on(batch, error, attempts))):
            if line.started:
                self._journal.withdraw(line.key, spent)
            self.give_up(batch, line, f"no line can be sent: {error}")
            self.left(batch, line)
            return
        if self._scorer is not None and isinstance(error, ConfigError):
            error.args = (f"{error}; {_COLUMNS}", *error.args[1:])
        self.fail(line, error, result, spent)
        failed_before = line.key in self._journal.failed_before
        if not is_final and not (failed_before and any(attempt.status_code is not None for attempt in attempts)):
            self._journal.withdraw(line.key)
        elif not is_final and batch is not None:
            batch.queue.again.append(line.key)
        if not failed_before:  # otherwise the same lines would end the batch in every run
            self._count(batch, line, error, attempts)

    def _goes_on(self, batch: Any, error: QRewardError, attempts: Sequence[AttemptRecord]) -> bool:
        """Return whether other lines can probably be sent, although no server has processed the line that ended with this error."""
        if self.has_ended(batch) or isinstance(error, Rejected | NoEndpoint):
            return False
        if batch is None or not isinstance(error, RequestTimeout | ConnectionFailed):
            return True
        recently = self.runtime.clock() - (self._settings.timeout or inf) / 2
        if self._last_success.get(batch.pool, -inf) > recently:
            return True
        is_first = batch.queue.failed < ALL_REJECTED and len(batch.queue.again) < ALL_AGAIN
        return is_first and any(attempt.outcome == "overloaded" for attempt in attempts)

    def _count(self, batch: Any, line: Line, error: QRewardError, attempts: Sequence[AttemptRecord]) -> None:
        """Count a failed line. Give up its batch, or stop the run, after ``ALL_FAILED`` of them."""
        again = "correct the cause, then use --retry-failed (in Python: retry_failed=True) to send them again"
        reason = f"the last {ALL_FAILED} lines have all failed; the last one: {error}; {again}"
        is_faulty = isinstance(error, BadRequest | ConfigError | NoEndpoint) and getattr(error, "status_code", None) != 404
        if batch is not None and not is_faulty and not (attempts and attempts[-1].outcome == "refused"):
            batch.queue.failed += 1
            if batch.queue.failed >= ALL_FAILED:
                self.give_up(batch, line, reason)
        elif not self._ok:
            self._failed_first += not self._done_before
            if self._failed_first >= ALL_FAILED:
                self.stop(reason)

    def refuse(self, line: Line, error: QRewardError) -> None:
        """Record the failure of a line that cannot be given to a batch. It counts only until a line was given to one."""
        self.fail(line, error)
        if not self._batches:
            self._count(None, line, error, ())

    def settle(self, reserved: Spent, spent: Spent) -> None:
        """Replace a reservation in the budget with the real cost."""
        self.budget.settle(reserved, spent)
        self._settled.set()

    async def next_result(self) -> None:
        """Wait until a reservation is settled."""
        self._settled.clear()
        await self._settled.wait()

    def _cost_of(self, line: Line, result: Result[Any]) -> Spent:
        """Return the cost of a line that was sent. An attempt without an answer counts with its maximum cost."""
        price, usage = self.runtime.prices.get(result.endpoint or ""), result.usage
        if self._scorer is None:
            answer, most = spent_by(usage, price) if result.ok else NOTHING, line.reserved  # of all attempts
            unknown = sum(not is_free(attempt) for attempt in result.attempts) + (answer is None)
            return (answer or NOTHING) + Spent(most.tokens // self.attempts, most.cost / self.attempts) * unknown
        if self._settings.is_limited and result.ok and usage is None and not result.value.cached:
            self.stop("max_cost and max_tokens cannot be kept, because a line was scored and no server reported its tokens")
        found = usage or Usage()
        if found.cost is not None or price is None:
            return Spent(found.tokens, found.cost or 0.0)
        return Spent(found.tokens, dollars(price, found.prompt_tokens or 0, found.completion_tokens or 0))

    def fail(self, line: Line, error: QRewardError, result: Result[Any] | None = None, spent: Spent = NOTHING) -> None:
        """Record the failure of a line. ``result`` is None if no request was made for it."""
        if not line.row_identifier and not str(error).startswith(line.place):  # the caller of a row knows which one it is
            error.args = (f"{line.place}: {error}", *error.args[1:])
        result = result or Result(0, None, error, None, 0.0, 0.0)
        self._record(line, failure_line(line.custom_id, line.identifier, error), result, spent)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, JournalFull):
                self.failure = self.failure or error
            self.stop(error if isinstance(error, QRewardError) else f"{type(error).__name__}: {error}")

    async def start(self, line: Line, *, at_once: bool = True) -> bool:
        """Record in the journal that a line is about to be sent. Returns False if the line must not be sent."""
        if self.is_stopping:
            return False
        try:
            self._journal.start(line.key, line.reserved)
            line.started = True
            if not at_once:
                await asyncio.sleep(0)  # all lines of one turn of the event loop are then written together: 5 to 20 % less CPU time
            self._journal.write()
        except QRewardError as error:  # the disk is full, for example
            if line.started:
                line.started = False
                self._journal.withdraw(line.key)
            self.stop(error)
            return False
        self.submitted((line.key,))
        return True

    def submitted(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._sent += 1
            self._sent_again += key in self._journal.unfinished

    def _kind_of(self, pool: Pool, model: str) -> tuple[Pool, str]:
        kind = pool, model
        return kind if kind in self._batches or len(self._batches) < MOST_BATCHES else (pool, "(others)")

    def _batch_of(self, kind: Any) -> Any:
        """Return the batch of a kind, which is a key of ``_batches``. If there is none yet, create it."""
        batch = self._batches.get(kind)
        if batch is None:
            if isinstance(kind, type):  # provider batches
                batch = kind(self, self._journal)
            else:
                batch = ModelBatch(self, kind[0]) if self._scorer is None else ScorerBatch(self, self._scorer)
            self._batches[kind] = batch
            self._begin(batch.run())
        return batch

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _record(self, line: Line, text: bytes, result: Result[Any], spent: Spent) -> int:
        """Record the result of a line, and return the offset of the record."""
        place, error = self._journal.finish(line.key, text, spent, ok=result.ok), result.error
        if error is not None:
            status = getattr(error, "status_code", None)
            kind = type(error).__name__ + ("" if status is None else f" ({status})")
            times, example = self.errors.get(kind, (0, str(error)))
            self.errors[kind] = times + 1, example
        if not self._is_flushing:  # all results of one turn of the event loop are written together
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        if self._meter is not None:
            self._meter.add(result)
        return place

    def _flush(self) -> None:
        self._is_flushing = False
        self._journal.flush()
