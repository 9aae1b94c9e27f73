"""The index of a journal. It holds the offset of each line's result, and whether the line succeeded.

Most of the index is in a file, so it needs little memory for ten million lines.
"""

from __future__ import annotations

import errno
import os
import tempfile
from array import array
from mmap import mmap

from qreward.errors import QRewardError

NONE, OK, FAILED, AGAIN = range(4)
"""States of a line: no result, succeeded, failed, or failed in an earlier run and to be sent again."""
ENTRY = 16
"""Number of bytes of an entry. An entry has two numbers. The first is twice the offset of the record, plus 1 if the line succeeded. The
second is the digest."""


class JournalFull(QRewardError):
    """The disk is full. The journal holds all results up to now; free some space and run the same command again."""


class Index:
    """The index of a journal. Each line takes 1 byte of memory and 16 bytes of a memory-mapped temporary file.

    Attributes:
        size: the highest ordinal with a result, plus 1.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the journal
        self._map: mmap | None = None
        self._entries = memoryview(b"").cast("Q")
        self._states = bytearray()
        self.size = 0

    def put(self, ordinal: int, place: int, digest: int, *, ok: bool) -> None:
        """Set the result of a line. It replaces an earlier result."""
        self.make_room(ordinal)
        entries = self._entries
        entries[2 * ordinal], entries[2 * ordinal + 1] = 2 * place + ok, digest
        self._states[ordinal] = OK if ok else FAILED
        if ordinal >= self.size:
            self.size = ordinal + 1

    def put_all(self, ordinals: array[int], places: array[int], digests: array[int]) -> None:
        """Set the results of many lines. Each number in ``places`` is twice the offset of a record, plus 1 if the line succeeded."""
        if not ordinals:
            return
        self.size = max(self.size, max(ordinals) + 1)
        self.make_room(self.size - 1)
        entries, states = self._entries, self._states
        for ordinal, place, digest in zip(ordinals, places, digests, strict=True):
            entries[2 * ordinal] = place
            entries[2 * ordinal + 1] = digest
            states[ordinal] = FAILED - (place & 1)

    def get(self, ordinal: int) -> tuple[int, int] | None:
        """Return the offset of the record of a line, and the digest of the line. Return None if the line has no result."""
        if ordinal >= self.size or not self._states[ordinal]:
            return None
        return self._entries[2 * ordinal] >> 1, self._entries[2 * ordinal + 1]

    def is_done(self, ordinal: int) -> bool:
        """Return True if a line has a result and will not be sent again."""
        return ordinal < self.size and self._states[ordinal] in (OK, FAILED)

    def count(self, ordinals: range | None = None) -> tuple[int, int]:
        """Return the number of lines that are done, and the number of done lines that failed. If ``ordinals`` is None, count all lines."""
        states = self._states if ordinals is None else self._states[ordinals.start : ordinals.stop : ordinals.step]
        failed = states.count(FAILED)
        return states.count(OK) + failed, failed

    def send_failed_again(self) -> None:
        """Mark all failed lines as ``AGAIN``, so that they are sent again."""
        self._states = self._states.replace(bytes([FAILED]), bytes([AGAIN]))

    def forget(self, ordinal: int) -> None:
        """Remove the result of a line."""
        self._states[ordinal] = NONE

    def cut(self, size: int) -> None:
        """Remove the results of all lines after the first ``size``."""
        if size < self.size:
            self._states[size:] = bytes(len(self._states) - size)
            self.size = size

    def make_room(self, ordinal: int) -> None:
        """Grow the index until it has an entry for the ordinal. Raises ``JournalFull``."""
        if ordinal < len(self._states):
            return
        room = max(1 << 16, 2 * len(self._states), ordinal + 1)
        try:
            self._file.truncate(room * ENTRY)
            allocate(self._file.fileno(), 0, room * ENTRY)  # without this, a write to the map would kill the process if the disk is full
        except OSError as error:
            what = f"no space is left in {tempfile.gettempdir()!r} for the index of the journal ({error.strerror})"
            raise JournalFull(f"{what}; make room, or set TMPDIR to another folder, and run the same command again") from None
        self._unmap()  # not every system can resize a map
        self._map = mmap(self._file.fileno(), room * ENTRY)
        self._entries = memoryview(self._map).cast("Q")
        self._states.extend(bytes(room - len(self._states)))

    def _unmap(self) -> None:
        self._entries.release()
        if self._map is not None:
            self._map.close()

    def close(self) -> None:
        """Remove the temporary file. ``count`` still works afterwards."""
        self._unmap()
        self._file.close()


def allocate(file: int, offset: int, size: int) -> None:
    """Reserve disk space, if the file system supports it. Raises ``OSError`` if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, offset, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
