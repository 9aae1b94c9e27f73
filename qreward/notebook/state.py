"""The state of streamed answers while they are shown. Events and times update the state. This module does not depend on the display."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from qreward.engine.streams import StreamRestarted
from qreward.errors import StreamInterrupted
from qreward.results import Result


class AnswerPhase(StrEnum):
    WAITING = "waiting"
    STREAMING = "streaming"
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    STOPPED = "stopped"


def phase_of(error: BaseException | None) -> AnswerPhase:
    """Return the final phase: done (no error), stopped (cancelled), interrupted (``StreamInterrupted``), or failed (any other error)."""
    if error is None:
        return AnswerPhase.DONE
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return AnswerPhase.STOPPED
    return AnswerPhase.INTERRUPTED if isinstance(error, StreamInterrupted) else AnswerPhase.FAILED


def error_text(error: BaseException | None) -> str:
    """Return the type and message of an error, or ``""`` for None and for a cancellation."""
    return "" if error is None or phase_of(error) is AnswerPhase.STOPPED else f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class LiveAnswer:
    """The state of one streamed answer. Times are in seconds on the caller's clock, and None if unknown."""

    began: float
    timed: bool = True
    read: Callable[[], str] | None = None
    phase: AnswerPhase = AnswerPhase.WAITING
    pieces: list[str] = field(default_factory=list)
    count: int = 0
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    reported_tokens: int | None = None
    latency: float | None = None
    endpoint: str | None = None
    restarts: int = 0
    restart_reason: str = ""
    error: str = ""

    def add(self, event: str | StreamRestarted, now: float) -> None:
        if isinstance(event, StreamRestarted):
            self.phase, self.first, self.last, self.count = AnswerPhase.WAITING, None, None, 0
            self.restarts += 1
            self.restart_reason = error_text(event.error)
            self.pieces.clear()
            return
        self.phase, self.last = AnswerPhase.STREAMING, now
        self.first = now if self.first is None else self.first
        self.count += 1
        if self.read is None:
            self.pieces.append(event)

    def end(self, result: Result[Any] | None, error: BaseException | None, now: float) -> None:
        """Record the end. The text received so far is kept."""
        self.phase, self.error, self.ended = phase_of(error), error_text(error), now
        if result is not None:
            self.endpoint = result.endpoint
            self.reported_tokens = result.usage.completion_tokens if result.usage else None
            self.latency = result.latency if result.ok else None

    @property
    def text(self) -> str:
        return "".join(self.pieces) if self.read is None else self.read()

    @property
    def tokens(self) -> int:
        """Number of tokens that the server reported. Before the server reports a number, this is the number of pieces."""
        return self.count if self.reported_tokens is None else self.reported_tokens

    @property
    def wait(self) -> float | None:
        """Seconds to the first token, including time in queues."""
        return self.first - self.began if self.timed and self.first is not None else None

    @property
    def rate(self) -> float | None:
        """Tokens per second, from the first piece to the last piece. The tokens of the first piece do not count. None if unknown."""
        if not self.timed or self.first is None or self.last is None or self.last <= self.first:
            return None
        return self.tokens * (self.count - 1) / self.count / (self.last - self.first)


@dataclass(slots=True)
class LiveBatch:
    """The state of the streamed answers of a batch. A limited number of answers is displayed, each at a place of the display."""

    began: float
    most: int
    on_end: Callable[[int, LiveAnswer], object] = lambda _index, _answer: None
    places: list[int] = field(default_factory=list)
    answers: dict[int, LiveAnswer] = field(default_factory=dict)
    phases: Counter[AnswerPhase] = field(default_factory=Counter)
    restarts: int = 0
    pieces: int = 0
    last: float | None = None
    ended: float | None = None
    error: str = ""

    def add(self, index: int, event: str | StreamRestarted | Result[Any], now: float) -> None:
        answer = self.answers.get(index)
        if answer is None:
            answer = self.answers[index] = LiveAnswer(self.began)
        if index not in self.places:
            self._place(index)
        if isinstance(event, Result):
            answer.end(event, event.error, now)
            self.phases[answer.phase] += 1
            self.on_end(index, answer)
            if index not in self.places:
                del self.answers[index]
            return
        answer.add(event, now)
        if isinstance(event, str):
            self.pieces, self.last = self.pieces + 1, now
        else:
            self.restarts += 1

    def _place(self, index: int) -> None:
        if not self.most or len(self.places) < self.most:
            self.places.append(index)
            return
        for place, other in enumerate(self.places):
            if self.answers[other].ended is not None:
                del self.answers[other]
                self.places[place] = index
                return

    def end(self, error: BaseException | None, now: float) -> None:
        """Record the end of the batch, and sort the places by index. Answers that are still being streamed count as stopped."""
        self.ended, self.error = now, error_text(error)
        self.places.sort()
        for answer in self.answers.values():
            if answer.ended is None:
                answer.end(None, asyncio.CancelledError(), now)
                self.phases[AnswerPhase.STOPPED] += 1

    @property
    def live(self) -> int:
        return sum(answer.ended is None for answer in self.answers.values())

    @property
    def hidden(self) -> int:
        """Number of answers that are not displayed, including answers that have ended."""
        return self.live + self.phases.total() - len(self.places)

    @property
    def rate(self) -> float | None:
        """Pieces per second of all answers together, from the start to the latest piece; None if unknown."""
        return self.pieces / (self.last - self.began) if self.last is not None and self.last > self.began else None
