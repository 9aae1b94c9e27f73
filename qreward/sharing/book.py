"""A ledger in a file that any process may change at any time, and die while it does.

Changes are made under a lock of the kernel (``flock``), which no dead process holds. The file has two slots, each with a number and a
checksum; a change is written over the older one, so that whatever a death leaves half done, the one before is still there. Each
member holds a lock on a file of its own as long as its process lives: so the others see at once that it has died.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from zlib import crc32

import msgspec

from qreward.core.sharing.ledger import Ledger
from qreward.sharing.places import open_directory, open_file

LAYOUT = 1
"""Of a ledger in a file; part of its name, so that programs of different versions do not misread each other's."""
HEAD = struct.Struct("<4sQII")
MAGIC = b"QRSH"
SLOT = 256 * 1024
"""Bytes of a slot; what is not used takes no room on the disk. Some thousand members fit."""
GLANCE = 8 * 1024
"""Bytes that are read at first, which is usually all."""
PATIENCE = 0.25
"""Seconds for which the lock is waited for. It is held for a tenth of a millisecond, unless its holder was stopped just then."""


class Book:
    """The ledger of one key.

    Args:
        path: the directory.
        key: its name.
        clock: seconds, the same for all processes of this machine.
    """

    def __init__(self, path: Path, key: str, clock: Callable[[], float]) -> None:
        self._path = path
        self._key = f"{key}-{LAYOUT}"
        self._clock = clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Ledger).decode
        self._members: dict[str, int] = {}
        self._place = self._file = -1
        self._serial = 0

    @contextmanager
    def opened(self, member: str) -> Iterator[tuple[float, Ledger]]:
        """The ledger and the time, while no other process has it; changes are kept if nothing is raised.

        Raises:
            OSError: it cannot be had, or written.
        """
        self._lock()
        try:
            now = self._clock()
            ledger = self._read(now)
            self._show_alive(member)
            for other in ledger.silent(now):
                if other not in self._members and self._has_died(other):
                    ledger.bury(now, other)
            yield now, ledger
            self._write(ledger)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def gone(self, member: str) -> None:
        """A member of this process is none any more."""
        held = self._members.pop(member, None)
        if held is not None:
            with suppress(OSError):
                os.unlink(self._name(member), dir_fd=self._place)
            os.close(held)

    def close(self) -> None:
        """Close everything. In a forked child the parent's locks stay, for they are the parent's."""
        for held in (self._file, self._place, *self._members.values()):
            if held >= 0:
                os.close(held)
        self._file = self._place = -1
        self._members.clear()

    def _name(self, member: str) -> str:
        return f"{self._key}.{member}"

    # the lock

    def _lock(self) -> None:
        while True:
            if self._file < 0:
                self._open()
            self._take_lock()
            if os.fstat(self._file).st_nlink:
                return
            self.close()  # somebody deleted it: what others write is elsewhere

    def _open(self) -> None:
        self._place = open_directory(self._path)
        try:
            self._file = open_file(self._place, self._key)
        except OSError:
            self.close()
            raise

    def _take_lock(self) -> None:
        until, pause = time.monotonic() + PATIENCE, 0.0005
        while not _locked(self._file):
            if time.monotonic() > until:
                raise TimeoutError("another process holds the lock of the ledger and does not release it; is it stopped?")
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    # its content

    def _read(self, now: float) -> Ledger:
        newest, content = 0, b""
        for slot in (0, 1):
            serial, found = self._read_slot(slot * SLOT)
            if serial > newest:
                newest, content = serial, found
        self._serial = newest
        with suppress(msgspec.MsgspecError, ValueError):
            ledger = self._decode(content)
            if ledger.is_of(now):
                return ledger
        return Ledger(now if self._has_heirs() else -inf)

    def _read_slot(self, at: int) -> tuple[int, bytes]:
        """Its number and content, (0, nothing) if it is not whole."""
        found = os.pread(self._file, GLANCE, at)
        if len(found) < HEAD.size:
            return 0, b""
        magic, serial, length, checksum = HEAD.unpack_from(found)
        if magic != MAGIC or length > SLOT - HEAD.size:
            return 0, b""
        if length > len(found) - HEAD.size:
            found = os.pread(self._file, HEAD.size + length, at)
        content = found[HEAD.size : HEAD.size + length]
        return (serial, content) if crc32(content, serial & 0xFFFFFFFF) == checksum else (0, b"")

    def _write(self, ledger: Ledger) -> None:
        content = self._encode(ledger)
        if len(content) > SLOT - HEAD.size:
            raise OSError("there are too many members for one ledger")
        self._serial += 1
        head = HEAD.pack(MAGIC, self._serial, len(content), crc32(content, self._serial & 0xFFFFFFFF))
        written = os.pwrite(self._file, head + content, self._serial % 2 * SLOT)
        if written < HEAD.size + len(content):
            raise OSError("the ledger could not be written whole; is the disk full?")

    # who lives

    def _show_alive(self, member: str) -> None:
        if member not in self._members:
            held = open_file(self._place, self._name(member))
            self._members[member] = held
            _locked(held)

    def _has_died(self, member: str) -> bool:
        """Whether the process of a member has ended. If its file is gone nobody knows, and its lease decides."""
        try:
            held = open_file(self._place, self._name(member), create=False)
        except OSError:
            return False
        try:
            if not _locked(held):
                return False
            os.unlink(self._name(member), dir_fd=self._place)
            return True
        finally:
            os.close(held)

    def _has_heirs(self) -> bool:
        """Whether there are others who may hold shares of a ledger that was lost."""
        names = os.listdir(self._place)  # noqa: PTH208 - the directory that is open, whatever its path is now
        others = [name.rpartition(".")[2] for name in names if name.startswith(f"{self._key}.")]
        return any(other in self._members or not self._has_died(other) for other in others)


def _locked(file: int) -> bool:
    """Lock it for this process, if nobody else does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
