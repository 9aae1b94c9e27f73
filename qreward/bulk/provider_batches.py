"""The lines of a bulk that go to provider batches. They are collected in files, and each file is followed to its end.

What was paid is never paid again: a batch is in the journal before it is created, with a tag by which the provider lists it, and until all
of its results are in the journal. How the Batch API is called is in ``batch_api``, what its answers mean in ``provider_results``.
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
from qreward.bulk.journal import Journal
from qreward.bulk.provider import BatchObject, HeldBatch
from qreward.bulk.provider_files import Batch, Files
from qreward.bulk.provider_results import AT_ONCE, Again, ProviderRun, Results, without_result
from qreward.bulk.spool import SpooledLine
from qreward.errors import BadRequest, ConfigError, QRewardError, RequestError
from qreward.results import EndpointStats, Result
from qreward.scheduler.outcome import FailureKind
from qreward.settings.policies import Endpoint

IN_FLIGHT = 32
"""Files that are uploaded or being worked on at once. Each holds 50,000 lines at most."""
PATIENCE = 3600.0
"""Seconds for which a call is repeated while the provider cannot be reached. Then the run stops, and the batches go on there."""
TEMPORARY = provider.SENT_AGAIN | {FailureKind.UNREACHABLE, FailureKind.LOCAL}
"""Failures of a call after which it is repeated."""

T = TypeVar("T")


class ProviderBatches:
    """All provider batches of a run.

    Args:
        run: the run.
        journal: it records the batches; those of earlier runs that it holds are followed to their end.
        folder: where the files are kept until their results are there.

    Raises:
        ConfigError: a batch of an earlier run is at an endpoint that the client does not have.
    """

    def __init__(self, run: ProviderRun, journal: Journal, folder: Path) -> None:
        self._bulk, self._journal, self._loop = run, journal, asyncio.get_running_loop()
        self.queue = LineQueue(run.read_on)
        self._apis: dict[str, BatchApi] = {}
        self._open: dict[int, Batch] = {}  # those in the journal
        self._tasks: set[asyncio.Task[None]] = set()
        self._following = self._waiting = 0  # batches that are worked on, and those of them that wait for another one to end
        self._changed, self._room, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._files, self._results = Files(folder, self._loop, self._changed), Results(run)
        try:
            for held in journal.held.values():
                self._adopt(held)
        except BaseException:
            self._files.close()
            raise

    def endpoints(self) -> Mapping[str, EndpointStats]:
        return self._results.endpoints()

    def left_there(self) -> tuple[int, int]:
        """Return how many lines are in batches that go on at the provider, and how many batches."""
        lines = [batch.missing + batch.spool.left for batch in self._open.values()]
        return sum(lines), len(lines)

    def reserved(self, ordinal: int, digest: int) -> Spent | None:
        """Return what a line may cost that a batch of an earlier run holds. Such a line is handed over, not sent. None for another line."""
        holder = self._holder(ordinal, digest)
        return holder.held.reserved(ordinal) if holder is not None and holder.held is not None else None

    def _holder(self, ordinal: int, digest: int) -> Batch | None:
        return next((batch for batch in self._open.values() if batch.held and batch.held.digest(ordinal) == digest), None)

    def _adopt(self, held: HeldBatch) -> None:
        """Go on with a batch of an earlier run, or forget it if all of its results are there."""
        missing = [ordinal for ordinal in held if self._journal.digest(ordinal) is None]
        reserved = sum(map(held.reserved, missing), NOTHING)
        self._bulk.hold(reserved)
        source = next((each for each in self._bulk.runtime.fleet.sources() if each.name == held.endpoint), None)
        if source is None and missing and not self._bulk.force:
            raise ConfigError(
                f"the provider batch {held.id or held.tag} of an earlier run is at the endpoint {held.endpoint!r}, which is not in the "
                "settings; add it again, or go on with resume=force, which sends its lines again and pays them twice"
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
        """Collect the lines of the queue, and follow all batches to their end, or until stopped."""
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
        """Cancel what is under way, and release files and connections, also if this is cancelled in turn."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self._files.close()
            for api in self._apis.values():
                await api.aclose()

    def stop(self) -> None:
        """Leave the batches running at the provider, and end."""
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
            if batch.missing:  # lines that are not in the input any more, or that this run does not read
                self._follow_soon(batch)

    def _add_line(self, entry: Entry) -> None:
        """Put a line into a file. Raises ``BadRequest`` if it cannot be sent, or ``ConfigError``."""
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
        """Return the endpoint of the next line of a model. It changes with each file."""
        endpoints = self._bulk.runtime.fleet.batch_endpoints(model)
        if not endpoints:
            raise ConfigError(f"model {model!r} has no endpoint of kind 'openai_batch' any more")
        return self._api(endpoints[self._files.turn(url, model) % len(endpoints)])

    def _dispatch(self) -> None:
        """Send complete files, as many as may be at work at once."""
        ready = self._files.ready
        while ready and self._following < IN_FLIGHT and not self._bulk.is_stopping:
            self._following += 1
            self._begin(self._guarded(ready.popleft(), self._submit))
        if not ready:
            self._room.set()

    # one batch

    def _follow_soon(self, batch: Batch) -> None:
        self._following += 1
        self._begin(self._guarded(batch, self._resume))

    async def _guarded(self, batch: Batch, work: Callable[[Batch], Awaitable[None]]) -> None:
        """Work on a batch. If that fails, the run stops; what is at the provider stays there, for the next run."""
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
        """Upload a file, create its batch, and follow it."""
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
        """Create a batch. After a failure that leaves open whether it was created, it is looked for first."""
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
        """Go on with a batch of an earlier run, which may have ended before the provider named it."""
        if batch.id is None:
            found = await self._repeat(batch, lambda: batch.api.find(batch.tag, batch.model))
            if found is None:
                await asyncio.sleep(batch.first_poll)  # the request may have been on its way
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
            await self._take_refusal(batch, found)
            return
        again: Again = []
        for file, least in found.files:
            for _ in range(self._bulk.attempts):
                if await self._repeat(batch, partial(self._results.take, batch, file, again)) >= least:
                    break
                await asyncio.sleep(batch.first_poll)  # what is missing was paid
        await self._send_again(batch, again, found.status)

    async def _send_again(self, batch: Batch, again: Again, status: str) -> None:
        """End a batch, and send the lines again that failed for now or have no result."""
        if self._bulk.is_stopping or (batch.missing and not self._bulk.has_read_all):
            return  # the next run takes what is not in the journal, because the disk was full, or has not been read
        nothing, left = without_result(batch, status), []
        for line, failure in (*again, *((line, nothing) for line in batch.spool.take_rest())):
            if len(line.attempts) + 1 >= self._bulk.attempts:
                self._results.fail(batch, line, failure)
            elif self._results.try_again(batch, line, failure):
                left.append(line)
        await self._send_rest(batch, left)

    async def _send_rest(self, batch: Batch, lines: Iterable[SpooledLine]) -> None:
        """End a batch, whose results are in the journal, and put lines of it into other files."""
        self._end(batch)
        for number, line in enumerate(lines, 1):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            self._files.put(batch.api, batch.url, batch.model, line, batch.spool.request(line.ordinal))
        if self.queue.is_complete:
            self._files.complete_all()

    async def _take_refusal(self, batch: Batch, found: BatchObject) -> None:
        """The provider has refused a file. The lines that it names fail; without them, or later, it may take the others."""
        faults = found.faults
        words = "; ".join(f"{fault.code}: {fault.message}" for fault in faults[:3]) or "it does not say why"
        secrets = batch.api.connection.secrets
        named = [fault for fault in faults if fault.line is not None]
        for fault in named:
            if (line := batch.take_number(fault.line or 0)) is not None:
                text = f"endpoint {batch.api.endpoint.name!r} refused the line: {fault.code}: {fault.message}"
                self._results.refuse(batch, line, secrets.hide(text))
        if not named and provider.TOO_MANY_TOKENS not in {fault.code for fault in faults}:
            self._end(batch)
            raise QRewardError(secrets.hide(f"endpoint {batch.api.endpoint.name!r} refused the file: {words}"))
        if not named:
            await self._await_room(batch)
        await self._send_rest(batch, batch.spool.take_rest())

    async def _await_room(self, batch: Batch) -> None:
        """Wait until the provider's queue has room: until another batch has ended, or else with half as many lines."""
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
        """Record that a batch holds no line any more, and what it cost beside its results. Lines that were not read may have been paid."""
        if batch.number is not None and self._open.pop(batch.number, None) is not None:
            self._bulk.settle(batch.reserved, batch.reserved)
            spent = batch.spent + batch.reserved
            self._journal.record_batch(batch.number, provider.end_record(spent), spent)

    async def _repeat(self, batch: Batch, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, again and again while the provider cannot be reached or is overloaded. Raises the error of the last try."""
        wait, waited = batch.first_poll, 0.0
        while True:
            try:
                return await call()
            except CallFailed as failed:
                failure = failed.failure
            if failure.kind not in TEMPORARY or waited >= PATIENCE:
                raise failure.error
            pause = max(wait, failure.retry_after or 0.0)
            await asyncio.sleep(pause)
            waited, wait = waited + pause, provider.next_poll(wait, batch.longest)


def _disk(error: OSError) -> str:
    return f"the file of a provider batch cannot be written: {error.strerror}; make room beside the output"
