"""Code that does not await: many threads on one client, calls inside running loops of both kinds, and what streams see of their caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from random import Random
from typing import Any

import httpx
import pytest
from acceptance_tools import MODEL, echoes, in_flight, prompt, prompts, until
from shared_tools import each

from qreward import Endpoint, Limits, QRewardClient, StreamInterrupted, SyncQRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, echo_of

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


def test_streams_that_break_off_in_one_thread_do_no_harm_to_the_others() -> None:
    faults = Faults(cut=0.1, truncated=0.05, malformed=0.05, point=None, seed=SEED)

    def read(number: int) -> str | None:
        said = ""
        try:
            for token in client.stream_chat_completion(prompt(number), MODEL):
                said += token
        except StreamInterrupted as error:
            return None if error.text == said and echo_of(prompt(number)).startswith(said) else said
        return None if said == echo_of(prompt(number)) else said

    with FakeFleet([FakeEndpoint(name, latency=PACE, faults=faults) for name in "ab"]) as fleet:
        with SyncQRewardClient(fleet.endpoints) as client, ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(read, range(200))) == [None] * 200
        assert sum(fleet.seen(name).errors.get("cut", 0) for name in "ab") > 8


def test_streams_work_on_uvloop_and_blocking_ones_inside_its_running_loop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def cell() -> None:
        with SyncQRewardClient(fleet.endpoints) as client:
            work(client, 3)
            with client.stream_chat_completion(prompt(1), MODEL) as stream:
                assert "".join(stream) == echo_of(prompt(1))
        async with QRewardClient(fleet.endpoints) as other:  # and beside it one that is awaited
            streams = [other.stream_chat_completion(prompt(number), MODEL) for number in range(50)]
            answers = await asyncio.gather(*(stream.final() for stream in streams))
            assert [answer.choices[0].message.content for answer in answers] == echoes(50)
            async for _ in other.batch_stream_chat_completion(prompts(50), MODEL):
                break
            await until(lambda: in_flight(other) == 0)

    with FakeFleet([FakeEndpoint("a", latency=PACE)]) as fleet, asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(cell())
        asyncio.run(until(lambda: fleet.seen("a").in_flight == 0))


class Looks(httpx.AsyncBaseTransport):
    """Streams one word; notes in whose name it is asked."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.callers.append(CALLER.get())
        event = b'data: {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
        return httpx.Response(200, content=event, headers={"Content-Type": "text/event-stream"})


@each("batch", [False, True])
async def test_the_requests_of_an_awaited_stream_see_the_context_in_which_it_was_begun(batch: bool) -> None:
    looks = Looks()

    async def ask(name: str) -> None:
        CALLER.set(name)
        single = client.stream_chat_completion(prompt(0), MODEL)
        made: Any = client.batch_stream_chat_completion([prompt(0)], MODEL) if batch else single
        CALLER.set(name * 2)
        assert [each async for each in made.events()]

    mine = httpx.AsyncClient(transport=looks)
    async with mine, QRewardClient([Endpoint("http://gpu-0.example/v1", http_client=mine)]) as client:
        await asyncio.gather(*map(ask, "wxyz"))
    assert sorted(looks.callers) == ["ww", "xx", "yy", "zz"]
