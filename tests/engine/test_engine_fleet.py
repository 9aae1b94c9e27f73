"""The fleet changes while work is under way: what is in flight is finished, what waits follows, nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from engine_tools import MODEL, FakeWire, ask, broken, chat, chats, client_of, endpoints

from qreward import CircuitOpen, NoEndpoint, QRewardClient
from qreward.engine.fleet import MAX_MODELS
from qreward.live.snapshot import load_of


def begin(client: QRewardClient, count: int = 100, **settings: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(client.batch_chat_completion(chats(count), MODEL, **settings))


async def test_an_endpoint_out_of_service_counts_as_capacity_once_it_has_answered_or_is_marked_healthy() -> None:
    alive, tried = False, asyncio.Event()

    async def script(_: str, prompt: str) -> Any:
        tried.set()
        await asyncio.sleep(0.5)
        return f"re: {prompt}" if alive else broken()

    async with client_of(FakeWire(script), {"a": 2}) as client:
        batch, pool = begin(client, 20), client._runtime.fleet.pool(MODEL)
        assert load_of(pool)[1] == 2
        await asyncio.sleep(20)
        tried.clear()
        await tried.wait()
        assert load_of(pool) == (1, 0, 1, 1)
        alive = True
        await batch
        assert load_of(pool) == (0, 2, 0, 1)
        alive = False
        await begin(client, 20, timeout=30)
        assert load_of(pool) == (0, 0, 1, 1)
        client.mark_healthy("a")
        assert load_of(pool) == (0, 2, 0, 1), "one that is marked healthy counts at once"


@pytest.mark.parametrize("out", ["remove_endpoint", "mark_unhealthy"])
async def test_when_the_last_endpoint_goes_what_waits_fails_with_the_reason(out: str) -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 2}) as client:
        batch, call = begin(client, 10), asyncio.ensure_future(ask(client, "single"))
        await asyncio.sleep(0.5)
        getattr(client, out)("a")
        results = await batch
        expected = NoEndpoint if out == "remove_endpoint" else CircuitOpen
        assert results.stats.ok == 2  # what was under way
        assert {type(error) for error in results.errors.values()} == {expected}
        with pytest.raises(expected, match="no endpoint left" if out == "remove_endpoint" else "marked unhealthy"):
            await call


async def test_a_route_that_is_registered_moves_what_waits_on_it() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 2, "b": 2, "c": 2}) as client:
        client.register_model_route("judge-*", ["a"])
        batch = begin(client, 60)
        await asyncio.sleep(3.5)
        client.register_model_route("judge-*", ["b", "c"])
        assert (await batch).stats.ok == 60
    assert {name for name, _, when in wire.sent if when < 3.5} == {"a"}
    assert {name for name, _, when in wire.sent if when > 3.5} == {"b", "c"}
    assert wire.cancelled == []


async def test_limits_hold_over_all_routes_of_an_endpoint_and_routes_have_their_strategy_and_weights() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 3, "b": 3}) as client:
        client.register_model_route("x-*", ["a"])
        client.register_model_route("y-*", ["a", "b"])
        client.register_model_route("z-*", ["a", "b"], strategy="weighted_round_robin", weights={"a": 3})
        done = await asyncio.gather(*(client.batch_chat_completion(chats(30), model) for model in ("x-1", "x-2", "y-1", "judge")))
        assert [batch.stats.ok for batch in done] == [30] * 4
        assert wire.peak == {"a": 3, "b": 3}
        wire.sent.clear()
        for number in range(16):
            await client.chat_completion(chats(1)[0], f"z-{number}")
        assert Counter(name for name, _, _ in wire.sent) == {"a": 12, "b": 4}
        client.register_model_route("z-*", ["a", "b"], strategy="weighted_round_robin", weights={"a": 3, "b": 2})
        client.remove_endpoint("a")
        (route,) = (route for route in client.list_routes() if route.pattern == "z-*")
        assert (route.endpoints, route.weights) == (("b",), {"b": 2})


async def test_an_urgent_batch_overtakes_one_that_came_before() -> None:
    wire = FakeWire(seconds=0.1)
    async with client_of(wire, {"a": 2}) as client:
        low = begin(client, 20, priority="low")
        await asyncio.sleep(0.25)
        high = asyncio.ensure_future(client.batch_chat_completion([chat(f"high {number}") for number in range(20)], MODEL, priority="high"))
        await asyncio.gather(low, high)
    assert [prompt.startswith("high") for prompt in wire.prompts] == [False] * 6 + [True] * 20 + [False] * 14


async def test_tenants_share_an_endpoint_however_many_batches_each_has() -> None:
    wire = FakeWire(seconds=0.1)
    async with client_of(wire, {"a": 4}) as client:
        batches = [client.batch_chat_completion([chat(tenant)] * 100, MODEL, tenant=tenant) for tenant in ("x", "x", "x", "y")]
        await asyncio.gather(*batches)
    assert Counter(wire.prompts[:160])["y"] == pytest.approx(80, abs=8)


async def test_a_slow_endpoint_takes_none_of_the_last_items_of_a_batch_whose_size_is_known() -> None:
    async def script(name: str, prompt: str) -> str:
        await asyncio.sleep(0.1 if name == "quick" else 20.0)
        return prompt

    for items, seconds in ((chats(300), 7.5), (iter(chats(300)), 20.0)):
        async with client_of(FakeWire(script), {"quick": 4, "slow": 4}, hedge=None) as client:
            await client.batch_chat_completion(chats(600), MODEL)  # in which the endpoints become known
            batch = await client.batch_chat_completion(items, MODEL)
        assert (batch.stats.ok, batch.stats.seconds) == (300, pytest.approx(seconds, abs=0.2))


def test_the_models_that_a_route_remembers_are_bounded_since_their_names_come_from_callers() -> None:
    fleet = QRewardClient(endpoints({"a": 1}))._runtime.fleet
    for number in range(MAX_MODELS + 50):
        pool = fleet.pool(f"model-{number}")
    assert len(pool.models) == MAX_MODELS
