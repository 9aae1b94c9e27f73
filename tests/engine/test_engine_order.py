"""Who goes first: the more urgent, single calls before bulks, batches in turns, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from engine_tools import MODEL, FakeWire, ask, chat, client_of, endpoints, now
from virtual import in_virtual_time

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


@in_virtual_time
async def test_an_urgent_batch_overtakes_one_that_came_before() -> None:
    wire = FakeWire(seconds=0.1)
    async with client_of(wire, {"a": 2}) as client:
        low = begin(client, "low", 20, Priority.LOW)
        await asyncio.sleep(0.25)
        high = begin(client, "HIGH", 20, Priority.HIGH)
        await asyncio.gather(low, high)
    assert order(wire) == "l" * 6 + "H" * 20 + "l" * 14


@in_virtual_time
async def test_two_batches_share_fairly_from_the_moment_the_second_comes() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 4, "b": 6}) as client:
        first = begin(client, "x", 1000)
        await asyncio.sleep(20.5)
        second = begin(client, "y", 200)
        await asyncio.gather(first, second)
    shares = [Counter(prompt[0] for _, prompt, when in wire.sent if round(when) == second) for second in range(21, 58)]
    assert all(abs(share["x"] - share["y"]) <= 2 for share in shares), "by tokens: shorter prompts are a little more"
    assert all(share == {"x": 5, "y": 5} for share in shares[21:]), "from number 100 on the prompts of both are equally long"


@in_virtual_time
async def test_many_batches_take_turns() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 5}) as client:
        await asyncio.gather(*(begin(client, name, 40) for name in "abcdefgh"))
    sent = order(wire)
    for start in range(40, 280, 8):
        assert len(set(sent[start : start + 10])) >= 7


@in_virtual_time
async def test_single_calls_go_before_a_bulk_of_their_level() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 2}) as client:
        bulk = begin(client, "bulk", 60)
        await asyncio.sleep(1.5)
        calls = [call(client, f"single{number}") for number in range(4)]
        await asyncio.gather(*calls)
        assert now() == 4  # two at once, after those under way
        await bulk
    assert order(wire)[:8] == "bbbbssss"


@in_virtual_time
async def test_single_calls_are_sent_in_the_order_of_urgency_then_of_coming() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 1}) as client:
        asked = [("0", 5), ("l1", 9), ("n1", 5), ("h1", 0), ("n2", 5), ("h2", 0), ("l2", 9)]
        await asyncio.gather(*(call(client, name, level) for name, level in asked))
    assert wire.prompts == ["0", "h1", "h2", "n1", "n2", "l1", "l2"]


@in_virtual_time
async def test_a_low_batch_is_served_although_urgent_single_calls_never_end() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 1}) as client:
        low = begin(client, "low", 2, Priority.LOW)
        done = 0

        async def steady() -> None:
            nonlocal done
            while not low.done():
                await ask(client, "urgent", priority=Priority.HIGH)
                done += 1

        await asyncio.gather(*(steady() for _ in range(3)), low)
        assert now() < 9 * 15 + 60 + 10 + 200  # ageing: 15 s a level and 60 s for a bulk, for each of the two
    assert done > 100


@in_virtual_time
async def test_work_goes_to_whoever_has_room() -> None:
    async def a_is_slow(name: str, prompt: str) -> str:
        await asyncio.sleep(10 if name == "a" else 1)
        return prompt

    wire = FakeWire(a_is_slow)
    async with client_of(wire, {"a": 2, "b": 2}) as client:
        batch = await client.batch_chat_completion(named("x", 66), MODEL)
    won = {name: stats.won for name, stats in batch.stats.endpoints.items()}
    assert won == {"a": 6, "b": 60}
    assert now() == 30


@pytest.mark.parametrize("strategy", list(LoadBalanceStrategy))
@in_virtual_time
async def test_every_strategy_uses_the_whole_fleet_and_keeps_its_limits(strategy: LoadBalanceStrategy) -> None:
    wire = FakeWire()
    fleet = endpoints({"a": 3, "b": 9, "c": 1})
    async with client_of(wire, fleet, routes=[Route(pattern="judge-*", endpoints=("a", "b", "c"), strategy=strategy)]) as client:
        batch = await client.batch_chat_completion(named("x", 130), MODEL)
    assert batch.stats.ok == 130
    assert wire.peak == {"a": 3, "b": 9, "c": 1}
    assert now() == 10


@in_virtual_time
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
