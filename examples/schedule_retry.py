"""Retries: which exceptions, how often, and how long to wait. A server's ``Retry-After`` goes before one's own back-off."""

from __future__ import annotations

import asyncio
import time

import httpx

from qreward import schedule

REPLIES = [httpx.Response(429, headers={"retry-after-ms": "150"}), httpx.Response(500), httpx.Response(200, json={"score": 0.8})]


def handle(request: httpx.Request) -> httpx.Response:
    """A judge that is overloaded first, then broken, then well."""
    reply = REPLIES.pop(0)
    print(f"  {request.method} {request.url}: {reply.status_code}")
    return reply


client = httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://judge.example")


def worth_another_try(error: Exception) -> bool | float:
    """True, False, or the seconds to wait."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (429, 500, 502, 503)
    return isinstance(error, httpx.TransportError)


@schedule(retry_times=4, retry_interval=0.1, retry_max_interval=2.0, exception_types=worth_another_try)
async def judge(answer: str) -> float:
    reply = await client.post("/score", json={"answer": answer})
    reply.raise_for_status()
    return float(reply.json()["score"])


@schedule(retry_times=4, exception_types=(ConnectionError, TimeoutError))
def parse(text: str) -> float:
    return float(text)


async def main() -> None:
    begun = time.monotonic()
    print("score:", await judge("42"))
    print(f"it waited for the server's 150 ms: {time.monotonic() - begun > 0.15}; {judge.stats().retries} retries")
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
    try:
        parse("no number")
    except ValueError as error:  # not one of exception_types: raised at once, as it was
        print(f"{error}; {parse.stats().tries} try")
