"""Work that ends early, at two replicas of vLLM: the server stops what the client gives up; what a replica loses is done again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _vllm import Replica, two_replicas
from vllm_tools import GOES_ON, MODEL, client_of, endpoint, idle, settled, user

from qreward import Hedge, QRewardClient, RequestTimeout

pytestmark = [pytest.mark.timeout(1200), pytest.mark.real_time]
Pair = tuple[Replica, Replica]
MOST = 3500
"""Tokens of a reply that nobody waits for; it would take the server half a minute."""
WIDTH = 16  # --max-num-seqs
Busy = Callable[[int], Awaitable[None]]
"""Waits until the server runs this many requests."""


@pytest.fixture(scope="module")
def mortal(folder: Path) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas, of which the second may be killed; it is running again before each test."""
    with two_replicas(MODEL, folder) as pair:
        yield pair


# what the client gives up


async def _cancelled(client: QRewardClient, busy: Busy) -> None:
    call = asyncio.create_task(client.chat_completion(user("long"), model=MODEL, max_tokens=MOST, extra_body=GOES_ON))
    await busy(1)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


async def _timed_out(client: QRewardClient, _: Busy) -> None:
    """More than the server could answer in this time by far, however quick it is."""
    chats = [user(f"long {number}") for number in range(3 * WIDTH)]
    calls = [client.chat_completion(chat, model=MODEL, max_tokens=MOST, extra_body=GOES_ON, timeout=2) for chat in chats]
    assert {type(error) for error in await asyncio.gather(*calls, return_exceptions=True)} == {RequestTimeout}


async def _closed_stream(client: QRewardClient, _: Busy) -> None:
    stream = client.stream_chat_completion(user("long"), model=MODEL, max_tokens=MOST, extra_body=GOES_ON)
    async for _ in stream:
        break
    await stream.aclose()


async def _cancelled_batch(client: QRewardClient, busy: Busy) -> None:
    chats = [user(f"long {number}") for number in range(40)]
    batch = asyncio.create_task(client.batch_chat_completion(chats, model=MODEL, max_tokens=MOST, extra_body=GOES_ON))
    await busy(4)
    batch.cancel()
    with suppress(asyncio.CancelledError):
        await batch


async def _cancelled_list(client: QRewardClient, busy: Busy) -> None:
    prompts = [f"long {number}" for number in range(40)]
    batch = asyncio.create_task(client.batch_text_completion(prompts, model=MODEL, max_tokens=MOST, extra_body=GOES_ON))
    await busy(4)
    batch.cancel()
    with suppress(asyncio.CancelledError):
        await batch


@pytest.mark.parametrize(
    "work", [_cancelled, _timed_out, _closed_stream, _cancelled_batch, _cancelled_list], ids=lambda work: work.__name__
)
def test_the_server_stops_what_the_client_gives_up(pair: Pair, work: Callable[[QRewardClient, Busy], Awaitable[None]]) -> None:
    """vLLM counts what was aborted nowhere: nothing runs any more, and nothing came to its end."""
    replica = pair[0]

    async def busy(count: int) -> None:
        await settled(replica, lambda now: now["num_requests_running"] >= count)

    async def main() -> tuple[Any, float]:
        await idle(replica)
        before = replica.metrics()
        async with client_of(replica, hedge=None) as client:
            await work(client, busy)
            begin = time.perf_counter()
            await idle(replica)
            took = time.perf_counter() - begin
        now = replica.metrics()
        now.subtract(before)
        return now, took

    more, took = asyncio.run(main())
    print(f"{work.__name__}: the server has stopped after {took:.2f} s and {more['generation_tokens_total']:.0f} tokens")
    assert more["finished:length"] == more["finished:stop"] == 0
    assert more["generation_tokens_total"] > 0  # it had begun


def test_the_copy_that_loses_is_stopped_at_its_server(pair: Pair) -> None:
    """The first replica is kept busy, so that the copy at the second wins."""

    async def main() -> tuple[Any, Any]:
        await idle(*pair)
        before = [replica.metrics() for replica in pair]
        async with client_of(pair[0], hedge=None) as busy, client_of(*pair, hedge=Hedge(after=0.3, budget=1.0)) as client:
            load = [
                asyncio.create_task(busy.chat_completion(user(f"busy {number}"), model=MODEL, max_tokens=MOST, extra_body=GOES_ON))
                for number in range(3 * WIDTH)
            ]
            await settled(pair[0], lambda now: now["num_requests_running"] >= WIDTH)
            calls = [
                asyncio.create_task(client.chat_completion(user(f"q {number}"), model=MODEL, max_tokens=200, extra_body=GOES_ON))
                for number in range(8)
            ]
            await asyncio.gather(*calls)
            stats = client.stats()
            for call in load:
                call.cancel()
            await asyncio.gather(*load, return_exceptions=True)
            await idle(*pair)
        more = [replica.metrics() for replica in pair]
        for now, old in zip(more, before, strict=True):
            now.subtract(old)
        return more, stats

    more, stats = asyncio.run(main())
    lost = sum(each.cancelled for each in stats.values())
    ends = [sum(value for name, value in each.items() if name in ("finished:length", "finished:stop")) for each in more]
    print(f"{sum(each.hedged for each in stats.values())} copies, {lost} attempts cancelled; ended at the servers: {ends}")
    assert lost > 0
    assert sum(ends) == 8  # each call once, and nothing of what was given up


# what a replica loses


class Served:
    """Counts the answers of the second replica; ``enough`` is set after 50, ``again`` at the first after ``back`` is set."""

    def __init__(self) -> None:
        self.ended = self.answers = 0
        self.enough, self.back, self.again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def __call__(self, result: Any) -> None:
        self.ended += 1
        self.answers += result.endpoint == "b"
        if self.answers >= 50:
            self.enough.set()
        if result.endpoint == "b" and self.back.is_set():
            self.again.set()


def test_a_replica_that_is_killed_loses_nothing_and_comes_back(mortal: Pair) -> None:
    dying = mortal[1]

    async def main() -> tuple[Any, Served]:
        served = Served()

        async def chats() -> AsyncIterator[Any]:
            number = 0
            while number < 1500 or not served.again.is_set():  # until the replica has served again
                yield user(f"q {number}")
                number += 1

        async with QRewardClient([endpoint(replica, probe=1) for replica in mortal]) as client:
            batch = asyncio.create_task(
                client.batch_chat_completion(chats(), model=MODEL, max_tokens=24, extra_body=GOES_ON, on_result=served)
            )
            await served.enough.wait()
            dying.signal(signal.SIGKILL)
            await asyncio.to_thread(dying.ended)
            dying.start()
            await asyncio.to_thread(dying.wait)
            served.back.set()
            return await batch, served

    batch, served = asyncio.run(main())
    assert not batch.errors, next(iter(batch.errors.values()))
    assert [result.index for result in batch] == list(range(len(batch)))
    assert served.ended == len(batch) >= 1500


def test_a_replica_that_is_asked_to_end_loses_nothing(mortal: Pair) -> None:
    async def main() -> Any:
        served = Served()
        async with QRewardClient([endpoint(replica, probe=1) for replica in mortal]) as client:
            chats = [user(f"q {number}") for number in range(800)]
            batch = asyncio.create_task(
                client.batch_chat_completion(chats, model=MODEL, max_tokens=24, extra_body=GOES_ON, on_result=served)
            )
            await served.enough.wait()
            mortal[1].signal(signal.SIGTERM)
            await asyncio.to_thread(mortal[1].ended)
            return await batch

    batch = asyncio.run(main())
    assert not batch.errors, next(iter(batch.errors.values()))
    assert [result.index for result in batch] == list(range(800))


# limits


def test_a_server_of_sixteen_places_is_not_overrun(pair: Pair) -> None:
    """What vLLM cannot run waits in its own queue, where priorities and affinity no longer reach it."""

    async def main() -> tuple[Any, list[float]]:
        waiting: list[float] = []
        async with client_of(pair[0], hedge=None) as client:

            async def run(number: int) -> Any:
                chats = [user(f"q {number} {place}") for place in range(400)]
                return await client.batch_chat_completion(chats, model=MODEL, max_tokens=32, extra_body=GOES_ON)

            await run(0)
            batch = asyncio.create_task(run(1))
            while not batch.done():
                now = await asyncio.to_thread(pair[0].metrics)
                waiting.append(now["num_requests_running"] + now["num_requests_waiting"])
                await asyncio.sleep(0.1)
            return (await batch, client.stats()["a"].state), waiting

    (batch, state), held = asyncio.run(main())
    print(f"in flight at the server: {held}; window {state.window}: {state.why_window}")
    assert not batch.errors
    assert WIDTH / 4 <= state.window <= 4 * WIDTH
