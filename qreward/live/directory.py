"""Where the processes of a user are found: one directory, with a socket and the last document of each process."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qreward.errors import ConfigError

VERSION = 1
"""Version of the documents. A document of another version is not shown."""
VARIABLE = "QREWARD_LIVE_DIR"
"""Environment variable: the directory. The default is the same for all processes of a user, whatever their ``TMPDIR`` is."""
KEPT, KEPT_AFTER_DEATH = 3600.0, 86400.0
"""Seconds for which the document of a process is kept that has ended, or that was killed."""
PATIENCE = 1.0
"""Seconds within which a process must answer. A process that was stopped accepts connections and never answers."""


def directory() -> Path:
    """Return the directory, made if needed. Raises ``ConfigError`` if other users could read it or own it."""
    path = Path(os.environ.get(VARIABLE) or f"/tmp/qreward-{os.geteuid()}")  # noqa: S108 - the owner and the mode are checked
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"the directory {str(path)!r} cannot be used: {error.strerror}; name another one in {VARIABLE}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(f"{str(path)!r} must be a directory of yours that nobody else can open (chmod 700); {VARIABLE} names another")
    return path


class Process(NamedTuple):
    """One process of this user."""

    pid: int
    state: str
    document: dict[str, Any]


def processes(folder: Path, patience: float = PATIENCE) -> Iterator[Process]:
    """Yield the processes of a directory, those that run first, and remove what is left of others."""
    names = {path.stem for path in folder.iterdir()}
    found = [_process(folder, int(name), patience) for name in sorted(names, key=len) if name.isdecimal()]
    yield from sorted(filter(None, found), key=lambda each: (each.state in ("ended", "died"), -each.document.get("started", 0.0)))


def _process(folder: Path, pid: int, patience: float) -> Process | None:
    path, state = folder / f"{pid}.sock", "died"
    try:
        return _of_this_version(pid, "running", request(path, "GET", "/snapshot", patience=patience))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    except (OSError, HTTPException):
        state = "no answer"
    try:
        document = msgspec.json.decode((folder / f"{pid}.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None if state == "died" else Process(pid, state, {})
    state = "ended" if document.get("ended") and state == "died" else state
    if time.time() - document.get("at", 0.0) > {"ended": KEPT, "died": KEPT_AFTER_DEATH}.get(state, inf):
        (folder / f"{pid}.json").unlink(missing_ok=True)
        return None
    return _of_this_version(pid, state, document)


def _of_this_version(pid: int, state: str, document: dict[str, Any]) -> Process:
    same = document.get("version") == VERSION
    return Process(pid, state, document) if same else Process(pid, f"{state}, of another version of qreward", {})


def request(path: Path, method: str, route: str, body: object = None, *, patience: float = PATIENCE) -> Any:
    """Send a request to the socket of a process. Returns its JSON. Raises ``OSError``, or ``ConfigError`` with what the process refused."""
    connection = _UnixConnection(path, patience)
    try:
        connection.request(method, route, None if body is None else msgspec.json.encode(body))
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read())
    finally:
        connection.close()
    if response.status != 200:
        raise ConfigError(answer["error"])
    return answer


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
