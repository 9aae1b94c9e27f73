"""A wire whose streams follow a script: pauses, pieces, signs of life, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from engine_tools import MODEL, FakeWire, broken, chat, prompt_of

from qreward import Endpoint, QRewardClient
from qreward.results import Usage
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, RateLimitInfo

Step = float | str | tuple[str, Failure] | None | Failure
"""Seconds to wait; a piece of text (``""`` has no output; see ``ENDS``); None is a sign of life; a failure ends the stream; both at
once."""
Script = Callable[[str, str], Iterable[Step]]
"""From endpoint name and prompt to what happens. A failure before any piece is what the server answers instead of a stream."""
OPENED = None
ENDS = "\x00"
"""The end of a piece with which the answer ends, though the stream goes on."""


class Piece:
    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def has_output(self) -> bool:
        return bool(self.text)

    def build(self) -> str:
        return f"<{self.text}>"


class Whole:
    """What a stream has come to."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.usage: Usage | None = None

    def build(self) -> str:
        return "".join(self.said)

    def text(self) -> str:
        return "".join(self.said)


class ScriptedStream:
    def __init__(self, wire: StreamWire, name: str, prompt: str, steps: list[Step]) -> None:
        self.outcome: Any = None
        self.limits: RateLimitInfo | None = wire.limits
        self._wire, self._name, self._prompt = wire, name, prompt
        self._steps = steps
        self._whole = Whole()
        self._closed = False
        self._ended = False

    async def read(self) -> list[Piece] | None:
        if self.outcome is not None:
            return None
        self._wire.reads[self._prompt] = self._wire.reads.get(self._prompt, 0) + 1
        try:
            while self._steps:
                step = self._steps.pop(0)
                if isinstance(step, float | int):
                    await asyncio.sleep(step)
                elif isinstance(step, str):
                    self._ended = step.endswith(ENDS)
                    self._whole.said.append(step.removesuffix(ENDS))
                    return [Piece(step.removesuffix(ENDS))]
                elif isinstance(step, tuple):
                    self.outcome = step[1]
                    return [Piece(step[0])]
                elif step is None:
                    return []
                else:
                    self.outcome = step
                    return None
        except BaseException:
            self.end()
            raise
        self.outcome = self._answer()
        return None

    def text(self) -> str:
        return self._whole.text()

    @property
    def whole(self) -> bool:
        return self.outcome is None and self._ended

    def end(self) -> Any:
        self.outcome = self._answer() if self.whole else self.outcome or CANCELLED
        return self.outcome

    def _answer(self) -> Answer:
        said = len([text for text in self._whole.said if text])
        self._whole.usage = Usage(7, said, 7 + said)
        return Answer(self._whole, 7, said)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._wire.live[self._name] -= 1
            if not isinstance(self.outcome, Answer | Failure):
                self._wire.cancelled.append(self._prompt)


class StreamWire(FakeWire):
    """Notes as ``FakeWire`` does, and how often each stream was read."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__()
        self._steps = script or spoken
        self.reads: dict[str, int] = {}
        self.limits: RateLimitInfo | None = None

    async def stream(self, endpoint: Endpoint, call: Any) -> ScriptedStream | Failure:
        name, prompt = endpoint.name, prompt_of(call)
        self.sent.append((name, prompt, asyncio.get_running_loop().time()))
        self.live[name] += 1
        self.peak[name] = max(self.peak[name], self.live[name])
        steps = list(self._steps(name, prompt))
        opened = False
        try:
            while steps and isinstance(steps[0], float | int | Failure):
                step: Any = steps.pop(0)
                if isinstance(step, Failure):
                    return step
                await asyncio.sleep(step)
            opened = True
        except asyncio.CancelledError:
            self.cancelled.append(prompt)
            raise
        finally:
            if not opened:
                self.live[name] -= 1
        return ScriptedStream(self, name, prompt, steps)


def spoken(_: str, prompt: str) -> Iterable[Step]:
    """Three pieces, one a second."""
    for piece in ("re", ": ", prompt):
        yield 1.0
        yield piece


def words(count: int, gap: float = 0.01, then: Failure | None = None) -> Script:
    """So many pieces, the first of them after a second."""

    def script(_: str, __: str) -> Iterable[Step]:
        yield 1.0
        for number in range(count):
            yield f"{number} "
            yield gap
        if then is not None:
            yield then

    return script


def failing_at(name: str, *steps: Step) -> Script:
    """One endpoint goes through these steps and breaks; the others speak."""

    def script(called: str, prompt: str) -> Iterable[Step]:
        return [*steps, broken(name)] if called == name else spoken(called, prompt)

    return script


def ask(client: QRewardClient, prompt: object = "hi", **settings: Any) -> Any:
    return client.stream_chat_completion(chat(prompt), MODEL, **settings)


async def heard(stream: Any, seen: list[Any] | None = None) -> list[Any]:
    """All that a loop over it gives; what it gave before an error is in ``seen``."""
    seen = [] if seen is None else seen
    async for item in stream:
        seen.append(item)
    return seen
