"""Bulk runs that several processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qreward.bulk.batches import LineRun
from qreward.bulk.budget import Spent
from qreward.bulk.inputs import DIGEST, Line
from qreward.bulk.journal import DONE, FAILED, STARTED, Journal, JournalInUse, Record, check_header, decode, read_header, read_records
from qreward.bulk.outputs import OutputFile, failure_line
from qreward.bulk.requests import BulkSettings, RequestReader
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.judge.types import Scorer
from qreward.results import Result, Usage
from qreward.runtime import Runtime

OF_ONE_PROCESS = ("deadline", "max_cost", "max_tokens", "sample", "shard", "progress")
"""Settings that work only if one process reads all lines."""


class RowResult(NamedTuple):
    ok: bool
    line: bytes
    is_kept: bool = True
    usage: Usage | None = None


def keyed_settings(options: Mapping[str, Any]) -> BulkSettings:
    settings = BulkSettings(**options)
    if wrong := [name for name in OF_ONE_PROCESS if name in options and options[name] is not None]:
        raise ConfigError(f"{wrong[0]} needs one process that reads all lines, and here are several; leave it out, or use client.run")
    return settings


def keyed_line(row: Mapping[str, Any]) -> Line:
    """Return a row as a line that is identified by the row's content. Neither the order of columns nor columns with null count."""
    content = msgspec.json.encode(_without_nulls(row), order="deterministic")
    found = blake2b(content, digest_size=16).digest()
    identifier = f"qreward-{found.hex()}"
    return Line(f"row {identifier}", int.from_bytes(found[:8]) & DIGEST, content, row_identifier=identifier)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


class JournalFolder:
    """Holds the results in all journals of a folder. Each row with a result takes about 100 bytes of memory. Raises ``ConfigError``."""

    def __init__(self, path: Path, settings: Mapping[str, Any], *, force: bool = False, retry_failed: bool = False) -> None:
        if not path.is_dir():
            raise ConfigError(f"there is no folder {str(path)!r} for the output; all workers need it, on a file system that they share")
        self.path, self._settings, self._force = path, settings, force
        self._ends: dict[int, int] = {}  # part -> offset up to which its journal was read
        self._answers: dict[int, int] = {}  # key -> part, offset and success, packed into one number
        self._started: set[int] = set()  # keys of rows that were sent and have no result in the same journal
        self.sent = self.sent_again = 0
        self.refresh(skips_failed=retry_failed)

    # reading

    def refresh(self, *, skips_failed: bool = False) -> None:
        """Read the records that were written since the last call. Raises ``ConfigError`` and ``OSError``."""
        for path in sorted(self.path.glob("part-*.jsonl.journal")):
            number = path.name[5:].partition(".")[0]
            if not number.isdecimal():
                continue
            part = int(number)
            end = self._ends.get(part, 0)
            if not end:
                header = read_header(path)
                if not header.endswith(b"\n"):
                    continue  # another process is writing it
                check_header(path, header, self._settings, force=self._force)
                end = self._ends[part] = len(header)
            for place, self._ends[part], record in read_records(path, end, in_use=True):
                kind, key = record.kind, record.key
                if kind != STARTED:
                    self._started.discard(key)
                    if kind == DONE or (kind == FAILED and not skips_failed):
                        self.put(key, part, place, ok=record.ok)
                    continue
                self.sent += 1
                had = self._answers.get(key)
                if key in self._started or (had is not None and had & 1):
                    self.sent_again += 1
                elif had is None:
                    self._started.add(key)

    def put(self, key: int, part: int, place: int, *, ok: bool) -> None:
        """Remember where the result of a row is stored. A success is never replaced; a failure is replaced by any later result."""
        had = self._answers.get(key)
        if had is None or not had & 1:
            self._answers[key] = part << 48 | place << 1 | ok

    def find(self, row: Line) -> Record | None:
        found = self._answers.get(row.key)
        if found is None:
            return None
        with self._part(found >> 48).open("rb") as file:
            file.seek((found & (1 << 48) - 1) >> 1)
            record = decode(file.readline())
        # the 128-bit identifier is compared, because two rows may have the same key, although this is unlikely
        return record if record is not None and record.content.startswith(b'{"id":"%b"' % row.identifier.encode()) else None

    @property
    def done(self) -> int:
        return len(self._answers)

    @property
    def failed(self) -> int:
        return sum(not entry & 1 for entry in self._answers.values())

    @property
    def in_flight(self) -> int:
        return sum(key not in self._answers for key in self._started)

    # writing

    def claim(self) -> tuple[int, Journal]:
        """Open the first journal that no process has open. If there is none, create a journal. Raises ``ConfigError``."""
        for part in count():
            try:
                return part, Journal(self._part(part), self._settings, force=self._force)
            except JournalInUse:
                continue
        raise AssertionError

    def write(self) -> int:
        """Write the rows that succeeded and the rows that failed to separate files, two files for each journal. Raises ``OSError``."""
        files = 0
        for part in sorted(self._ends):
            name = self._part(part).name.removesuffix(".journal")
            files += OutputFile(self.path / name).write(self._lines(part, ok=True)) > 0
            OutputFile(self.path / f"{Path(name).stem}.failed.jsonl").write(self._lines(part, ok=False))
        return files

    def _lines(self, part: int, *, ok: bool) -> Iterator[bytes]:
        for place, _, record in read_records(self._part(part)):
            if record.kind in (DONE, FAILED) and self._answers.get(record.key) == (part << 48 | place << 1 | ok):
                yield record.content

    def _part(self, part: int) -> Path:
        return self.path / f"part-{part:05}.jsonl.journal"


class KeyedRun(LineRun):
    """Sends the rows of one process. All methods must be called in one event loop. Raises ``ConfigError``."""

    def __init__(self, runtime: Runtime, folder: JournalFolder, settings: BulkSettings, scorer: Scorer | None = None) -> None:
        self._folder, reader = folder, RequestReader(settings, is_scored=scorer is not None)
        self._part, journal = folder.claim()
        super().__init__(runtime, journal, settings, reader, scorer, folder.done)
        self.has_read_all = True  # the caller waits for the results, perhaps before it reads on
        self._waiting: dict[int, asyncio.Future[RowResult]] = {}  # by key
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
            line = keyed_line(row)
        except (TypeError, ValueError) as error:
            wrong = BadRequest(f"the row cannot be written as JSON: {error}")
            future.set_result(RowResult(False, failure_line("", "qreward-none", wrong)))
            return future
        if (waiting := self._waiting.get(line.key)) is not None:
            return waiting
        if (found := self._folder.find(line)) is not None:
            future.set_result(RowResult(found.ok, found.content))
            return future
        self._waiting[line.key] = future
        if self._error is not None:
            self._fail_waiting(self._error, (line.key,))
            return future
        try:
            self._reader.read(line)
            model = None if self._scorer is not None else line.content.model
            kind = None if model is None else self._kind_of(self.runtime.fleet.pool(model), model)
        except QRewardError as error:
            self.refuse(line, error)
            return future
        batch = self._batch_of(kind)
        if batch.queue.given_up:
            self.left(batch, line)
        else:
            batch.queue.put_nowait(line)  # any number: the caller waits for the results
        return future

    def _record(self, line: Line, text: bytes, result: Result[Any], spent: Spent) -> int:
        future = self._waiting.pop(line.key, None)  # first, because recording may stop the run, which fails all waiting rows
        place = super()._record(line, text, result, spent)
        self._folder.put(line.key, self._part, place, ok=result.ok)
        if future is not None and not future.done():
            usage = result.usage if self._scorer is None or not result.ok else result.value.usage
            future.set_result(RowResult(result.ok, text, usage=usage))
        return place

    # the end

    def stop(self, reason: QRewardError | str) -> None:
        """Send no further rows. Requests in flight are finished and recorded. Every row without a result ends with the error ``reason``."""
        if self._error is not None:
            return
        self._error = reason if isinstance(reason, QRewardError) else QRewardError(reason)
        self._fail_waiting(self._error, tuple(self._waiting))
        super().stop(reason)

    def left(self, batch: Any, line: Line) -> None:
        if line.key in self._waiting:  # otherwise the run has stopped
            self._fail_waiting(QRewardError(batch.queue.given_up), (line.key,))

    def _fail_waiting(self, error: QRewardError, keys: Iterable[int]) -> None:
        for key in keys:
            future = self._waiting.pop(key)
            if not future.done():
                future.set_result(RowResult(False, failure_line("", f"qreward-{key:015x}", error), is_kept=False))

    async def aclose(self) -> None:
        for batch in self._batches.values():
            batch.queue.put_nowait(None)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self._journal.close()
