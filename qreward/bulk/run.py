"""One bulk run: reads the input, sends what is not done, keeps the journal, and writes the output when everything is done.

The requests themselves are batches of the client, one per model, so limits, retries, load balancing and prefix affinity are those of any
batch. A run can be stopped at any time; the same run again goes on where it stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from qreward.bulk.budget import Budget, Spent, most_of, spent_by
from qreward.bulk.inputs import Input, InputLine
from qreward.bulk.journal import Journal
from qreward.bulk.outputs import OutputFile, body_of, failure_line, success_line
from qreward.bulk.report import BulkReport
from qreward.bulk.requests import BulkRequest, RequestReader
from qreward.bulk.settings import BulkSettings
from qreward.codecs.base import WireRequest
from qreward.engine.batch import BatchWaiter
from qreward.engine.snapshots import load_of
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.progress import ProgressMeter, start_progress
from qreward.results import EndpointStats, Result, RouteLoad
from qreward.runtime import Runtime
from qreward.scheduler.outcome import Outcome
from qreward.scheduler.state import Attempt, BatchFeed, Pool

READ_AT_ONCE = 1024
"""Lines that are read at once, in a thread."""
WAITING = 1024
"""Lines of one model that wait to be taken by its batch. Reading goes no further while a model has so many."""
BEAT = 0.25
"""Seconds between two refreshes of the progress."""
HOPELESS = 100
"""If so many lines have failed and none has succeeded, the run stops: the fault is not in the lines."""
_COUNTS = ("sent", "won", "rejected", "retried", "hedged", "failed", "cancelled", "prompt_tokens", "completion_tokens", "cached_tokens")


class Entry:
    """A line that is being sent."""

    __slots__ = ("call", "custom_id", "digest", "ordinal", "place", "reserved", "started")

    def __init__(self, ordinal: int, line: InputLine, request: BulkRequest, reserved: Spent) -> None:
        self.ordinal, self.digest, self.place = ordinal, line.digest, line.place
        self.custom_id, self.call = request
        self.reserved, self.started = reserved, False


class ModelBatch(BatchWaiter):
    """The batch of one model. A line counts as sent from just before its first attempt."""

    def __init__(self, run: BulkRun, model: str, pool: Pool) -> None:
        runtime = run.runtime
        super().__init__(
            runtime.driver(),
            pool,
            self._lines(),
            lambda entry: entry.call,
            terms=run.request_options,
            **runtime.collecting({"on_result": self._on_line, "progress": False, "keep_results": False}, pool, (), model),
        )
        self._bulk = run
        self.carry = self._send
        self.waiting: deque[Entry] = deque()
        self.changed = asyncio.Event()
        self.is_last = False
        self._entries: dict[int, Entry] = {}

    async def _lines(self) -> AsyncIterator[Entry]:
        while True:
            while self.waiting:
                entry = self.waiting.popleft()
                if len(self.waiting) < WAITING:
                    self._bulk.read_on.set()
                yield entry
            if self.is_last:
                return
            self.changed.clear()
            await self.changed.wait()

    def _add(self, feed: BatchFeed, item: Any) -> None:
        self._entries[self._read] = item
        super()._add(feed, item)

    async def _send(self, attempt: Attempt) -> Outcome:
        entry = self._entries.get(attempt.task.index)
        if entry is not None and not entry.started and not self._bulk.start(entry):
            await asyncio.get_running_loop().create_future()  # until the batch is cancelled
        return await self.driver.backend.send(attempt.source.handle, attempt.task.payload)

    def _on_line(self, result: Result[Any]) -> None:
        self._bulk.finish(self._entries.pop(result.index), result)

    def endpoints(self) -> dict[str, EndpointStats]:
        return self._tallies.stats()


class BulkRun:
    """One run.

    Args:
        runtime: that of the client.
        source, output, journal: where lines come from and where results go. The journal is closed by the run.
        settings: see :class:`BulkSettings`.
    """

    def __init__(
        self, runtime: Runtime, source: Input, output: OutputFile, failures: OutputFile, journal: Journal, settings: BulkSettings
    ) -> None:
        self.runtime, self._source, self._output, self._failures, self._journal = runtime, source, output, failures, journal
        self._settings = settings
        self._reader = RequestReader(model=settings.model, params=settings.params, template=settings.template, system=settings.system)
        self._budget = Budget(settings.max_cost, settings.max_tokens)
        hedge = {} if not self._budget.is_limited else {"hedge": False}  # a copy would cost what is not reserved
        self.request_options = runtime.request_options({**settings.scheduling(), **hedge})
        self._batches: dict[Pool, ModelBatch] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # one reads, and each batch has one
        self.read_on = asyncio.Event()
        self._over = asyncio.Event()
        self._reason: str | None = None
        self._error: BaseException | None = None
        self._ok = self._failed = self._read = self._taken = self._sent = self._sent_again = 0
        self._flushing = self._is_read = False
        self._done_before = journal.done
        self._meter: ProgressMeter | None = None

    # stopping

    def stop(self, reason: str) -> None:
        """Send nothing more. The run ends when what is in flight is done."""
        if self._reason is None:
            self._reason = reason
            self.read_on.set()
            self._end_if_over()

    def stop_now(self) -> None:
        """End the run. What is in flight is cancelled, and may have been paid."""
        self.stop("it was interrupted")
        self._over.set()

    def _end_if_over(self) -> None:
        if (self._reason is not None and not self._journal.started) or not self._tasks:
            self._over.set()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self.stop(str(error))
        self._end_if_over()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    # lines

    def start(self, entry: Entry) -> bool:
        """Record that a line is sent now. Returns False if it must not be."""
        if self._reason is not None:
            return False
        try:
            self._journal.start(entry.ordinal, entry.digest)
        except QRewardError as error:  # the disk is full, for example
            self.stop(str(error))
            return False
        entry.started = True
        self._sent += 1
        self._sent_again += entry.ordinal in self._journal.unfinished
        return True

    def finish(self, entry: Entry, result: Result[Any]) -> None:
        """Take in the result of a line."""
        error = result.error
        if error is not None and not entry.started and not isinstance(error, BadRequest | ConfigError):
            self._budget.settle(entry.reserved, Spent())
            self.stop(str(error))  # the line was never sent, so it is not the line's fault
            return
        self._budget.settle(entry.reserved, self._cost_of(entry, result))
        if self._meter is not None:
            self._meter.add(result)
        if error is None:
            text = success_line(entry.custom_id, _identifier(entry.ordinal), body_of(result))
        else:
            text = failure_line(entry.custom_id, _identifier(entry.ordinal), _placed(error, entry.place))
        self._record(entry.ordinal, entry.digest, text, ok=error is None)
        if self._failed >= HOPELESS and not self._ok and not self._done_before:
            self.stop(f"the first {self._failed} lines have all failed; the last one: {error}")

    def _record(self, ordinal: int, digest: int, text: bytes, *, ok: bool) -> None:
        self._ok += ok
        self._failed += not ok
        self._journal.finish(ordinal, digest, text, ok=ok)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        self.read_on.set()
        self._end_if_over()

    def _flush(self) -> None:
        self._flushing = False
        self._journal.flush()

    def _cost_of(self, entry: Entry, result: Result[Any]) -> Spent:
        """What a line cost: that of its answer, and all that an attempt without an answer may have cost."""
        if not entry.started:
            return Spent()
        unknown = sum(attempt.outcome not in ("ok", "overloaded", "unreachable", "cancelled") for attempt in result.attempts)
        price = self.runtime.prices.get(result.endpoint or "")
        answer = spent_by(result.usage, price, entry.reserved) if result.ok else Spent()
        return Spent(answer.tokens + unknown * entry.reserved.tokens, answer.cost + unknown * entry.reserved.cost)

    # reading

    async def _read_all(self) -> None:
        """Read the input and hand each line that is not done to the batch of its model."""
        ordinal, lines, sample = 0, self._source.lines(), self._settings.sample
        try:
            while chunk := await asyncio.to_thread(_take, lines):
                for line in chunk:
                    if self._is_ours(ordinal):
                        await self._take_line(ordinal, line)
                    if self._reason is not None or self._taken == sample:
                        return
                    ordinal += 1
            if self._journal.size > ordinal and self._settings.resume != "force":
                raise ConfigError(
                    f"the input has {ordinal} lines, and had {self._journal.size} or more when the journal was written; "
                    "name another output, or go on with resume=force"
                )
            self._is_read = True
        finally:
            self._read = ordinal
            for batch in self._batches.values():
                batch.is_last = True
                batch.changed.set()

    def _is_ours(self, ordinal: int) -> bool:
        shard = self._settings.shard
        return shard is None or ordinal % shard[1] == shard[0] - 1

    async def _take_line(self, ordinal: int, line: InputLine) -> None:
        known = self._journal.digest(ordinal)
        if known is not None and known != line.digest and self._settings.resume != "force":
            raise ConfigError(f"{line.place} has changed since its result was received; name another output, or go on with resume=force")
        if known is not None and known == line.digest:
            return
        try:
            request = self._reader.read(line, ordinal)
            pool = self.runtime.pool(request.call.model)
            reserved = await self._reserve(pool, request.call)
        except QRewardError as error:
            self._record(ordinal, line.digest, failure_line(str(ordinal + 1), _identifier(ordinal), _placed(error, line.place)), ok=False)
            return
        if reserved is not None:
            await self._hand_over(Entry(ordinal, line, request, reserved), pool)

    async def _hand_over(self, entry: Entry, pool: Pool) -> None:
        """Give a line to the batch of its model, as soon as that has room for it."""
        batch = self._batches.get(pool)
        if batch is None:
            batch = self._batches[pool] = ModelBatch(self, entry.call.model, pool)
            self._begin(batch.run())
        while len(batch.waiting) >= WAITING and self._reason is None:
            self.read_on.clear()
            await self.read_on.wait()
        self._taken += 1
        batch.waiting.append(entry)
        batch.changed.set()

    async def _reserve(self, pool: Pool, call: WireRequest) -> Spent | None:
        """Reserve what a line can cost at most. Returns None if the budget does not allow it, and stops the run."""
        if not self._budget.is_limited:
            return Spent()
        prices = [price for source in pool.sources if (price := self.runtime.prices.get(source.name)) is not None]
        most = most_of(call, max(prices, default=None))
        while not self._budget.reserve(most):
            if self._budget.is_idle:
                self.stop("the next line could pass max_cost or max_tokens")
            if self._reason is not None:
                return None
            self.read_on.clear()
            await self.read_on.wait()
        return most

    # the run

    async def run(self) -> BulkReport:
        """Run to the end, or until stopped.

        Raises:
            ConfigError: the input cannot be read to its end, or has changed. What was in flight is done, and in the journal.
        """
        loop, began = asyncio.get_running_loop(), self.runtime.clock()
        deadline = None if self._settings.deadline is None else loop.call_later(self._settings.deadline, self.stop, "its deadline has come")
        self._meter = self._progress()
        beat = loop.create_task(self._refresh())
        self._begin(self._read_all())
        try:
            await self._over.wait()
        finally:
            if deadline is not None:
                deadline.cancel()
            tasks = {beat, *self._tasks}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._meter is not None:
                self._meter.close()
            self._journal.flush()
        try:
            if self._error is not None:
                raise self._error
            if self._reason is None and not self._is_read:
                self._reason = f"its sample of {self._taken} lines is done"
            return await self._report(self.runtime.clock() - began)
        finally:
            self._journal.close()

    def _progress(self) -> ProgressMeter | None:
        return start_progress(
            self._settings.progress, self._source.count(), title="qreward run", prices=self.runtime.prices, load=self._load
        )

    def _load(self) -> RouteLoad:
        loads = [load_of(pool) for pool in self._batches]
        return RouteLoad(*map(sum, zip(*loads, strict=True))) if loads else RouteLoad()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            if self._meter is not None:
                self._meter.refresh()

    async def _report(self, seconds: float) -> BulkReport:
        journal = self._journal
        written: tuple[Path | None, Path | None] = None, None
        if self._reason is None:
            written = await asyncio.to_thread(self._write)
        endpoints = self._endpoints()
        prompt, completion, cached = (sum(getattr(stats, name) for stats in endpoints.values()) for name in _COUNTS[-3:])
        return BulkReport(
            lines=self._read,
            done=journal.done,
            failed=journal.failed,
            resumed=self._done_before,
            sent=self._sent,
            sent_again=self._sent_again,
            in_flight=journal.started,
            torn=journal.torn,
            seconds=seconds,
            tokens=prompt + completion,
            prompt_tokens=prompt,
            cached_tokens=cached,
            cost=self._budget.spent.cost if self.runtime.prices else None,
            endpoints=endpoints,
            output=written[0],
            failures=written[1],
            reason=self._reason,
        )

    def _endpoints(self) -> dict[str, EndpointStats]:
        """The statistics of all batches. An endpoint that serves several models has the sum of its counts, and no quantiles."""
        found: dict[str, EndpointStats] = {}
        for batch in self._batches.values():
            for name, stats in batch.endpoints().items():
                found[name] = stats if name not in found else _sum(found[name], stats)
        return found

    def _write(self) -> tuple[Path | None, Path | None]:
        """Write the results and the failures; None for a file that would be empty."""
        ok, failed = (self._output.write(self._lines(ok=True)), self._failures.write(self._lines(ok=False)))
        return self._output.path if ok else None, self._failures.path if failed else None

    def _lines(self, *, ok: bool) -> Iterator[bytes]:
        in_order = self._settings.order == "input"
        for line in self._journal.in_order() if in_order else self._journal.as_done():
            if line.ok == ok:
                yield line.result


def _sum(one: EndpointStats, other: EndpointStats) -> EndpointStats:
    counts = {name: getattr(one, name) + getattr(other, name) for name in _COUNTS}
    return EndpointStats(**counts)


def _take(lines: Iterator[InputLine]) -> list[InputLine]:
    return list(islice(lines, READ_AT_ONCE))


def _identifier(ordinal: int) -> str:
    return f"qreward-{ordinal + 1}"


def _placed(error: QRewardError, place: str) -> QRewardError:
    if not str(error).startswith(place):
        error.args = (f"{place}: {error}", *error.args[1:])
    return error
