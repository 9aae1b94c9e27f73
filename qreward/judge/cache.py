"""Answers kept in a file over runs: content in, text out. Any number of processes may share one file.

SQLite does the work, in a thread of its own: write-ahead log and short transactions, so that a process that dies in the middle of one
leaves the file as it was before. A file that cannot be used is told in the log once, and costs nothing but what it would have saved.
Knows no verdict: what is kept is what a model said.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

from qreward.engine import forks
from qreward.judge.hearing import Heard

MOST = 1_000_000
"""Answers that are kept; beyond it the oldest go. At a kilobyte each that is a gigabyte."""
PATIENCE = 5.0
"""Seconds for which another process that writes is waited for."""

_log = logging.getLogger("qreward")

_TABLE = "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, text BLOB NOT NULL, finished INTEGER)"


class Cache:
    """Answers by key, in a file.

    Args:
        path: of the file; it is made when it is first used, its folder must be there.
        most: answers that are kept.
    """

    def __init__(self, path: str | Path, most: int = MOST) -> None:
        self._path, self._most = str(path), most
        self._begin()
        forks.watch(self, Cache._begin)

    def _begin(self) -> object:
        """What belongs to this process. What was kept and not yet written is left to the process that heard it."""
        inherited = self.__dict__.get("_store"), self.__dict__.get("_worker")
        self._lock = threading.Lock()
        self._fresh: dict[bytes, Heard] = {}
        self._flushing = False
        self._worker: ThreadPoolExecutor | None = None
        self._store = _Store(self._path, self._most)
        return inherited

    async def look(self, keys: Sequence[bytes]) -> list[Heard | None]:
        """What is kept under each of these keys, None where there is nothing."""
        with self._lock:
            found = {key: self._fresh[key] for key in keys if key in self._fresh}
        missing = [key for key in keys if key not in found]
        if missing:
            found |= await asyncio.get_running_loop().run_in_executor(self._thread(), self._store.read, missing)
        return [found.get(key) for key in keys]

    def keep(self, key: bytes, heard: Heard) -> None:
        """Keep an answer; it is written soon, together with others."""
        with self._lock:
            self._fresh[key] = heard
            if self._flushing:
                return
            self._flushing = True
        self._thread().submit(self._flush)

    def close(self) -> None:
        """Write what is not yet written, and close the file; it is opened again when it is used again. Blocks."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.submit(self._store.close)
            worker.shutdown()

    def _thread(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "qreward-judge-cache")
            return self._worker

    def _flush(self) -> None:
        with self._lock:
            fresh, self._flushing = dict(self._fresh), False
        self._store.write(fresh)
        with self._lock:
            for key in fresh:
                self._fresh.pop(key, None)


_STORES: weakref.WeakSet[_Store] = weakref.WeakSet()
_STILL: list[_Store] = []
"""Those that a fork has brought to rest."""


def _before_fork() -> None:
    for store in list(_STORES):
        store.busy.acquire()
        store.shut()
        _STILL.append(store)


def _after_fork() -> None:
    while _STILL:
        _STILL.pop().busy.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class _Store:
    """The file. Raises nothing. An open SQLite file must not be carried over a fork, so it is closed for the moment of one."""

    def __init__(self, path: str, most: int) -> None:
        self._path, self._most = path, most
        self._file: sqlite3.Connection | None = None
        self._finalizer: weakref.finalize | None = None  # type: ignore[type-arg]
        self._useless = self._told = False
        self.busy = threading.Lock()
        _STORES.add(self)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Heard]:
        """What there is under these keys."""
        found: dict[bytes, Heard] = {}
        with self.busy:
            try:
                for begin in range(0, len(keys), 500):
                    some = keys[begin : begin + 500]
                    marks = ",".join("?" * len(some))
                    rows = self._open().execute(f"SELECT key, text, finished FROM answers WHERE key IN ({marks})", some)  # noqa: S608
                    for key, text, finished in rows:
                        found[bytes(key)] = Heard(bytes(text).decode("utf-8", "surrogatepass"), finished=bool(finished))
            except (sqlite3.Error, OSError, ValueError) as error:
                self._trouble(error)
        return found

    def write(self, answers: dict[bytes, Heard]) -> None:
        """Add answers; those that are there already stay as they are."""
        rows = [(key, heard.text.encode("utf-8", "surrogatepass"), heard.finished) for key, heard in answers.items()]
        with self.busy:
            try:
                with self._open() as file:
                    file.executemany("INSERT OR IGNORE INTO answers (key, text, finished) VALUES (?, ?, ?)", rows)
                    file.execute("DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?", (self._most,))
            except (sqlite3.Error, OSError) as error:
                self._trouble(error)

    def close(self) -> None:
        """Until it is used again."""
        with self.busy:
            self.shut()

    def shut(self) -> None:
        """The same, for who holds ``busy``."""
        finalizer, self._finalizer, self._file = self._finalizer, None, None
        if finalizer is not None:
            finalizer()

    def _open(self) -> sqlite3.Connection:
        if self._useless:
            raise sqlite3.OperationalError("given up")
        if self._file is None:
            file = sqlite3.connect(self._path, timeout=PATIENCE, check_same_thread=False)
            self._finalizer = weakref.finalize(self, file.close)
            _to_wal(file)
            file.execute("PRAGMA synchronous=NORMAL")  # a crash of the machine may lose the last answers, and breaks nothing
            with file:
                file.execute(_TABLE)
            self._file = file
        return self._file

    def _trouble(self, error: Exception) -> None:
        """Only what passes, such as another process that writes for long, is tried again."""
        passing = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        if not passing:
            self.shut()
            self._useless = True
        if not self._told:
            self._told = True
            _log.warning("the cache of verdicts %s cannot be used (%s); judging goes on without it", self._path, error)


def _to_wal(file: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. Here SQLite itself does not wait for another process that does the same."""
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
