"""One bulk run: reads the input, sends the lines that are not done, records them in the journal, and writes the output at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from qreward.bulk.batches import WAITING, LineRun
from qreward.bulk.budget import NOTHING, Spent, highest, upper_bound
from qreward.bulk.inputs import Input, InputLine, Inputs
from qreward.bulk.journal import Journal, JournalFull
from qreward.bulk.outputs import OutputFile
from qreward.bulk.provider import URLS, url_of
from qreward.bulk.provider_batches import ProviderBatches
from qreward.bulk.report import BulkReport
from qreward.bulk.requests import Entry, RequestReader
from qreward.bulk.settings import BulkSettings
from qreward.codecs.base import WireRequest
from qreward.errors import ConfigError, NoEndpoint, QRewardError
from qreward.judge.scorers import AnyScorer, described, unblocked
from qreward.judge.types import Scorer
from qreward.progress import ProgressMeter, start_progress
from qreward.results import EndpointStats, Explanation, Result, dollars, merged_stats
from qreward.runtime import Client, Runtime, runtime_of
from qreward.scheduler.pool import Pool

REFRESH_INTERVAL = 0.25
"""Seconds between two refreshes of the progress."""


class BulkRun(LineRun):
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
        self._read = self._taken = self._resumed = 0
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
        super()._ended(task)
        if not task.cancelled() and not isinstance(error := task.exception(), JournalFull):
            self._error = self._error or error
        if not self._tasks:
            self._over.set()

    # lines

    def finish(self, entry: Entry, result: Result[Any], text: bytes | None = None, spent: Spent | None = None) -> bool:
        is_kept = super().finish(entry, result, text, spent)
        if is_kept and self._meter is not None:
            self._meter.add(result)
        return is_kept

    async def _read_all(self) -> None:
        chunks = self._source.chunks()
        try:
            if self._journal.held:
                self._batch_of(None, ProviderBatches)
            while chunk := await asyncio.to_thread(next, chunks, None):
                first = self._read
                for ordinal in self._settings.in_shard(range(first, first + len(chunk))):
                    line = chunk[ordinal - first]
                    key, is_done = self._journal.take(line.digest)
                    if is_done:
                        self._resumed += 1
                        continue
                    self._read = ordinal
                    if self._reason is not None or self._taken == self._settings.sample:
                        return
                    await self._take_line(line, Entry(key, line.place))
                self._read = first + len(chunk)
            self._journal.drop_unread()
            self.has_read_all = True
        finally:
            for batch in self._batches.values():
                batch.queue.put_nowait(None)

    async def _take_line(self, line: InputLine, entry: Entry) -> None:
        """Give a line to its batch, as soon as the budget and the batch's queue have room."""
        kind: Any = None
        reserved: Spent | None = NOTHING
        try:
            self._reader.read(line, entry)
            if self._scorer is None:
                reserved = None if self._provider is None else self._provider.reserved(entry.key)
                if reserved is not None:
                    kind = ProviderBatches
                else:
                    kind, names = self._route(entry.content)
                    reserved = await self._reserve(entry.content, names, 1 if kind is ProviderBatches else self.attempts)
        except QRewardError as error:
            self.fail(entry, error)
            return
        if reserved is None:
            return
        entry.reserved = reserved
        batch = self._batch_of(entry, kind)
        while batch.queue.qsize() >= WAITING and self._reason is None:
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

    async def _reserve(self, call: WireRequest, names: Iterable[str], attempts: int) -> Spent | None:
        """Reserve and return the maximum cost of ``attempts`` attempts of a request, at the highest price of the named endpoints."""
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
        """Run until the end of the input, or until the run is stopped. Raises ``ConfigError`` if the input cannot be read to its end."""
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
        route = self.runtime.look.for_progress(lambda: [pool for pool in self._batches if isinstance(pool, Pool)])
        prices, clock = self.runtime.prices, self.runtime.clock
        self._meter = start_progress(self._settings.progress, title="qreward run", prices=prices, route=route, clock=clock)
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
            await asyncio.wait({writing})  # the next run writes to the same files
            raise
        except OSError as error:
            self._reason = f"the output cannot be written: {error.strerror or error}; its lines are all in the journal"
            return None, None

    async def _refresh(self, meter: ProgressMeter) -> None:
        lines, most = await asyncio.to_thread(self._source.count), self._settings.sample
        if lines is not None:
            ours = len(self._settings.in_shard(range(lines)))
            most = min(max(0, ours - self._done_before), most or ours)
        meter.expect(most)  # None if the number of lines is not known in advance
        while True:
            meter.refresh()
            await asyncio.sleep(REFRESH_INTERVAL)

    def _report(self, seconds: float, output: Path | None, failures: Path | None) -> BulkReport:
        journal, prices = self._journal, self.runtime.prices
        endpoints: dict[str, EndpointStats] = {}
        for batch in self._batches.values():
            for name, stats in batch.endpoints().items():
                endpoints[name] = merged_stats(endpoints[name], stats) if name in endpoints else stats
        prompt, cached = (sum(getattr(stats, name) for stats in endpoints.values()) for name in ("prompt_tokens", "cached_tokens"))
        cost = (self.budget.spent - journal.spent_before).cost
        if self._scorer is not None:
            priced = [(prices[name], stats) for name, stats in endpoints.items() if name in prices]
            cost = sum(dollars(price, stats.prompt_tokens, stats.completion_tokens) for price, stats in priced)
        return BulkReport(
            lines=self._read,
            done=journal.done,
            failed=journal.failed,
            resumed=self._resumed if self.has_read_all else self._done_before,
            sent=self._sent,
            sent_again=self._sent_again,
            in_flight=journal.started + journal.lost,
            at_provider=(0, 0) if self._provider is None else self._provider.still_running(),
            torn=journal.torn,
            seconds=seconds,
            tokens=prompt + sum(stats.completion_tokens for stats in endpoints.values()),
            prompt_tokens=prompt,
            cached_tokens=cached,
            cost=cost if prices else None,
            tokens_before=journal.spent_before.tokens,
            cost_before=journal.spent_before.cost if prices else None,
            endpoints=endpoints,
            errors=self.errors,
            output=output,
            failures=failures,
            reason=self._reason,
        )

    def _write(self) -> tuple[Path | None, Path | None]:
        def written(file: OutputFile, ok: bool) -> Path | None:
            return file.path if file.write(line.result for line in self._journal.in_order() if line.ok == ok) else None

        return written(self._output, True), written(self._failures, False)


async def run_bulk(
    client: Client,
    source: Inputs,
    output: str | Path,
    settings: Mapping[str, Any],
    *,
    scorer: AnyScorer | None = None,
    on_start: Callable[[BulkRun], object] = lambda _: None,
) -> BulkReport:
    checked = BulkSettings(**settings)
    runtime, lines, path = runtime_of(client), Input(source), Path(output)
    if checked.max_cost is not None and not runtime.prices:
        raise ConfigError(
            "max_cost needs the price of the endpoints; set Endpoint(price=(dollars for a million prompt tokens, completion tokens))"
        )
    judge = None if scorer is None else unblocked(scorer, "scorer", ["batch_score"])
    written = OutputFile(path)
    failures = OutputFile(path.with_name(f"{written.stem}.failed.jsonl"))
    journal_path = path.with_name(f"{path.name}.journal")
    _check_apart(lines.names, (path, failures.path, journal_path))
    if not journal_path.exists():
        for file in (written, failures):
            file.check_replaceable()
    reader = RequestReader(checked, is_scored=judge is not None)
    try:
        journal = Journal(
            journal_path,
            checked.shared_settings(lines.names, None if judge is None else described(judge)),
            force=checked.resume == "force",
            retry_failed=checked.retry_failed,
            start_over=True,
        )
    except JournalFull as error:
        return BulkReport(reason=str(error))
    run = BulkRun(runtime, lines, (written, failures), journal, checked, reader, judge)
    on_start(run)
    return await run.run()


def _check_apart(inputs: Iterable[str], written: Iterable[Path]) -> None:
    read = {Path(name).resolve() for name in inputs}
    for path in written:
        if path.resolve() in read:
            raise ConfigError(f"{str(path)!r} is an input; name another output")
