"""Bare aiohttp + msgspec without any timeout: the least CPU time that an asyncio program can need for a chat call. All ratios refer to it.

The session has the same settings as that of qreward, so that ratios do not include the cost of aiohttp's defaults.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import cycle

import aiohttp
import msgspec
from _harness import Drive, Job, Messages, closed_loop, main
from yarl import URL


class Message(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    message: Message


class Completion(msgspec.Struct):
    choices: list[Choice]


def open_session() -> aiohttp.ClientSession:
    """Return a session without optional features."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        read_bufsize=65536,
    )


def urls_of(job: Job) -> Iterator[URL]:
    """Yield the URLs of the endpoints, round robin, without end."""
    return cycle([URL(f"{url}/chat/completions", encoded=True) for url in job.urls])


Client = Callable[[Job], AbstractAsyncContextManager[Drive]]


def bare(timeout: float | None = None) -> Client:
    """Return the client; with ``timeout`` (seconds) each call runs under ``asyncio.timeout``, as in most programs."""

    @asynccontextmanager
    async def client(job: Job) -> AsyncIterator[Drive]:
        encoder, decoder, urls = msgspec.json.Encoder(), msgspec.json.Decoder(Completion), urls_of(job)

        async with open_session() as session:

            async def call(messages: Messages) -> str | None:
                body = encoder.encode({"model": "judge", "messages": messages, "temperature": 0})
                async with session.post(next(urls), data=body, allow_redirects=False) as response:
                    answer = await response.read()
                if response.status != 200:
                    raise RuntimeError(f"status {response.status}")
                return decoder.decode(answer).choices[0].message.content

            async def timed(messages: Messages) -> str | None:
                async with asyncio.timeout(timeout):
                    return await call(messages)

            yield closed_loop(call if timeout is None else timed, job)

    return client


if __name__ == "__main__":
    main(bare())
