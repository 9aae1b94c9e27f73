"""The journal of a bulk run: an append-only file that says which lines were sent and what they cost, and holds the results.

:mod:`qreward.bulk.records` lists its records. A record is written to the operating system before the request is sent, or before its
result counts, so a killed process loses none; ``fsync`` follows within ``SYNC`` seconds, so a power failure loses that much. The end of a
record that was cut off in writing is dropped when the journal is opened. A damaged record before the end is passed over: its line is sent
again. A lock refuses a second run on the same file. Summaries let a large journal be opened without reading its records one by one.

An own format and not SQLite, because a record must be written before its request is sent: that costs 6 us a line here, and 36 us as a
transaction of SQLite (``benchmarks/bulk.py --only journal``). Any text tool can read it.
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
"""Bytes that are read at once, and after which a summary is written."""
SUMMARISED, AT_THE_END = 8192, 256
"""Results after which a summary is written, and the fewest for which one is written at the end of a run."""
RESERVED = 1 << 20
"""Bytes of the disk that are reserved at once, so that a full disk is noticed before a request is sent and not after."""


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
        spent_before: what earlier runs have spent, with all that their unfinished lines may have cost.
        held: number -> provider batch of an earlier run that has not ended. Its lines are paid there.
        batches: provider batches that were ever recorded; the number of the next.
        blocks: ordinal of the first line -> block of the input, in their order, of which no line has changed since it was sent.
        lost: lines whose result could not be written. They are sent again by the next run.

    Raises:
        ConfigError: another run has it open, it is no journal, or its settings differ; the message names the first that does.
        JournalFull: the disk has no space for it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, force: bool = False, retry_failed: bool = False) -> None:
        self.path, self.torn, self.lost = path, 0, 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"the journal {str(path)!r} cannot be written: {error.strerror}") from None
        self._lock()
        self._index = Index()
        self._started: dict[int, Spent] = {}  # lines that this run has sent without a result yet -> the most that they may cost
        self._left_before: dict[int, Spent] = {}  # the same of earlier runs
        self._spent = NOTHING  # by all lines but these
        self.held: dict[int, HeldBatch] = {}
        self.blocks: dict[int, BlockMark] = {}
        self.batches = 0
        self._end = self._read_to = self._reserved = 0
        self._largest = 4096
        self._unwritten: list[bytes] = []  # records that are not written yet, and their size
        self._unwritten_size = 0
        self._dirty, self._closing = threading.Event(), threading.Event()
        self._part_begin = self._part_crc = 0  # what no summary holds yet: where it begins, and its checksum
        self._part_results, self._part_others = array("Q"), list[int]()
        try:
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
                if not rest.strip(b"\0"):  # space that is reserved and not written yet
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
        """Begin a new journal. ``found`` is what the file holds: nothing, or a header that was cut off in writing."""
        header = records.record(json.dumps({"format": records.FORMAT, **settings}, sort_keys=True).encode())
        if not header.startswith(found):
            raise ConfigError(f"{str(self.path)!r} is not a journal of qreward; name another output, or remove the file")
        os.ftruncate(self._file, 0)
        self._reserve(len(header))
        self._put(header)
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
        if (found := header.pop("format", None)) != records.FORMAT:
            what = f"is a {found}, and this version of qreward writes a {records.FORMAT}" if found else "is not a journal of qreward"
            raise ConfigError(f"{str(path)!r} {what}; name another output, or remove the file")
        now = json.loads(json.dumps(settings))
        for name in sorted(header.keys() | now.keys()):
            if header.get(name) != now.get(name) and not force:
                raise ConfigError(
                    f"{name} has changed since the run that {str(path)!r} belongs to: "
                    f"{header.get(name)!r} then, {now.get(name)!r} now; name another output, or go on with resume=force"
                )

    def _read_parts(self, data: bytes, check: Callable[[bytes], None]) -> bytes:
        """Take in all parts that end with a summary, and return what follows. ``data`` begins at ``_read_to``."""
        begin = 0
        for place, end in records.summaries_in(data):
            self._read_part(data[begin:place], data[place:end], check)
            begin = end + 1
        return data[begin:]

    def _read_part(self, part: bytes, summary: bytes, check: Callable[[bytes], None]) -> None:
        """Take in a part by its summary; or by its records, if they are not those of the summary."""
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
        """Take in all records but for damaged ones, and return what follows. Stops if the first of all is not valid."""
        *found, rest = data.split(b"\n")
        for each in found:
            if records.is_valid(each):
                self.torn += self._read_to - self._end  # damaged records were passed over
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
        """Take in one record, but not a summary."""
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
        """Set or remove a block, and remove all that follow. Returns whether anything has changed."""
        had = len(self.blocks)
        while self.blocks and (last := self.blocks[next(reversed(self.blocks))]).first + last.lines > first:
            del self.blocks[last.first]
        if mark is not None:
            self.blocks[first] = mark
        return mark is not None or len(self.blocks) < had

    # what is done

    @property
    def done(self) -> int:
        """The number of lines with a result, but for those that failed and are to be sent again."""
        return self._index.count()[0]

    @property
    def failed(self) -> int:
        """The number of those that failed."""
        return self._index.count()[1]

    def are_done(self, ordinals: range) -> bool:
        """Return whether all of these lines are done."""
        return self._index.count(ordinals)[0] == len(ordinals)

    def digest(self, ordinal: int) -> int | None:
        """Return the digest of a line that is done; None if it is not, or failed and is to be tried again."""
        entry = self._index.get(ordinal)
        return entry[1] if entry is not None and self._index.is_done(ordinal) else None

    def is_of_another(self, ordinal: int, digest: int) -> bool:
        """Return whether a line has a result, and it is that of another digest."""
        entry = self._index.get(ordinal)
        return entry is not None and entry[1] != digest

    def in_order(self) -> Iterator[Line]:
        """Yield the results in the order of the input. Of a line that was sent again, the last one."""
        for ordinal in range(self._index.size):
            if (entry := self._index.get(ordinal)) is not None:
                yield self._read(entry[0])

    def as_done(self) -> Iterator[Line]:
        """Yield the results in the order in which they were received. Of a line that was sent again, the last one."""
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
        """Take in that a line is about to be sent, and what it may cost. It must not be sent before ``write``.

        Raises:
            JournalFull: the disk has no space for its result. It must not be sent.
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
        """Write what is not written yet.

        Raises:
            JournalFull: the disk has no space. What was started since the last call must not be sent.
        """
        if self._unwritten:
            try:
                self._put()
            except OSError as error:
                raise self._error_of(error) from None

    def finish(self, ordinal: int, digest: int, result: bytes, spent: Spent = NOTHING, *, ok: bool) -> int:
        """Take in the result of a line, a line of the output without line breaks, and what it cost. ``write`` or ``flush`` writes it.

        Returns the place of its record in the file.
        """
        place, found = self._end + self._unwritten_size, self._end_of_line(DONE if ok else FAILED, ordinal, digest, spent, result)
        self._index.put(ordinal, place, digest, ok=ok)
        self._part_results.extend((ordinal, 2 * place + ok, digest))
        self._largest = max(self._largest, len(found))
        return place

    def withdraw(self, ordinal: int, digest: int, spent: Spent = NOTHING) -> None:
        """Take in that a line is not in flight any more, has no result, and has cost so much."""
        self._end_of_line(WITHDRAWN, ordinal, digest, spent)

    def _end_of_line(self, kind: int, ordinal: int, digest: int, spent: Spent, result: bytes | None = None) -> bytes:
        spent += self._left_before.pop(ordinal, NOTHING)
        self._started.pop(ordinal, None)
        self._spent += spent
        found = records.line_record(kind, ordinal, digest, spent, result)
        self._append(found)
        return found

    def set_block(self, first: int, mark: BlockMark | None) -> None:
        """Take in a block of the input that begins with the line ``first``; None if lines of it have changed since they were sent."""
        if (mark is None or self.blocks.get(first) != mark) and self._set_block(first, mark):
            self._part_others.append(self._end + self._unwritten_size)
            self._append(records.record(b"I%012d %b" % (first, msgspec.json.encode(mark))))

    def record_batch(self, number: int, content: bytes, spent: Spent = NOTHING) -> None:
        """Record something of a provider batch and what it has cost beside its results, and wait until it is on the disk.

        Raises:
            JournalFull: the disk has no space for it.
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
        """Write what is not written yet. Returns False if that fails: it is kept, and written by the next call."""
        with suppress(QRewardError):  # raised by the next ``start``, or by ``close``
            self.write()
        return not self._unwritten

    def cut(self, lines: int) -> None:
        """Leave out the results of all lines but the first ones: the input has become shorter."""
        self._index.cut(lines)

    # writing

    def _append(self, found: bytes) -> None:
        self._unwritten.append(found)
        self._unwritten_size += len(found)

    def _reserve(self, size: int) -> None:
        """Reserve disk space, so that ``size`` more bytes can be written. Raises ``OSError``."""
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
        """Write what is not written yet, and a record. Raises ``OSError``, and keeps what was not written."""
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
        """Write a summary of what was written since the last one, unless the disk is full."""
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
        """Write and synchronise what is left, and unlock the journal.

        Raises:
            JournalFull: results could not be written, because the disk is full; ``lost`` is their number.
            QRewardError: the disk failed otherwise.
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


def read_records(path: Path, place: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the valid records of a journal from a place on, each with its own, without line breaks. The end may still be being written."""
    # opened each time, because network file systems show what others have written to those that open a file
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
                return  # space that is reserved and not written yet
