"""One bulk run: reads the input, sends the lines that are not done, records them in the journal, and writes the output at the end.

The requests are sent as batches of the client, one batch per model. Limits, retries, load balancing and prefix affinity therefore work as
in any batch. A run can be stopped at any time. The next run on its journal continues where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from qreward.bulk.batches import Entry, LineRun
from qreward.bulk.budget import NOTHING, Spent, cost_of, highest, upper_bound
from qreward.bulk.inputs import Input, InputLine
from qreward.bulk.journal import CONTINUE, Journal, JournalFull
from qreward.bulk.outputs import OutputFile, answer_line, failure_line
from qreward.bulk.provider import URLS, url_of
from qreward.bulk.provider_batches import ProviderBatches
from qreward.bulk.report import BulkReport
from qreward.bulk.requests import RequestReader
from qreward.bulk.settings import BulkSettings
from qreward.codecs.base import WireRequest
from qreward.errors import BatchCancelled, ClientClosed, ConfigError, NoEndpoint, QRewardError
from qreward.judge.types import Scorer
from qreward.progress import ProgressMeter, start_progress
from qreward.reasons import Explanation
from qreward.results import EndpointStats, Result, Usage, dollars, merged_stats
from qreward.runtime import Runtime
from qreward.scheduler.pool import Pool

REFRESH_INTERVAL = 0.25
"""Seconds between two refreshes of the progress."""
_COLUMNS = "if a column has another name than its field, map the field to the column with the setting columns"


class BulkRun(LineRun):
    """A run by one process on one journal.

    Args:
        source: the input.
        outputs: the file of results and the file of failures.
        runtime, journal, settings, reader, scorer: see :class:`~qreward.bulk.batches.LineRun`.
    """

    def __init__(
        self,
        runtime: Runtime,
        source: Input,
        outputs: tuple[OutputFile, OutputFile],
        journal: Journal,
        settings: BulkSettings,
        reader: RequestReader,
        scorer: Scorer | None = None,
    ) -> None:
        super().__init__(runtime, journal, settings, reader, scorer, journal.done)
        self._source, (self._output, self._failures) = source, outputs
        self._reading: asyncio.Task[Any] | None = None
        self._over = asyncio.Event()
        self._error: BaseException | None = None
        self._read = self._taken = 0
        self._meter: ProgressMeter | None = None

    # stopping

    def stop(self, reason: QRewardError | str) -> None:
        if not self._over.is_set():
            if self._reason is None and self._reading is not None:
                self._reading.cancel()
            super().stop(reason)

    def stop_now(self) -> None:
        """End the run and cancel the requests in flight, which may still be charged."""
        self.stop("it was interrupted")
        self._over.set()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, JournalFull):
                self._error = self._error or error
            self.stop(str(error))
        if not self._tasks:
            self._over.set()

    # lines

    def finish(self, entry: Entry, result: Result[Any], text: bytes | None = None, spent: Spent | None = None) -> None:
        error = result.error
        if isinstance(error, BatchCancelled | ClientClosed) and entry.started:
            spent = entry.reserved  # as in the journal, where the line stays without a result
        elif spent is None:
            spent = self._cost_of_line(entry, result) if entry.started else NOTHING
        self.budget.settle(entry.reserved, spent)
        if self._leave_to_next_run(entry, result, spent):
            return
        if self._meter is not None:
            self._meter.add(result)
        if error is not None:
            if self._scorer is not None and isinstance(error, ConfigError):
                error.args = (f"{error}; {_COLUMNS}", *error.args[1:])
            text = failure_line(entry.custom_id, _identifier(entry.ordinal), _placed(error, entry.place))
        elif text is None:
            text = answer_line(entry.custom_id, _identifier(entry.ordinal), result, is_verdict=self._scorer is not None)
        self._record(entry.ordinal, entry.digest, text, error, spent)

    def _cost_of_line(self, entry: Entry, result: Result[Any]) -> Spent:
        if self._scorer is None:
            return cost_of(result, result.usage, self.runtime.prices.get(result.endpoint or ""), entry.reserved, self.attempts)
        if self._settings.is_limited and result.ok and result.usage is None and not result.value.cached:
            self.stop("max_cost and max_tokens cannot be kept, because a line was scored and no server reported its tokens")
        usage = result.usage or Usage()
        price = self.runtime.prices.get(result.endpoint or "")
        cost = (
            usage.cost
            if usage.cost is not None or price is None
            else dollars(price, usage.prompt_tokens or 0, usage.completion_tokens or 0)
        )
        return Spent(usage.tokens, cost or 0.0)

    # reading

    async def _read_all(self) -> None:
        """Read the input, and give each line that is not done to the batch of its model."""
        chunks = self._source.chunks()
        try:
            if self._journal.held:
                self._batch_of(None, ProviderBatches)
            while chunk := await asyncio.to_thread(next, chunks, None):
                first = self._read
                for ordinal in self._settings.in_shard(range(first, first + len(chunk))):
                    line = chunk[ordinal - first]
                    if self._is_done(ordinal, line):
                        continue
                    self._read = ordinal
                    if self._reason is not None or self._taken == self._settings.sample:
                        return
                    await self._take_line(ordinal, line)
                self._read = first + len(chunk)
            if self._journal.size > self._read:
                self._shorten(self._read)
            self.has_read_all = True
        finally:
            for batch in self._batches.values():
                batch.queue.complete()

    def _shorten(self, lines: int) -> None:
        if self._settings.resume != "force":
            raise ConfigError(
                f"the input has {lines} lines, and had {self._journal.size} or more when the journal was written; "
                f"name another output, or {CONTINUE}"
            )
        self._journal.cut(lines)

    def _is_done(self, ordinal: int, line: InputLine) -> bool:
        """Return whether a line has a result. Raises ``ConfigError`` if the line has changed, unless ``resume`` is ``force``."""
        known, since = self._journal.digest(ordinal), "its result was received"
        if known == line.digest:
            return True
        if known is None:
            holders = (found for batch in self._journal.held.values() if (found := batch.digest(ordinal)) is not None)
            known, since = next(holders, line.digest), "it was sent in a provider batch"
        if known != line.digest and not self.force:
            raise ConfigError(f"{line.place} has changed since {since}; name another output, or {CONTINUE}")
        return False

    async def _take_line(self, ordinal: int, line: InputLine) -> None:
        """Give a line to its batch, as soon as the budget and the batch's queue have room."""
        kind: Any = None
        content: Any
        reserved: Spent | None = NOTHING
        try:
            if self._scorer is not None:
                custom_id, content = self._reader.read_item(line, ordinal)
            else:
                custom_id, content = self._reader.read(line, ordinal)
                reserved = None if self._provider is None else self._provider.reserved(ordinal, line.digest)
                if reserved is not None:
                    kind = ProviderBatches
                else:
                    kind, names = self._route(content)
                    reserved = await self._reserve(content, names, 1 if kind is ProviderBatches else self.attempts)
        except QRewardError as error:
            custom_id = self._reader.identifier(line, ordinal)
            self._record(ordinal, line.digest, failure_line(custom_id, _identifier(ordinal), _placed(error, line.place)), error)
            return
        if reserved is None:
            return
        entry = Entry(ordinal, line, custom_id, content, reserved)
        batch = self._batch_of(entry, kind)
        while batch.queue.is_full and self._reason is None:
            self.read_on.clear()
            await self.read_on.wait()
        self._taken += 1
        batch.queue.put_nowait(entry)

    def _route(self, call: WireRequest) -> tuple[Pool | type[ProviderBatches], list[str]]:
        """Return the pool that serves a request, or ``ProviderBatches``, and the names of the endpoints that may take it."""
        at_provider, takes_batches = self.runtime.fleet.batch_endpoints(call.model), self._settings.provider_batches == "auto"
        if at_provider and takes_batches and url_of(call) in URLS:
            return ProviderBatches, [each.name for each in at_provider]
        try:
            pool = self.runtime.pool(call.model)
        except NoEndpoint as error:
            if not at_provider:
                raise
            why = f"a provider batch takes no requests for {url_of(call)}" if takes_batches else "provider_batches is 'never'"
            raise ConfigError(f"{why}, and model {call.model!r} has no other endpoint") from error
        return pool, [each.name for each in pool.sources]

    @property
    def _provider(self) -> ProviderBatches | None:
        return self._batches.get(ProviderBatches)

    def _new_batch(self, entry: Entry | None, kind: Any) -> Any:
        return ProviderBatches(self, self._journal) if kind is ProviderBatches else super()._new_batch(entry, kind)

    async def _reserve(self, call: WireRequest, names: Iterable[str], attempts: int) -> Spent | None:
        """Reserve and return the maximum cost of ``attempts`` attempts of a request, at the highest price of the named endpoints.

        Wait while requests in flight hold the remaining budget. If the budget is too small, stop the run and return None.
        """
        price = highest(self.runtime.prices[name] for name in names if name in self.runtime.prices)
        try:
            one = upper_bound(call, price)
        except ConfigError:
            if self._settings.is_limited:
                raise
            one = NOTHING
        most = one * attempts
        try:
            while not self.budget.reserve(most):
                if self.budget.is_idle:
                    self.stop("the next line could pass max_cost or max_tokens")
                if self._reason is not None:
                    return None
                text = f"the next line of qreward run waits for its budget, which requests in flight hold until they end ({self.budget})"
                self.runtime.look.reasons[self] = Explanation("", "budget", text, waiting=1)
                self.read_on.clear()
                await self.read_on.wait()
        finally:
            self.runtime.look.reasons.pop(self, None)
        return most

    # the run

    async def run(self) -> BulkReport:
        """Run until the end of the input, or until the run is stopped, and return the report.

        Raises:
            ConfigError: the input cannot be read to its end, or has changed. Requests in flight are finished and recorded first.
        """
        began = self.runtime.clock()
        try:
            await self._work()
            written = await self._write_if_done()
        except BaseException:
            with suppress(QRewardError):  # the first error is the one to report
                self._journal.close()
            raise
        try:
            self._journal.close()
        except QRewardError as error:  # the disk is full, for example
            self._reason = self._reason or str(error)
        return self._report(self.runtime.clock() - began, *written)

    async def _work(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self._settings.deadline
        self._meter = self._progress()
        deadline = None if seconds is None else loop.call_later(seconds, self.stop, f"its deadline of {seconds:g} s has come")
        beats = set() if self._meter is None else {loop.create_task(self._refresh(self._meter))}
        self._reading = self._begin(self._read_all())
        try:
            await self._over.wait()
        finally:
            if deadline is not None:
                deadline.cancel()
            self._source.close()
            if tasks := beats | self._tasks:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            if self._meter is not None:
                self._meter.close()
            self._over.set()
        if self._error is not None:
            raise self._error

    async def _write_if_done(self) -> tuple[Path | None, Path | None]:
        """Write the output if all lines are done, and return the paths of results and failures; None for a file that was not written."""
        if self._reason is None and not self.has_read_all:
            self._reason = f"its sample of {self._taken} lines is done"
        if not self._journal.flush() or self._reason is not None:
            return None, None
        writing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._write))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})  # ``_write`` reads the journal, which ``run`` closes after this method
            raise
        except OSError as error:
            self._reason = f"the output cannot be written: {error.strerror or error}; its lines are all in the journal"
            return None, None

    def _progress(self) -> ProgressMeter | None:
        wanted, prices = self._settings.progress, self.runtime.prices
        route = self.runtime.look.for_progress(lambda: [pool for pool in self._batches if isinstance(pool, Pool)])
        return start_progress(wanted, title="qreward run", prices=prices, **route, clock=self.runtime.clock)

    async def _total(self) -> int | None:
        """Return the most lines that this run will send; None if it is not known in advance."""
        lines = await asyncio.to_thread(self._source.count)
        if lines is None:
            return self._settings.sample
        ours = len(self._settings.in_shard(range(lines)))
        return min(max(0, ours - self._done_before), self._settings.sample or ours)

    async def _refresh(self, meter: ProgressMeter) -> None:
        meter.expect(await self._total())
        while True:
            meter.refresh()
            await asyncio.sleep(REFRESH_INTERVAL)

    def _report(self, seconds: float, output: Path | None, failures: Path | None) -> BulkReport:
        journal = self._journal
        endpoints = self._endpoints()
        prompt, cached = (sum(getattr(stats, name) for stats in endpoints.values()) for name in ("prompt_tokens", "cached_tokens"))
        return BulkReport(
            lines=self._read,
            done=journal.done,
            failed=journal.failed,
            resumed=self._done_before,
            sent=self._sent,
            sent_again=self._sent_again,
            in_flight=journal.started + journal.lost,
            at_provider=(0, 0) if self._provider is None else self._provider.still_running(),
            torn=journal.torn,
            seconds=seconds,
            tokens=prompt + sum(stats.completion_tokens for stats in endpoints.values()),
            prompt_tokens=prompt,
            cached_tokens=cached,
            cost=self._cost(endpoints) if self.runtime.prices else None,
            tokens_before=journal.spent_before.tokens,
            cost_before=journal.spent_before.cost if self.runtime.prices else None,
            endpoints=endpoints,
            errors=self.errors,
            output=output,
            failures=failures,
            reason=self._reason,
        )

    def _cost(self, endpoints: Mapping[str, EndpointStats]) -> float:
        if self._scorer is None:
            return (self.budget.spent - self._journal.spent_before).cost
        priced = [(self.runtime.prices[name], stats) for name, stats in endpoints.items() if name in self.runtime.prices]
        return sum(dollars(price, stats.prompt_tokens, stats.completion_tokens) for price, stats in priced)

    def _endpoints(self) -> dict[str, EndpointStats]:
        found: dict[str, EndpointStats] = {}
        for batch in self._batches.values():
            for name, stats in batch.endpoints().items():
                found[name] = stats if name not in found else merged_stats(found[name], stats)
        return found

    def _write(self) -> tuple[Path | None, Path | None]:
        ok, failed = (self._output.write(self._lines(ok=True)), self._failures.write(self._lines(ok=False)))
        return self._output.path if ok else None, self._failures.path if failed else None

    def _lines(self, *, ok: bool) -> Iterator[bytes]:
        found = self._journal.in_order() if self._settings.order == "input" else self._journal.as_done()
        return (line.result for line in found if line.ok == ok)


def _identifier(ordinal: int) -> str:
    return f"qreward-{ordinal + 1}"


def _placed(error: QRewardError, place: str) -> QRewardError:
    if not str(error).startswith(place):
        error.args = (f"{place}: {error}", *error.args[1:])
    return error
