"""Runs provider batches: collects lines in files, uploads the files, creates and polls the batches, and takes their results."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, aclosing
from copy import copy
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from qreward.bulk import provider
from qreward.bulk.batches import LineQueue, LineRun
from qreward.bulk.budget import NOTHING, Spent, spent_by
from qreward.bulk.inputs import Line
from qreward.bulk.journal import CONTINUE, Journal
from qreward.bulk.provider import BatchApi, BatchObject, CallFailed, HeldBatch, ResultLine
from qreward.codecs.base import EmbeddedError, Malformed, Reply
from qreward.errors import BadRequest, ConfigError, QRewardError, RequestError
from qreward.records import AttemptRecord
from qreward.results import Result, with_trail
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import Endpoint

IN_FLIGHT = 7
"""Maximum number of batches that are uploaded, polled or read at once. Each batch holds at most 50,000 lines, of about 500 bytes each, so
that a run of 10 million lines, whose index takes 1.24 GB, stays within 1.5 GB."""
IDLE = 5.0
"""Seconds without a new line after which files that are not full are sent. The files are then sent, because further lines
may have to wait for the budget or for the input."""
AT_ONCE = 256  # number of lines that are processed before other tasks of the event loop run
REPEAT_FOR = 3600.0
"""Seconds for which a failing call is repeated. After this time, the run stops. The batches of the run keep running at the provider."""
TEMPORARY = provider.SENT_AGAIN | {FailureKind.UNREACHABLE, FailureKind.LOCAL}  # kinds of failures after which a call is repeated

INPUT_BITS = 0xFFFF

T = TypeVar("T")
Again = list[tuple[Line, Failure]]  # lines that must be sent again, each with the failure that is the reason


class Batch:
    def __init__(self, api: BatchApi, folder: Path, url: str) -> None:
        self.api, self.url, self.tag = api, url, ""
        self.longest = api.endpoint.probe or provider.LONGEST_POLL  # maximum number of seconds between two polls
        self.first_poll = min(provider.FIRST_POLL, self.longest)  # seconds before the first poll, and before a failed call is repeated
        self.number: int | None = None  # in the journal
        self.id: str | None = None  # at the provider
        self.held: dict[int, Spent] = {}  # key -> maximum cost of the lines that an earlier run sent and this run has not read yet
        self.order: list[int] = []  # the keys in the file, if an earlier run wrote it
        self.lines: dict[int, Line] = {}
        self.file = tempfile.TemporaryFile(dir=folder, buffering=1 << 18)  # noqa: SIM115 - closed with the batch
        self.size = self.inputs = 0
        self.spent = NOTHING
        self.since = 0.0

    def next_poll(self, seconds: float) -> float:
        """Return the seconds before the next poll or call, after a wait of ``seconds``."""
        return min(self.longest, seconds * provider.POLL_FACTOR)

    def add(self, line: Line, request: bytes, inputs: int) -> None:
        """Add a line and write its request. Raises ``OSError`` if the disk is full.

        The line's content becomes one number, which takes little memory: offset and size (28 bits) of its request in the file, and its
        number of inputs (16 bits).
        """
        self.file.write(request)
        line.content = (self.size << 28 | len(request)) << 16 | inputs
        self.lines[line.key] = line
        self.size += len(request)
        self.inputs += inputs

    def request(self, line: Line) -> bytes:
        self.file.flush()
        place = line.content >> 16
        return os.pread(self.file.fileno(), place & (1 << 28) - 1, place >> 28)

    def take_rest(self) -> list[Line]:
        rest = list(self.lines.values())
        self.lines = {}
        return rest


class ProviderBatches:
    def __init__(self, run: LineRun, journal: Journal) -> None:
        self._bulk, self._journal, self._folder, self._loop = run, journal, journal.path.parent, asyncio.get_running_loop()
        self.queue = LineQueue(run.room)
        self._apis: dict[tuple[str, str], BatchApi] = {}  # by endpoint and model
        self._collecting: dict[tuple[str, str, str], Batch] = {}  # endpoint, url and model -> the file that is being filled
        self._turns: Counter[tuple[str, str]] = Counter()  # url and model -> number of complete files
        self._most_lines: dict[str, int] = {}  # endpoint -> maximum number of lines in a file, if its queue was too small for a full file
        self._timer: asyncio.TimerHandle | None = None
        self._has_all = False  # all lines of the queue are in files
        self._open: dict[int, Batch] = {}  # number -> batch, for the batches in the journal that have not ended
        self._following = self._waiting = 0  # number of batches with a slot, and of those that wait for another batch to end
        self._ended, self._slots = asyncio.Event(), asyncio.Semaphore(IN_FLIGHT)
        self._task: asyncio.Task[Any] | None = None  # that of ``run``
        self._files = ExitStack()  # closes the files of all batches

    def still_running(self) -> tuple[int, int]:
        """Return the number of lines in the batches that keep running at the provider, and the number of these batches."""
        return sum(len(batch.held) + len(batch.lines) for batch in self._open.values()), len(self._open)

    @property
    def has_unread(self) -> bool:
        """True if a batch of an earlier run has lines that were not read from the input yet. Such a batch is followed after that."""
        return any(batch.held for batch in self._open.values())

    def holder(self, key: int) -> Batch | None:
        """Return the batch of an earlier run that has a line; None if there is none."""
        return next((batch for batch in self._open.values() if key in batch.held), None)

    def _continue_held(self, number: int, held: HeldBatch) -> None:
        """Continue a batch of an earlier run. End the batch if the journal has all of its results."""
        missing = {key: most for key, most in held.lines.items() if not self._journal.is_done(key)}
        reserved = sum(missing.values(), NOTHING)
        self._bulk.budget.hold(reserved)
        source = next((each for each in self._bulk.runtime.fleet.sources() if each.name == held.endpoint), None)
        if source is None and missing and not self._bulk.force:
            raise ConfigError(
                f"the provider batch {held.id or held.tag} of an earlier run is at the endpoint {held.endpoint!r}, which is not in the "
                f"settings; add it again, or {CONTINUE}, which sends its lines again and pays for them twice"
            )
        if source is None or not missing:
            self._bulk.settle(reserved, reserved)
            self._journal.record_batch(number, provider.END, reserved)
            return
        endpoint: Any = source.endpoint
        batch = self._open[number] = self._new_batch(endpoint, held.model, held.url)
        batch.number, batch.tag, batch.id, batch.order, batch.held = number, held.tag, held.id, list(held.lines), missing

    def _new_batch(self, endpoint: Endpoint, model: str, url: str) -> Batch:
        key = endpoint.name, model
        batch = Batch(self._apis.get(key) or self._apis.setdefault(key, BatchApi(endpoint, model)), self._folder, url)
        self._files.callback(batch.file.close)
        return batch

    # the run

    async def run(self) -> None:
        self._task = asyncio.current_task()
        try:
            for number, held in list(self._journal.held.items()):
                self._continue_held(number, held)
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self._collect())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._files.close()
            for api in self._apis.values():
                await api.aclose()

    def stop(self) -> None:
        """End the run. The batches of the run keep running at the provider."""
        self.queue.close()
        if self._task is not None:
            self._task.cancel()

    # collecting

    async def _collect(self) -> None:
        async for line in self.queue:
            try:
                self._add_line(line)
            except QRewardError as error:
                self._bulk.finish(None, line, Result(0, None, error, None, 0.0, 0.0))
            except OSError as error:
                self._stop_for(error)
            if self._slots.locked():
                async with self._slots:  # complete files are waiting, or the next one will
                    pass
        self._has_all = True
        self._complete_all()
        for batch in tuple(self._open.values()):
            if batch.held:  # these lines were removed from the input, or this run does not read them
                self._group.create_task(self._carry_out(batch))

    def _add_line(self, line: Line) -> None:
        """Put a line into a file. If a batch of an earlier run has the line, put it into that batch."""
        call, holder = line.content, self.holder(line.key)
        url, inputs = provider.url_of(call), provider.inputs_in(call)
        endpoints = self._bulk.runtime.fleet.batch_endpoints(call.model) if holder is None else [holder.api.endpoint]
        if not endpoints:
            raise ConfigError(f"model {call.model!r} has no endpoint of kind 'openai_batch' any more")
        endpoint = endpoints[self._turns[url, call.model] % len(endpoints)]  # they take turns, file by file
        request = provider.request_line(line.key, url, call.codec.encode(call, endpoint.model_names.get(call.model, call.model)))
        if len(request) > provider.FILE_BYTES or inputs > provider.INPUTS:
            raise BadRequest(
                f"it has {len(request)} bytes and {inputs} inputs; a provider batch takes {provider.FILE_BYTES} and {provider.INPUTS}, "
                "split it"
            )
        line.started = True
        if holder is None:
            self._put(endpoint, url, call.model, line, request, inputs)
            return
        holder.add(line, request, inputs)
        del holder.held[line.key]
        if not holder.held:
            self._group.create_task(self._carry_out(holder))

    def _put(self, endpoint: Endpoint, url: str, model: str, line: Line, request: bytes, inputs: int) -> None:
        key = (endpoint.name, url, model)
        batch = self._collecting.get(key)
        if batch is not None and (batch.size + len(request) > provider.FILE_BYTES or batch.inputs + inputs > provider.INPUTS):
            self._complete(key)
            batch = None
        if batch is None:
            batch = self._collecting[key] = self._new_batch(endpoint, model, url)
        batch.add(line, request, inputs)
        if len(batch.lines) >= self._most_lines.get(endpoint.name, provider.LINES):
            self._complete(key)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(IDLE, self._complete_all)

    def _complete_all(self) -> None:
        for key in tuple(self._collecting):
            self._complete(key)

    def _complete(self, key: tuple[str, str, str]) -> None:
        self._turns[key[1:]] += 1
        self._group.create_task(self._carry_out(self._collecting.pop(key)))

    def _stop_for(self, error: OSError) -> None:
        self._bulk.stop(f"the file of a provider batch cannot be written: {error.strerror}; make room beside the output")

    # one batch

    async def _carry_out(self, batch: Batch) -> None:
        """Send a batch, or search for that of an earlier run, follow it to its end, and take its results.

        If that raises, the run stops. The next run continues the batch at the provider.
        """
        async with self._slots:
            self._following += 1
            try:
                if batch.number is None:
                    await self._submit(batch)
                elif batch.id is None:
                    await self._search(batch)
                if batch.id is not None:
                    await self._finish(batch, await self._polled(batch, batch.id))
            except QRewardError as error:
                self._bulk.stop(f"provider batch {batch.id or 'not created'}: {error}")
            except OSError as error:
                self._stop_for(error)
            finally:
                self._following -= 1
                self._ended.set()
                batch.file.close()

    async def _submit(self, batch: Batch) -> None:
        api = batch.api
        batch.file.flush()
        file = await self._repeat(batch, lambda: api.upload(batch.file.fileno(), batch.size))
        if self._bulk.is_stopping:
            return
        number = batch.number = self._journal.batches
        self._journal.batches += 1
        batch.tag = f"{token_hex(8)}:{number}"
        lines = {key: line.reserved for key, line in batch.lines.items()}
        self._journal.record_batch(number, msgspec.json.encode(HeldBatch(api.name, batch.url, api.model, batch.tag, lines)))
        self._open[number] = batch
        self._bulk.submitted(lines)

        async def find_or_create() -> BatchObject:
            return await api.find(batch.tag) or await api.create(file, batch.url, batch.tag)

        try:
            created = await api.create(file, batch.url, batch.tag)
        except CallFailed as failed:  # the provider may have created the batch
            if failed.failure.kind not in TEMPORARY:
                self._end(batch)
                raise failed.failure.error from None
            await asyncio.sleep(batch.first_poll)
            created = await self._repeat(batch, find_or_create)
        self._name(batch, created)

    async def _search(self, batch: Batch) -> None:
        """Search for a batch whose identifier an earlier run did not receive. If the provider does not have it, send its lines again."""
        for wait in (0.0, batch.first_poll):  # the provider may still be creating the batch
            await asyncio.sleep(wait)
            if (found := await self._repeat(batch, lambda: batch.api.find(batch.tag))) is not None:
                self._name(batch, found)
                return
        await self._send_rest(batch, batch.take_rest())

    def _name(self, batch: Batch, found: BatchObject) -> None:
        assert batch.number is not None
        batch.id = found.id
        self._journal.record_batch(batch.number, msgspec.json.encode(found.id))

    async def _polled(self, batch: Batch, name: str) -> BatchObject:
        """Poll a batch until it has ended."""
        batch.since, wait = self._loop.time(), batch.first_poll
        if not batch.order:
            await asyncio.sleep(wait)
        while True:
            try:
                found = await self._repeat(batch, lambda: batch.api.retrieve(name))
            except RequestError as error:
                if error.status_code != 404 or not self._bulk.force:
                    raise
                found = BatchObject(name, "cancelled")
            if found.has_ended:
                return found
            wait = batch.next_poll(wait)
            await asyncio.sleep(wait)

    async def _finish(self, batch: Batch, found: BatchObject) -> None:
        """Take the results of a batch that has ended. Send lines with a temporary failure and lines without a result again, up to
        ``retry.attempts`` times."""
        if found.status == "failed":
            await self._handle_refusal(batch, found)
            return
        again: Again = []
        for file, least in found.files:
            for _ in range(self._bulk.attempts):
                if await self._repeat(batch, partial(self._take_results, batch, file, again)) >= least:
                    break
                await asyncio.sleep(batch.first_poll)  # read the file again, because the missing results were paid
        if self._bulk.is_stopping or (batch.held and not self._bulk.has_read_all):
            return  # the batch stays in the journal, and the next run takes the results that are missing there
        name, kind = batch.api.name, FailureKind.TRANSIENT if found.status == "completed" else FailureKind.TIMEOUT
        words = f"endpoint {name!r}: provider batch {batch.id} is {found.status}, without a result for this line"
        nothing = Failure(kind, RequestError(words, endpoint=name, model=batch.api.model))  # paid only if the batch is completed
        again += [(line, nothing) for line in batch.take_rest()]
        await self._send_rest(batch, [line for line, failure in again if self._fail(batch, line, failure, may_repeat=True)])

    async def _send_rest(self, batch: Batch, lines: Iterable[Line]) -> None:
        """End a batch, and put ``lines``, which are lines of the batch, into new files. The batch's results are already in the journal."""
        self._end(batch)
        for number, line in enumerate(lines, 1):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            self._put(batch.api.endpoint, batch.url, batch.api.model, line, batch.request(line), line.content & INPUT_BITS)
        if self._has_all:
            self._complete_all()

    async def _handle_refusal(self, batch: Batch, found: BatchObject) -> None:
        """Fail the lines that the provider has named, and send the others again; also if its queue was full. Otherwise stop the run."""
        faults = (found.errors and found.errors.data) or []
        words = "; ".join(f"{fault.code}: {fault.message}" for fault in faults[:3]) or "it does not say why"
        secrets = batch.api.connection.secrets
        written = batch.order or list(batch.lines)
        named = [(fault, fault.line - 1) for fault in faults if fault.line is not None and 0 < fault.line <= len(written)]
        for fault, place in named:
            line = batch.lines.pop(written[place], None)
            if line is not None:
                text = secrets.hide(f"endpoint {batch.api.name!r} refused the line: {fault.code}: {fault.message}")
                error = BadRequest(text, endpoint=batch.api.name, model=batch.api.model)
                self._fail(batch, line, Failure(FailureKind.REFUSED, error))
        if not named and provider.TOO_MANY_TOKENS not in {fault.code for fault in faults}:
            self._end(batch)
            raise QRewardError(secrets.hide(f"endpoint {batch.api.name!r} refused the file: {words}"))
        if not named and self._following - self._waiting > 1:  # another batch that ends leaves room in the provider's queue
            self._waiting += 1
            self._ended.clear()
            await self._ended.wait()
            self._waiting -= 1
        elif not named:
            if len(written) == 1:
                await asyncio.sleep(batch.longest)
            self._most_lines[batch.api.name] = max(1, len(written) // 2)
        await self._send_rest(batch, batch.take_rest())

    def _end(self, batch: Batch) -> None:
        """Record the end of a batch. Its lines that were not read from the input count as paid."""
        if batch.number is not None and self._open.pop(batch.number, None) is not None:
            unread = sum(batch.held.values(), NOTHING)
            self._bulk.settle(unread, unread)
            self._journal.record_batch(batch.number, provider.END, batch.spent + unread)

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
            waited, wait = waited + pause, batch.next_poll(wait)

    # results

    async def _take_results(self, batch: Batch, file: str, again: Again) -> int:
        """Download a file of results, and return the number of valid results. A repeated download skips results that were taken before."""
        number = good = 0
        async with aclosing(batch.api.lines(file)) as lines:
            async for content in lines:
                number += 1
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
                try:
                    found = provider.read(ResultLine, content)
                except Malformed:
                    continue
                good += 1
                line = None if found.key is None else batch.lines.pop(found.key, None)
                if line is not None:  # it is None if an earlier download took the line, or if the line is not of this run
                    self._take_result(batch, line, found, again)
        return good

    def _take_result(self, batch: Batch, line: Line, found: ResultLine, again: Again) -> None:
        outcome = _outcome(batch, line, found)
        if isinstance(outcome, Answer):
            name = batch.api.name
            result: Result[Any] = Result(0, outcome.response, None, name, self._loop.time() - batch.since, 0.0, line.attempts)
            self._bulk.tallies.add(result)
            spent = spent_by(result.usage, self._bulk.runtime.prices.get(name)) or line.reserved
            text = {"id": found.id, "custom_id": line.custom_id, "response": found.response, "error": None}
            self._bulk.finish(None, line, result, msgspec.json.encode(text), spent)
        elif outcome.kind in provider.SENT_AGAIN:
            again.append((line, outcome))
        else:
            self._fail(batch, line, outcome)

    def _fail(self, batch: Batch, line: Line, failure: Failure, *, may_repeat: bool = False) -> bool:
        """Add a failed attempt to a line, and return whether it is to be sent again, which the budget may not allow: then the run stops.

        The attempt costs its maximum if the provider may have processed it.
        """
        bulk, name, status = self._bulk, batch.api.name, getattr(failure.error, "status_code", None)
        spent = line.reserved if failure.kind is FailureKind.TRANSIENT else NOTHING
        seconds = self._loop.time() - batch.since
        line.attempts += (AttemptRecord(name, failure.kind.name.lower(), seconds, status, str(failure.error)),)
        if not may_repeat or len(line.attempts) >= bulk.attempts:
            error = with_trail(copy(failure.error), line.attempts)  # a copy, because several lines may share the error
            result: Result[Any] = Result(0, None, error, name, 0.0, 0.0, line.attempts)
            bulk.tallies.add(result)
            bulk.finish(None, line, result, spent=spent)
            return False
        bulk.settle(line.reserved, spent)
        batch.spent += spent
        if not bulk.budget.reserve(line.reserved):
            bulk.stop("sending a line again could pass max_cost or max_tokens")
            return False
        return True


def _outcome(batch: Batch, line: Line, found: ResultLine) -> Answer | Failure:
    """Interpret a result like a response that was received from the endpoint directly."""
    call, response = provider.partial_request(batch.url, batch.api.model, line.content & INPUT_BITS), found.response
    connection = batch.api.connection
    status = 200 if response is None else response.status_code
    body = b"" if response is None else bytes(response.body)
    reply = Reply(status, {} if response is None or response.request_id is None else {"x-request-id": response.request_id}, body)
    if found.error is None and response is not None:
        return connection.outcome_of(reply, call)
    if not 200 <= status < 300:
        return connection.failed(reply, call).by_status()
    failure = connection.failed(reply, call).by_body(EmbeddedError(found.error or "no response"))
    failure.kind = provider.NOT_DONE.get(found.code or "", failure.kind)
    return failure
