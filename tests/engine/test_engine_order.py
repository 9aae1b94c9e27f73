"""What is sent first: the more urgent, single calls before bulks, batches in turns, over the whole fleet."""

from __future__ import annotations

import asyncio
from typing import Any

from engine_tools import MODEL, FakeWire, ask, chat, client_of, endpoints, now

from qreward import LoadBalanceStrategy, Priority, QRewardClient, Route


def named(name: str, count: int) -> list[Any]:
    return [chat(f"{name}{number}") for number in range(count)]


def begin(client: QRewardClient, name: str, count: int, priority: int = Priority.NORMAL) -> asyncio.Future[Any]:
    return asyncio.ensure_future(client.batch_chat_completion(named(name, count), MODEL, priority=priority))


def call(client: QRewardClient, name: str, priority: int = Priority.NORMAL) -> asyncio.Future[Any]:
    return asyncio.ensure_future(ask(client, name, priority=priority))


def order(wire: FakeWire) -> str:
    """The first letters of what was sent."""
    return "".join(prompt[0] for prompt in wire.prompts)


async def test_an_urgent_batch_overtakes_one_that_came_before() -> None:
    wire = FakeWire(seconds=0.1)
    async with client_of(wire, {"a": 2}) as client:
        low = begin(client, "low", 20, Priority.LOW)
        await asyncio.sleep(0.25)
        high = begin(client, "HIGH", 20, Priority.HIGH)
        await asyncio.gather(low, high)
    assert order(wire) == "l" * 6 + "H" * 20 + "l" * 14


async def test_every_strategy_uses_the_whole_fleet_and_keeps_its_limits() -> None:
    for strategy in LoadBalanceStrategy:
        wire, began = FakeWire(), now()
        fleet = endpoints({"a": 3, "b": 9, "c": 1})
        async with client_of(wire, fleet, routes=[Route(pattern="judge-*", endpoints=("a", "b", "c"), strategy=strategy)]) as client:
            batch = await client.batch_chat_completion(named("x", 130), MODEL)
        assert batch.stats.ok == 130, strategy
        assert wire.peak == {"a": 3, "b": 9, "c": 1}, strategy
        assert round(now() - began, 2) == 10, strategy


async def test_weights_hold_where_there_is_a_choice() -> None:
    wire = FakeWire(seconds=0)
    fleet = endpoints({"a": 100, "b": 100})
    async with client_of(wire, fleet) as client:
        client.register_model_route("judge-*", ["a", "b"], strategy="weighted_round_robin", weights={"a": 3})
        for number in range(80):
            await ask(client, number)
    names = [name for name, _, _ in wire.sent]
    assert (names.count("a"), names.count("b")) == (60, 20)
    assert all(names[start : start + 4].count("a") == 3 for start in range(0, 80, 4))
