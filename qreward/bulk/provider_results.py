"""Takes the results of provider batches. Each line succeeds, fails for good, or is sent again. This module also accounts for the cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from copy import copy
from typing import Any, Protocol

from qreward.bulk import provider
from qreward.bulk.batches import Entry
from qreward.bulk.budget import NOTHING, Spent, spent_by
from qreward.bulk.inputs import InputLine
from qreward.bulk.provider import ResultLine
from qreward.bulk.provider_files import Batch
from qreward.bulk.spool import SpooledLine
from qreward.codecs.base import EmbeddedError, Malformed, Reply
from qreward.engine.snapshots import Tallies
from qreward.errors import BadRequest, QRewardError, RequestError
from qreward.records import AttemptRecord
from qreward.results import EndpointStats, Result, with_trail
from qreward.runtime import Runtime
from qreward.scheduler.outcome import Answer, Failure, FailureKind

AT_ONCE = 256
"""Number of lines that are processed before other tasks of the event loop run."""

Again = list[tuple[SpooledLine, Failure]]
"""Lines that must be sent again, each with the failure that is the reason."""


class ProviderRun(Protocol):
    """The part of :class:`~qreward.bulk.run.BulkRun` that provider batches use. The methods are documented there.

    Attributes:
        runtime: runtime of the client.
        read_on: event that is set when the run may read more lines.
        attempts: maximum number of attempts per line.
        force: True if the run continues although results of an earlier batch are lost.
        has_read_all: True if the input was read to its end.
    """

    runtime: Runtime
    read_on: asyncio.Event
    attempts: int
    force: bool
    has_read_all: bool

    @property
    def is_stopping(self) -> bool: ...
    def stop(self, reason: QRewardError | str) -> None: ...
    def finish(self, entry: Entry, result: Result[Any], text: bytes | None = None, spent: Spent | None = None) -> None: ...
    def hold(self, most: Spent) -> None: ...
    def submitted(self, ordinals: Iterable[int]) -> None: ...
    def settle(self, reserved: Spent, spent: Spent) -> None: ...
    def reserve_again(self, reserved: Spent) -> bool: ...


class Results:
    """Takes the results of the provider batches of one run."""

    def __init__(self, run: ProviderRun) -> None:
        self._bulk, self._tallies, self._loop = run, Tallies(), asyncio.get_running_loop()

    def endpoints(self) -> Mapping[str, EndpointStats]:
        return self._tallies.stats()

    async def take(self, batch: Batch, file: str, again: Again) -> int:
        """Download a file of results, and return the number of valid results. Lines that must be sent again are added to ``again``.

        A repeated download skips results that were taken before. Raises ``CallFailed`` if the download fails.
        """
        number = good = 0
        async with aclosing(batch.api.lines(file, batch.model)) as lines:
            async for content in lines:
                number += 1
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
                try:
                    found = provider.read(ResultLine, content)
                except Malformed:
                    continue
                good += 1
                line = None if found.ordinal is None else batch.spool.take(found.ordinal)
                if line is not None:  # it is None if an earlier download took the line, or if the line is not of this run
                    self._take_line(batch, line, found, again)
        return good

    def refuse(self, batch: Batch, line: SpooledLine, words: str) -> None:
        """Fail a line that the provider refused."""
        error = BadRequest(words, endpoint=batch.api.endpoint.name, model=batch.model)
        self.fail(batch, line, Failure(FailureKind.REFUSED, error))

    def fail(self, batch: Batch, line: SpooledLine, failure: Failure) -> None:
        """Fail a line for good."""
        spent = self._note(batch, line, failure)
        error = with_trail(copy(failure.error), tuple(line.attempts))  # a copy, because several lines may share the error
        result: Result[Any] = Result(line.ordinal, None, error, batch.api.endpoint.name, 0.0, 0.0, tuple(line.attempts))
        self._tallies.add(result)
        self._bulk.finish(_entry(line), result, spent=spent)

    def try_again(self, batch: Batch, line: SpooledLine, failure: Failure) -> bool:
        """Settle the cost of a failed attempt, and reserve the cost of the next attempt.

        Return True if the line can be sent again. If the budget is too small, stop the run and return False.
        """
        reserved, spent = Spent(line.tokens, line.cost), self._note(batch, line, failure)
        self._bulk.settle(reserved, spent)
        batch.spent += spent
        return self._bulk.reserve_again(reserved)

    def _take_line(self, batch: Batch, line: SpooledLine, found: ResultLine, again: Again) -> None:
        outcome = _outcome(batch, line, found)
        if isinstance(outcome, Answer):
            seconds, attempts, name = self._loop.time() - batch.since, tuple(line.attempts), batch.api.endpoint.name
            result: Result[Any] = Result(line.ordinal, outcome.value, None, name, seconds, 0.0, attempts)
            self._tallies.add(result)
            spent = spent_by(result.usage, self._bulk.runtime.prices.get(name)) or Spent(line.tokens, line.cost)
            self._bulk.finish(_entry(line), result, provider.provider_line(found, line.custom_id), spent)
        elif outcome.kind in provider.SENT_AGAIN:
            again.append((line, outcome))
        else:
            self.fail(batch, line, outcome)

    def _note(self, batch: Batch, line: SpooledLine, failure: Failure) -> Spent:
        """Add a failed attempt to a line. Return the attempt's maximum cost, which is zero if the provider did not process the line."""
        status, seconds = getattr(failure.error, "status_code", None), self._loop.time() - batch.since
        name = batch.api.endpoint.name
        line.attempts.append(AttemptRecord(name, failure.kind.name.lower(), seconds, status, str(failure.error)))
        return Spent(line.tokens, line.cost) if failure.kind is FailureKind.TRANSIENT else NOTHING


def without_result(batch: Batch, status: str) -> Failure:
    """Return the failure for lines without a result in an ended batch. Such lines count as paid only if ``status`` is ``completed``."""
    name = batch.api.endpoint.name
    words = f"endpoint {name!r}: provider batch {batch.id} is {status}, without a result for this line"
    kind = FailureKind.TRANSIENT if status == "completed" else FailureKind.TIMEOUT
    return Failure(kind, RequestError(words, endpoint=name, model=batch.model))


def _outcome(batch: Batch, line: SpooledLine, found: ResultLine) -> Answer | Failure:
    """Interpret a result like a response that was received from the endpoint directly."""
    call, response = provider.partial_request(batch.url, batch.model, line.inputs), found.response
    connection = batch.api.connection
    status = 200 if response is None else response.status_code
    body = b"" if response is None else bytes(response.body)
    reply = Reply(status, {} if response is None or response.request_id is None else {"x-request-id": response.request_id}, body)
    if found.error is None and response is not None:
        return connection.outcome_of(reply, call)
    if not 200 <= status < 300:
        return connection.failure_from_reply(reply, call)
    failure = connection.failure_from_body(EmbeddedError(found.error or "no response"), reply, call)
    failure.kind = provider.NOT_DONE.get(found.code or "", failure.kind)
    return failure


def _entry(line: SpooledLine) -> Entry:
    """Return the entry of a line, for the run."""
    entry = Entry(line.ordinal, InputLine(line.place, line.digest, b""), line.custom_id, None, Spent(line.tokens, line.cost))
    entry.started = True
    return entry
