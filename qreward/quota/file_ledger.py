"""Limits shared by the processes of one user on one machine."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from math import inf
from pathlib import Path
from zlib import crc32

import msgspec

from qreward.quota.ledger import Ledger, RenewReply, RenewRequest
from qreward.settings.policies import ApiKey, Endpoint

VARIABLE = "QREWARD_SHARE_DIR"
OTHERS = 0o077
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Unsafe(OSError):
    """Raised for a directory or file that other users could have created, or could change."""


def directory() -> Path:
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "qreward"
    return Path(tempfile.gettempdir()) / f"qreward-{os.geteuid()}"


def open_directory(path: Path) -> int:
    """Open a private directory and return its descriptor. Creates the directory if needed. Raises ``Unsafe`` or another ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | NO_LINKS)
    return _checked(found, path, stat.S_ISDIR)


def open_file(directory: int, name: str, *, create: bool = True) -> int:
    """Open a private file in a directory for reading and writing, and return its descriptor. Raises ``Unsafe`` or another ``OSError``."""
    found = os.open(name, os.O_RDWR | NO_LINKS | (os.O_CREAT if create else 0), 0o600, dir_fd=directory)
    return _checked(found, name, stat.S_ISREG)


def _checked(found: int, name: object, is_right: Callable[[int], bool]) -> int:
    about = os.fstat(found)
    if is_right(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & OTHERS:
        return found
    os.close(found)
    raise Unsafe(
        f"{name} must belong to this user alone (it has mode {stat.S_IMODE(about.st_mode):o}); set {VARIABLE} to a private directory"
    )


LAYOUT = 3
"""Version of the file format. It is part of the file name, so that programs with different formats use different files."""
HEAD = struct.Struct("<QII")  # the beginning of a slot: number of the change, length and checksum of the content
SLOT = 256 * 1024
"""Number of bytes in a slot, enough for about a thousand members. Unused bytes take no disk space."""
PATIENCE = 0.25
"""Maximum number of seconds to wait for the lock. A process holds the lock for about 0.1 ms, or longer if the process is stopped at that
moment."""


class FileLedger:
    """Reaches the ledger of one key in a file, under a lock. ``renew`` and ``leave`` raise ``OSError`` if a file cannot be used."""

    def __init__(self, key: str, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._key = f"{key}-{LAYOUT}"
        self._clock = clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Ledger).decode
        self._members: dict[str, int] = {}
        self._directory = self._file = -1
        self._serial = 0

    def renew(self, member: str, request: RenewRequest) -> RenewReply:
        with self.locked(member) as (now, ledger):
            return ledger.renew(now, member, request)

    def leave(self, member: str, request: RenewRequest) -> None:
        try:
            with self.locked(member) as (now, ledger):
                ledger.leave(now, member, request)
        finally:
            held = self._members.pop(member, None)
            if held is not None:
                with suppress(OSError):
                    os.unlink(self._name(member), dir_fd=self._directory)
                os.close(held)

    @contextmanager
    def locked(self, member: str) -> Iterator[tuple[float, Ledger]]:
        """Lock the ledger, and yield the time and the ledger. The ledger is written back if the body raises nothing."""
        self._lock()
        try:
            now = self._clock()
            ledger = self._read(now)
            if member not in self._members:  # the lock of its file shows that it is alive
                self._members[member] = open_file(self._directory, self._name(member))
                _try_lock(self._members[member])
            for other in ledger.silent(now):
                if other not in self._members and self._has_died(other):
                    ledger.remove_dead(now, other)
            yield now, ledger
            self._write(ledger)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close all files. If a forked child calls this, the locks of the parent stay."""
        files = [self._file, self._directory, *self._members.values()]
        self._file = self._directory = -1  # before the files are closed, because a number that was closed may name another file at once
        self._members.clear()
        for file in files:
            if file >= 0:
                os.close(file)

    def __del__(self) -> None:
        self.close()

    def _name(self, member: str) -> str:
        return f"{self._key}.{member}"

    def _lock(self) -> None:
        while True:
            if self._file < 0:
                self._directory = open_directory(directory() if self._path is None else self._path)
                try:
                    self._file = open_file(self._directory, self._key)
                except OSError:
                    self.close()
                    raise
            until = time.monotonic() + PATIENCE
            while not _try_lock(self._file):
                if time.monotonic() > until:
                    raise TimeoutError("another process holds the lock of the ledger and does not release it; is it stopped?")
                time.sleep(0.001)
            if os.fstat(self._file).st_nlink:
                return
            self.close()  # the file was deleted: other processes use a new one

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
        names = os.listdir(self._directory)  # noqa: PTH208 - the directory that is open, whatever its path is now
        others = [name.rpartition(".")[2] for name in names if name.startswith(f"{self._key}.")]
        hold = any(other in self._members or not self._has_died(other) for other in others)  # they may hold shares of a lost ledger
        return Ledger(now if hold else -inf)

    def _read_slot(self, at: int) -> tuple[int, bytes]:
        """Return the number and the content of a slot. Return (0, b"") if the slot is empty or damaged."""
        serial, length, checksum = HEAD.unpack(os.pread(self._file, HEAD.size, at).ljust(HEAD.size, b"\0"))
        content = os.pread(self._file, min(length, SLOT - HEAD.size), at + HEAD.size)
        return (serial, content) if crc32(content, serial & 0xFFFFFFFF) == checksum else (0, b"")

    def _write(self, ledger: Ledger) -> None:
        content = self._encode(ledger)
        if len(content) > SLOT - HEAD.size:
            raise OSError("there are too many members for one ledger")
        self._serial += 1
        head = HEAD.pack(self._serial, len(content), crc32(content, self._serial & 0xFFFFFFFF))
        written = os.pwrite(self._file, head + content, self._serial % 2 * SLOT)
        if written < HEAD.size + len(content):
            raise OSError("the ledger could not be written whole; is the disk full?")

    def _has_died(self, member: str) -> bool:
        try:
            held = open_file(self._directory, self._name(member), create=False)
        except OSError:
            return False
        try:
            if not _try_lock(held):
                return False
            os.unlink(self._name(member), dir_fd=self._directory)
            return True
        finally:
            os.close(held)


def _try_lock(file: int) -> bool:
    """Try to lock a file. Returns False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


SECRET_HEADERS = ("authorization", "api-key", "x-api-key")  # headers that hold the API key if ``api_key`` is not set


def key_of(endpoint: Endpoint) -> str:
    """Return the name of an endpoint's ledger: a hash of the address, with the API key as the key of the hash (BLAKE2b, RFC 7693)."""
    if isinstance(endpoint.api_key, ApiKey):
        secret = repr(endpoint.api_key)
    elif endpoint.api_key is not None:
        secret = endpoint.api_key.get_secret_value()
    else:
        headers = {name.lower(): value for name, value in endpoint.headers.items()}
        secret = next((headers[name].get_secret_value() for name in SECRET_HEADERS if name in headers), "")
    hashed = blake2b(secret.encode(), person=b"qreward-key").digest()
    return blake2b(endpoint.base_url.encode(), digest_size=16, key=hashed, person=b"qreward-share").hexdigest()
