"""A backend that answers requests of a bulk by a script, on virtual time, and runs with it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from leftovers import leftovers

from qreward import Endpoint, Limits, QRewardClient
from qreward.bulk.outputs import BulkReport
from qreward.bulk.run import run_bulk
from qreward.errors import BadRequest, ConnectionFailed, RateLimited, ServerError
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.testing.virtual_time import VirtualTimeLoop

MODEL = "judge-7b"


class Sent(NamedTuple):
    """A request: where, when, the route, and the body."""

    endpoint: str
    at: float
    path: str
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """The last message, or the body where there are no messages."""
        return str(self.body["messages"][-1]["content"]) if "messages" in self.body else json.dumps(self.body, sort_keys=True)


Script = Callable[[Sent], Awaitable[Any]]
"""From a request to a body (bytes or a mapping), a text for a chat completion, or an outcome."""


def completion(text: str, prompt_tokens: int = 10, completion_tokens: int = 5) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage}


class Backend:
    """Answers by a script; notes what was sent, how much at once, and what was cancelled."""

    def __init__(self, script: Script | None = None, seconds: float = 1.0) -> None:
        self._script, self._seconds = script, seconds
        self.sent: list[Sent] = []
        self.cancelled: list[Sent] = []
        self.now = self.peak = 0

    @property
    def served(self) -> Counter[str]:
        return Counter(sent.text for sent in self.sent)

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        body = json.loads(call.codec.encode(call, call.model))
        sent = Sent(str(endpoint.name), round(asyncio.get_running_loop().time(), 3), call.codec.path, body)
        self.sent.append(sent)
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            said = await self._say(sent)
        except asyncio.CancelledError:
            self.cancelled.append(sent)
            raise
        finally:
            self.now -= 1
        if isinstance(said, Answer | Failure):
            return said
        body = completion(said) if isinstance(said, str) else said
        decoded = call.codec.decode(body if isinstance(body, bytes) else json.dumps(body).encode(), call)
        usage = decoded.usage
        return Answer(decoded, usage and usage.prompt_tokens, usage and usage.completion_tokens)

    async def _say(self, sent: Sent) -> Any:
        if self._script is not None:
            return await self._script(sent)
        await asyncio.sleep(self._seconds)
        return f"re: {sent.text}"

    async def aclose(self) -> None:
        """Nothing is open."""


def broken(status: int = 500, after: float | None = None) -> Failure:
    error = ServerError(f"the server answered {status}", endpoint="a", status_code=status)
    return Failure(FailureKind.TRANSIENT, error, retry_after=after)


def refused() -> Failure:
    return Failure(FailureKind.REFUSED, BadRequest("the server answered 400: too strange", endpoint="a", status_code=400))


def unreachable() -> Failure:
    return Failure(FailureKind.UNREACHABLE, ConnectionFailed("connection refused", endpoint="a"))


def overloaded(after: float | None = None) -> Failure:
    return Failure(FailureKind.OVERLOADED, RateLimited("too busy", endpoint="a", status_code=429), retry_after=after)


def endpoint(name: str = "a", slots: int = 8, **settings: Any) -> Endpoint:
    return Endpoint(f"http://{name}.example/v1", name=name, limits=Limits(max_concurrency=slots, adaptive=False), **settings)


class CheckedClient(QRewardClient):
    """At the end of its ``async with`` nothing may be under way or taken."""

    async def __aexit__(self, kind: object = None, *rest: object) -> None:
        left = {} if kind else leftovers(self)
        await super().__aexit__(kind, *rest)
        assert left == {}


def client_of(backend: Backend, *endpoints: Endpoint, **settings: Any) -> QRewardClient:
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        settings["clock"] = loop.time
    return CheckedClient(endpoints or [endpoint()], backend_factory=lambda: backend, **{"hedge": None, **settings})


def line(number: int, text: str | None = None, **body: Any) -> dict[str, Any]:
    """A line of OpenAI's Batch API."""
    messages = [{"role": "user", "content": f"item {number}" if text is None else text}]
    head = {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions"}
    return {**head, "body": {"model": MODEL, "messages": messages, **body}}


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    return [line(number, **body) for number in range(count)]


def write(path: Path, rows: Iterable[Mapping[str, Any] | str]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    return [json.loads(each) for each in path.read_bytes().split(b"\n")[:-1]]


def answers(path: Path | None) -> dict[str, str]:
    """The texts of the answers in an output, by identifier."""
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in read(path)}


def failures(path: Path | None) -> dict[str, str]:
    """The messages of the failed lines, by identifier."""
    return {row["custom_id"]: row["error"]["message"] for row in read(path)}


class Folder:
    """An input and an output in a folder, and runs on them with a client of their own each."""

    def __init__(self, path: Path, rows: Iterable[Mapping[str, Any] | str]) -> None:
        self.source, self.output = write(path / "in.jsonl", rows), path / "out.jsonl"
        self.failed, self.journal = path / "out.failed.jsonl", path / "out.jsonl.journal"

    async def run(self, backend: Backend, *endpoints: Endpoint, client: Mapping[str, Any] | None = None, **options: Any) -> BulkReport:
        on_start, timers = options.pop("on_start", lambda _: None), []
        async with client_of(backend, *endpoints, **(client or {})) as made:
            scorer = options.pop("scorer", lambda _: None)(made)
            source = options.pop("source", self.source)
            try:
                return await run_bulk(made, source, self.output, options, scorer=scorer, on_start=lambda run: timers.append(on_start(run)))
            finally:
                for timer in filter(None, timers):
                    timer.cancel()
