"""Runs provider batches: collects lines in files, uploads the files, creates and polls the batches, and takes their results.

No line is paid twice. Before a batch is created, the journal records the lines and the tag of the batch. The provider stores the tag with
the batch. A later run therefore finds the batch, even if the process was killed while it created the batch. ``batch_api`` calls the Batch
API, and ``provider_results`` interprets the results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from qreward.bulk import provider
from qreward.bulk.batch_api import BatchApi, CallFailed
from qreward.bulk.batches import Entry, LineQueue
from qreward.bulk.budget import NOTHING, Spent
from qreward.bulk.journal import CONTINUE, Journal
from qreward.bulk.provider import BatchObject, HeldBatch
from qreward.bulk.provider_files import Batch, Files
from qreward.bulk.provider_results import AT_ONCE, Again, ProviderRun, Results, without_result
from qreward.bulk.spool import SpooledLine
from qreward.errors import BadRequest, ConfigError, QRewardError, RequestError
from qreward.results import EndpointStats, Result
from qreward.scheduler.outcome import FailureKind
from qreward.settings.policies import Endpoint

IN_FLIGHT = 32
"""Maximum number of batches that are uploaded, polled or read at once. Each batch holds at most 50,000 lines."""
REPEAT_FOR = 3600.0
"""Seconds for which a failing call is repeated. After this time, the run stops. The batches of the run keep running at the provider."""
TEMPORARY = provider.SENT_AGAIN | {FailureKind.UNREACHABLE, FailureKind.LOCAL}
"""Kinds of failures after which a call is repeated."""

T = TypeVar("T")


class ProviderBatches:
    """Runs all provider batches of a run.

    Args:
        run: the run.
        journal: the journal that records the batches. It may have batches of earlier runs. The results of these batches are taken too.
        folder: folder for the temporary files of batches.

    Raises:
        ConfigError: a batch of an earlier run is at an endpoint that the client does not have.
    """

    def __init__(self, run: ProviderRun, journal: Journal, folder: Path) -> None:
        self._bulk, self._journal, self._loop = run, journal, asyncio.get_running_loop()
        self.queue = LineQueue(run.read_on)
        self._apis: dict[str, BatchApi] = {}
        self._open: dict[int, Batch] = {}  # number -> batch, for the batches in the journal that have not ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._following = self._waiting = 0  # number of batches with a task; number of these tasks that wait for another batch to end
        self._changed, self._room, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._files, self._results = Files(folder, self._loop, self._changed), Results(run)
        try:
            for held in journal.held.values():
                self._continue_held(held)
        except BaseException:
            self._files.close()
            raise

    def endpoints(self) -> Mapping[str, EndpointStats]:
        return self._results.endpoints()

    def still_running(self) -> tuple[int, int]:
        """Return the number of lines in the batches that keep running at the provider, and the number of these batches."""
        lines = [batch.missing + batch.spool.left for batch in self._open.values()]
        return sum(lines), len(lines)

    def reserved(self, ordinal: int, digest: int) -> Spent | None:
        """Return the maximum cost of a line in a batch of an earlier run; None if no batch of an earlier run has the line."""
        holder = self._holder(ordinal, digest)
        return holder.held.reserved(ordinal) if holder is not None and holder.held is not None else None

    def _holder(self, ordinal: int, digest: int) -> Batch | None:
        return next((batch for batch in self._open.values() if batch.held and batch.held.digest(ordinal) == digest), None)

    def _continue_held(self, held: HeldBatch) -> None:
        """Continue a batch of an earlier run. End the batch if the journal has all of its results."""
        missing = [ordinal for ordinal in held if self._journal.digest(ordinal) is None]
        reserved = sum(map(held.reserved, missing), NOTHING)
        self._bulk.hold(reserved)
        source = next((each for each in self._bulk.runtime.fleet.sources() if each.name == held.endpoint), None)
        if source is None and missing and not self._bulk.force:
            raise ConfigError(
                f"the provider batch {held.id or held.tag} of an earlier run is at the endpoint {held.endpoint!r}, which is not in the "
                f"settings; add it again, or {CONTINUE}, which sends its lines again and pays for them twice"
            )
        if source is None or not missing:
            self._bulk.settle(reserved, reserved)
            self._journal.record_batch(held.number, provider.end_record(reserved), reserved)
            return
        endpoint: Any = source.handle
        batch = self._open[held.number] = self._files.new(self._api(endpoint), held.url, held.model, held)
        batch.missing, batch.reserved = len(missing), reserved

    def _api(self, endpoint: Endpoint) -> BatchApi:
        found = self._apis.get(endpoint.name)
        if found is None:
            found = self._apis[endpoint.name] = BatchApi(endpoint)
        return found

    # the run

    async def run(self) -> None:
        """Collect the lines of the queue, and run all batches until they have ended or the run is stopped."""
        self._begin(self._collect())
        try:
            while self._tasks and not self._bulk.is_stopping:
                await self._changed.wait()
                self._changed.clear()
                for task in [task for task in self._tasks if task.done()]:
                    self._tasks.discard(task)
                    task.result()
                self._dispatch()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """Cancel all tasks, then remove files and close connections, even if this method is cancelled too."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self._files.close()
            for api in self._apis.values():
                await api.aclose()

    def stop(self) -> None:
        """End the run. The batches of the run keep running at the provider."""
        self._changed.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._changed.set())

    # collecting

    async def _collect(self) -> None:
        async for entry in self.queue:
            try:
                self._add_line(entry)
            except QRewardError as error:
                self._bulk.finish(entry, Result(entry.ordinal, None, error, None, 0.0, 0.0))
            except OSError as error:
                self._bulk.stop(_disk(error))
            while self._files.ready and not self._bulk.is_stopping:
                self._room.clear()
                await self._room.wait()
        self._files.complete_all()
        for batch in tuple(self._open.values()):
            if batch.missing:  # the missing lines were removed from the input, or this run does not read them
                self._follow_soon(batch)

    def _add_line(self, entry: Entry) -> None:
        """Put a line into a file. If a batch of an earlier run has the line, put it into that batch.

        Raises:
            BadRequest: the line is too large for a batch, or cannot be written as JSON.
            ConfigError: the model of the line has no endpoint of kind ``openai_batch`` any more.
        """
        call, reserved = entry.content, entry.reserved
        url, inputs = provider.url_of(call), provider.inputs_in(call)
        line = SpooledLine(entry.ordinal, entry.digest, entry.custom_id, entry.place, reserved.tokens, reserved.cost, inputs)
        holder = self._holder(entry.ordinal, entry.digest)
        api = self._next_api(url, call.model) if holder is None else holder.api
        request = provider.request_line(entry.ordinal, url, call.codec.encode(call, api.connection.renamed.get(call.model, call.model)))
        if len(request) > provider.FILE_BYTES or inputs > provider.INPUTS:
            raise BadRequest(
                f"it has {len(request)} bytes and {inputs} inputs; a provider batch takes {provider.FILE_BYTES} and {provider.INPUTS}, "
                "split it"
            )
        if holder is None:
            self._files.put(api, url, call.model, line, request)
            return
        assert holder.held is not None
        holder.spool.add(line, request)
        holder.missing -= 1
        holder.reserved -= holder.held.reserved(entry.ordinal)
        if not holder.missing:
            self._follow_soon(holder)

    def _next_api(self, url: str, model: str) -> BatchApi:
        """Return the endpoint for the next line of a model. The endpoints of a model take turns, file by file."""
        endpoints = self._bulk.runtime.fleet.batch_endpoints(model)
        if not endpoints:
            raise ConfigError(f"model {model!r} has no endpoint of kind 'openai_batch' any more")
        return self._api(endpoints[self._files.turn(url, model) % len(endpoints)])

    def _dispatch(self) -> None:
        """Submit complete files, until ``IN_FLIGHT`` batches are running."""
        ready = self._files.ready
        while ready and self._following < IN_FLIGHT and not self._bulk.is_stopping:
            self._following += 1
            self._begin(self._run_batch(ready.popleft(), self._submit))
        if not ready:
            self._room.set()

    # one batch

    def _follow_soon(self, batch: Batch) -> None:
        self._following += 1
        self._begin(self._run_batch(batch, self._resume))

    async def _run_batch(self, batch: Batch, work: Callable[[Batch], Awaitable[None]]) -> None:
        """Do the work of one batch. If the work raises, the run stops. The next run continues the batch at the provider."""
        try:
            await work(batch)
        except QRewardError as error:
            self._bulk.stop(f"provider batch {batch.id or 'not created'}: {error}")
        except OSError as error:
            self._bulk.stop(_disk(error))
        finally:
            self._following -= 1
            self._ended.set()
            if batch.number not in self._open:
                self._files.drop(batch)

    async def _submit(self, batch: Batch) -> None:
        """Upload a file, create its batch, and poll the batch until it has ended."""
        spool, api, model = batch.spool, batch.api, batch.model
        file = await self._repeat(batch, lambda: api.upload(spool, model))
        if self._bulk.is_stopping:
            return
        number = batch.number = self._journal.batches
        self._journal.batches += 1
        batch.tag = f"{token_hex(8)}:{number}"
        about = {"endpoint": api.endpoint.name, "url": batch.url, "model": model, "tag": batch.tag}
        self._journal.record_batch(number, provider.begin_record(about, spool))
        self._open[number] = batch
        self._bulk.submitted(spool.ordinals)
        created = await self._create(batch, file)
        self._name(batch, created)
        await self._follow(batch, batch.first_poll)

    async def _create(self, batch: Batch, file: str) -> BatchObject:
        """Create a batch. If the call fails, search for the batch before creating it again, because the provider may have created it."""
        api, model = batch.api, batch.model
        try:
            return await api.create(file, batch.url, batch.tag, model)
        except CallFailed as failed:
            if failed.failure.kind not in TEMPORARY:
                self._end(batch)
                raise failed.failure.error from None

        async def find_or_create() -> BatchObject:
            return await api.find(batch.tag, model) or await api.create(file, batch.url, batch.tag, model)

        await asyncio.sleep(batch.first_poll)
        return await self._repeat(batch, find_or_create)

    async def _resume(self, batch: Batch) -> None:
        """Continue a batch of an earlier run. If the earlier run did not receive the batch's identifier, search for the batch's tag."""
        if batch.id is None:
            found = await self._repeat(batch, lambda: batch.api.find(batch.tag, batch.model))
            if found is None:
                await asyncio.sleep(batch.first_poll)  # the provider may still be creating the batch
                found = await self._repeat(batch, lambda: batch.api.find(batch.tag, batch.model))
            if found is None:
                await self._send_rest(batch, batch.spool.take_rest())
                return
            self._name(batch, found)
        await self._follow(batch, 0.0)

    def _name(self, batch: Batch, found: BatchObject) -> None:
        assert batch.number is not None
        batch.id = found.id
        self._journal.record_batch(batch.number, msgspec.json.encode({"id": found.id}))

    async def _follow(self, batch: Batch, wait: float) -> None:
        """Poll a batch until it has ended, and take its results."""
        batch.since, name = self._loop.time(), batch.id or ""
        while True:
            await asyncio.sleep(wait)
            try:
                found = await self._repeat(batch, lambda: batch.api.retrieve(name, batch.model))
            except RequestError as error:
                if error.status_code != 404 or not self._bulk.force:
                    raise
                found = BatchObject(name, "cancelled")
            if found.has_ended:
                break
            wait = provider.next_poll(max(wait, batch.first_poll), batch.longest)
        if found.status == "failed":
            await self._handle_refusal(batch, found)
            return
        again: Again = []
        for file, least in found.files:
            for _ in range(self._bulk.attempts):
                if await self._repeat(batch, partial(self._results.take, batch, file, again)) >= least:
                    break
                await asyncio.sleep(batch.first_poll)  # read the file again, because the missing results were paid
        await self._send_again(batch, again, found.status)

    async def _send_again(self, batch: Batch, again: Again, status: str) -> None:
        """End a batch. Send lines with a temporary failure and lines without a result again.

        A line has at most ``retry.attempts`` attempts.
        """
        if self._bulk.is_stopping or (batch.missing and not self._bulk.has_read_all):
            return  # the batch stays in the journal, and the next run takes the results that are missing there
        nothing, left = without_result(batch, status), []
        for line, failure in (*again, *((line, nothing) for line in batch.spool.take_rest())):
            if len(line.attempts) + 1 >= self._bulk.attempts:
                self._results.fail(batch, line, failure)
            elif self._results.try_again(batch, line, failure):
                left.append(line)
        await self._send_rest(batch, left)

    async def _send_rest(self, batch: Batch, lines: Iterable[SpooledLine]) -> None:
        """End a batch, and put ``lines``, which are lines of the batch, into new files. The batch's results are already in the journal."""
        self._end(batch)
        for number, line in enumerate(lines, 1):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            self._files.put(batch.api, batch.url, batch.model, line, batch.spool.request(line.ordinal))
        if self.queue.is_complete:
            self._files.complete_all()

    async def _handle_refusal(self, batch: Batch, found: BatchObject) -> None:
        """Handle a refused file. If the provider names faulty lines, these lines fail, and all other lines are sent again.

        If the provider names no line because the provider's queue was full, all lines are sent again. If the provider names no line
        for another reason, the run stops.
        """
        faults = found.faults
        words = "; ".join(f"{fault.code}: {fault.message}" for fault in faults[:3]) or "it does not say why"
        secrets = batch.api.connection.secrets
        named = [fault for fault in faults if fault.line is not None]
        for fault in named:
            if (line := batch.take_by_line_number(fault.line or 0)) is not None:
                text = f"endpoint {batch.api.endpoint.name!r} refused the line: {fault.code}: {fault.message}"
                self._results.refuse(batch, line, secrets.hide(text))
        if not named and provider.TOO_MANY_TOKENS not in {fault.code for fault in faults}:
            self._end(batch)
            raise QRewardError(secrets.hide(f"endpoint {batch.api.endpoint.name!r} refused the file: {words}"))
        if not named:
            await self._wait_for_room(batch)
        await self._send_rest(batch, batch.spool.take_rest())

    async def _wait_for_room(self, batch: Batch) -> None:
        """Wait until another batch has ended and left room in the provider's queue. If no other batch runs, halve the size of files."""
        if self._following - self._waiting > 1:
            self._waiting += 1
            self._ended.clear()
            await self._ended.wait()
            self._waiting -= 1
            return
        if len(batch.spool) == 1:
            await asyncio.sleep(batch.longest)
        self._files.limit(batch.api.endpoint.name, len(batch.spool) // 2)

    def _end(self, batch: Batch) -> None:
        """Record the end of a batch, and its cost in addition to the cost of the recorded results.

        Lines of the batch that were not read from the input count as paid.
        """
        if batch.number is not None and self._open.pop(batch.number, None) is not None:
            self._bulk.settle(batch.reserved, batch.reserved)
            spent = batch.spent + batch.reserved
            self._journal.record_batch(batch.number, provider.end_record(spent), spent)

    async def _repeat(self, batch: Batch, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, and repeat it after temporary failures, for up to an hour. If no call succeeds, raise the error of the last call."""
        wait, waited = batch.first_poll, 0.0
        while True:
            try:
                return await call()
            except CallFailed as failed:
                failure = failed.failure
            if failure.kind not in TEMPORARY or waited >= REPEAT_FOR:
                raise failure.error
            pause = max(wait, failure.retry_after or 0.0)
            await asyncio.sleep(pause)
            waited, wait = waited + pause, provider.next_poll(wait, batch.longest)


def _disk(error: OSError) -> str:
    return f"the file of a provider batch cannot be written: {error.strerror}; make room beside the output"
