"""Sends rows that arrive in batches, and knows each by its content: the part of a bulk that is one process's, where several work on one.

The requests are batches of the client, one per model, as in :mod:`qreward.bulk.run`. What is done is in the journals of the folder, so a
row is paid once, whichever process receives it and however often. Knows nothing of Ray.
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
"""Settings that need one process which sees all lines."""


class RowResult(NamedTuple):
    """The result of a row.

    Attributes:
        ok: False if it failed.
        line: its line of the output.
        is_kept: it is in the journal. If not, the row is sent by the next run.
        usage: tokens of the request that was sent for it; None if none was.
    """

    ok: bool
    line: bytes
    is_kept: bool = True
    usage: Usage | None = None


def keyed_settings(options: Mapping[str, Any]) -> BulkSettings:
    """Return the settings of a run of several processes.

    Raises:
        ConfigError: a setting is invalid, or needs one process that sees all lines.
    """
    settings = BulkSettings(**options)
    if wrong := [name for name in OF_ONE_PROCESS if name in options and options[name] is not None]:
        raise ConfigError(f"{wrong[0]} holds for the lines of one process, and here are several; leave it out, or use client.run")
    return settings


class KeyedRun(LineRun):
    """What one process does of a bulk. All methods are called in one event loop.

    Args:
        runtime: that of the client.
        folder: the journals of all processes. This one takes a journal of its own.
        settings: see :func:`keyed_settings`.
        scorer: makes a verdict of each row; None sends each row as a request.

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
        """Return the result of each row, of an earlier run, another process, or now. Equal rows have one result. Raises for no row."""
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
        """Hand a row to the batch of its model or to that of the scorer."""
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
        self._batch_of(entry, pool).queue.add(entry)

    def finish(self, entry: Entry, result: Result[Any]) -> None:
        """Take in the result of a row."""
        name, error = self._name(entry), result.error
        if error is not None:
            is_kept = entry.started or isinstance(error, BadRequest | ConfigError)  # else it was never sent, so it is not the row's fault
            self._end(entry, failure_line(entry.custom_id, name, error), error, is_kept=is_kept, usage=result.usage)
        else:
            line = answer_line(entry.custom_id, name, result, is_verdict=self._scorer is not None)
            self._end(entry, line, usage=result.usage if self._scorer is None else result.value.usage)

    def _name(self, entry: Entry) -> str:
        return entry.place.removeprefix("row ")

    def _end(
        self, entry: Entry, line: bytes, error: QRewardError | None = None, *, is_kept: bool = True, usage: Usage | None = None
    ) -> None:
        future = self._waiting.pop(entry.digest, None)  # before the run stops because of this row
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
        """Send nothing more. Each row that waits has this error, and the next run sends it. What is in flight is finished and recorded."""
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
        """Wait for what is in flight, and close the journal."""
        for batch in self._batches.values():
            batch.queue.complete()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self._journal.close()
