"""Bulk runs that several processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qreward.bulk.batches import Entry, LineRun
from qreward.bulk.budget import Spent
from qreward.bulk.inputs import InputLine
from qreward.bulk.journal import Journal, JournalInUse, Line, check_header, read_header, read_records
from qreward.bulk.outputs import OutputFile, answer_line, failure_line
from qreward.bulk.records import BATCH, DONE, FAILED, STARTED, Record, decode
from qreward.bulk.requests import IDS, RequestReader
from qreward.bulk.settings import BulkSettings
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.judge.types import Scorer
from qreward.results import Result, Usage
from qreward.runtime import Runtime

OF_ONE_PROCESS = ("deadline", "max_cost", "max_tokens", "sample", "shard", "order", "progress")
"""Settings that work only if one process reads all lines."""


class RowResult(NamedTuple):
    ok: bool
    line: bytes
    is_kept: bool = True
    usage: Usage | None = None


def keyed_settings(options: Mapping[str, Any]) -> BulkSettings:
    """Return the settings of a bulk run that several processes share. Raises ``ConfigError``."""
    settings = BulkSettings(**options)
    if wrong := [name for name in OF_ONE_PROCESS if name in options and options[name] is not None]:
        raise ConfigError(f"{wrong[0]} needs one process that reads all lines, and here are several; leave it out, or use client.run")
    return settings


class KeyedLine(NamedTuple):
    """A row that is identified by its content."""

    digest: int
    identifier: str
    line: InputLine


def keyed_line(row: Mapping[str, Any]) -> KeyedLine:
    """Return a row with the hash of its content. Neither the order of columns nor columns with null change the hash."""
    fields = _without_nulls(row)
    content = msgspec.json.encode(fields, order="deterministic")
    key = blake2b(content, digest_size=16).digest()
    identifier, digest = f"qreward-{key.hex()}", int.from_bytes(key[:8])
    named = fields if any(name in fields for name in IDS) else {"custom_id": identifier, **fields}
    return KeyedLine(digest, identifier, InputLine(f"row {identifier}", digest, msgspec.json.encode(named)))


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
        self._answers: dict[int, int] = {}  # digest -> part, offset and success, packed into one number
        self._started: set[int] = set()  # digests of rows that were sent and have no result in the same journal
        self._skips_failed = retry_failed
        self.sent = self.sent_again = 0
        self.refresh()
        self._skips_failed = False

    # reading

    def refresh(self) -> None:
        """Read the records that were written since the last call. Raises ``ConfigError`` and ``OSError``."""
        for path in sorted(self.path.glob("part-*.jsonl.journal")):
            if (number := path.name[5:].partition(".")[0]).isdecimal():
                self._read(int(number), path)

    def _read(self, part: int, path: Path) -> None:
        end = self._ends.get(part, 0)
        if not end:
            header = read_header(path)
            if not header.endswith(b"\n"):
                return  # another process is writing it
            check_header(path, header, self._settings, force=self._force)
            end = len(header)
        for place, behind, record in read_records(path, end):
            self._take(part, place, record)
            end = behind
        self._ends[part] = end

    def _take(self, part: int, place: int, record: Record) -> None:
        kind, digest = record.kind, record.digest
        if kind == BATCH:
            return
        if kind != STARTED:
            self._started.discard(digest)
            if kind == DONE or (kind == FAILED and not self._skips_failed):
                self.put(digest, part, place, ok=kind == DONE)
            return
        self.sent += 1
        had = self._answers.get(digest)
        if digest in self._started or (had is not None and had & 1):
            self.sent_again += 1
        elif had is None:
            self._started.add(digest)

    def put(self, digest: int, part: int, place: int, *, ok: bool) -> None:
        """Remember where the result of a row is stored. A success is never replaced; a failure is replaced by any later result."""
        had = self._answers.get(digest)
        if had is None or not had & 1:
            self._answers[digest] = part << 48 | place << 1 | ok

    def find(self, row: KeyedLine) -> Line | None:
        entry = self._answers.get(row.digest)
        if entry is None:
            return None
        with self._part(entry >> 48).open("rb") as file:
            file.seek((entry & (1 << 48) - 1) >> 1)
            record = decode(file.readline())
        result = b"" if record is None else record.content
        # the 128-bit identifier is compared, because two rows may have the same 64-bit digest, although this is unlikely
        return Line(bool(entry & 1), result) if result.startswith(b'{"id":"%b"' % row.identifier.encode()) else None

    @property
    def done(self) -> int:
        return len(self._answers)

    @property
    def failed(self) -> int:
        return sum(not entry & 1 for entry in self._answers.values())

    @property
    def in_flight(self) -> int:
        return sum(digest not in self._answers for digest in self._started)

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
            if record.kind in (DONE, FAILED) and self._answers.get(record.digest) == (part << 48 | place << 1 | ok):
                yield record.content

    def _part(self, part: int) -> Path:
        return self.path / f"part-{part:05}.jsonl.journal"


def make_folder(path: Path) -> Path:
    """Create a folder if it does not exist, and return its path. Raises ``ConfigError`` if it cannot be created."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the output {str(path)!r} cannot be a folder: {error.strerror}; name another") from None
    return path


class KeyedRun(LineRun):
    """Sends the rows of one process. All methods must be called in one event loop. Raises ``ConfigError``."""

    def __init__(self, runtime: Runtime, folder: JournalFolder, settings: BulkSettings, scorer: Scorer | None = None) -> None:
        self._folder, reader = folder, RequestReader(settings)
        self._part, journal = folder.claim()
        super().__init__(runtime, journal, settings, reader, scorer, folder.done)
        self._next = max(journal.size, 1 + max(journal.unfinished, default=-1))
        self._waiting: dict[int, asyncio.Future[RowResult]] = {}  # by digest
        self._reading = asyncio.Lock()
        self._error: QRewardError | None = None

    async def results(self, rows: Sequence[Mapping[str, Any]]) -> list[RowResult]:
        """Return the result of each row. A row that has no result in any journal is sent now. Equal rows are sent once."""
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

    def stop(self, reason: QRewardError | str) -> None:
        """Send no further rows. Requests in flight are finished and recorded. Every row without a result ends with the error ``reason``."""
        if self._error is not None:
            return
        self._error = reason if isinstance(reason, QRewardError) else QRewardError(reason)
        waiting, self._waiting = self._waiting, {}
        for digest, future in waiting.items():
            if not future.done():
                future.set_result(RowResult(False, failure_line("", f"qreward-{digest:016x}", self._error), is_kept=False))
        super().stop(reason)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error if isinstance(error, QRewardError) else f"{type(error).__name__}: {error}")

    async def aclose(self) -> None:
        for batch in self._batches.values():
            batch.queue.complete()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self._journal.close()
