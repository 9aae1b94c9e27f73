"""Bodies of streams as servers send them, and a client that reads them to their end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

from shared_tools import run
from transport_server import Connection, Request, Script, backend_to

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.scheduler.outcome import Answer, Cancelled, Failure
from qreward.settings.policies import Endpoint
from qreward.transport.backend import ChatStream, HttpBackend

MESSAGES = [{"role": "user", "content": "?"}]
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "judge-7b"}
START = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: r-1\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
Outcome = Answer | Failure | Cancelled


def call(*, headers: dict[str, str] | None = None, **params: Any) -> WireRequest:
    return WireRequest(CHAT, "judge-7b", MESSAGES, params, headers)


def piece(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def said(text: str, *, index: int = 0, finish: str | None = None) -> bytes:
    return event(HEAD | {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]})


COUNTS = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 4}}
USAGE = event(HEAD | {"choices": [], "usage": COUNTS})
DONE = b"data: [DONE]\n\n"
ENDED = said("", finish="stop")
WHOLE = said("ye") + said("s") + ENDED + USAGE + DONE


def sse(body: bytes) -> bytes:
    return START + piece(body) + END


async def read_on(stream: ChatStream) -> tuple[str, Outcome]:
    """The text that is still to come, and the outcome."""
    text = ""
    while (chunks := await stream.read()) is not None:
        text += "".join(chunk.text for chunk in chunks)
    assert stream.outcome is not None
    assert await stream.read() is None
    return text, stream.outcome


async def ask(backend: HttpBackend, endpoint: Endpoint, what: WireRequest | None = None) -> tuple[str, Outcome]:
    """The text of the chunks, and the outcome."""
    opened = await backend.stream(endpoint, what or call())
    if isinstance(opened, Failure):
        return "", opened
    async with aclosing(opened) as stream:
        return await read_on(stream)


def outcome_of(script: Script, engine: str = "aiohttp", what: WireRequest | None = None, **settings: Any) -> tuple[str, Any, list[Request]]:
    """Ask a server that follows a script; the text, the outcome, and what the server was asked."""
    found: list[Any] = []

    async def test() -> None:
        async with backend_to(script, engine, name="gpu-0", **settings) as (server, endpoint, backend):
            found.extend([*await ask(backend, endpoint, what), server.requests])

    run(test())
    return found[0], found[1], found[2]


async def break_off(_: Request, connection: Connection) -> None:
    await asyncio.sleep(0.02)  # a reset overtakes what is still on its way
    connection.reset()


async def close(_: Request, connection: Connection) -> None:
    connection.writer.close()


def begun(body: bytes, then: Script) -> Script:
    async def script(request: Request, connection: Connection) -> None:
        await connection.send(START + piece(body))
        await then(request, connection)

    return script
