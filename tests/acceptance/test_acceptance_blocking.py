"""Code that does not await: many threads on one client, calls inside running loops of both kinds, and what streams see of their caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from random import Random
from typing import Any

from acceptance_tools import MODEL, echoes, in_flight, prompt, prompts, until

from qreward import Endpoint, Limits, SyncQRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Latency, echo_of

THREADS = 16
SEED = 5
PACE = Latency(base=0.005, per_token=0.0005, tokens=10)
CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


def read_batch(client: SyncQRewardClient, count: int) -> list[str]:
    texts = [""] * count
    for index, token in client.batch_stream_chat_completion(prompts(count), MODEL):
        texts[index] += token
    return texts


def leave_early(client: SyncQRewardClient) -> None:
    for _ in client.stream_chat_completion(prompt(0), MODEL):
        break


def work(client: SyncQRewardClient, number: int) -> None:
    """A hundred requests of all kinds, in an order of the thread's own; whatever is answered is the right answer."""
    kinds: list[Callable[[], Any]] = [
        *[lambda: "".join(client.stream_chat_completion(prompt(number), MODEL))] * 8,
        *[lambda: client.stream_chat_completion(prompt(number), MODEL).final().choices[0].message.content] * 8,
        *[lambda: client.chat_completion(prompt(number), MODEL).choices[0].message.content] * 8,
        *[lambda: leave_early(client)] * 4,
        *[lambda: read_batch(client, 9)] * 4,
        *[lambda: client.batch_chat_completion(prompts(9), MODEL).texts()] * 4,
    ]
    Random(f"{SEED}/{number}").shuffle(kinds)
    for kind in kinds:
        assert kind() in (echo_of(prompt(number)), echoes(9), None), f"seed {SEED}"


def test_sixteen_threads_stream_and_batch_with_one_client() -> None:
    fakes = [FakeEndpoint(name, latency=PACE, max_concurrency=12) for name in "ab"]
    with FakeFleet(fakes) as fleet:
        limits = Limits(max_concurrency=12, adaptive=False)
        with SyncQRewardClient([Endpoint(url, name=name, proxy="", limits=limits) for name, url in fleet.urls.items()]) as client:
            with ThreadPoolExecutor(THREADS) as pool:
                assert list(pool.map(work, [client] * THREADS, range(THREADS))) == [None] * THREADS
            asyncio.run(until(lambda: in_flight(client._async) == 0))
            stats = client.stats()
        asyncio.run(until(lambda: all(fleet.seen(name).in_flight == 0 for name in "ab")))
        assert [thread.name for thread in threading.enumerate()].count("qreward-portal") == 1
        for name in "ab":
            assert fleet.seen(name).peak_in_flight <= 12
            assert fleet.seen(name).rejected == 0
            assert stats[name].sent == stats[name].won + stats[name].cancelled
        left = THREADS * 4
        answered = THREADS * (8 + 8 + 8 + 4 * 9 + 4 * 9)
        assert answered <= sum(each.won for each in stats.values()) <= answered + left  # some left when all had come
