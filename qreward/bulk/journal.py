"""The journal of a bulk run: an append-only file that says which lines were sent, and holds the results of those that are done.

Each record is one line of text::

    <crc32> S<ordinal> <digest>              the line was sent
    <crc32> D<ordinal> <digest> <result>     it is done; the result is a line of the output
    <crc32> F<ordinal> <digest> <result>     it failed
    <crc32> B<number> <JSON>                 a provider batch: the lines that it holds, then its identifier, then its end

The first record is the header: a JSON object with what a run must have in common with those before it. An ordinal is the position of a line
in the input, from 0; the digest is that of the line. A record is written to the operating system before the request is sent, or before its
result counts, so a killed process loses none; ``fsync`` follows within ``SYNC`` seconds, so a power failure loses that much. The end of a
record that was cut off in writing is dropped when the journal is opened. A damaged record before the end is passed over: its line is sent
again. A lock refuses a second run on the same file.

An own format and not SQLite, because a record must be written before its request is sent: that costs 7 us a line here, and 33 us as a
transaction of SQLite (``benchmarks/bulk.py --only journal``). Any text tool can read it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from qreward.bulk.provider import HeldBatch, read_record
from qreward.errors import ConfigError, QRewardError

SYNC = 0.1
"""Seconds within which a record is synchronised to the disk."""
CHUNK = 1 << 22
"""Bytes that are read at once."""
RESERVED = 1 << 20
"""Bytes of the disk that are reserved at once, so that a full disk is noticed before a request is sent and not after."""
HEADER = "qreward journal 1"
_ENTRY = struct.Struct("<QQ")  # of the index: where the record begins, plus 1, and the digest
_HEAD = 40
"""Bytes of a record before its result: crc32, kind, ordinal, digest, and the spaces between them."""


class JournalFull(QRewardError):
    """The disk is full. Everything that is done is in the journal; make room and run the same command again."""


class JournalInUse(ConfigError):
    """Another run has the journal open."""


class Line(NamedTuple):
    """One line of the input that is done.

    Attributes:
        ok: False if it failed.
        result: its line of the output, without the line break.
    """

    ok: bool
    result: bytes


class Index:
    """Where the journal holds the results, by ordinal. In a temporary file, so that ten million lines need no memory.

    It takes 16 bytes a line.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the journal
        self._room = 0
        self._map: mmap | None = None
        self.size = 0

    def __setitem__(self, ordinal: int, entry: tuple[int, int]) -> None:
        self.make_room(ordinal)
        assert self._map is not None
        offset, digest = entry
        _ENTRY.pack_into(self._map, ordinal * _ENTRY.size, offset + 1, digest)
        self.size = max(self.size, ordinal + 1)

    def get(self, ordinal: int) -> tuple[int, int] | None:
        """Return the offset of the record and the digest, or None if the line is not done."""
        if self._map is None or ordinal >= self.size:
            return None
        place, digest = _ENTRY.unpack_from(self._map, ordinal * _ENTRY.size)
        return (place - 1, digest) if place else None

    def make_room(self, ordinal: int) -> None:
        """Grow so far that the ordinal fits. Raises ``JournalFull``."""
        if ordinal < self._room:
            return
        room = max(1 << 16, 2 * self._room, ordinal + 1)
        try:
            self._file.truncate(room * _ENTRY.size)
            _allocate(self._file.fileno(), 0, room * _ENTRY.size)  # else a full disk would end the process when the map is written
        except OSError as error:
            what = f"no space is left in {tempfile.gettempdir()!r} for the index of the journal ({error.strerror})"
            raise JournalFull(f"{what}; make room, or set TMPDIR to another folder, and run the same command again") from None
        if self._map is not None:
            self._map.close()  # not every system can resize a map
        self._map, self._room = mmap(self._file.fileno(), room * _ENTRY.size), room

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._file.close()


class Journal:
    """The journal of one output. Opening it locks it, drops a torn end, and indexes what is done.

    Args:
        path: path of the file; it is created if it does not exist.
        settings: what all runs on this journal have in common, as JSON values.
        force: go on although the settings differ.
        retry_failed: lines that failed count as not done.

    Attributes:
        torn: bytes that are no valid record: of one at the end that was cut off in writing, or of damaged ones.
        unfinished: lines that an earlier run had sent, and whose result it did not receive. They may be paid twice.
        done, failed: lines with a result, and those of them that failed.
        held: number -> provider batch of an earlier run that has not ended. Its lines are paid there.
        batches: provider batches that were ever recorded; the number of the next.
        lost: lines whose result could not be written. They are sent again by the next run.

    Raises:
        ConfigError: another run has it open, it is no journal, or its settings differ; the message names the first that does.
        JournalFull: the disk has no space for it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, force: bool = False, retry_failed: bool = False) -> None:
        self.path, self.torn, self.done, self.failed, self.lost = path, 0, 0, 0, 0
        self._retry_failed = retry_failed
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"the journal {str(path)!r} cannot be written: {error.strerror}") from None
        self._lock()
        self._index = Index()
        self._started: set[int] = set()  # sent, with no result yet
        self.held: dict[int, HeldBatch] = {}
        self.batches = 0
        self._end = self._seen = self._reserved = 0
        self._largest = 4096
        self._unwritten: list[bytes] = []  # results that are not written yet, and their size
        self._waiting = 0
        self._dirty, self._closing = threading.Event(), threading.Event()
        try:
            self._recover(settings, force=force)
        except BaseException as error:
            self._index.close()
            os.close(self._file)
            raise (self._unusable(error) if isinstance(error, OSError) else error) from None
        self.unfinished = frozenset(self._started)
        self._started.clear()
        self._trouble: OSError | None = None
        self._syncer = threading.Thread(target=self._sync_often, name="qreward-journal", daemon=True)
        self._syncer.start()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise ConfigError(f"the journal {str(self.path)!r} cannot be locked: {error.strerror}; name an output elsewhere") from None
            raise JournalInUse(f"another run is writing to {str(self.path)!r}; wait for it, or name another output") from None

    # opening

    def _recover(self, settings: Mapping[str, Any], *, force: bool) -> None:
        with self.path.open("rb", buffering=0) as file:
            rest = b""
            while data := file.read(CHUNK):
                *records, rest = (rest + data).split(b"\n")
                if not self._take_all(records, settings, force=force):
                    break
                if not rest.strip(b"\0"):  # space that is reserved and not written yet
                    self._seen, rest = self._seen + len(rest), b""
            file.seek(self._end)
            tail = file.read(CHUNK).rstrip(b"\0")
        if self._end == 0:
            self._write_header(tail, settings)
            return
        self.torn += len(tail)
        os.ftruncate(self._file, self._end)
        self._reserved = self._end

    def _write_header(self, found: bytes, settings: Mapping[str, Any]) -> None:
        """Begin a new journal. ``found`` is what the file holds: nothing, or a header that was cut off in writing."""
        record = _record(json.dumps({"format": HEADER, **settings}, sort_keys=True).encode())
        if not record.startswith(found):
            raise ConfigError(f"{str(self.path)!r} is not a journal of qreward; name another output, or remove the file")
        os.ftruncate(self._file, 0)
        self._reserve(len(record))
        self._put(record)
        os.fsync(self._file)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)  # else the file's name may be lost in a power failure
        os.close(folder)

    @staticmethod
    def check_header(path: Path, line: bytes, settings: Mapping[str, Any], *, force: bool) -> None:
        """Raise ``ConfigError`` if the first record of a journal is not a header, or its settings differ."""
        try:
            header = dict(json.loads(line[9:]))
        except (ValueError, TypeError):
            header = {}
        if header.pop("format", None) != HEADER:
            raise ConfigError(f"{str(path)!r} is not a journal of this version of qreward; name another output, or remove the file")
        now = json.loads(json.dumps(settings))
        for name in sorted(header.keys() | now.keys()):
            if header.get(name) != now.get(name) and not force:
                raise ConfigError(
                    f"{name} has changed since the run that {str(path)!r} belongs to: "
                    f"{header.get(name)!r} then, {now.get(name)!r} now; name another output, or go on with resume=force"
                )

    def _take_all(self, records: Sequence[bytes], settings: Mapping[str, Any], *, force: bool) -> bool:
        """Take in the records that follow ``_seen``, but for damaged ones. Returns False if the first of all is not valid."""
        offset, end, started, index, check = self._seen, self._end, self._started, self._index, crc32
        for record in records:
            try:
                is_valid = int(record[:8], 16) == check(memoryview(record)[9:])
            except ValueError:
                is_valid = False
            if not is_valid:
                if not end:
                    return False
                offset += len(record) + 1
                continue
            if offset != end:  # damaged records were passed over
                self.torn += offset - end
            if not offset:
                self.check_header(self.path, record, settings, force=force)
            elif record[9] == _S:
                started.add(int(record[10:22]))
            elif record[9] == _B:
                self.batches = max(self.batches, 1 + read_record(self.held, int(record[10:22]), record[23:]))
            else:
                ordinal = int(record[10:22])
                started.discard(ordinal)
                if ordinal < index.size:
                    self._forget(ordinal)
                self._count(record[9])
                index[ordinal] = offset, int(record[23:39], 16)
            end = offset = offset + len(record) + 1
        self._seen, self._end = offset, end
        return True

    def _count(self, kind: int) -> None:
        if kind == _D or not self._retry_failed:
            self.done += 1
            self.failed += kind == _F

    def _forget(self, ordinal: int) -> None:
        """Uncount the result of a line, because a later one replaces it."""
        if (had := self._index.get(ordinal)) is not None:
            was_failed = os.pread(self._file, 1, had[0] + 9) == b"F"
            if not was_failed or not self._retry_failed:
                self.done -= 1
                self.failed -= was_failed

    # while running

    def digest(self, ordinal: int) -> int | None:
        """Return the digest of a line that is done; None if it is not, or failed and is to be tried again."""
        entry = self._index.get(ordinal)
        if entry is None or (self._retry_failed and os.pread(self._file, 1, entry[0] + 9) == b"F"):
            return None
        return entry[1]

    def in_order(self) -> Iterator[Line]:
        """Yield the results in the order of the input. Of a line that was sent again, the last one."""
        for ordinal in range(self._index.size):
            if (entry := self._index.get(ordinal)) is not None:
                yield self._read(entry[0])

    def as_done(self) -> Iterator[Line]:
        """Yield the results in the order in which they were received. Of a line that was sent again, the last one."""
        offset = 0
        with self.path.open("rb") as file:
            for record in file:
                if offset and record[9:10] in (b"D", b"F"):
                    entry = self._index.get(int(record[10:22])) if record[10:22].isdigit() else None  # it may be damaged
                    if entry is not None and entry[0] == offset:
                        yield Line(record[9] == _D, record[_HEAD:-1])
                offset += len(record)
                if offset >= self._end:
                    return

    def _read(self, offset: int) -> Line:
        data = os.pread(self._file, self._largest, offset)
        while (end := data.find(b"\n")) < 0:
            more = os.pread(self._file, CHUNK, offset + len(data))
            if not more:
                raise QRewardError(f"{str(self.path)!r} was changed by another program while it was in use")
            data += more
        return Line(data[9] == _D, data[_HEAD:end])

    def start(self, ordinal: int, digest: int) -> None:
        """Record that a line is about to be sent.

        Raises:
            JournalFull: the disk has no space for its result. It must not be sent.
        """
        if self._trouble is not None:
            raise self._unusable(self._trouble)
        self._index.make_room(ordinal)
        record = _record(b"S%012d %016x" % (ordinal, digest))
        self._started.add(ordinal)
        try:
            self._reserve(self._waiting + len(record) + len(self._started) * self._largest)
            self._put(record)
        except OSError as error:
            self._started.discard(ordinal)
            raise self._unusable(error) from None

    def finish(self, ordinal: int, digest: int, result: bytes, *, ok: bool) -> int:
        """Take in the result of a line, a line of the output without line breaks. It is written with the next record, or by ``flush``.

        Returns the place of its record in the file.
        """
        record = _record(b"%c%012d %016x %b" % (_D if ok else _F, ordinal, digest, result))
        size, place = len(record), self._end + self._waiting
        self._started.discard(ordinal)
        if ordinal < self._index.size:
            self._forget(ordinal)
        self._index[ordinal] = place, digest
        self._unwritten.append(record)
        self._waiting += size
        self._largest = max(self._largest, size)
        self.done += 1
        self.failed += not ok
        return place

    def record_batch(self, number: int, content: bytes) -> None:
        """Record something of a provider batch, and wait until it is on the disk.

        Raises:
            JournalFull: the disk has no space for it.
        """
        try:
            self._put(_record(b"B%012d %b" % (number, content)))
            os.fdatasync(self._file)
        except OSError as error:
            raise self._unusable(error) from None

    def flush(self) -> bool:
        """Write the results that are not written yet. Returns False if that fails: they are kept, and written by the next call."""
        if self._unwritten:
            with suppress(OSError):  # raised by the next ``start``, or by ``close``
                self._put()
        return not self._unwritten

    def cut(self, lines: int) -> None:
        """Leave out the results of all lines but the first ones: the input has become shorter."""
        for ordinal in range(lines, self._index.size):
            self._forget(ordinal)
        self._index.size = min(lines, self._index.size)

    def _reserve(self, size: int) -> None:
        """Reserve disk space, so that ``size`` more bytes can be written. Raises ``OSError``."""
        wanted = self._end + size
        if wanted > self._reserved:
            more = max(RESERVED, wanted - self._reserved)
            try:
                _allocate(self._file, self._reserved, more)
            except OSError as error:
                if error.errno != errno.ENOSPC or more == wanted - self._reserved:
                    raise
                more = wanted - self._reserved
                _allocate(self._file, self._reserved, more)
            self._reserved += more

    def _put(self, record: bytes = b"") -> None:
        """Write the results that are not written yet, and a record. Raises ``OSError``, and keeps the results that were not written."""
        data = b"".join((*self._unwritten, record)) if self._unwritten else record
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:] if written else data, self._end + written)
        self._end += len(data)
        self._unwritten.clear()
        self._waiting = 0
        self._dirty.set()

    def _sync_often(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._trouble = error
            self._closing.wait(SYNC)

    def _unusable(self, error: OSError) -> QRewardError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return JournalFull(f"no space is left for {str(self.path)!r}; make room and run the same command again")
        return QRewardError(f"the journal {str(self.path)!r} cannot be written: {error.strerror}")

    @property
    def started(self) -> int:
        """The number of lines that were sent and have no result yet."""
        return len(self._started)

    @property
    def size(self) -> int:
        """The highest ordinal with a result, plus 1."""
        return self._index.size

    def close(self) -> None:
        """Write and synchronise what is left, and unlock the journal.

        Raises:
            JournalFull: results could not be written, because the disk is full; ``lost`` is their number.
            QRewardError: the disk failed otherwise.
        """
        self._closing.set()
        self._dirty.set()
        self._syncer.join()
        trouble = self._trouble
        for step in (self._put, self._cut_off_reserved, partial(os.fsync, self._file)):
            try:
                step()
            except OSError as error:
                trouble = trouble or error
        os.close(self._file)
        self._index.close()
        self.lost = len(self._unwritten)
        self.done -= self.lost
        self.failed -= sum(record[9] == _F for record in self._unwritten)
        if trouble is not None:
            raise self._unusable(trouble)

    def _cut_off_reserved(self) -> None:
        os.ftruncate(self._file, self._end)


_S, _D, _F, _B = b"SDFB"


def _record(content: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(content), content)


def _allocate(file: int, offset: int, size: int) -> None:
    """Reserve disk space, where the system and the file system can. Raises ``OSError`` if there is none."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, offset, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
