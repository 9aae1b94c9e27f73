"""What a call may cost and carry: no garbage, no coroutine per waiting item, the caller's context on the wire."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from engine_tools import MODEL, FakeWire, Said, ask, chat, chats, client_of

from qreward import QRewardClient
from qreward.scheduler.outcome import Answer

TRACE: ContextVar[str] = ContextVar("TRACE", default="none")


class QuietWire:
    """Suspends once, and keeps nothing."""

    async def send(self, endpoint: Any, call: Any) -> Answer:
        await asyncio.sleep(0)
        return Answer(Said("fine"))

    async def aclose(self) -> None:
        pass


async def single_calls(client: QRewardClient, count: int) -> None:
    for number in range(count):
        await ask(client, number)


async def calls_that_wait(client: QRewardClient, count: int) -> None:
    await asyncio.gather(*(ask(client, number) for number in range(count)))


async def one_batch(client: QRewardClient, count: int) -> None:
    batch = await client.batch_chat_completion(chats(count), MODEL)
    assert batch.stats.ok == count


def unreachable_after(make: Callable[[QRewardClient, int], Any], count: int) -> int:
    """Objects that only the garbage collector could free."""

    async def test() -> int:
        async with client_of(QuietWire, {"a": 8}) as client:
            await make(client, 50)  # what is made once
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                await make(client, count)
                gc.collect()
                return len(gc.garbage)
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    return asyncio.run(test())


def test_a_successful_call_leaves_no_garbage_cycles() -> None:
    assert unreachable_after(single_calls, 100) == 0
    for make in (calls_that_wait, one_batch):
        few, many = unreachable_after(make, 50), unreachable_after(make, 250)
        assert many - few == 0, make  # whatever a gather or a batch makes once is in both


class Tracing:
    """Notes the caller's context, and sets a variable of its own in it, as an instrumentation would."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self.mixed: list[str] = []

    async def script(self, _: str, prompt: str) -> str:
        await asyncio.sleep(0.1)
        self.seen[prompt] = TRACE.get()
        TRACE.set(mine := f"{TRACE.get()}, then sent {prompt}")
        await asyncio.sleep(0.1)
        if TRACE.get() != mine:
            self.mixed.append(prompt)
        return prompt


async def test_the_wire_sees_the_context_of_each_caller() -> None:
    tracing = Tracing()

    async def traced(name: str) -> None:
        TRACE.set(name)
        if name.isdecimal():
            await ask(client, f"{name}!")
        else:
            await client.batch_chat_completion([chat(f"{name}{number}") for number in range(20)], MODEL)
        assert TRACE.get() == name or name.isdecimal()  # a single call is carried out in its caller's own task

    async with client_of(FakeWire(tracing.script), {"a": 3, "b": 2}) as client:
        await asyncio.gather(*(traced(name) for name in ("x", "y", *map(str, range(10)))))
    assert len(tracing.seen) == 50
    assert tracing.mixed == []  # requests under way together do not share a context
    for prompt, context in tracing.seen.items():
        assert context.split(",")[0] == prompt[0]  # its own caller's, and never another's


async def test_on_result_and_the_input_may_use_the_client() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 2, "b": 2}) as client:

        def items() -> Any:
            for number in range(40):
                if number == 20:
                    client.mark_unhealthy("a")
                yield chat(number)

        def on_result(result: Any) -> None:
            if result.index == 30:
                client.mark_healthy("a")
            client.stats()

        batch = await client.batch_chat_completion(items(), MODEL, on_result=on_result)
    assert batch.stats.ok == 40
