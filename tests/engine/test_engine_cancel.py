"""Cancelling, closing and breaking: the wire's send is stopped, the slot comes back, every caller hears of it, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
from engine_tools import MODEL, FakeWire, ask, broken, chats, client_of, endpoints, leftovers, now

from qreward import ClientClosed, DeadlineExceeded, QRewardClient, RequestError, RequestTimeout
from qreward.engine.driver import Single


async def test_a_caller_that_is_cancelled_stops_its_request_and_gives_the_slot_back() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 1}) as client:
        first = asyncio.ensure_future(ask(client, "first"))
        second = asyncio.ensure_future(ask(client, "second"))
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == "re: second"
    assert first.cancelled()
    assert wire.cancelled == ["first"]
    assert now() == 1.5


async def test_a_request_that_timed_out_leaves_its_caller_uncancelled_and_a_cancel_that_was_ignored_once_is_past() -> None:
    async def stubborn(client: Any) -> int:
        with contextlib.suppress(asyncio.CancelledError):  # and no uncancel()
            await asyncio.sleep(10)
        me = asyncio.current_task()
        assert me is not None
        before = me.cancelling()
        with pytest.raises(RequestTimeout):
            await ask(client, 0, timeout=1)
        return me.cancelling() - before

    async with client_of(FakeWire(seconds=100.0)) as client:
        caller = asyncio.ensure_future(stubborn(client))
        await asyncio.sleep(0)
        caller.cancel()
        assert (await caller, await stubborn(client)) == (0, 0)


async def test_a_caller_that_is_cancelled_in_the_turn_in_which_its_request_times_out_is_cancelled() -> None:
    loop = asyncio.get_running_loop()
    async with client_of(FakeWire(seconds=100.0)) as client:
        callers = []
        for apart in (-1e-10, 0.0, 1e-10):  # of one turn of the loop
            callers.append(asyncio.ensure_future(ask(client, 0, timeout=1)))
            await asyncio.sleep(0)
            (timer,) = [timer for timer in loop.timers() if "_tick" in repr(timer)]  # type: ignore[attr-defined]
            loop.call_at(timer.when() + apart, callers[-1].cancel)
            await asyncio.wait(callers)
    assert [caller.cancelled() for caller in callers] == [True] * 3


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_a_caller_whose_own_time_limit_passes_together_with_the_requests_hears_of_one_of_them(limit: int) -> None:
    async def hangs(_: str, __: str) -> str:
        await asyncio.sleep(100)
        return "too late"

    async def both(client: Any, number: int) -> str:
        try:
            async with asyncio.timeout(1 + number * 1e-9):
                return str(await ask(client, number, timeout=1))
        except TimeoutError as error:
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0  # nobody's cancel is left over
            return type(error).__name__

    async with client_of(FakeWire(hangs), {"a": limit}) as client:
        outcomes = await asyncio.gather(*(both(client, number) for number in range(5)))
        await asyncio.sleep(1)
    assert set(outcomes) <= {"TimeoutError", "RequestTimeout"}


@pytest.mark.parametrize("kind", ["call", "batch"])
async def test_a_cancel_before_the_first_step_of_an_attempt_gives_the_slot_back(kind: str) -> None:
    asking: asyncio.Future[Any]
    doors: dict[str, asyncio.Future[str]] = {}

    async def behind_a_door(_: str, prompt: str) -> str:
        doors[prompt] = asyncio.get_running_loop().create_future()
        return await doors[prompt]

    async with client_of(FakeWire(behind_a_door), {"a": 1}) as client:
        if kind == "batch":
            asking = asyncio.ensure_future(client.batch_chat_completion(chats(50), MODEL))
            await asyncio.sleep(0.1)
        else:
            other = asyncio.ensure_future(ask(client, 0))
            asking = asyncio.ensure_future(ask(client, 1))
            await asyncio.sleep(0.1)
        doors["0"].set_result("free")
        asking.cancel()  # heard after the slot was handed on, and before the next attempt has begun
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0.1)
        assert leftovers(client) == {}
        if kind == "call":
            assert "1" not in doors
            assert await other == "free"


def test_a_run_that_ends_in_the_middle_leaves_no_slot_taken() -> None:
    async def ends_in_the_middle(client: QRewardClient, turns: int) -> None:
        kept = [asyncio.ensure_future(client.batch_chat_completion(chats(9), MODEL))]
        kept += [asyncio.ensure_future(ask(client, number)) for number in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)

    async def again(client: QRewardClient) -> list[Any]:
        async with client:
            return (await client.batch_chat_completion(chats(6), MODEL, timeout=30)).texts()

    for turns, seconds in product(range(12), (0, 0.01)):
        client = client_of(FakeWire(seconds=seconds), {"a": 2, "b": 1})
        asyncio.run(ends_in_the_middle(client, turns))
        assert leftovers(client) == {}, (turns, seconds)
        assert asyncio.run(again(client)) == [f"re: {number}" for number in range(6)], (turns, seconds)


async def test_an_attempt_that_is_cancelled_from_outside_also_before_its_first_step_fails_its_item() -> None:
    for early in (False, True):
        client = client_of(FakeWire(), {"a": 2})
        batch = asyncio.ensure_future(client.batch_chat_completion(chats(3), MODEL))
        begun: set[asyncio.Task[Any]] = set()
        while not begun:
            await asyncio.sleep(0 if early else 0.5)
            begun = asyncio.all_tasks() - {asyncio.current_task(), batch}  # type: ignore[arg-type]
        begun.pop().cancel()
        await asyncio.wait([batch], timeout=60)
        assert batch.done(), early  # closing would wait for an attempt of which nobody reports the end
        assert leftovers(client) == {}
        (error,) = batch.result().errors.values()
        assert isinstance(error, ClientClosed)
        assert "event loop was shut down" in str(error)
        await client.aclose()


async def test_closing_the_client_ends_batches_with_what_is_done_and_raises_in_single_calls_sent_and_waiting() -> None:
    wire = FakeWire()
    client = client_of(wire, {"a": 4})
    batch = asyncio.ensure_future(client.batch_chat_completion(chats(100), MODEL))
    await asyncio.sleep(1.5)
    calls = [asyncio.ensure_future(ask(client, f"single {number}")) for number in range(5)]
    await asyncio.sleep(1)
    await client.aclose()
    assert leftovers(client) == {}
    assert [type(answer) for answer in await asyncio.gather(*calls, return_exceptions=True)] == [ClientClosed] * 5
    results = await batch
    assert results.texts() == [*(f"re: {number}" for number in range(8)), *[None] * 92]
    assert {type(error) for error in results.errors.values()} == {ClientClosed}
    assert sorted(wire.cancelled) == [f"single {number}" for number in range(4)], "single calls go first"
    assert (wire.closed, now()) == (1, 2.5)


async def test_a_closed_client_can_be_closed_again_and_refuses_work() -> None:
    wire = FakeWire()
    client = client_of(wire)
    await ask(client, 0)
    await asyncio.gather(client.aclose(), client.aclose())
    await client.aclose()
    assert wire.closed == 1
    with pytest.raises(ClientClosed, match="make a new one"):
        await ask(client, 1)
    with pytest.raises(ClientClosed, match="make a new one"):
        await client.batch_chat_completion(chats(3), MODEL)
    assert wire.prompts == ["0"]
    unused = client_of(FakeWire())
    await unused.aclose()
    with pytest.raises(ClientClosed):
        await ask(unused, 0)


async def test_closing_from_several_places_at_once_lets_none_of_them_wait_for_ever() -> None:
    async def hard_to_stop(_: str, prompt: str) -> str:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(3)
        return prompt

    wire = FakeWire(hard_to_stop)
    client = client_of(wire)
    call = asyncio.ensure_future(ask(client, 0))
    await asyncio.sleep(1)
    closing = [asyncio.ensure_future(client.aclose()) for _ in range(3)]
    await asyncio.sleep(1)
    with pytest.raises(ClientClosed, match="make a new one"):
        await ask(client, 1)
    closing[0].cancel()  # one of them loses patience
    await asyncio.wait([*closing, call])
    assert (now(), wire.live.total(), wire.closed) == (4, 0, 1), "it waits until what was stopped has ended"
    assert isinstance(call.exception(), ClientClosed)
    assert wire.prompts == ["0"]


class WireBug(Exception):
    pass


async def sometimes_buggy(_: str, prompt: str) -> str:
    await asyncio.sleep(0.5)
    if int(prompt) % 3 == 0:
        raise WireBug("not thought of")
    return f"re: {prompt}"


async def test_a_wire_that_raises_fails_the_item_and_nothing_else() -> None:
    wire = FakeWire(sometimes_buggy)
    async with client_of(wire, {"a": 2}) as client:
        batch = await client.batch_chat_completion(chats(10), MODEL)
        assert leftovers(client) == {}
        with pytest.raises(RequestError, match="the HTTP backend failed: WireBug") as caught:
            await ask(client, 3)
    assert batch.texts() == [None if number % 3 == 0 else f"re: {number}" for number in range(10)]
    for error in (*batch.errors.values(), caught.value):
        assert isinstance(error, RequestError)
        assert isinstance(error.__cause__, WireBug)
        assert (error.endpoint, len(error.attempts)) == ("a", 1)
    assert len(wire.sent) == 11  # a bug is not tried again


def test_a_hedge_that_is_sent_before_its_caller_has_begun_the_first_attempt_runs_beside_it() -> None:
    driver: Any = Mock()
    waiter, first, hedge = Single(driver), Mock(), Mock()
    waiter.start(first)
    waiter.start(hedge)
    assert [call.args[0] for call in driver.spawn.call_args_list] == [hedge]
    assert waiter._next is first


async def test_a_wire_that_answers_although_it_was_cancelled_does_no_harm() -> None:
    async def deaf(_: str, prompt: str) -> str:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return "too late"
        return f"re: {prompt}"

    async with client_of(FakeWire(deaf), {"a": 2}) as client:
        batch = await client.batch_chat_completion(chats(6), MODEL, timeout=3)
        assert all(isinstance(error, RequestTimeout) for error in batch.errors.values())
        assert len(batch.errors) == 6
        assert (await client.batch_chat_completion(chats(6), MODEL)).texts() == [f"re: {number}" for number in range(6)]


async def test_nothing_is_left_after_hundreds_of_random_cancels_timeouts_and_failures() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def erratic(name: str, _: str) -> Any:
        await asyncio.sleep(rng.choice([0, 0, 0.01, 0.3, 2]))
        if rng.random() < 0.05:
            raise WireBug("not thought of")
        return broken(name) if rng.random() < 0.1 else "fine"

    async def impatient(client: Any, number: int) -> str:
        await asyncio.sleep(rng.uniform(0, 20))
        asking: asyncio.Future[Any]
        timeout = rng.choice([None, 0.01, 0.3, 5, 60])
        if number % 10:
            asking = asyncio.ensure_future(ask(client, number, timeout=timeout, priority=rng.randrange(10)))
        else:
            deadline = rng.choice([None, 0.5, 5])
            asking = asyncio.ensure_future(client.batch_chat_completion(chats(20), MODEL, timeout=timeout, deadline=deadline))
        if rng.random() < 0.5:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(rng.choice([0, 0, 0, 0.01, 0.3]))
            asking.cancel()
        outcome = (await asyncio.gather(asking, return_exceptions=True))[0]
        return type(outcome).__name__

    wire = FakeWire(erratic)
    fleet = endpoints({"a": 10, "b": 3, "c": 30})
    async with client_of(wire, fleet) as client:
        outcomes = await asyncio.gather(*(impatient(client, number) for number in range(800)))
        await asyncio.sleep(5)
        assert leftovers(client) == {}
        assert wire.live.total() == 0
        limits = {endpoint.name: endpoint.limits.max_concurrency for endpoint in fleet}
        assert all(wire.peak[name] <= (limit or 0) for name, limit in limits.items())
    kinds = set(outcomes) - {"ServerError"}  # rare: four failures of one call
    assert kinds == {"str", "BatchResult", "CancelledError", "RequestTimeout", "InvalidResponse"}, seed


async def test_a_second_cancel_while_a_batch_tidies_up_leaves_nothing() -> None:
    async with client_of(FakeWire()) as client:
        batch = asyncio.ensure_future(client.batch_chat_completion(chats(50), MODEL))
        await asyncio.sleep(0.5)
        batch.cancel()
        await asyncio.sleep(0)
        batch.cancel()
        await asyncio.wait([batch])
        await asyncio.sleep(0.1)


async def test_a_deadline_and_the_last_answer_in_one_turn_give_one_outcome_each() -> None:
    finished: list[int] = []
    async with client_of(FakeWire(), {"a": 4}) as client:
        batch = await client.batch_chat_completion(
            chats(8), MODEL, deadline=2 + 5e-9, on_result=lambda result: finished.append(result.index)
        )
        await asyncio.sleep(0.1)
    assert sorted(finished) == list(range(8))
    assert all(result.ok or isinstance(result.error, DeadlineExceeded) for result in batch)


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_call_that_is_thrown_away_gives_its_slots_back_later(bulk: bool) -> None:
    """Its coroutine is closed while our lock is held, as the garbage collector may do: it must not wait for the lock."""

    async with client_of(FakeWire(seconds=100.0), {"a": 2}) as client:
        call = client.batch_chat_completion(chats(2), MODEL) if bulk else client.chat_completion(chats(1)[0], MODEL)
        call.send(None)
        await asyncio.sleep(1)
        assert leftovers(client) != {}
        with client._runtime.engine.lock:
            call.close()
        await asyncio.sleep(1)
