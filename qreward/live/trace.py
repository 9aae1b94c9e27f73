"""Writes the attempts of a client as Chrome trace JSON, for https://ui.perfetto.dev."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any, Self

from qreward.engine.driver import Engine
from qreward.engine.instrumentation import error_of, model_of, outcome_of, type_of
from qreward.errors import ConfigError
from qreward.scheduler.outcome import Outcome
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.task import Attempt, Task

_log = logging.getLogger("qreward")
SLACK = 0.005
"""Seconds by which an attempt may seem to begin before the attempt whose slot it takes has ended, because the end is reported later."""


class Trace:
    """Records the attempts that begin and end until ``close``. Use it with ``with``."""

    def __init__(self, engine: Engine[Scheduler], path: str | Path) -> None:
        try:
            self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - open until ``close``
        except OSError as error:
            raise ConfigError(f"the trace {str(path)!r} cannot be written: {error.strerror or error}") from None
        self._engine, self._lock = engine, threading.Lock()
        self._endpoints: dict[str, tuple[int, list[float]]] = {}  # number, and when the last attempt of each slot ended
        self._first: dict[Attempt, float] = {}  # when the first chunk came
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
            try:
                if not self._file.closed:
                    with self._file:
                        self._file.write("]\n")
            except OSError as error:  # it must not cost the results of the calls
                _log.warning("the trace %r is not complete: %s", self._file.name, error.strerror)

    # Watcher

    def began(self, _task: Task, _now: float) -> bool:
        return True

    def sent(self, attempt: Attempt) -> None: ...

    def first(self, attempt: Attempt, now: float) -> None:
        self._first[attempt] = now

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        with self._lock:
            first, error = self._first.pop(attempt, None), error_of(attempt, outcome)
            if attempt.sent_at < self._began:
                return
            process, slot, begun = self._place(attempt.source.name, attempt.sent_at, now)
            kind, result = type_of(attempt), outcome_of(attempt, outcome)
            about: dict[str, Any] = {"outcome": result, "attempt": attempt.number, "call": attempt.task.serial}
            about |= {} if first is None else {"first_chunk_s": round(first - attempt.sent_at, 6)}
            about |= {} if error is None else {"error": type(error).__name__, "status": getattr(error, "status_code", None)}
            name = " ".join((model_of(attempt.task), *([kind] if kind != "original" else []), *([result] if result != "won" else [])))
            times = {"ts": self._micros(begun), "dur": self._micros(now) - self._micros(begun)}
            self._write({"ph": "X", "name": name, "cat": kind, "pid": process, "tid": slot, **times, "args": about})

    def done(self, *_: object) -> None: ...

    # the file

    def _place(self, endpoint: str, begun: float, ended: float) -> tuple[int, int, float]:
        """Return the number of the endpoint, a slot that was free from the beginning, and the beginning. Slots are numbered from 1.

        Attempts come in the order of their ends, so the slot that was taken last of those that were free leaves the fewest slots.
        """
        if endpoint not in self._endpoints:
            self._endpoints[endpoint] = 1 + len(self._endpoints), []
            self._write(self._named("process_name", len(self._endpoints), 0, endpoint))
        process, ends = self._endpoints[endpoint]
        free = [place for place, end in enumerate(ends) if end <= begun + SLACK]
        place = max(free, key=ends.__getitem__, default=len(ends))
        if place == len(ends):
            ends.append(0.0)
            self._write(self._named("thread_name", process, len(ends), f"slot {len(ends)}"))
        begun, ends[place] = max(begun, ends[place]), ended
        return process, place + 1, begun

    @staticmethod
    def _named(what: str, process: int, slot: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": process, "tid": slot, "args": {"name": name}}

    def _micros(self, at: float) -> int:
        return max(0, round(1e6 * (at - self._began)))

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(f"{self._separator}{json.dumps(event, separators=(',', ':'))}")
            self._separator = ",\n"
