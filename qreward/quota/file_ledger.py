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
LAYOUT = 4
"""Version of the file format. It is part of the file name, so that programs with different formats use different files."""
HEAD = struct.Struct("<QII")  # the beginning of a slot: number of the change, length and checksum of the content
SLOT = 256 * 1024
"""Number of bytes in a slot, enough for about a thousand members. Unused bytes take no disk space."""
PATIENCE = 0.25
"""Maximum number of seconds to wait for the lock. A process holds the lock for about 0.1 ms, or longer if the process is stopped at that
moment."""


class Unsafe(OSError):
    """Raised for a directory that other users could have created, or could change."""


def directory() -> Path:
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "qreward"
    return Path(tempfile.gettempdir()) / f"qreward-{os.geteuid()}"


def make_private(path: Path) -> None:
    """Create a directory if it does not exist, and check that only this user can reach it. Raises ``Unsafe`` or another ``OSError``."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        kind = "is a link" if stat.S_ISLNK(found.st_mode) else f"has mode {stat.S_IMODE(found.st_mode):o}"
        raise Unsafe(f"{path} must belong to this user alone (it {kind}); set {VARIABLE} to a private directory")


class FileLedger:
    """Reaches the ledger of one key in a file, under a lock. ``renew`` and ``leave`` raise ``OSError`` if a file cannot be used.

    The file has two slots, which are written in turn, so that a process that is killed while it writes leaves the ledger as it was. Each
    member keeps a file of its own locked, and this lock shows that its process is alive.
    """

    def __init__(self, key: str, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = (path or directory()) / f"{key}-{LAYOUT}", clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Ledger).decode
        self._files: dict[Path, int] = {}  # the open files: the ledger, and the locked file of each member
        self._serial = 0

    def renew(self, member: str, request: RenewRequest) -> RenewReply:
        with self.locked(member) as (now, ledger):
            return ledger.renew(now, member, request)

    def leave(self, member: str, request: RenewRequest) -> None:
        try:
            with self.locked(member) as (now, ledger):
                ledger.leave(now, member, request)
        finally:
            path = self._file_of(member)
            if path in self._files:
                path.unlink(missing_ok=True)
                self._close(path)

    @contextmanager
    def locked(self, member: str) -> Iterator[tuple[float, Ledger]]:
        """Lock the ledger, and yield the time and the ledger. The ledger is written back if the body raises nothing."""
        file = self._lock()
        try:
            now = self._clock()
            ledger = self._read(file, now)
            _try_lock(self._opened(self._file_of(member)))
            for other in ledger.silent(now):
                if self._has_died(other):
                    ledger.remove_dead(now, other)
            yield now, ledger
            self._write(file, ledger)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close all files. If a forked child calls this, the locks of the parent stay."""
        for path in list(self._files):
            self._close(path)

    def __del__(self) -> None:
        self.close()

    def _close(self, path: Path) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            os.close(file)

    def _file_of(self, member: str) -> Path:
        return Path(f"{self._path}.{member}")

    def _opened(self, path: Path) -> int:
        """Return the open file of a path. If the file was deleted, other processes use a new one, and this process opens the new one."""
        file = self._files.get(path)
        if file is None or not os.fstat(file).st_nlink:
            self._close(path)
            make_private(path.parent)
            file = self._files[path] = _open(path)
        return file

    def _lock(self) -> int:
        until = time.monotonic() + PATIENCE
        while True:
            file = self._opened(self._path)
            if _try_lock(file) and os.fstat(file).st_nlink:  # it may have been deleted before it was locked
                return file
            if time.monotonic() > until:
                raise TimeoutError("another process holds the lock of the ledger and does not release it; is it stopped?")
            time.sleep(0.001)

    def _read(self, file: int, now: float) -> Ledger:
        self._serial, content = max(self._read_slot(file, at) for at in (0, SLOT))
        with suppress(msgspec.MsgspecError, ValueError):
            ledger = self._decode(content)
            if ledger.is_of(now):
                return ledger
        others = [path.suffix[1:] for path in self._path.parent.glob(f"{self._path.name}.*")]
        hold = any(not self._has_died(other) for other in others)  # they may hold shares of a lost ledger
        return Ledger(now if hold else -inf)

    def _read_slot(self, file: int, at: int) -> tuple[int, bytes]:
        """Return the number and the content of a slot. Return (0, b"") if the slot is empty or damaged."""
        serial, length, checksum = HEAD.unpack(os.pread(file, HEAD.size, at).ljust(HEAD.size, b"\0"))
        content = os.pread(file, min(length, SLOT - HEAD.size), at + HEAD.size)
        return (serial, content) if crc32(content, serial & 0xFFFFFFFF) == checksum else (0, b"")

    def _write(self, file: int, ledger: Ledger) -> None:
        content = self._encode(ledger)
        if len(content) > SLOT - HEAD.size:
            raise OSError("there are too many members for one ledger")
        self._serial += 1
        head = HEAD.pack(self._serial, len(content), crc32(content, self._serial & 0xFFFFFFFF))
        if os.pwrite(file, head + content, self._serial % 2 * SLOT) < HEAD.size + len(content):
            raise OSError("the ledger could not be written whole; is the disk full?")

    def _has_died(self, member: str) -> bool:
        """Return whether the process of a member has ended. If so, remove the member's file. A file that is missing says nothing."""
        path = self._file_of(member)
        if path in self._files or not path.exists():
            return False
        file = _open(path)
        try:
            if not _try_lock(file):
                return False
            path.unlink()
            return True
        finally:
            os.close(file)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


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
