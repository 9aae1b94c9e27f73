"""The journals of a bulk run that several processes share.

The journals are in one folder, under the names ``part-00000.jsonl.journal``, ``part-00001.jsonl.journal`` and so on. Each process writes
one journal, and reads all journals to see which rows are done. A row is identified by its content instead of its position, so any process
may receive the row, in any order. This module sends no requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qreward.bulk.inputs import InputLine
from qreward.bulk.journal import Journal, JournalInUse, Line, check_header, read_header, read_records
from qreward.bulk.outputs import OutputFile
from qreward.bulk.records import BATCH, DONE, FAILED, STARTED, Record, decode
from qreward.bulk.requests import IDS
from qreward.errors import ConfigError


class KeyedLine(NamedTuple):
    """A row that is identified by its content.

    Attributes:
        digest: 64-bit hash of the row's content, as in the journal.
        identifier: ``qreward-`` and a 128-bit hash of the row's content. It is the ``id`` of the row's line in the output.
        line: the row as a line of the input. If the row has neither ``custom_id`` nor ``id``, ``identifier`` becomes its
            ``custom_id``.
    """

    digest: int
    identifier: str
    line: InputLine


def keyed_line(row: Mapping[str, Any]) -> KeyedLine:
    """Return a row with the hash of its content. Neither the order of columns nor columns with null change the hash.

    Raises:
        TypeError: a value cannot be written as JSON.

    Example:
        >>> keyed_line({"id": 1, "prompt": "Why?"}).digest == keyed_line({"prompt": "Why?", "id": 1, "model": None}).digest
        True
    """
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
    """Holds the results in all journals of a folder. Each row with a result takes about 100 bytes of memory.

    Args:
        path: the folder. If the processes run on several machines, the folder must be on a file system that all of them share.
        settings: the settings that all runs in the folder must share, as JSON values.
        force: True accepts journals of other settings.
        retry_failed: True counts rows that failed before this object was created as not done.

    Attributes:
        sent: total number of times that rows were sent.
        sent_again: number of times that a row was sent although the row had been sent before. Either an earlier run had sent the row and
            received no result, or another process sent the row at the same time.

    Raises:
        ConfigError: the folder does not exist, or holds journals of other settings.
    """

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
        """Read the records that were written since the last call.

        Raises:
            ConfigError: a journal has other settings.
            OSError: a journal cannot be read.
        """
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
        """Return the result of a row; None if it is not done."""
        entry = self._answers.get(row.digest)
        if entry is None:
            return None
        with self._part(entry >> 48).open("rb") as file:
            file.seek((entry & (1 << 48) - 1) >> 1)
            record = decode(file.readline())
        result = b"" if record is None else bytes(record.content)
        # the 128-bit identifier is compared, because two rows may have the same 64-bit digest, although this is unlikely
        return Line(bool(entry & 1), result) if result.startswith(b'{"id":"%b"' % row.identifier.encode()) else None

    @property
    def done(self) -> int:
        """The number of rows with a result."""
        return len(self._answers)

    @property
    def failed(self) -> int:
        """The number of rows whose result is an error."""
        return sum(not entry & 1 for entry in self._answers.values())

    @property
    def in_flight(self) -> int:
        """The number of rows that were sent and have no result."""
        return sum(digest not in self._answers for digest in self._started)

    # writing

    def claim(self) -> tuple[int, Journal]:
        """Open the first journal that no process has open. If there is none, create a journal.

        Returns the number of the journal, and the journal.

        Raises:
            ConfigError: the journal cannot be written, or has other settings.
        """
        for part in count():
            try:
                return part, Journal(self._part(part), self._settings, force=self._force)
            except JournalInUse:
                continue
        raise AssertionError

    def write(self) -> int:
        """Write the rows that succeeded and the rows that failed to separate files, two files for each journal.

        For example, the rows of the first journal that succeeded go to ``part-00000.jsonl``, and the rows that failed go to
        ``part-00000.failed.jsonl``. Each row is written once. Returns the number of files such as ``part-00000.jsonl``.

        Raises:
            OSError: a file cannot be written, for example because the disk is full. Files of an earlier run are then unchanged.
        """
        files = 0
        for part in sorted(self._ends):
            name = self._part(part).name.removesuffix(".journal")
            files += OutputFile(self.path / name).write(self._lines(part, ok=True)) > 0
            OutputFile(self.path / f"{Path(name).stem}.failed.jsonl").write(self._lines(part, ok=False))
        return files

    def _lines(self, part: int, *, ok: bool) -> Iterator[bytes]:
        for place, _, record in read_records(self._part(part)):
            if record.kind in (DONE, FAILED) and self._answers.get(record.digest) == (part << 48 | place << 1 | ok):
                yield bytes(record.content)

    def _part(self, part: int) -> Path:
        return self.path / f"part-{part:05}.jsonl.journal"


def make_folder(path: Path) -> Path:
    """Create a folder if it does not exist, and return its path. Raises ``ConfigError`` if it cannot be created."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the output {str(path)!r} cannot be a folder: {error.strerror}; name another") from None
    return path
