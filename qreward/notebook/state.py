"""How far streamed answers have come. Events and the time in, numbers and words out; knows nothing of how they are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from qreward.engine.stream_sink import StreamRestarted
from qreward.errors import StreamInterrupted
from qreward.results import Result


class Phase(StrEnum):
    """Where an answer stands."""

    WAITING = "waiting"
    STREAMING = "streaming"
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    STOPPED = "stopped"


def phase_of(error: BaseException) -> Phase:
    """How an error ends an answer: amid it, before it, or because nobody wants it any more."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return Phase.STOPPED
    return Phase.INTERRUPTED if isinstance(error, StreamInterrupted) else Phase.FAILED


def words_of(error: BaseException | None) -> str:
    """An error's type and message; of a cancellation there is nothing to say."""
    return "" if error is None or phase_of(error) is Phase.STOPPED else f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class Answer:
    """One streamed answer.

    Attributes:
        began: the time (of the clock that is given) from which seconds are counted.
        timed: its beginning was seen; if not, nothing is said of its first token and its rate.
        read: gives its text, where somebody else keeps it.
        pieces: its text since the last restart, where nobody does.
        seen: pieces that came, since the last restart; ``first`` and ``last`` are the times of two of them.
        told: its tokens as the server counts them, once it is done; ``took``: seconds of the attempt that gave it.
        trouble: what ended it; ``void``: what made it begin anew the last time.
    """

    began: float
    timed: bool = True
    read: Callable[[], str] | None = None
    phase: Phase = Phase.WAITING
    pieces: list[str] = field(default_factory=list)
    seen: int = 0
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    told: int | None = None
    took: float | None = None
    endpoint: str | None = None
    restarts: int = 0
    void: str = ""
    trouble: str = ""

    def add(self, event: str | StreamRestarted, now: float) -> None:
        """Take a piece of text, or a restart."""
        if isinstance(event, StreamRestarted):
            self.phase, self.first, self.last, self.seen = Phase.WAITING, None, None, 0
            self.restarts += 1
            self.void = words_of(event.error)
            self.pieces.clear()
            return
        self.phase, self.last = Phase.STREAMING, now
        self.first = now if self.first is None else self.first
        self.seen += 1
        if self.read is None:
            self.pieces.append(event)

    def end(self, result: Result[Any] | None, error: BaseException | None, now: float) -> None:
        """Take how it ended; the text that came stays."""
        self.phase = Phase.DONE if error is None else phase_of(error)
        self.trouble, self.ended = words_of(error), now
        if result is not None:
            self.endpoint = result.endpoint
            self.told = result.usage.completion_tokens if result.usage else None
            self.took = result.latency if result.ok else None

    @property
    def text(self) -> str:
        return "".join(self.pieces) if self.read is None else self.read()

    @property
    def tokens(self) -> int:
        """As the server counts them; until it has told, pieces, which most servers make of one token each."""
        return self.seen if self.told is None else self.told

    @property
    def wait(self) -> float | None:
        """Seconds to the first token, queueing included; None if that is not known."""
        return self.first - self.began if self.timed and self.first is not None else None

    @property
    def rate(self) -> float | None:
        """Tokens a second from the first piece to the last; None if that is not known."""
        if not self.timed or self.first is None or self.last is None or self.last <= self.first:
            return None
        return self.tokens * (self.seen - 1) / self.seen / (self.last - self.first)  # the first piece took no time

    def elapsed(self, now: float) -> float:
        """Seconds up to now, or to its end."""
        return (now if self.ended is None else self.ended) - self.began


@dataclass(slots=True)
class Board:
    """Many streamed answers, of which some are looked at.

    An answer takes a free place when its first token comes, or else that of one that has ended; what ends without a place is only counted.

    Attributes:
        most: places, 0 for any number.
        places: indices of the answers that are looked at.
        answers: those that are looked at, and those under way.
        ended: how many ended in which phase.
        tell: called with each answer that has ended.
        pieces, last: pieces that came in all, and when the last came.
        over: when all was over; ``trouble``: what broke it off.
    """

    began: float
    most: int
    places: list[int] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    ended: dict[Phase, int] = field(default_factory=dict)
    tell: Callable[[int, Answer], object] | None = None
    restarts: int = 0
    pieces: int = 0
    last: float | None = None
    over: float | None = None
    trouble: str = ""

    def add(self, index: int, event: str | StreamRestarted | Result[Any], now: float) -> None:
        """Take an event of one answer."""
        answer = self.answers.get(index)
        if answer is None:
            answer = self.answers[index] = Answer(self.began)
        if index not in self.places:
            self._place(index)
        if isinstance(event, Result):
            answer.end(event, event.error, now)
            self.ended[answer.phase] = self.ended.get(answer.phase, 0) + 1
            if self.tell is not None:
                self.tell(index, answer)
            if index not in self.places:
                del self.answers[index]
            return
        answer.add(event, now)
        if isinstance(event, str):
            self.pieces, self.last = self.pieces + 1, now
        else:
            self.restarts += 1

    def end(self, error: BaseException | None, now: float) -> None:
        """Nothing more comes; what is under way was left. The places are put in order."""
        self.over, self.trouble = now, words_of(error)
        self.places.sort()
        for answer in self.answers.values():
            if answer.ended is None:
                answer.end(None, asyncio.CancelledError(), now)
                self.ended[Phase.STOPPED] = self.ended.get(Phase.STOPPED, 0) + 1

    @property
    def live(self) -> int:
        """Answers under way that have begun to come."""
        return sum(answer.ended is None for answer in self.answers.values())

    @property
    def hidden(self) -> int:
        """Answers that are not looked at, ended or not."""
        return self.live + sum(self.ended.values()) - len(self.places)

    @property
    def rate(self) -> float | None:
        """Pieces a second of all answers together, from the beginning to the last piece."""
        return self.pieces / (self.last - self.began) if self.last is not None and self.last > self.began else None

    def elapsed(self, now: float) -> float:
        """Seconds up to now, or to the end."""
        return (now if self.over is None else self.over) - self.began

    def _place(self, index: int) -> None:
        if not self.most or len(self.places) < self.most:
            self.places.append(index)
            return
        for place, other in enumerate(self.places):
            if self.answers[other].ended is not None:
                del self.answers[other]
                self.places[place] = index
                return
