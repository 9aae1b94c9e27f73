"""Time: a timeout counts from the call, queueing included; one timer a loop, always armed for what is due first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_tools import MODEL, FakeWire, ask, chats, client_of, leftovers

from qreward import RequestTimeout
from qreward.testing.virtual_time import VirtualTimeLoop

BUCKET = 1 / 64 + 1e-6  # seconds by which the scheduler's timers may be late, and turns of the loop


async def hangs(_: str, __: str) -> str:
    await asyncio.sleep(10**6)
    return "too late"


async def fails_at(client: Any, prompt: object, **settings: Any) -> tuple[str, float]:
    """What a call fails with, and when."""
    try:
        await ask(client, prompt, **settings)
    except Exception as error:
        return type(error).__name__, asyncio.get_running_loop().time()
    return "answered", asyncio.get_running_loop().time()


async def test_a_timeout_counts_the_time_in_the_queue_stops_the_request_and_says_so() -> None:
    wire = FakeWire(seconds=2)
    async with client_of(wire, {"a": 1}, timeout=4) as client:
        outcomes = await asyncio.gather(*(fails_at(client, number, timeout=5) for number in range(4)))
        assert [kind for kind, _ in outcomes] == ["answered", "answered", "RequestTimeout", "RequestTimeout"]
        assert all(5 <= when <= 5 + BUCKET for _, when in outcomes[2:])
        await asyncio.sleep(0.1)
        assert wire.cancelled == ["2"]
        with pytest.raises(RequestTimeout, match="it was never sent: no endpoint had room"):
            await asyncio.gather(ask(client, 8), ask(client, 9, timeout=1))
        await asyncio.sleep(2)  # the first of them is answered
    assert wire.prompts[:3] == ["0", "1", "2"]
    async with client_of(FakeWire(seconds=9), timeout=4) as client:
        with pytest.raises(RequestTimeout, match=r"within the timeout of 4 s \(queueing included\) over '\*'; an attempt was under way"):
            await ask(client, 0)
        assert [await ask(client, 1, timeout=timeout) for timeout in (None, 20)] == ["re: 1"] * 2


async def test_the_items_of_a_batch_time_out_although_nothing_else_happens() -> None:
    for items in (chats(12), iter(chats(12))):
        began = asyncio.get_running_loop().time()
        async with client_of(FakeWire(hangs), {"a": 4}) as client:
            batch = await client.batch_chat_completion(items, MODEL, timeout=10)
            assert leftovers(client) in ({}, {"slots": 4, "attempts": 4})  # the last four are being stopped
            took = asyncio.get_running_loop().time() - began
            await asyncio.sleep(0)
        assert [type(error) for error in batch.errors.values()] == [RequestTimeout] * 12
        assert 30 <= took <= 30 + 3 * BUCKET + 1e-3  # counted from when an item could first be sent


async def test_a_short_timeout_behind_a_long_one_fires_in_time() -> None:
    async with client_of(FakeWire(hangs), {"a": 100}) as client:
        due = [60, 5, 30, 0.2, 600, 2, 0.1]
        asking = [asyncio.ensure_future(fails_at(client, number, timeout=timeout)) for number, timeout in enumerate(due)]
        await asyncio.sleep(0.05)
        asking.append(asyncio.ensure_future(fails_at(client, "late", timeout=0.02)))
        for timeout, (kind, when) in zip([*due, 0.07], await asyncio.gather(*asking), strict=True):
            assert (kind, timeout <= when <= timeout + BUCKET) == ("RequestTimeout", True), timeout
        await asyncio.sleep(0.1)


class CountingLoop(VirtualTimeLoop):
    """Counts the timers that were set, and the most at once."""

    armed = most = 0

    def call_at(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = super().call_at(*args, **kwargs)
        type(self).armed += 1
        type(self).most = max(self.most, len(self.timers()))
        return timer


def test_a_loop_has_one_timer_and_no_task_for_an_item_that_waits_however_many_do() -> None:
    CountingLoop.armed = CountingLoop.most = 0
    doors: list[asyncio.Future[str]] = []

    async def behind_a_door(_: str, __: str) -> str:
        doors.append(asyncio.get_running_loop().create_future())
        return await doors[-1]

    async def test() -> None:
        async with client_of(FakeWire(behind_a_door), {"a": 8}) as client:
            calls = [asyncio.ensure_future(ask(client, number, timeout=600 - number)) for number in range(400)]
            batches = [asyncio.ensure_future(client.batch_chat_completion(chats(200), MODEL)) for _ in range(2)]
            while doors or not batches[0].done():
                await asyncio.sleep(0)
                assert len(asyncio.all_tasks()) <= 1 + len(calls) + len(batches) + 8, "the callers, and the attempts"
                while doors:
                    doors.pop().set_result("fine")
            await asyncio.gather(*calls)
            assert [len((await batch).errors) for batch in batches] == [0, 0]

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(test())
    assert CountingLoop.most == 1
    assert CountingLoop.armed <= 400 + 20  # each of the calls is due before the one that came before it
