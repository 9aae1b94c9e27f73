"""One process of a bulk run that several processes share.

Rows arrive in any order and are identified by their content. The journals of all processes are in one folder. Every process reads them, so
no process sends a row that already has a result. The requests are sent as batches of the client, one batch per model, as in
:mod:`qreward.bulk.run`. This module does not depend on Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qreward.bulk.batches import Entry, LineRun
from qreward.bulk.budget import Spent
from qreward.bulk.folder import JournalFolder, KeyedLine, keyed_line
from qreward.bulk.outputs import answer_line, failure_line
from qreward.bulk.requests import RequestReader
from qreward.bulk.settings import BulkSettings
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.judge.types import Scorer
from qreward.results import Result, Usage
from qreward.runtime import Runtime

OF_ONE_PROCESS = ("deadline", "max_cost", "max_tokens", "sample", "shard", "order", "progress")
"""Settings that work only if one process reads all lines."""


class RowResult(NamedTuple):
    """The result of a row.

    Attributes:
        ok: False if the row failed.
        line: the row's line of the output, without line break.
        is_kept: True if the result is in the journal. If it is False, the next run sends the row again.
        usage: tokens of the request that was sent for the row; None if no request was sent.
    """

    ok: bool
    line: bytes
    is_kept: bool = True
    usage: Usage | None = None


def keyed_settings(options: Mapping[str, Any]) -> BulkSettings:
    """Return the settings of a bulk run that several processes share.

    Raises:
        ConfigError: a setting is invalid, or works only if one process reads all lines.
    """
    settings = BulkSettings(**options)
    if wrong := [name for name in OF_ONE_PROCESS if name in options and options[name] is not None]:
        raise ConfigError(f"{wrong[0]} needs one process that reads all lines, and here are several; leave it out, or use client.run")
    return settings


class KeyedRun(LineRun):
    """Sends the rows of one process. All methods must be called in one event loop.

    Args:
        runtime: runtime of the client.
        folder: the journals of all processes. The run opens one of them for itself.
        settings: see :func:`keyed_settings`.
        scorer: judge or reward model that scores each row; None sends each row as a request.

    Raises:
        ConfigError: the journal cannot be written, or a setting is wrong.
    """

    def __init__(self, runtime: Runtime, folder: JournalFolder, settings: BulkSettings, scorer: Scorer | None = None) -> None:
        self._folder, reader = folder, RequestReader(settings)
        self._part, journal = folder.claim()
        super().__init__(runtime, journal, settings, reader, scorer, folder.done)
        self._next = max(journal.size, 1 + max(journal.unfinished, default=-1))
        self._waiting: dict[int, asyncio.Future[RowResult]] = {}  # by digest
        self._reading = asyncio.Lock()
        self._error: QRewardError | None = None

    async def results(self, rows: Sequence[Mapping[str, Any]]) -> list[RowResult]:
        """Return the result of each row. A row that has no result in any journal is sent now. Equal rows are sent once.

        A row that fails becomes a result with ``ok=False``. This method raises no exception for it.
        """
        async with self._reading:
            await asyncio.to_thread(self._folder.refresh)
        self._journal.flush()
        futures = [self._result(row) for row in rows]
        if waiting := [future for future in futures if not future.done()]:
            await asyncio.wait(waiting)
        return [future.result() for future in futures]

    def _result(self, row: Mapping[str, Any]) -> asyncio.Future[RowResult]:
        future: asyncio.Future[RowResult] = asyncio.get_running_loop().create_future()
        try:
            keyed = keyed_line(row)
        except (TypeError, ValueError) as error:
            wrong = BadRequest(f"the row cannot be written as JSON: {error}")
            future.set_result(RowResult(False, failure_line("", "qreward-none", wrong)))
            return future
        if (waiting := self._waiting.get(keyed.digest)) is not None:
            return waiting
        if (found := self._folder.find(keyed)) is not None:
            future.set_result(RowResult(found.ok, found.result))
            return future
        self._waiting[keyed.digest] = future
        self._send(keyed)
        return future

    def _send(self, row: KeyedLine) -> None:
        """Put a row into the queue of its model's batch or of the scorer."""
        ordinal, self._next = self._next, self._next + 1
        entry = Entry(ordinal, row.line, row.identifier, None, Spent())
        pool = None
        try:
            if self._error is not None:
                raise self._error
            if self._scorer is not None:
                entry.custom_id, entry.content = self._reader.read_item(row.line, ordinal)
            else:
                entry.custom_id, entry.content = self._reader.read(row.line, ordinal)
                pool = self.runtime.pool(entry.content.model)
        except QRewardError as error:
            self._end(entry, failure_line(entry.custom_id, row.identifier, error), error, is_kept=self._error is None)
            return
        self._batch_of(entry, pool).queue.put_nowait(entry)

    def finish(self, entry: Entry, result: Result[Any], _text: bytes | None = None, _spent: Spent | None = None) -> None:
        name, error = self._name(entry), result.error
        if error is not None:
            is_kept = not self._leave_to_next_run(entry, result)
            self._end(entry, failure_line(entry.custom_id, name, error), error, is_kept=is_kept, usage=result.usage)
        else:
            line = answer_line(entry.custom_id, name, result, is_verdict=self._scorer is not None)
            self._end(entry, line, usage=result.usage if self._scorer is None else result.value.usage)

    def _name(self, entry: Entry) -> str:
        return entry.place.removeprefix("row ")

    def _end(
        self, entry: Entry, line: bytes, error: QRewardError | None = None, *, is_kept: bool = True, usage: Usage | None = None
    ) -> None:
        future = self._waiting.pop(entry.digest, None)  # first, because ``_record`` may stop the run, which fails all waiting rows
        place = self._record(entry.ordinal, entry.digest, line, error) if is_kept else None
        if place is not None:
            self._folder.put(entry.digest, self._part, place, ok=error is None)
        if future is not None and not future.done():
            future.set_result(RowResult(error is None, line, place is not None, usage))

    # the end

    @property
    def is_stopping(self) -> bool:
        return self._error is not None

    def stop(self, reason: QRewardError | str) -> None:
        """Send no further rows. Requests in flight are finished and recorded. Every row without a result ends with the error ``reason``.

        The next run uses the recorded results, and sends the rows without a recorded result.
        """
        if self._error is not None:
            return
        self._error = reason if isinstance(reason, QRewardError) else QRewardError(reason)
        waiting, self._waiting = self._waiting, {}
        for digest, future in waiting.items():
            if not future.done():
                future.set_result(RowResult(False, failure_line("", f"qreward-{digest:016x}", self._error), is_kept=False))
        for batch in self._batches.values():
            batch.stop()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error if isinstance(error, QRewardError) else f"{type(error).__name__}: {error}")

    async def aclose(self) -> None:
        """Wait for the rows in flight, and close the journal."""
        for batch in self._batches.values():
            batch.queue.complete()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self._journal.close()
