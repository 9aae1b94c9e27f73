"""Retries: which exceptions, how often, and how long to wait. A server's ``Retry-After`` replaces the back-off; ``debug`` logs each step.

Run it: ``python examples/schedule_retry.py``.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import httpx

from qreward import schedule

RESPONSES = [httpx.Response(429, headers={"retry-after-ms": "150"}), httpx.Response(500), httpx.Response(200, json={"score": 0.8})]

client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: RESPONSES.pop(0)), base_url="http://judge.example")


def worth_a_retry(error: Exception) -> bool | float:
    """True, False, or the seconds to wait."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (429, 500, 502, 503)
    return isinstance(error, httpx.TransportError)


@schedule(retry_times=4, retry_interval=0.1, retry_max_interval=2.0, exception_types=worth_a_retry, debug=True)
async def judge(answer: str) -> float:
    response = await client.post("/score", json={"answer": answer})
    response.raise_for_status()
    return float(response.json()["score"])


@schedule(retry_times=4, exception_types=(ConnectionError, TimeoutError))
def parse(text: str) -> float:
    return float(text)


async def main() -> None:
    print(f"score {await judge('42')} after {judge.stats().retries} retries")
    await client.aclose()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s")
    logging.getLogger("qreward.schedule").setLevel(logging.DEBUG)
    asyncio.run(main())
    try:
        parse("no number")
    except ValueError as error:  # not one of exception_types
        print(f"not retried: {error}; {parse.stats().tries} try")
