"""The journal of a bulk run: an append-only file of the lines that were sent, their cost and their results."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from qreward.bulk.budget import NOTHING, Spent
from qreward.bulk.inputs import DIGEST, LONGEST_LINE, NEWLINE
from qreward.bulk.provider import HeldBatch, apply_event
from qreward.engine import background
from qreward.errors import ConfigError, QRewardError

FORMAT = "qreward journal 4"
STARTED, DONE, FAILED, WITHDRAWN, BATCH = "SDFCB"
"""The kinds of records. A record is a line ``["S", key, tokens, cost, content, checksum]``; docs/how-to/bulk.md describes the format."""
SYNC = 0.1  # seconds within which a record is synchronised to the disk
CHUNK = 1 << 20
"""Number of bytes that are read at once, and of disk space that are reserved at once. If the disk is full, the reservation fails before a
request is sent."""

CONTINUE = 'continue with --resume force (in Python: resume="force")'  # end of a message that refuses to continue a run
SHOWN = 200  # maximum number of characters of a setting in a message
_UNSENT = ("BadRequest", "ConfigError", "NoEndpoint")
"""Errors of a line for which no request could be made. An error of these classes that a server caused has attempts or a status."""


_OK, _READ = 1, 2
"""Bits of an entry of the index: the line succeeded; the line was read from the input of this run. The other bits are the offset."""


class Record(NamedTuple):
    """``key`` is that of a line, or the number of a provider batch; ``content`` is a result or the event of a batch, as JSON."""

    kind: str
    key: int
    spent: Spent
    content: bytes

    @property
    def ok(self) -> bool:
        return self.kind == DONE


def encode(kind: str, key: int, spent: Spent = NOTHING, content: bytes = b"null") -> bytes:
    """Return the line of a record. ``content`` must be JSON without line breaks. The checksum is the CRC-32 of all that precedes it."""
    found = b'["%b",%d,%d,%r,%b' % (kind.encode(), key, spent.tokens, spent.cost, content)
    return b"%b,%d]\n" % (found, crc32(found))


def decode(line: bytes) -> Record | None:
    """Return the record in a line; None if the line is incomplete or damaged."""
    found, _, checksum = line.rpartition(b",")
    if checksum.replace(b"\r\n", b"\n") != b"%d]\n" % crc32(found) or not found.startswith(b'["'):  # an editor may change line ends
        return None
    kind, key, tokens, cost, content = found[1:].split(b",", 4)  # not parsed: half a surrogate pair is JSON for some parsers only
    return Record(kind[1:-1].decode(), int(key), Spent(int(tokens), float(cost)), content)


class JournalFull(QRewardError):
    """The disk is full. The journal holds all results up to now; free some space and run the same command again."""


class JournalInUse(ConfigError):
    """Raised when another run has the journal open."""


class Journal:
    """The journal of one output file. Opening a journal locks the file, drops an incomplete record, and builds an index of the results.

    The key of a line is the hash of its content; the n-th of equal lines has a key of its own. A record of a sent line is written before
    its request is sent, so a killed process loses no record; ``fsync`` follows within ``SYNC`` seconds.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], *, force: bool = False, retry_failed: bool = False, start_over: bool = False
    ) -> None:
        self.path, self.torn = path, 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"the journal {str(path)!r} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise ConfigError(f"the journal {str(path)!r} cannot be locked: {error.strerror}; name an output elsewhere") from None
            raise JournalInUse(f"another run is writing to {str(path)!r}; wait for it, or name another output") from None
        self._index: dict[int, int] = {}  # key -> offset of the result, 0 without one, and two bits
        self._order = array("Q")  # the keys of the lines that were read, in the order of the input
        self._equal: Counter[int] = Counter()  # digest -> number of lines that equal an earlier line
        self._skips_failed = retry_failed  # the failures of earlier runs
        self.started: set[int] = set()  # keys of the lines that this run sent and that have no result in the file
        self.failed_before: set[int] = set()  # keys of lines that failed in an earlier run, and that no server had processed
        self._left_before: dict[int, Spent] = {}  # key of such a line of an earlier run -> its maximum cost
        self.paid_before = 0  # number of results of earlier runs that have a cost
        self.spent_before = NOTHING  # what earlier runs spent; a line of theirs without a result counts with its maximum cost
        self.held: dict[int, HeldBatch] = {}
        self.batches = 0
        self._largest = 4096
        self._unwritten = bytearray()  # records that are not written yet
        self._dirty, self._closing = threading.Event(), threading.Event()
        try:
            self._recover(settings, force=force, start_over=start_over)
        except BaseException as error:
            os.close(self._file)
            raise (self._error_of(error) if isinstance(error, OSError) else error) from None
        self.unfinished = frozenset(self._left_before)
        self.spent_before = sum(self._left_before.values(), self.spent_before)
        self._sync_error: OSError | None = None
        self._syncer = threading.Thread(target=self._sync_often, name="qreward-journal", daemon=True)
        self._syncer.start()
        background.watch(self, Journal._give_up_in_child)

    def _give_up_in_child(self) -> None:
        """Replace the file in a forked child, which would otherwise keep it locked and could write to it."""
        if not self._closing.is_set():
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, self._file, inheritable=False)
            os.close(nothing)

    # opening

    def _recover(self, settings: Mapping[str, Any], *, force: bool, start_over: bool) -> None:
        header = read_header(self.path)
        if not header.endswith(b"\n") and len(header) < LONGEST_LINE:
            self._write_header(header.rstrip(b"\0"), settings)
            return
        check_header(self.path, header, settings, force=force or start_over)
        self._end = len(header)
        for place, end, record in read_records(self.path, self._end):
            self.torn += place - self._end  # damaged records were skipped
            if start_over and (self.torn or not _is_unsent(record)):
                start_over = False
                check_header(self.path, header, settings, force=force)
            self._apply(record, place)
            self._end = end
        with self.path.open("rb") as file:
            file.seek(self._end)
            rest = file.read(CHUNK).rstrip(b"\0")
        self.torn += len(rest)
        if start_over and not (self.torn or self._left_before) and self.spent_before == NOTHING:  # no request was sent for any line
            self._index.clear()
            self._write_header(b"", settings)
            return
        check_header(self.path, header, settings, force=force)
        if self._end == len(header) and NEWLINE in rest:  # a killed run leaves at most one incomplete line
            raise ConfigError(f"no record of {str(self.path)!r} is intact; restore the file as it was, name another output, or remove it")
        os.ftruncate(self._file, self._end)
        self._reserved = self._end

    def _write_header(self, found: bytes, settings: Mapping[str, Any]) -> None:
        """Begin a new journal. ``found`` is the content of the file: nothing, or an incomplete header."""
        header = json.dumps({"format": FORMAT, **settings}, sort_keys=True).encode() + b"\n"
        if not header.startswith(found):
            raise ConfigError(f"{str(self.path)!r} is not a journal of qreward; name another output, or remove the file")
        os.ftruncate(self._file, 0)
        self._end = self._reserved = 0
        self._reserve(len(header))
        self._unwritten += header
        self._put()
        os.fsync(self._file)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)  # without this, a power failure may lose the name of the file
        os.close(folder)

    def _apply(self, record: Record, place: int) -> None:
        kind, key = record.kind, record.key
        if kind == STARTED:
            self.spent_before += self._left_before.pop(key, NOTHING)
            self._left_before[key] = record.spent
            return
        self.spent_before += record.spent
        if kind == BATCH:
            apply_event(self.held, key, record.content)
            self.batches = max(self.batches, key + 1)
            return
        self._left_before.pop(key, None)
        self.paid_before += record.spent != NOTHING
        if kind == DONE or (kind == FAILED and not self._skips_failed):
            self._index[key] = place << 2 | record.ok
        elif kind == WITHDRAWN and self._index.pop(key, None) is not None:  # of a failure
            self.failed_before.add(key)

    # the lines

    def take(self, digest: int) -> tuple[int, bool]:
        """Return the key of a line that was read from the input, and whether the line is done."""
        found = self._index.get(digest, 0)
        if found & _READ:
            self._equal[digest] += 1
            digest = digest + self._equal[digest] & DIGEST
            found = self._index.get(digest, 0)
        self._index[digest] = found | _READ
        self._order.append(digest)
        return digest, found > _READ

    def is_done(self, key: int) -> bool:
        """Return whether a line has a result. With ``retry_failed``, lines that failed in an earlier run have none."""
        return self._index.get(key, 0) > _READ

    def drop_unread(self) -> None:
        """Drop the results of lines that are not in the input any more."""
        if len(self._index) > len(self._order):
            self._index = {key: found for key, found in self._index.items() if found & _READ}

    @property
    def done(self) -> int:
        return sum(found > _READ for found in self._index.values())

    @property
    def failed(self) -> int:
        return sum(not found & _OK and found > _READ for found in self._index.values())

    def in_order(self) -> Iterator[Record]:
        """Yield the results in the order of the input. A line with several results yields the last one."""
        with self.path.open("rb") as file:
            for key in self._order:
                if (place := self._index[key] >> 2) == 0:
                    continue
                file.seek(place)
                if (record := decode(file.readline())) is None:
                    raise QRewardError(f"{str(self.path)!r} was changed by another program while it was in use")
                yield record

    # while running

    def start(self, key: int, most: Spent = NOTHING) -> None:
        """Record that a line is about to be sent, and its maximum cost. Call ``write`` before it is sent. Raises ``JournalFull``."""
        if self._sync_error is not None:
            raise self._error_of(self._sync_error)
        found = encode(STARTED, key, most)
        try:
            self._reserve(len(self._unwritten) + len(found) + (1 + len(self.started)) * self._largest)
        except OSError as error:
            raise self._error_of(error) from None
        self._left_before.pop(key, None)
        self.started.add(key)
        self._unwritten += found

    def write(self) -> None:
        if self._unwritten:
            try:
                self._put()
            except OSError as error:
                raise self._error_of(error) from None

    def finish(self, key: int, result: bytes, spent: Spent = NOTHING, *, ok: bool) -> int:
        """Record the result of a line and its cost, and return the offset of the record. ``write`` or ``flush`` writes it."""
        place = self._end + len(self._unwritten)
        self._largest = max(self._largest, self._end_line(DONE if ok else FAILED, key, spent, result))
        self._index[key] = place << 2 | self._index.get(key, 0) & _READ | ok
        return place

    def withdraw(self, key: int, spent: Spent = NOTHING) -> None:
        """Record that a line is no longer in flight, has no result, and has cost ``spent``."""
        self._end_line(WITHDRAWN, key, spent, b"null")

    def _end_line(self, kind: str, key: int, spent: Spent, content: bytes) -> int:
        found = encode(kind, key, spent + self._left_before.pop(key, NOTHING), content)
        self.started.discard(key)
        self._unwritten += found
        return len(found)

    def record_batch(self, number: int, content: bytes, spent: Spent = NOTHING) -> None:
        """Record an event of a provider batch, and wait until the record is on the disk. Raises ``JournalFull``."""
        self._unwritten += encode(BATCH, number, spent, content)
        self.write()
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise self._error_of(error) from None

    def flush(self) -> bool:
        """Write all records that are not written yet. Returns False if the writing fails; the next call tries again."""
        with suppress(QRewardError):  # the next ``start`` or ``close`` raises the error
            self.write()
        return not self._unwritten

    # writing

    def _reserve(self, size: int) -> None:
        if (missing := self._end + size - self._reserved) <= 0:
            return
        more = max(CHUNK, missing)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, self._reserved, more)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # the file system cannot reserve space
                raise
        self._reserved += more

    def _put(self) -> None:
        """Write all records that are not written yet. If this raises ``OSError``, the records are kept."""
        data, written = bytes(self._unwritten), 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:] if written else data, self._end + written)
        self._end += len(data)
        self._unwritten.clear()
        self._dirty.set()

    def _sync_often(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._sync_error = error
            self._closing.wait(SYNC)

    def _error_of(self, error: OSError) -> QRewardError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return JournalFull(f"no space is left for {str(self.path)!r}; make room and run the same command again")
        return QRewardError(f"the journal {str(self.path)!r} cannot be written: {error.strerror}")

    def close(self) -> None:
        """Write and synchronise the remaining records, and unlock the journal. Raises ``JournalFull`` and ``QRewardError``."""
        self._closing.set()
        self._dirty.set()
        self._syncer.join()
        trouble = self._sync_error
        for step in (self._put, lambda: os.ftruncate(self._file, self._end), partial(os.fsync, self._file)):
            try:
                step()
            except OSError as error:
                trouble = trouble or error
        fcntl.flock(self._file, fcntl.LOCK_UN)  # a child that was forked meanwhile may have the file open
        os.close(self._file)
        for record in filter(None, map(decode, bytes(self._unwritten).splitlines(keepends=True))):
            if record.kind in (DONE, FAILED):  # the disk is full
                self._index[record.key] &= _READ
                self.started.add(record.key)
        if trouble is not None:
            raise self._error_of(trouble)


def read_header(path: Path) -> bytes:
    """Return the first line of a journal. It has no line break if it is incomplete, or if the file is not a journal."""
    with path.open("rb") as file:
        return file.readline(LONGEST_LINE)


def check_header(path: Path, line: bytes, settings: Mapping[str, Any], *, force: bool) -> None:
    try:
        header = dict(json.loads(line[max(0, line.find(b"{")) :]))  # earlier formats have a checksum before it
    except (ValueError, TypeError):
        header = {}
    if (found := header.pop("format", None)) != FORMAT:
        what = f"is a {found}, and this version of qreward writes a {FORMAT}" if found else "is not a journal of qreward"
        raise ConfigError(f"{str(path)!r} {what}; name another output, or remove the file")
    now = json.loads(json.dumps(settings))
    for name in sorted(header.keys() | now.keys()):
        if header.get(name) != now.get(name) and not force:
            then, since = (repr(each.get(name))[:SHOWN] for each in (header, now))
            raise ConfigError(
                f"{name} has changed since the run that {str(path)!r} belongs to: {then} then, {since} now; "
                f"name another output, or {CONTINUE}"
            )


def read_records(path: Path, place: int = 0, *, in_use: bool = False) -> Iterator[tuple[int, int, Record]]:
    """Yield begin, end and content of each valid record from the offset ``place`` on.

    If the journal is ``in_use`` by another process, its records end where reserved space begins. The other process may fill this space,
    and write behind it, while it is read.
    """
    # opened on each call, because network file systems show the writes of other machines only to a newly opened file
    with BufferedReader(path.open("rb", buffering=0), CHUNK) as file:
        file.seek(place)
        while ahead := file.peek():
            if reserved := len(ahead) - len(ahead.lstrip(b"\0")):  # space without line breaks, which may be large
                if in_use:
                    return
                place += len(file.read(reserved))
                continue
            line = file.readline()
            if (record := decode(line)) is not None:
                yield place, place + len(line), record
            place += len(line)


def _is_unsent(record: Record) -> bool:
    """Return whether a line failed before a request was sent for it, or may do so: of a scorer, a line is sent before its item is valid."""
    if record.kind != FAILED:
        return record.kind == STARTED
    error = json.loads(record.content)["error"]
    return error["code"] in _UNSENT and error["status_code"] is None and not error["attempts"]
