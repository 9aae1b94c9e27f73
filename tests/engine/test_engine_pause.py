"""An operator pauses, resumes and cancels: nothing new starts, what is in flight ends, nothing is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from engine_tools import MODEL, FakeWire, ask, broken, chats, client_of, endpoints

from qreward import BatchCancelled, ConfigError, QRewardClient, Retry
from qreward.engine.batch import BatchWaiter


def begin(client: QRewardClient, count: int = 30, **settings: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(client.batch_chat_completion(chats(count), MODEL, **settings))


async def test_a_pause_starts_nothing_new_finishes_what_is_in_flight_and_loses_nothing() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 2, "b": 2}) as client:
        batch, call = begin(client), asyncio.ensure_future(ask(client, "single"))
        await asyncio.sleep(1.5)
        client.pause(reason="weights")
        client.pause(reason="weights")
        sent = len(wire.sent)
        await asyncio.sleep(100)
        assert (len(wire.sent), batch.done()) == (sent, False)
        states = {name: stats.state for name, stats in client.stats().items()}
        assert {(state.in_flight, state.obstacle) for state in states.values() if state} == {(0, "paused: weights")}
        client.add_endpoint(endpoints({"c": 2})[0])
        await asyncio.sleep(1)
        assert len(wire.sent) == sent, "an endpoint that is added is paused as well"
        client.resume()
        client.resume()
        assert (await batch).stats.ok == 30
        assert "single" in str(await call)
    assert wire.cancelled == []


async def test_retries_and_hedges_wait_for_the_end_of_a_pause() -> None:
    failing = True

    async def script(_: str, prompt: str) -> Any:
        await asyncio.sleep(1)
        return broken() if failing else f"re: {prompt}"

    wire = FakeWire(script)
    async with client_of(wire, {"a": 4, "b": 4}) as client:
        batch = begin(client, 4)
        await asyncio.sleep(0.5)
        client.pause()
        sent, failing = len(wire.sent), True
        await asyncio.sleep(200)
        failing = False
        assert len(wire.sent) == sent
        client.resume()
        assert (await batch).stats.ok == 4


async def test_a_paused_endpoint_leaves_its_work_to_others_and_is_resumed_alone() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 2, "b": 2}) as client:
        client.pause("a")
        batch = begin(client)
        await asyncio.sleep(5)
        assert {name for name, *_ in wire.sent} == {"b"}
        client.resume("a")
        assert (await batch).stats.ok == 30
        assert {name for name, *_ in wire.sent} == {"a", "b"}
        with pytest.raises(ConfigError, match="there is no endpoint 'x'"):
            client.pause("x")


async def test_items_do_not_fail_for_an_outage_while_nothing_may_be_sent() -> None:
    alive = False

    async def script(_: str, prompt: str) -> Any:
        await asyncio.sleep(0.1)
        return f"re: {prompt}" if alive else broken()

    failed: list[Any] = []
    async with client_of(FakeWire(script), {"a": 2}, retry=Retry(attempts=1000)) as client:
        batch = begin(client, timeout=60, on_result=lambda result: result.ok or failed.append(result))
        await asyncio.sleep(12)
        client.pause()
        waiters: Any = client._runtime.engine.driver().waiters
        begun = sum(task.sent_at is not None for waiter in waiters for task in waiter._live)
        await asyncio.sleep(1000)
        assert len(failed) <= begun, "only the timeouts of requests that were sent before"
        alive = True
        client.resume()
        assert (await batch).stats.failed == len(failed) <= begun


async def test_a_cancelled_batch_keeps_what_is_done_and_gives_the_rest_the_reason() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 2}) as client:
        batch, other = begin(client), begin(client, 3)
        await asyncio.sleep(2.5)
        waiter = next(each for each in client._runtime.engine.driver().waiters if isinstance(each, BatchWaiter))
        waiter.driver.later(partial(waiter.cancel, "wrong prompt"))
        results = await batch
        assert len(results) == 30
        assert 0 < results.stats.ok < 30
        assert {(type(error), str(error)) for error in results.errors.values()} == {
            (BatchCancelled, "the batch was cancelled before this item was done: wrong prompt")
        }
        assert (await other).stats.ok == 3
