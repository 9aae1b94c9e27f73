"""Writes the attempts of a client as Chrome trace JSON, for https://ui.perfetto.dev."""

from __future__ import annotations

import json
import threading
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Self

from qreward.engine.driver import Engine
from qreward.engine.instrumentation import error_of, model_of, outcome_of, type_of
from qreward.errors import ConfigError
from qreward.scheduler.outcome import Outcome
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, Task


class _Lanes:
    """The slots of one endpoint: those that are free, and the number of all."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.free: list[int] = []
        self.ends: list[float] = []  # when the last attempt of each slot ended


class Trace:
    """Records the attempts that begin until ``close``. Use it with ``with``."""

    def __init__(self, engine: Engine[Scheduler], path: str | Path) -> None:
        try:
            self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - open until ``close``
        except OSError as error:
            raise ConfigError(f"the trace {str(path)!r} cannot be written: {error.strerror or error}") from None
        self._engine, self._lock = engine, threading.Lock()
        self._lanes: dict[str, _Lanes] = {}
        self._running: dict[Attempt, tuple[int, float, float | None]] = {}  # lane, beginning, and time of the first chunk
        self._began = engine.clock()
        self._file.write("[")
        self._separator = "\n"
        engine.add_watcher(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the recording. Attempts in flight are not in the file."""
        self._engine.remove_watcher(self)
        with self._lock:
            if not self._file.closed:
                self._file.write("]\n")
                self._file.close()

    # Watcher

    def began(self, _task: Task, _now: float) -> bool:
        return True

    def sent(self, attempt: Attempt) -> None:
        with self._lock:
            lanes = self._lanes_of(attempt.source)
            if not lanes.free:
                lanes.ends.append(0.0)
                lanes.free.append(len(lanes.ends) - 1)
                self._write(self._named("thread_name", lanes.process, len(lanes.ends), f"slot {len(lanes.ends)}"))
            lane = heappop(lanes.free)
            # the event that made room was reported a moment after this attempt had been sent
            self._running[attempt] = lane, max(attempt.sent_at, lanes.ends[lane]), None

    def first(self, attempt: Attempt, now: float) -> None:
        if attempt in self._running:
            self._running[attempt] = *self._running[attempt][:2], now

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        with self._lock:
            if attempt not in self._running:
                return
            lane, begun, first = self._running.pop(attempt)
            lanes, error = self._lanes_of(attempt.source), error_of(attempt, outcome)
            heappush(lanes.free, lane)
            lanes.ends[lane] = now
            kind, result = type_of(attempt), outcome_of(attempt, outcome)
            about: dict[str, Any] = {"outcome": result, "attempt": attempt.number, "call": attempt.task.serial}
            about |= {} if first is None else {"first_chunk_s": round(first - attempt.sent_at, 6)}
            about |= {} if error is None else {"error": type(error).__name__, "status": getattr(error, "status_code", None)}
            name = " ".join((model_of(attempt.task), *([kind] if kind != "original" else []), *([result] if result != "won" else [])))
            times = {"ts": self._micros(begun), "dur": self._micros(now) - self._micros(begun)}
            self._write({"ph": "X", "name": name, "cat": kind, "pid": lanes.process, "tid": lane + 1, **times, "args": about})

    def done(self, *_: object) -> None: ...

    # the file

    def _lanes_of(self, source: Source) -> _Lanes:
        lanes = self._lanes.get(source.name)
        if lanes is None:
            lanes = self._lanes[source.name] = _Lanes(1 + len(self._lanes))
            self._write(self._named("process_name", lanes.process, 0, source.name))
        return lanes

    @staticmethod
    def _named(what: str, process: int, lane: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}

    def _micros(self, at: float) -> int:
        return max(0, round(1e6 * (at - self._began)))

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(f"{self._separator}{json.dumps(event, separators=(',', ':'))}")
            self._separator = ",\n"
