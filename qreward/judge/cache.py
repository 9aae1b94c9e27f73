"""A persistent cache of models' answers in a SQLite file. Any number of processes may share one file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from qreward.engine import background
from qreward.engine.instrumentation import LOG
from qreward.judge.parsing import ModelReply

MOST = 1_000_000
"""Maximum number of answers in a file. The oldest answers are deleted first. If an answer has a kilobyte, a full file has a gigabyte."""
PATIENCE = 5.0
"""Maximum seconds to wait while another process writes to the file."""

VERSION = 2
"""Version of the tables, stored as ``PRAGMA user_version``."""
_TABLES = (
    """CREATE TABLE answers (
        number INTEGER PRIMARY KEY, key BLOB NOT NULL, fingerprint TEXT NOT NULL, text BLOB NOT NULL, UNIQUE (key, fingerprint))""",
    """CREATE TABLE endpoints (
        model TEXT NOT NULL, endpoint TEXT NOT NULL, fingerprint TEXT NOT NULL, current INTEGER NOT NULL, PRIMARY KEY (model, endpoint))""",
    f"PRAGMA user_version={VERSION}",
)
_CURRENT = """SELECT key, fingerprint, text FROM answers WHERE key IN ({})
    AND fingerprint IN (SELECT fingerprint FROM endpoints WHERE model = ? AND current) ORDER BY number"""


class CacheEntry(NamedTuple):
    """An answer to store, and the endpoint that sent it. Without a ``key``, only the fingerprint of the endpoint is recorded."""

    model: str
    endpoint: str
    reply: ModelReply
    key: bytes | None = None


class Cache:
    """Stores answers in a file, and looks them up. Errors are logged, and the judge continues without the cache.

    The file is closed before a fork, because a process must not use a SQLite file that its parent has opened.
    """

    def __init__(self, path: str | Path, most: int = MOST) -> None:
        self._path, self._most = str(path), most
        self._unusable = False
        self._begin()
        background.watch(self, Cache._begin)
        _CACHES.add(self)

    def _begin(self) -> object:
        """Create the state that belongs to one process. Returns the earlier state, which a forked child must keep alive."""
        inherited = self.__dict__.get("_worker")
        self._lock, self.busy = threading.Lock(), threading.Lock()
        self._pending: list[CacheEntry] = []
        self._worker = ThreadPoolExecutor(1, "qreward-judge-cache")  # starts its thread with the first use
        self._file: sqlite3.Connection | None = None
        self._finalizer: weakref.finalize | None = None  # type: ignore[type-arg]
        return inherited

    async def look_up(self, keys: Sequence[tuple[bytes, str]]) -> Mapping[bytes, ModelReply]:
        """Return the answers for these pairs of key and model, if an endpoint has sent their fingerprint last."""
        if not keys:
            return {}
        with self._lock:
            found = self._worker.submit(self._select, keys)  # runs after pending writes
        return await asyncio.wrap_future(found)

    def keep(self, entry: CacheEntry) -> None:
        """Store an answer. A background thread writes it, together with other pending answers."""
        with self._lock:
            self._pending.append(entry)
            if len(self._pending) == 1:
                self._worker.submit(self._flush)

    def close(self) -> None:
        """Write pending answers, close the file and end the thread. The call blocks. The next use opens the file again."""
        with self._lock:
            worker, self._worker = self._worker, ThreadPoolExecutor(1, "qreward-judge-cache")
        worker.shutdown()
        with self.busy:
            self.shut()

    def shut(self) -> None:
        """Close the file. The caller must hold ``busy``."""
        finalizer, self._finalizer, self._file = self._finalizer, None, None
        if finalizer is not None:
            finalizer()

    def _select(self, pairs: Sequence[tuple[bytes, str]]) -> dict[bytes, ModelReply]:
        found: dict[bytes, ModelReply] = {}
        models: dict[str, list[bytes]] = {}
        for key, model in pairs:
            models.setdefault(model, []).append(key)
        with self.busy:
            try:
                file = self._open()
                for model, keys in models.items():
                    for begin in range(0, len(keys), 500):
                        some = keys[begin : begin + 500]
                        for key, fingerprint, text in file.execute(_CURRENT.format(",".join("?" * len(some))), (*some, model)):
                            reply = ModelReply(bytes(text).decode("utf-8", "surrogatepass"), fingerprint=fingerprint)
                            found.setdefault(bytes(key), reply)
            except (sqlite3.Error, OSError, ValueError) as error:
                self._fail(error)
        return found

    def _flush(self) -> None:
        """Record the fingerprints of endpoints, and add answers. An answer that is already in the file is not replaced."""
        with self._lock:
            entries, self._pending = self._pending, []
        texts = [(each.key, each.reply.fingerprint, each.reply.as_text().encode("utf-8", "surrogatepass")) for each in entries if each.key]
        with self.busy:
            try:
                with self._open() as file:
                    file.execute("BEGIN IMMEDIATE")  # locks before reading, as another process may write
                    for each in entries:
                        _record(file, each.model, each.endpoint, each.reply.fingerprint)
                    file.executemany("INSERT OR IGNORE INTO answers (key, fingerprint, text) VALUES (?, ?, ?)", texts)
                    file.execute("DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?", (self._most,))
            except (sqlite3.Error, OSError) as error:
                self._fail(error)

    def _open(self) -> sqlite3.Connection:
        if self._unusable:
            raise sqlite3.OperationalError("given up")
        if self._file is None:
            self._file = file = sqlite3.connect(self._path, timeout=PATIENCE, check_same_thread=False)
            self._finalizer = weakref.finalize(self, file.close)
            _to_wal(file)
            file.execute("PRAGMA synchronous=NORMAL")  # a crash of the machine may lose the last answers, but does not damage the file
            _prepare(file)
        return self._file

    def _fail(self, error: Exception) -> None:
        """Stop using the file, and log the first error."""
        self.shut()
        if not self._unusable:
            self._unusable = True
            LOG.warning("the cache of verdicts %s cannot be used (%s); the judge continues without it", self._path, error)


_CACHES: weakref.WeakSet[Cache] = weakref.WeakSet()
_FORKING: list[threading.Lock] = []
"""The locks of caches that are held during a fork."""


def _before_fork() -> None:
    for cache in list(_CACHES):
        cache.busy.acquire()
        cache.shut()
        _FORKING.append(cache.busy)


def _after_fork() -> None:
    while _FORKING:
        _FORKING.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _prepare(file: sqlite3.Connection) -> None:
    """Create the tables of a new file. Raises ``sqlite3.DatabaseError`` if the file is of another version or program."""
    with file:
        file.execute("BEGIN IMMEDIATE")
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if version == VERSION:
            return
        if version or file.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise sqlite3.DatabaseError(f"it is not a cache of format {VERSION}, but of another version or program; give another path")
        for statement in _TABLES:
            file.execute(statement)


def _record(file: sqlite3.Connection, model: str, endpoint: str, fingerprint: str) -> None:
    """Record the fingerprint that an endpoint sent. If it is new, those of other endpoints are invalid until they are sent again."""
    known = file.execute("SELECT fingerprint, current FROM endpoints WHERE model = ? AND endpoint = ?", (model, endpoint)).fetchone()
    if known is None or known[0] != fingerprint:
        file.execute("UPDATE endpoints SET current = 0 WHERE model = ?", (model,))
    if known != (fingerprint, 1):
        file.execute("INSERT OR REPLACE INTO endpoints VALUES (?, ?, ?, 1)", (model, endpoint, fingerprint))


def _to_wal(file: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite raises if another process does the same at this moment, so this function retries."""
    end = monotonic() + PATIENCE
    while True:
        try:
            file.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > end:
                raise
            sleep(0.02)
        else:
            return
