"""A batch whose endpoints are all dead, or whose deadline has passed, ends as a whole, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from engine_tools import MODEL, FakeWire, chat, chats, client_of, now

from qreward import CircuitOpen, DeadlineExceeded, Endpoint, RequestTimeout
from qreward.engine.batch import MOST_AT_ONCE
from qreward.engine.driver import TURNS
from qreward.errors import ConnectionFailed
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.scheduler.task import READ_AHEAD

MANY = 8_000


def refused(name: str) -> Failure:
    return Failure(FailureKind.UNREACHABLE, ConnectionFailed(f"endpoint {name!r} refused the connection", endpoint=name))


async def refuses(name: str, _: str) -> Any:
    return refused(name)


class Turns:
    """How many results come within one turn of the loop."""

    def __init__(self) -> None:
        self.most = self.results = self._before = 0
        self._handle: asyncio.Handle | None = None

    def count(self, _: object) -> None:
        self.results += 1
        if self._handle is None:
            self._before = self.results
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        self.most = max(self.most, self.results - self._before)


async def one_by_one(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


OPENERS: dict[str, Any] = {"list": list, "iterator": iter, "async": one_by_one}


@pytest.mark.parametrize("kind", OPENERS)
async def test_all_items_of_a_large_batch_fail_if_its_endpoints_have_died_or_are_marked_unhealthy_and_the_loop_lives(kind: str) -> None:
    wire, turns, item = FakeWire(refuses), Turns(), chat("x")
    async with client_of(wire, {"a": 4, "b": 4}) as client:
        batch = await client.batch_chat_completion(OPENERS[kind]([item] * MANY), MODEL, timeout=5, on_result=turns.count)
        assert 5 <= now() < 6.5  # a quarter of the timeout more, if one was sent last
    assert len(batch) == len(batch.errors) == turns.results == MANY
    assert {type(error) for error in batch.errors.values()} == {RequestTimeout}
    assert str(batch.errors[MANY - 1]).startswith("never sent: no endpoint of '*' has answered for 5 s, the timeout of an item ('a', 'b');")
    assert len(wire.sent) < 100
    assert turns.most <= 2 * MOST_AT_ONCE < MANY / 8
    turns, began = Turns(), now()
    async with client_of(FakeWire(), {"a": 4}) as client:
        client.mark_unhealthy("a")
        batch = await client.batch_chat_completion(OPENERS[kind]([item] * MANY), MODEL, on_result=turns.count)
        assert now() == began
    assert {type(error) for error in batch.errors.values()} == {CircuitOpen}
    assert len(batch.errors) == turns.results == MANY
    assert turns.most <= 2 * MOST_AT_ONCE < MANY / 8


async def test_a_batch_is_rescued_by_an_endpoint_that_returns_and_by_one_that_is_added() -> None:
    async def returns(name: str, prompt: str) -> Any:
        return refused(name) if now() < 15 else f"re: {prompt}"

    async with client_of(FakeWire(returns), {"a": 4, "b": 4}) as client:
        batch = await client.batch_chat_completion(iter(chats(500)), MODEL, timeout=20)
    assert batch.texts() == [f"re: {number}" for number in range(500)]

    async def only_c(name: str, prompt: str) -> Any:
        return f"re: {prompt}" if name == "c" else refused(name)

    async with client_of(FakeWire(only_c), {"a": 4}) as client:
        running = asyncio.ensure_future(client.batch_chat_completion(chats(500), MODEL, timeout=20))
        await asyncio.sleep(15)
        client.add_endpoint(Endpoint("http://c.example/v1", name="c"))
        batch = await running
    assert batch.texts() == [f"re: {number}" for number in range(500)]


async def test_what_is_read_after_a_late_return_is_served() -> None:
    """The items fail while no endpoint is alive, not for ever."""

    async def slow() -> AsyncIterator[Any]:
        for item in chats(60):
            await asyncio.sleep(1)
            yield item

    async def returns(name: str, prompt: str) -> Any:
        return refused(name) if now() < 30 else f"re: {prompt}"

    async with client_of(FakeWire(returns), {"a": 4}) as client:
        batch = await client.batch_chat_completion(slow(), MODEL, timeout=5)
    assert len(batch) == 60
    assert set(range(24)) <= set(batch.errors) <= set(range(34))


async def test_the_rest_of_a_large_batch_ends_at_its_deadline_and_lets_the_loop_live() -> None:
    turns, item = Turns(), chat("x")
    async with client_of(FakeWire(), {"a": 4}) as client:
        batch = await client.batch_chat_completion([item] * MANY, MODEL, deadline=2.5, on_result=turns.count)
        assert now() == 2.5
    assert (batch.stats.items, batch.stats.ok, len(batch.errors)) == (MANY, 8, MANY - 8)
    assert {type(error) for error in batch.errors.values()} == {DeadlineExceeded}
    assert turns.most <= 2 * MOST_AT_ONCE + READ_AHEAD < MANY / 8


async def test_a_batch_that_is_cancelled_while_its_rest_ends_is_over() -> None:
    seen: list[int] = []

    def stop(result: Any) -> None:
        seen.append(result.index)
        if result.index == MANY // 2:
            running.cancel()

    async with client_of(FakeWire(), {"a": 4}) as client:
        running = asyncio.ensure_future(client.batch_chat_completion([chat("x")] * MANY, MODEL, deadline=2.5, on_result=stop))
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(1)
    assert MANY // 2 < len(seen) <= MANY // 2 + 2 * MOST_AT_ONCE


async def test_streams_of_a_batch_fail_together_where_no_endpoint_is_alive() -> None:
    class Refusing(FakeWire):
        async def stream(self, endpoint: Any, _: Any) -> Any:
            return refused(endpoint.name)

    for most in (0, 3):
        began = now()
        async with client_of(Refusing(), {"a": 4}) as client:
            stream = client.batch_stream_chat_completion(iter(chats(3000)), model=MODEL, timeout=5, max_concurrent_streams=most)
            batch = await stream.results()
        assert 5 <= now() - began < 9  # with three at a time it takes longer to find out
        assert (len(batch), len(batch.errors)) == (3000, 3000)
        assert {type(error) for error in batch.errors.values()} <= {RequestTimeout, ConnectionFailed}


async def test_endpoints_that_answer_at_once_do_not_block_the_loop() -> None:
    async def at_once(_: str, prompt: str) -> str:
        return f"re: {prompt}"

    for kind, items in OPENERS.items():
        turns = Turns()
        async with client_of(FakeWire(at_once), {"a": 4}) as client:
            batch = await client.batch_chat_completion(items([chat("x")] * MANY), MODEL, on_result=turns.count)
        assert batch.stats.ok == MANY
        assert turns.most <= 4 * TURNS, kind
