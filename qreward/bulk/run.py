"""One bulk run: reads the input, sends the lines that are not done, records them in the journal, and writes the output at the end. A dry
run only reads the input."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from qreward.bulk.batches import LineRun
from qreward.bulk.budget import NOTHING, Spent, highest, upper_bound
from qreward.bulk.inputs import Input, Inputs, Line
from qreward.bulk.journal import Journal, JournalFull
from qreward.bulk.outputs import BulkReport, DryRun, ModelPlan, OutputFile
from qreward.bulk.provider import URLS, url_of
from qreward.bulk.provider_batches import ProviderBatches
from qreward.bulk.requests import BulkSettings, RequestReader
from qreward.codecs.base import WireRequest
from qreward.errors import ConfigError, NoEndpoint, QRewardError
from qreward.judge.types import AnyScorer, described, unblocked
from qreward.progress import ProgressMeter, start_progress
from qreward.results import Explanation, dollars, merged_stats
from qreward.runtime import Client, Runtime, runtime_of
from qreward.scheduler.pool import Pool

REFRESH_INTERVAL = 0.25  # seconds between two refreshes of the progress
READ_ON = 5.0  # seconds for which the input is read on, for lines of other models, after all batches were given up
SHOWN = 20  # maximum number of bad lines whose error messages a dry run keeps


class BulkRun(LineRun):
    """A run on one input and one output. Raises ``ConfigError`` and ``JournalFull``."""

    def __init__(self, client: Client, source: Inputs, path: Path, settings: BulkSettings, scorer: AnyScorer | None) -> None:
        runtime, self._source = runtime_of(client), Input(source)
        if settings.max_cost is not None and not runtime.prices:
            raise ConfigError(
                "max_cost needs the price of the endpoints; set Endpoint(price=(dollars for a million prompt tokens, completion tokens))"
            )
        judge = None if scorer is None else unblocked(scorer, "scorer", ["batch_score"])
        self._output = OutputFile(path)
        name = self._output.stem if path.name == f"{self._output.stem}.jsonl" else path.name  # two outputs share no file of failures
        self._failures = OutputFile(path.with_name(f"{name}.failed.jsonl"))
        journal_path, inputs = path.with_name(f"{path.name}.journal"), {Path(name).resolve() for name in self._source.names}
        for written in (path, self._failures.path, journal_path):
            if written.resolve() in inputs:
                raise ConfigError(f"{str(written)!r} is an input; name another output")
        if not journal_path.exists():
            self._output.check_replaceable()
            self._failures.check_replaceable()
        reader = RequestReader(settings, is_scored=judge is not None)
        shared = settings.shared_settings(self._source.names, None if judge is None else described(judge))
        force = settings.resume == "force"
        journal = Journal(journal_path, shared, force=force, retry_failed=settings.retry_failed, start_over=True)
        super().__init__(runtime, journal, settings, reader, judge, journal.done)
        self._reading: asyncio.Task[Any] | None = None
        self._is_over = False
        self._read = self._taken = self._resumed = 0
        self._reading_on: asyncio.TimerHandle | None = None
        self._left_out = 0  # lines that the budget did not allow beside the provider batches of earlier runs

    # stopping

    def stop(self, reason: QRewardError | str) -> None:
        if not self._is_over:
            if self._reason is None and self._reading is not None:
                self._reading.cancel()
            super().stop(reason)

    def give_up(self, batch: Any, line: Line, reason: str) -> None:
        super().give_up(batch, line, reason)
        if self._reading_on is None and not self.is_stopping:
            self._reading_on = asyncio.get_running_loop().call_later(READ_ON, self._stop_if_all_given_up)

    def _stop_if_all_given_up(self) -> None:
        self._reading_on = None
        if len(self.given_up()) == len(self._batches):
            self.stop("; ".join(self.given_up()))

    def stop_now(self) -> None:
        """End the run and cancel the requests in flight, which may still be charged."""
        self.stop("it was interrupted")
        for task in self._tasks:
            task.cancel()

    # lines

    async def _read_all(self) -> None:
        chunks = self._source.chunks()
        try:
            if self._journal.held:
                self._batch_of(ProviderBatches)
            while chunk := await asyncio.to_thread(next, chunks, None):
                first = self._read
                for ordinal in self._settings.in_shard(range(first, first + len(chunk))):
                    line = chunk[ordinal - first]
                    line.key, is_done = self._journal.take(line.key)
                    if is_done:
                        self._resumed += 1
                        continue
                    self._read = ordinal
                    if self._reason is not None or self._taken == self._settings.sample:
                        return
                    await self._take_line(line)
                self._read = first + len(chunk)
            self._journal.drop_unread()
            self.has_read_all = True
        finally:
            for batch in self._batches.values():
                batch.queue.put_nowait(None)

    async def _take_line(self, line: Line) -> None:
        """Give a line to its batch, as soon as the budget and the queues have room."""
        kind: Any = None
        reserved: Spent | None = NOTHING
        try:
            self._reader.read(line)
            if self._scorer is None:
                holder = None if self._provider is None else self._provider.holder(line.key)
                if holder is not None:
                    kind, reserved = ProviderBatches, holder.held[line.key]
                else:
                    pool, names = _route(self.runtime, line.content, self._settings)
                    kind = ProviderBatches if pool is None else self._kind_of(pool, line.content.model)
                    if kind in self._batches and self._batches[kind].queue.given_up:
                        return
                    reserved = await self._reserve(line.content, names, 1 if pool is None else self.attempts)
        except QRewardError as error:
            self.refuse(line, error)
            return
        if reserved is None:
            return
        line.reserved = reserved
        self._taken += 1
        batch = self._batch_of(kind)
        await self.room.acquire()
        if batch.queue.given_up:  # while there was no room
            self.room.release()
            self.drop(batch, line)
        else:
            batch.queue.put_nowait(line)

    @property
    def _provider(self) -> ProviderBatches | None:
        return self._batches.get(ProviderBatches)

    async def _reserve(self, call: WireRequest, names: Iterable[str], attempts: int) -> Spent | None:
        """Reserve and return the maximum cost of ``attempts`` attempts of a request, at the highest price of the named endpoints."""
        try:
            one = upper_bound(call, highest(self.runtime.prices, names))
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
                if self._provider is not None and self._provider.has_unread:  # only their lines, which come later, set the budget free
                    self._left_out += 1
                    return None
                text = f"the next line of qreward run waits for its budget, which requests in flight hold until they end ({self.budget})"
                self.runtime.look.reasons[self] = Explanation("", "budget", text, waiting=1)
                await self.next_result()
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
        route = self.runtime.look.for_progress(lambda: [*{kind[0]: None for kind in self._batches if isinstance(kind, tuple)}])
        prices, clock = self.runtime.prices, self.runtime.clock
        self._meter = start_progress(self._settings.progress, title="qreward run", prices=prices, route=route, clock=clock)
        deadline = None if seconds is None else loop.call_later(seconds, self.stop, f"its deadline of {seconds:g} s has come")
        beats = set() if self._meter is None else {loop.create_task(self._refresh(self._meter))}
        self._reading = self._begin(self._read_all())
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for timer in filter(None, (deadline, self._reading_on)):
                timer.cancel()
            self._source.close()
            if tasks := beats | self._tasks:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            if self._meter is not None:
                self._meter.close()
            self._is_over = True
        if self.failure is not None:
            raise self.failure

    async def _write_if_done(self) -> tuple[Path | None, Path | None]:
        """Write the output if all lines are done, and return the paths of results and failures; None for a file that was not written."""
        self._reason = self._reason or "; ".join(self.given_up()) or None
        if self._reason is None and self._left_out:
            self._reason = f"{self._left_out} lines could pass max_cost or max_tokens beside the provider batches of earlier runs"
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
        meter.total = most  # None if the number of lines is not known in advance
        while True:
            meter.refresh()
            await asyncio.sleep(REFRESH_INTERVAL)

    def _report(self, seconds: float, output: Path | None, failures: Path | None) -> BulkReport:
        journal, prices = self._journal, self.runtime.prices
        endpoints = merged_stats([self.tallies.stats(), self.scored])
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
            in_flight=len(journal.started),
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
            return file.path if file.write(line.content for line in self._journal.in_order() if line.ok == ok) else None

        return written(self._output, True), written(self._failures, False)


def _route(runtime: Runtime, call: WireRequest, settings: BulkSettings) -> tuple[Pool | None, list[str]]:
    """Return the pool that serves a request, or None if a provider batch takes it, and the names of the endpoints that may take it."""
    at_provider, takes_batches = runtime.fleet.batch_endpoints(call.model), settings.provider_batches == "auto"
    if at_provider and takes_batches and url_of(call) in URLS:
        return None, [each.name for each in at_provider]
    try:
        pool = runtime.fleet.pool(call.model)
    except NoEndpoint as error:
        if not at_provider:
            raise
        why = f"a provider batch takes no requests for {url_of(call)}" if takes_batches else "provider_batches is 'never'"
        raise ConfigError(f"{why}, and model {call.model!r} has no other endpoint") from error
    return pool, [each.name for each in pool.sources]


async def run_bulk(
    client: Client,
    source: Inputs,
    output: str | Path,
    settings: Mapping[str, Any],
    *,
    scorer: AnyScorer | None = None,
    on_start: Callable[[BulkRun], object] = lambda _: None,
) -> BulkReport:
    try:
        run = BulkRun(client, source, Path(output), BulkSettings(**settings), scorer)
    except JournalFull as error:
        return BulkReport(reason=str(error))
    on_start(run)
    return await run.run()


def dry_run(client: Client, source: Inputs, settings: Mapping[str, Any], *, scorer: AnyScorer | None = None) -> DryRun:
    """Read the whole input and return a report of the requests that a run would send. Raises ``ConfigError``."""
    checked, is_scored = BulkSettings(**settings), scorer is not None
    check_item: Callable[[Any], object] = getattr(scorer, "check_item", lambda _: None)
    runtime, reader, found = runtime_of(client), RequestReader(checked, is_scored=is_scored), DryRun()
    for ordinal, line in enumerate(Input(source).lines()):
        if not checked.in_shard(range(ordinal, ordinal + 1)):
            continue
        if found.lines - found.bad == checked.sample:
            break
        found.lines += 1
        try:
            reader.read(line)
            call = line.content
            if is_scored:
                check_item(call)
                found.items += 1
                continue
            _, names = _route(runtime, call, checked)
        except QRewardError as error:
            found.bad += 1
            if len(found.faults) < SHOWN:
                text = str(error)
                found.faults.append(text if text.startswith(line.place) else f"{line.place}: {text}")
            continue
        plan, price = found.models.setdefault(call.model, ModelPlan(tuple(names))), highest(runtime.prices, names)
        prompt, output = call.codec.estimate_tokens(call)
        plan.requests += 1
        plan.prompt_tokens += prompt
        plan.output_tokens += output
        try:
            most = upper_bound(call, price)
        except ConfigError:
            plan.unlimited += 1
            continue
        if price is not None:
            plan.cost = (plan.cost or 0.0) + most.cost
    return found
