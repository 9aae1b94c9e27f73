"""Answers kept in a file over runs: content in, text out. Any number of processes may share one file.

An answer is found again as long as the weights that wrote it are those that answer now, as far as servers tell: with each answer comes a
fingerprint (see ``hearing.fingerprint_of``). The file holds which fingerprint each endpoint sent last. One that an endpoint has not sent
before means that something changed, so from then on answers with other fingerprints are not found, until an endpoint sends theirs again.
So a fleet whose endpoints differ keeps all of its answers, and one whose weights were replaced keeps none of the old.

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
from typing import NamedTuple

from qreward.engine import background as forks
from qreward.judge.reply import ModelReply

MOST = 1_000_000
"""Answers that are kept; beyond it the oldest go. At a kilobyte each that is a gigabyte."""
PATIENCE = 5.0
"""Seconds for which another process that writes is waited for."""

_log = logging.getLogger("qreward")

VERSION = 2
"""Of the tables, as ``PRAGMA user_version`` has it. Files of version 0 hold no fingerprints, and answers that were not whole."""
_TABLES = (
    """CREATE TABLE IF NOT EXISTS answers (
        number INTEGER PRIMARY KEY, key BLOB NOT NULL, fingerprint TEXT NOT NULL, text BLOB NOT NULL, UNIQUE (key, fingerprint))""",
    """CREATE TABLE IF NOT EXISTS endpoints (
        model TEXT NOT NULL, endpoint TEXT NOT NULL, fingerprint TEXT NOT NULL, current INTEGER NOT NULL, PRIMARY KEY (model, endpoint))""",
    f"PRAGMA user_version={VERSION}",
)
_COLUMNS_0 = ["number", "key", "text", "finished"]


class Sighting(NamedTuple):
    """An answer, and where it came from.

    Attributes:
        model: what the model is called in the cache.
        endpoint: name of the endpoint.
        heard: the answer.
        key: of what was asked; None for an answer that was not read, which is not kept.
    """

    model: str
    endpoint: str
    heard: ModelReply
    key: bytes | None = None


Sent = dict[str, tuple[str, bool]]
"""Endpoint -> the fingerprint it sent last, and whether answers with that one are found."""


def note(sent: Sent, endpoint: str, fingerprint: str) -> None:
    """Note what an endpoint sent.

    Example:
        >>> sent = {"a": ("v1", True), "b": ("v1", True)}
        >>> note(sent, "a", "v2")
        >>> sent
        {'a': ('v2', True), 'b': ('v1', False)}
    """
    if sent.get(endpoint, ("", False))[0] != fingerprint:
        for other, (its, _) in sent.items():
            sent[other] = its, False
    sent[endpoint] = fingerprint, True


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
        """What belongs to this process. What is not yet written is left to the process that heard it."""
        inherited = self.__dict__.get("_store"), self.__dict__.get("_worker")
        self._lock = threading.Lock()
        self._fresh: list[Sighting] = []
        self._flushing = False
        self._worker: ThreadPoolExecutor | None = None
        self._store = _Store(self._path, self._most)
        return inherited

    async def look(self, asked: Sequence[tuple[bytes, str]]) -> list[ModelReply | None]:
        """What is kept under each of these keys, each with its model; None where there is nothing."""
        if not asked:
            return []
        found = await asyncio.get_running_loop().run_in_executor(self._thread(), self._store.read, asked)  # after what waits to be written
        return [found.get(key) for key, _ in asked]

    def keep(self, sighting: Sighting) -> None:
        """Keep an answer; it is written soon, together with others."""
        with self._lock:
            self._fresh.append(sighting)
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
            fresh, self._fresh, self._flushing = self._fresh, [], False
        self._store.write(fresh)


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

    def read(self, asked: Sequence[tuple[bytes, str]]) -> dict[bytes, ModelReply]:
        """What there is under these keys, by the weights that answer now."""
        found: dict[bytes, ModelReply] = {}
        models = dict(asked)
        with self.busy:
            try:
                file = self._open()
                current = {model: {its for its, now in _sent(file, model).values() if now} for model in set(models.values())}
                keys = list(models)
                for begin in range(0, len(keys), 500):
                    some = keys[begin : begin + 500]
                    marks = ",".join("?" * len(some))
                    rows = file.execute(f"SELECT key, fingerprint, text FROM answers WHERE key IN ({marks}) ORDER BY number", some)  # noqa: S608
                    for key, fingerprint, text in rows:
                        if fingerprint in current[models[bytes(key)]]:
                            found.setdefault(bytes(key), ModelReply(bytes(text).decode("utf-8", "surrogatepass"), fingerprint=fingerprint))
            except (sqlite3.Error, OSError, ValueError) as error:
                self._trouble(error)
        return found

    def write(self, sightings: Sequence[Sighting]) -> None:
        """Note what endpoints sent, and add answers; those that are there already stay as they are."""
        texts = [(each.key, each.heard.fingerprint, each.heard.text.encode("utf-8", "surrogatepass")) for each in sightings if each.key]
        with self.busy:
            try:
                with self._open() as file:
                    file.execute("BEGIN IMMEDIATE")  # before what is read, for another process may write
                    _note(file, sightings)
                    file.executemany("INSERT OR IGNORE INTO answers (key, fingerprint, text) VALUES (?, ?, ?)", texts)
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
            _prepare(file)
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


def _prepare(file: sqlite3.Connection) -> None:
    """Make the tables. Raises ``sqlite3.DatabaseError`` for a file that this version cannot use."""
    if file.execute("PRAGMA user_version").fetchone() == (VERSION,):
        return
    with file:
        file.execute("BEGIN IMMEDIATE")
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"its format is {version}, and this version of qreward knows {VERSION}; give another path")
        columns = [row[1] for row in file.execute("PRAGMA table_info(answers)")]
        if version == 0 and columns:
            if columns != _COLUMNS_0:
                raise sqlite3.DatabaseError("it is the database of another program; give another path")
            file.execute("DROP TABLE answers")
        for statement in _TABLES:
            file.execute(statement)


def _sent(file: sqlite3.Connection, model: str) -> Sent:
    rows = file.execute("SELECT endpoint, fingerprint, current FROM endpoints WHERE model = ?", (model,))
    return {endpoint: (fingerprint, bool(current)) for endpoint, fingerprint, current in rows}


def _note(file: sqlite3.Connection, sightings: Sequence[Sighting]) -> None:
    """Write down what endpoints sent, as far as it is new."""
    for model in {each.model for each in sightings}:
        before = _sent(file, model)
        after = dict(before)
        for each in sightings:
            if each.model == model:
                note(after, each.endpoint, each.heard.fingerprint)
        changed = [(model, endpoint, *sent) for endpoint, sent in after.items() if before.get(endpoint) != sent]
        file.executemany("INSERT OR REPLACE INTO endpoints (model, endpoint, fingerprint, current) VALUES (?, ?, ?, ?)", changed)


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
