"""A backend that answers as judges do without a network, and what a test says of it. On virtual time, but where a thread is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from leftovers import leftovers

from qreward import Endpoint, Limits, QRewardClient
from qreward.codecs.base import Reply, Unfinished
from qreward.errors import BadRequest, RateLimited, ServerError
from qreward.judge import Judge
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.testing.virtual_time import VirtualTimeLoop, run_in_virtual_time
from qreward.transport.connection_settings import secrets_of
from qreward.transport.error_mapping import FailedReply

MODEL = "judge-7b"
QUESTION = ("What is 6 x 7?", "42")
"""A prompt and a response."""


class Sent(NamedTuple):
    """A request."""

    endpoint: str
    at: float
    model: str
    messages: list[dict[str, Any]]
    params: dict[str, Any]

    @property
    def text(self) -> str:
        """The last message."""
        return str(self.messages[-1]["content"])

    @property
    def question(self) -> str:
        """The first message, which is the question also where it is asked again."""
        return str(self.messages[0]["content"])


def number_of(sent: Sent) -> int:
    """The number of the response, which is ``a`` and a number."""
    return int(sent.question.split("Candidate answer:\n```\na")[1].split("\n")[0])


Script = Callable[[Sent], Awaitable[Any]]
"""From a request to the text of its answer, a whole message as a dict (with ``finish_reason``, if it is to have one), or an outcome."""


def always(answer: Any, seconds: float = 1.0) -> Script:
    """The same answer to all."""
    return in_turn(answer, seconds=seconds)


def in_turn(*answers: Any, seconds: float = 1.0) -> Script:
    """One answer after the other, by the order of the requests; the last one again and again."""
    asked = 0

    async def script(_sent: Sent) -> Any:
        nonlocal asked
        asked += 1
        answer = answers[min(asked, len(answers)) - 1]
        await asyncio.sleep(seconds)
        return answer

    return script


class JudgeBackend:
    """Notes what was sent where and when, and what was cancelled."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.sent: list[Sent] = []
        self.cancelled: list[Sent] = []
        self.now = 0
        self.peak = 0

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        body = json.loads(call.codec.encode(call, call.model))
        at = round(asyncio.get_running_loop().time(), 3)
        model, messages = body.pop("model"), body.pop("messages")
        sent = Sent(str(endpoint.name), at, model, messages, body)
        self.sent.append(sent)
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            said = await self._script(sent)
        except asyncio.CancelledError:
            self.cancelled.append(sent)
            raise
        finally:
            self.now -= 1
        if isinstance(said, Answer | Failure):
            return said
        try:
            return Answer(call.codec.decode(answer(said), call), 10, 5)
        except Unfinished as error:
            return FailedReply(Reply(200, {}, b""), str(endpoint.name), model, secrets_of(endpoint)).by_body(error)

    async def aclose(self) -> None:
        pass


def answer(said: Any) -> bytes:
    """The body of a chat completion."""
    message = {"content": said} if isinstance(said, str) else dict(said)
    reason = message.pop("finish_reason", "stop")
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}).encode()


def score(number: float, reason: str = "so it is") -> str:
    return json.dumps({"reason": reason, "score": number})


def prefers(which: str) -> str:
    return json.dumps({"reason": "so it is", "preferred": which})


def refused(words: str, status: int = 400, model: str = MODEL) -> Failure:
    message = f"endpoint 'a' answered {status} for model {model!r}: {words}"
    return Failure(FailureKind.REFUSED, BadRequest(message, endpoint="a", model=model, status_code=status))


def broken(status: int = 500) -> Failure:
    return Failure(FailureKind.TRANSIENT, ServerError(f"the server answered {status}", endpoint="a", status_code=status))


def overloaded(after: float | None = None) -> Failure:
    return Failure(FailureKind.OVERLOADED, RateLimited("too busy", endpoint="a", status_code=429), retry_after=after)


def endpoint(name: str = "a", slots: int | None = None, **settings: Any) -> Endpoint:
    return Endpoint(f"http://{name}.example/v1", name=name, limits=Limits(max_concurrency=slots, adaptive=False), **settings)


def client_of(backend: Any, *endpoints: Endpoint, **settings: Any) -> QRewardClient:
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        settings["clock"] = loop.time
    return QRewardClient(endpoints or [endpoint(slots=64)], backend_factory=lambda: backend, hedge=None, **settings)


@asynccontextmanager
async def judge_over(backend: JudgeBackend, *endpoints: Endpoint, **settings: Any) -> AsyncIterator[Judge]:
    """A judge whose client is closed in the end, and nothing of whose work may be left by then."""
    async with client_of(backend, *endpoints) as client:
        judge = Judge(client, **{"model": MODEL, **settings})
        yield judge
        assert leftovers(client, judge) == {}


def judging(backend: JudgeBackend, use: Callable[[Judge], Coroutine[Any, Any, Any]], *endpoints: Endpoint, **settings: Any) -> Any:
    """Run one use of a judge on virtual time."""

    async def run() -> Any:
        async with judge_over(backend, *endpoints, **settings) as judge:
            return await use(judge)

    return run_in_virtual_time(run())


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)
