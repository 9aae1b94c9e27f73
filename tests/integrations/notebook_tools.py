"""Streams whose pieces come at told times, and a notebook that keeps what it was shown; both in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from shared_tools import words

from qreward import Endpoint, Limits, QRewardClient, Retry, ServerError, Usage
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind

MODEL = "judge-7b"
BROKEN = Failure(FailureKind.TRANSIENT, ServerError("endpoint 'gpu-0' answered 500", endpoint="gpu-0", status_code=500))

Step = float | str | Failure
"""Seconds to wait, a piece of text, or how the stream ends before its time."""


class Piece(NamedTuple):
    text: str

    @property
    def has_output(self) -> bool:
        return bool(self.text)

    def build(self) -> Any:
        return self.text


class Whole:
    """The answer that pieces add up to; its server counts ten tokens a piece."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self.usage = Usage(7, 10 * len(pieces), 7 + 10 * len(pieces))

    def build(self) -> Any:
        return {"content": self.text()}

    def text(self) -> str:
        return "".join(self._pieces)


class Speech:
    """An opened stream."""

    limits = None
    whole = False

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self._said: list[str] = []
        self.outcome: Any = None

    async def read(self) -> list[Piece] | None:
        try:
            while self._steps and self.outcome is None:
                step = self._steps.pop(0)
                if isinstance(step, str):
                    self._said.append(step)
                    return [Piece(step)]
                if isinstance(step, Failure):
                    self.outcome = step
                else:
                    await asyncio.sleep(step)
        except asyncio.CancelledError:
            self.end()
            raise
        self.outcome = self.outcome or Answer(Whole(self._said), 7, 10 * len(self._said))
        return None

    def text(self) -> str:
        return "".join(self._said)

    def end(self) -> Any:
        self.outcome = self.outcome or CANCELLED
        return self.outcome

    async def aclose(self) -> None:
        self.end()


class Speaking:
    """A wire: for each prompt the steps of its first try, of its second, and so on; the last of them for all further ones."""

    def __init__(self, scripts: dict[str, list[Sequence[Step]]]) -> None:
        self._scripts = scripts

    async def stream(self, endpoint: Endpoint, call: Any) -> Speech | Failure:
        script = self._scripts[call.inputs[0]["content"]]
        steps = script.pop(0) if len(script) > 1 else script[0]
        return steps[0] if isinstance(steps[0], Failure) else Speech(steps)

    async def aclose(self) -> None:
        """Nothing is open."""


def chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def speaking(scripts: dict[str, list[Sequence[Step]]]) -> QRewardClient:
    """A client of one endpoint, on the time of the running loop."""

    def wire() -> Any:
        return Speaking(scripts)

    made = [Endpoint("http://gpu-0.example/v1", name="gpu-0", limits=Limits(max_concurrency=64, adaptive=False))]
    return QRewardClient(made, retry=Retry(base=0.001), backend_factory=wire, clock=clock())


def clock() -> Any:
    return asyncio.get_running_loop().time


class Shown(NamedTuple):
    """One drawing: when, as which output, whether an earlier one was replaced, and what."""

    at: float
    output: str
    update: bool
    html: str
    plain: str

    @property
    def words(self) -> str:
        """What a reader sees."""
        return words(self.html)


class Notebook(ModuleType):
    """In place of ``IPython.display``: keeps what is displayed."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[Shown] = []
        self._outputs = 0

    def display(self, page: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        self._outputs += 1
        return Handle(self, f"output {self._outputs}", page)

    def keep(self, output: str, update: bool, page: dict[str, str]) -> None:
        now = asyncio.get_running_loop().time()
        self.shown.append(Shown(round(now, 4), output, update, page["text/html"], page["text/plain"]))


class Handle:
    def __init__(self, notebook: Notebook, output: str, page: dict[str, str]) -> None:
        self._notebook, self._output = notebook, output
        notebook.keep(output, False, page)

    def update(self, page: dict[str, str], *, raw: bool) -> None:
        assert raw
        self._notebook.keep(self._output, True, page)
