"""The journal of a bulk run: an append-only file of the lines that were sent, their cost and their results.

:mod:`qreward.bulk.records` lists the kinds of records. The record of a sent line is written before its request is sent, and the record of a
result is written before the result counts. Killing the process therefore loses no record. ``fsync`` follows within ``SYNC`` seconds. A
power failure can lose the records that were written after the last ``fsync``. An incomplete record at the end is dropped when the journal
is opened. A damaged record elsewhere is skipped, and its line is sent again. A lock prevents a second run on the same file. A large journal
also has summary records, so its other records need not be read one by one.

The format is text, so any text tool can read it. SQLite is not used, because a record must be written before each request. Writing to the
journal takes 6 us a line, and a transaction of SQLite takes 36 us (``benchmarks/bulk.py --only journal``).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from qreward.bulk import records
from qreward.bulk.budget import NOTHING, Spent
from qreward.bulk.index import Index, JournalFull, allocate
from qreward.bulk.provider import HeldBatch, apply_record
from qreward.bulk.records import BATCH, BLOCK, DONE, FAILED, STARTED, WITHDRAWN, BlockMark, Summary
from qreward.errors import ConfigError, QRewardError

SYNC = 0.1
"""Seconds within which a record is synchronised to the disk."""
CHUNK = 1 << 22
"""Number of bytes that are read at once, and number of bytes of records after which a summary is written."""
SUMMARISED, AT_THE_END = 8192, 256
"""``SUMMARISED``: number of results after which a summary is written. ``AT_THE_END``: minimum number of results without a summary. If
fewer results are left at the end of a run, no summary is written for these results."""
RESERVED = 1 << 20
"""Number of bytes of disk space that are reserved at once. If the disk is full, the reservation fails before a
request is sent."""


CONTINUE = 'continue with --resume force (in Python: resume="force")'
"""End of a message that refuses to continue a run."""
_UNSENT = ("BadRequest", "ConfigError", "NoEndpoint")
"""Errors of a line for which no request could be made. An error of these classes that a server caused has attempts or a status."""


class JournalInUse(ConfigError):
    """Raised when another run has the journal open."""


class Line(NamedTuple):
    """The result of one line of the input.

    Attributes:
        ok: False if the line failed.
        result: the line of the output, without line break.
    """

    ok: bool
    result: bytes


class Journal:
    """The journal of one output file. Opening a journal locks the file, drops an incomplete record, and builds an index of the results.

    Args:
        path: path of the file; it is created if it does not exist.
        settings: the settings that all runs on this journal must share, as JSON values.
        force: True accepts a journal of other settings.
        retry_failed: True counts lines that failed as not done.
        start_over: True drops the content of the journal if no request was sent for any line (see :func:`was_never_sent`).

    Attributes:
        torn: number of bytes that belong to no valid record: to an incomplete record at the end, or to damaged records.
        unfinished: ordinals of lines that an earlier run sent without receiving a result. These lines may be charged twice.
        spent_before: tokens and cost of earlier runs. Unfinished lines count with their maximum cost.
        held: number of a provider batch -> the batch. The mapping holds the batches of earlier runs that have not ended. The provider
            charges the lines of these batches.
        batches: number of provider batches in the journal. It is also the number of the next batch, because batches are numbered from
            0.
        blocks: ordinal of the first line -> mark of a block of the input, in the order of the input. No line of these blocks has changed
            since it was sent.
        lost: number of lines whose result could not be written. The next run sends these lines again.

    Raises:
        ConfigError: another run has the file open, the file is not a journal, or its settings differ. The message names a setting that
            differs.
        JournalFull: the disk has no space for the journal.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], *, force: bool = False, retry_failed: bool = False, start_over: bool = False
    ) -> None:
        self.path, self.torn, self.lost = path, 0, 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"the journal {str(path)!r} cannot be written: {error.strerror}") from None
        self._lock()
        self._index = Index()
        self._started: dict[int, Spent] = {}  # ordinal of a line that this run sent and that has no result yet -> its maximum cost
        self._left_before: dict[int, Spent] = {}  # ordinal of a line that an earlier run sent and that has no result -> its maximum cost
        self._spent = NOTHING  # tokens and cost of all lines that are in neither of these two mappings
        self.held: dict[int, HeldBatch] = {}
        self.blocks: dict[int, BlockMark] = {}
        self.batches = 0
        self._end = self._read_to = self._reserved = 0
        self._largest = 4096
        self._unwritten: list[bytes] = []  # records that are not written yet
        self._unwritten_size = 0
        self._dirty, self._closing = threading.Event(), threading.Event()
        self._part_begin = self._part_crc = 0  # begin and checksum of the records that are in no summary yet
        self._part_results, self._part_others = array("Q"), list[int]()
        try:
            if start_over and was_never_sent(path):
                os.ftruncate(self._file, 0)
            self._recover(settings, force=force)
        except BaseException as error:
            self._index.close()
            os.close(self._file)
            raise (self._error_of(error) if isinstance(error, OSError) else error) from None
        if retry_failed:
            self._index.send_failed_again()
        self.unfinished = frozenset(self._left_before)
        self.spent_before = sum(self._left_before.values(), self._spent)
        self._begin_part()
        self._sync_error: OSError | None = None
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
        check, rest = partial(self.check_header, self.path, settings=settings, force=force), b""
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                rest = self._read_parts(rest + data, check)
                if len(rest) > 2 * CHUNK:
                    rest = self._read_records(rest, check)
                    if not self._end:
                        break
                if not rest.strip(b"\0"):  # reserved space without records
                    self._read_to, rest = self._read_to + len(rest), b""
            self._read_records(rest, check)
            file.seek(self._end)
            tail = file.read(CHUNK).rstrip(b"\0")
        if self._end == 0:
            self._write_header(tail, settings)
            return
        self.torn += len(tail)
        os.ftruncate(self._file, self._end)
        self._reserved = self._end

    def _write_header(self, found: bytes, settings: Mapping[str, Any]) -> None:
        """Begin a new journal. ``found`` is the content of the file: nothing, or an incomplete header."""
        header = records.record(json.dumps({"format": records.FORMAT, **settings}, sort_keys=True).encode())
        if not header.startswith(found):
            raise ConfigError(f"{str(self.path)!r} is not a journal of qreward; name another output, or remove the file")
        os.ftruncate(self._file, 0)
        self._reserve(len(header))
        self._put(header)
        os.fsync(self._file)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)  # without this, a power failure may lose the name of the file
        os.close(folder)

    @staticmethod
    def check_header(path: Path, line: bytes, settings: Mapping[str, Any], *, force: bool) -> None:
        """Raise ``ConfigError`` if ``line``, the first record of a journal, is not a header or has other settings."""
        try:
            header = dict(json.loads(line[9:]))
        except (ValueError, TypeError):
            header = {}
        if (found := header.pop("format", None)) != records.FORMAT:
            what = f"is a {found}, and this version of qreward writes a {records.FORMAT}" if found else "is not a journal of qreward"
            raise ConfigError(f"{str(path)!r} {what}; name another output, or remove the file")
        now = json.loads(json.dumps(settings))
        for name in sorted(header.keys() | now.keys()):
            if header.get(name) != now.get(name) and not force:
                raise ConfigError(
                    f"{name} has changed since the run that {str(path)!r} belongs to: "
                    f"{header.get(name)!r} then, {now.get(name)!r} now; name another output, or {CONTINUE}"
                )

    def _read_parts(self, data: bytes, check: Callable[[bytes], None]) -> bytes:
        """Read all parts of ``data`` that end with a summary, and return the remaining bytes. These begin at offset ``_read_to``."""
        begin = 0
        for place, end in records.summaries_in(data):
            self._read_part(data[begin:place], data[place:end], check)
            begin = end + 1
        return data[begin:]

    def _read_part(self, part: bytes, summary: bytes, check: Callable[[bytes], None]) -> None:
        """Read a part of the journal: from its summary, or record by record if the checksum of the summary does not match."""
        begin = records.number_of(summary) - self._read_to if records.is_valid(summary) else -1
        found = records.read_summary(summary) if 0 <= begin <= len(part) else None
        if found is None or crc32(memoryview(part)[begin:]) != found.crc:
            self._read_records(b"%b%b\n" % (part, summary), check)
            return
        self._read_records(part[:begin], check)
        if self._end:
            self._apply_summary(part[begin:], found)
            self.torn += self._read_to - self._end
            self._read_to += len(part) - begin + len(summary) + 1
            self._end = self._read_to

    def _apply_summary(self, part: bytes, summary: Summary) -> None:
        self._index.put_all(*summary.triples())
        for place in summary.others:
            begin = place - self._read_to
            self._apply(part[begin : part.index(b"\n", begin)], place)
        self._left_before = {ordinal: Spent(tokens, cost) for ordinal, tokens, cost in summary.started}
        self._spent = summary.spent

    def _read_records(self, data: bytes, check: Callable[[bytes], None]) -> bytes:
        """Read all records except damaged ones, and return the incomplete rest of ``data``. An invalid header ends the reading."""
        *found, rest = data.split(b"\n")
        for each in found:
            if records.is_valid(each):
                self.torn += self._read_to - self._end  # damaged records were skipped
                if self._end:
                    self._apply(each, self._read_to)
                else:
                    check(each)
                self._end = self._read_to + len(each) + 1
            elif not self._end:
                return data
            self._read_to += len(each) + 1
        return rest

    def _apply(self, found: bytes, place: int) -> None:
        """Apply one record to the state of the journal. The record must not be a summary."""
        kind, number = found[9], records.number_of(found)
        if kind == STARTED:
            self._spent += self._left_before.pop(number, NOTHING)
            self._left_before[number] = records.spent_of(found)
        elif kind in (DONE, FAILED, WITHDRAWN):
            self._left_before.pop(number, None)
            self._spent += records.spent_of(found)
            if kind != WITHDRAWN:
                self._index.put(number, place, records.digest_of(found), ok=kind == DONE)
        elif kind == BATCH:
            self._spent += apply_record(self.held, number, records.content_of(found))
            self.batches = max(self.batches, number + 1)
        elif kind == BLOCK:
            self._set_block(number, msgspec.json.decode(records.content_of(found), type=BlockMark | None))

    def _set_block(self, first: int, mark: BlockMark | None) -> bool:
        """Set the block that begins with the line ``first``, and remove all later blocks. If ``mark`` is None, remove the block itself too.

        Return True if a block changed.
        """
        had = len(self.blocks)
        while self.blocks and (last := self.blocks[next(reversed(self.blocks))]).first + last.lines > first:
            del self.blocks[last.first]
        if mark is not None:
            self.blocks[first] = mark
        return mark is not None or len(self.blocks) < had

    # what is done

    @property
    def done(self) -> int:
        """The number of lines with a result. With ``retry_failed``, lines that failed in an earlier run do not count."""
        return self._index.count()[0]

    @property
    def failed(self) -> int:
        """The number of lines in ``done`` that failed."""
        return self._index.count()[1]

    def are_done(self, ordinals: range) -> bool:
        """Return whether all of these lines are done."""
        return self._index.count(ordinals)[0] == len(ordinals)

    def digest(self, ordinal: int) -> int | None:
        """Return the digest of a line that is done; None for any other line."""
        entry = self._index.get(ordinal)
        return entry[1] if entry is not None and self._index.is_done(ordinal) else None

    def has_other_content(self, ordinal: int, digest: int) -> bool:
        """Return True if the journal has a result for a line, but the result belongs to another digest."""
        entry = self._index.get(ordinal)
        return entry is not None and entry[1] != digest

    def in_order(self) -> Iterator[Line]:
        """Yield the results in the order of the input. A line with several results yields the last one."""
        for ordinal in range(self._index.size):
            if (entry := self._index.get(ordinal)) is not None:
                yield self._read(entry[0])

    def as_done(self) -> Iterator[Line]:
        """Yield the results in the order in which they were received. A line with several results yields the last one."""
        for place, found in read_records(self.path):
            if found[9] in (DONE, FAILED) and (entry := self._index.get(records.number_of(found))) is not None and entry[0] == place:
                yield Line(found[9] == DONE, records.result_of(found))

    def _read(self, offset: int) -> Line:
        data = os.pread(self._file, self._largest, offset)
        while (end := data.find(b"\n")) < 0:
            more = os.pread(self._file, CHUNK, offset + len(data))
            if not more:
                raise QRewardError(f"{str(self.path)!r} was changed by another program while it was in use")
            data += more
        return Line(data[9] == DONE, records.result_of(data[:end]))

    # while running

    def start(self, ordinal: int, digest: int, most: Spent = NOTHING) -> None:
        """Record that a line is about to be sent, and its maximum cost ``most``. Call ``write`` before the request is sent.

        Raises:
            JournalFull: the disk has no space for the result, so the line must not be sent.
        """
        if self._sync_error is not None:
            raise self._error_of(self._sync_error)
        self._index.make_room(ordinal)
        found = records.line_record(STARTED, ordinal, digest, most)
        try:
            self._reserve(self._unwritten_size + len(found) + (1 + len(self._started)) * self._largest)
        except OSError as error:
            raise self._error_of(error) from None
        self._spent += self._left_before.pop(ordinal, NOTHING)
        self._started[ordinal] = most
        self._append(found)

    def write(self) -> None:
        """Write all records that are not written yet.

        Raises:
            JournalFull: the disk has no space. Lines that were started since the last call must not be sent.
        """
        if self._unwritten:
            try:
                self._put()
            except OSError as error:
                raise self._error_of(error) from None

    def finish(self, ordinal: int, digest: int, result: bytes, spent: Spent = NOTHING, *, ok: bool) -> int:
        """Record the result of a line and its cost. The record is written by the next ``write`` or ``flush``.

        Args:
            ordinal, digest: position and hash of the line.
            result: the line of the output, without line breaks.
            spent: tokens and cost of the line.
            ok: False if the line failed.

        Returns:
            The offset of the record in the file.
        """
        place, found = self._end + self._unwritten_size, self._end_of_line(DONE if ok else FAILED, ordinal, digest, spent, result)
        self._index.put(ordinal, place, digest, ok=ok)
        self._part_results.extend((ordinal, 2 * place + ok, digest))
        self._largest = max(self._largest, len(found))
        return place

    def withdraw(self, ordinal: int, digest: int, spent: Spent = NOTHING) -> None:
        """Record that a line is no longer in flight, has no result, and has cost ``spent``."""
        self._end_of_line(WITHDRAWN, ordinal, digest, spent)

    def _end_of_line(self, kind: int, ordinal: int, digest: int, spent: Spent, result: bytes | None = None) -> bytes:
        spent += self._left_before.pop(ordinal, NOTHING)
        self._started.pop(ordinal, None)
        self._spent += spent
        found = records.line_record(kind, ordinal, digest, spent, result)
        self._append(found)
        return found

    def set_block(self, first: int, mark: BlockMark | None) -> None:
        """Record the block of the input that begins with the line ``first``. If ``mark`` is None, remove the block."""
        if (mark is None or self.blocks.get(first) != mark) and self._set_block(first, mark):
            self._part_others.append(self._end + self._unwritten_size)
            self._append(records.record(b"I%012d %b" % (first, msgspec.json.encode(mark))))

    def record_batch(self, number: int, content: bytes, spent: Spent = NOTHING) -> None:
        """Record an event of a provider batch, and wait until the record is on the disk.

        Args:
            number: number of the batch.
            content: the event, as JSON.
            spent: cost of the batch in addition to the cost of the recorded results.

        Raises:
            JournalFull: the disk has no space for the record.
        """
        self._spent += spent
        self._part_others.append(self._end + self._unwritten_size)
        self._append(records.record(b"B%012d %b" % (number, content)))
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

    def cut(self, lines: int) -> None:
        """Drop the results of all lines after the first ``lines``, because the input has become shorter."""
        self._index.cut(lines)

    # writing

    def _append(self, found: bytes) -> None:
        self._unwritten.append(found)
        self._unwritten_size += len(found)

    def _reserve(self, size: int) -> None:
        """Reserve disk space for ``size`` more bytes. Raises ``OSError`` if the disk has no space."""
        wanted = self._end + size
        if wanted > self._reserved:
            more = max(RESERVED, wanted - self._reserved)
            try:
                allocate(self._file, self._reserved, more)
            except OSError as error:
                if error.errno != errno.ENOSPC or more == wanted - self._reserved:
                    raise
                more = wanted - self._reserved
                allocate(self._file, self._reserved, more)
            self._reserved += more

    def _put(self, found: bytes = b"") -> None:
        """Write all records that are not written yet, then ``found``. If this raises ``OSError``, the records are kept."""
        data = b"".join((*self._unwritten, found)) if self._unwritten else found
        self._write_at_end(data)
        self._unwritten.clear()
        self._unwritten_size = 0
        self._part_crc = crc32(data, self._part_crc)
        self._dirty.set()
        if len(self._part_results) >= 3 * SUMMARISED or self._end - self._part_begin >= CHUNK:
            self._summarise()

    def _write_at_end(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:] if written else data, self._end + written)
        self._end += len(data)

    def _begin_part(self) -> None:
        self._part_begin, self._part_crc = self._end, 0
        self._part_results, self._part_others = array("Q"), list[int]()

    def _summarise(self) -> None:
        """Write a summary of the records since the last summary, unless the disk is full."""
        found = records.summary_record(
            self._part_begin, self._part_crc, self._part_results, self._part_others, self._spent, {**self._left_before, **self._started}
        )
        with suppress(OSError):
            self._reserve(len(found) + len(self._started) * self._largest)
            self._write_at_end(found)
            self._begin_part()

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

    @property
    def started(self) -> int:
        """The number of lines that were sent and have no result yet."""
        return len(self._started)

    @property
    def size(self) -> int:
        """The highest ordinal with a result, plus 1."""
        return self._index.size

    def close(self) -> None:
        """Write and synchronise the remaining records, and unlock the journal.

        Raises:
            JournalFull: the disk is full, so ``lost`` results could not be written.
            QRewardError: writing to the disk failed for another reason.
        """
        self._closing.set()
        self._dirty.set()
        self._syncer.join()
        trouble = self._sync_error
        for step in (self._put, self._summarise_rest, self._cut_off_reserved, partial(os.fsync, self._file)):
            try:
                step()
            except OSError as error:
                trouble = trouble or error
        os.close(self._file)
        for lost in self._unwritten:
            if lost[9] in (DONE, FAILED):
                self.lost += 1
                self._index.forget(records.number_of(lost))
        self._index.close()
        if trouble is not None:
            raise self._error_of(trouble)

    def _summarise_rest(self) -> None:
        if not self._unwritten and len(self._part_results) >= 3 * AT_THE_END:
            self._summarise()

    def _cut_off_reserved(self) -> None:
        os.ftruncate(self._file, self._end)


def was_never_sent(path: Path) -> bool:
    """Return True if a file is a journal, and each of its lines failed before a request was sent for it.

    So there is no result to keep, and nothing to pay. A typical cause is a wrong name in ``columns``.
    """
    taken, is_journal = set(), False
    for place, found in read_records(path):
        kind = found[9]
        if not place:
            is_journal = found[9:].startswith(b"{") and json.loads(found[9:]).get("format") == records.FORMAT
        elif kind == STARTED:  # for a scorer this record is written before it is known whether the item is valid
            taken.add(records.number_of(found))
        elif kind == FAILED and _was_unsent(records.result_of(found)):
            taken.discard(records.number_of(found))
        elif kind not in (BLOCK, records.SUMMARY):
            return False
    return is_journal and not taken


def _was_unsent(result: bytes) -> bool:
    error = json.loads(result)["error"]
    return error["code"] in _UNSENT and error["status_code"] is None and not error["attempts"]


def read_records(path: Path, place: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the content of each valid record from the offset ``place`` on. Another process may be writing the journal."""
    # opened on each call, because network file systems show the writes of other machines only to a newly opened file
    with path.open("rb", buffering=0) as file:
        file.seek(place)
        rest = b""
        while data := file.read(CHUNK):
            *found, rest = (rest + data).split(b"\n")
            for each in found:
                if records.is_valid(each):
                    yield place, each
                place += len(each) + 1
            if rest.startswith(b"\0"):
                return  # reserved space without records
