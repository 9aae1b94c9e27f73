"""What the tests of the drop-in share: SDK clients over our transport, and a server that calls tools and keeps what it was sent.

Also used by the slow tests against other versions of the SDK: nothing here may depend on one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import openai
from aiohttp import web

from qreward import Endpoint, QRewardClient
from qreward.integrations.openai import BASE_URL, transport
from qreward.testing import FakeEndpoint, FakeFleet, Latency

MODEL = "judge-7b"
NEW = int(openai.__version__.partition(".")[0]) >= 3
LIBRARIES = ["httpx", "httpx2"] if NEW and find_spec("httpx2") else ["httpx"]
"""What the installed SDK takes an ``http_client`` of."""

PERSON: dict[str, Any] = {"name": "Ada", "age": 36}
_FIELDS = {"name": {"type": "string"}, "age": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": _FIELDS, "required": ["name", "age"], "additionalProperties": False}
TOOL: Any = {"type": "function", "function": {"name": "person", "description": "A person.", "parameters": SCHEMA, "strict": True}}


def ask(words: str = "hello") -> Any:
    return [{"role": "user", "content": words}]


def sdk(client: Any, library: str = "httpx", timeout: float | None = None, **settings: Any) -> openai.AsyncOpenAI:
    """The SDK as a user sets it up by hand."""
    http = import_module(library).AsyncClient(transport=transport(client, **settings), timeout=timeout)
    return openai.AsyncOpenAI(base_url=BASE_URL, api_key="sk-of-the-program", http_client=http)


def sync_sdk(client: Any, library: str = "httpx") -> openai.OpenAI:
    http = import_module(library).Client(transport=transport(client), timeout=None)
    return openai.OpenAI(base_url=BASE_URL, api_key="sk-of-the-program", http_client=http)


@asynccontextmanager
async def fleet_and_client(*fakes: FakeEndpoint, **settings: Any) -> AsyncIterator[tuple[FakeFleet, QRewardClient]]:
    """A fleet, by default of two good endpoints, and a client of it."""
    async with FakeFleet(fakes or (quick("a"), quick("b"))) as fleet, QRewardClient(fleet.endpoints, **settings) as client:
        yield fleet, client


def quick(name: str, **settings: Any) -> FakeEndpoint:
    return FakeEndpoint(name, latency=Latency(tokens=8), **settings)


def requests(fleet: FakeFleet) -> int:
    """How many have arrived."""
    return sum(fleet.seen(name).requests for name in fleet.names)


class ToolServer:
    """A server that calls the first tool it is offered, answers a schema with a person, and says ``hello`` otherwise.

    Attributes:
        bodies, headers: of the requests, as they came.
        person: what it calls tools with.
        streams: False for a server that answers whole although a stream was asked for.
        reason: why an answer that calls no tool ended.
    """

    def __init__(self, streams: bool = True) -> None:
        self.person = dict(PERSON)
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.streams = streams
        self.reason = "stop"

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())
        self.bodies.append(asked)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        message, reason = self._message(asked)
        if not asked.get("stream") or not self.streams:
            choices = [{"index": at, "message": message, "finish_reason": reason, "logprobs": None} for at in range(asked.get("n") or 1)]
            used = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            return web.json_response(self._head(asked, "chat.completion") | {"choices": choices, "usage": used})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for delta in [*self._deltas(message), None]:
            choice = {"index": 0, "delta": delta or {}, "finish_reason": None if delta else reason}
            document = self._head(asked, "chat.completion.chunk") | {"choices": [choice]}
            await response.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    def _head(asked: Any, kind: str) -> dict[str, Any]:
        return {"id": "chat-1", "object": kind, "created": 1, "model": asked["model"], "x_extra": {"kept": [1, None]}}

    def _message(self, asked: Any) -> tuple[dict[str, Any], str]:
        if asked.get("tools"):
            function = {"name": asked["tools"][0]["function"]["name"], "arguments": json.dumps(self.person)}
            call = {"id": "call-1", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        return {"role": "assistant", "content": json.dumps(self.person) if asked.get("response_format") else "hello"}, self.reason

    @staticmethod
    def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": ""}
        for call in message.get("tool_calls", ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield {"tool_calls": [{"index": 0, **call, "function": {"name": name, "arguments": ""}}]}
            for start in range(0, len(arguments), 7):
                yield {"tool_calls": [{"index": 0, "function": {"arguments": arguments[start : start + 7]}}]}
        content = message["content"] or ""
        yield from ({"content": content[start : start + 4]} for start in range(0, len(content), 4))


@asynccontextmanager
async def serving(handle: Any) -> AsyncIterator[str]:
    """A server of the test's own; gives its base URL."""
    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def tools_and_client(server: ToolServer) -> AsyncIterator[QRewardClient]:
    async with serving(server) as url, QRewardClient([Endpoint(url, name="tools", api_key="sk-of-the-endpoint", proxy="")]) as client:
        yield client
