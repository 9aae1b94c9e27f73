"""A batch ends whatever its input or callbacks raise, also where that happens in the task of another caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from engine_tools import MODEL, FakeWire, ask, chat, chats, client_of, leftovers, now, on_virtual_time

from qreward import BatchInterrupted, Endpoint, Limits, QRewardClient
from qreward.codecs.base import Reply
from qreward.errors import BadRequest
from qreward.transport.connection_settings import Secrets
from qreward.transport.error_mapping import FailedReply


class Stop(BaseException):
    """Such as pytest's."""


CAUGHT: tuple[type[BaseException], ...] = (ValueError, StopIteration, asyncio.CancelledError)
"""What ``run`` raises as ``BatchInterrupted``."""
KINDS = (*CAUGHT, Stop)


class Source:
    """An input that raises after ``good`` items or when it is closed."""

    def __init__(self, kind: type[BaseException] | None, good: int, closing: type[BaseException] | None = None) -> None:
        self.kind, self.left, self.closing = kind, good, closing

    def take(self, over: type[Exception]) -> Any:
        self.left -= 1
        if self.left < 0:
            raise over if self.kind is None else self.kind("boom")
        return chat(self.left)

    def end(self) -> None:
        if self.closing is not None:
            raise self.closing("boom")


class Blocking(Source):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.take(StopIteration)

    def close(self) -> None:
        self.end()


class Awaited(Source):
    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        return self.take(StopAsyncIteration)

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.end()


def raising(kind: type[BaseException]) -> Callable[[Any], None]:
    def callback(_: Any) -> None:
        raise kind("boom")

    return callback


def faults(kind: type[BaseException]) -> dict[str, dict[str, Any]]:
    """Arguments of a batch with a fault, by name."""
    found: dict[str, dict[str, Any]] = {
        "input, at once": {"batch_messages": Blocking(kind, 0)},
        "input, in another's task": {"batch_messages": Blocking(kind, 90)},
        "async input, at once": {"batch_messages": Awaited(kind, 0)},
        "async input, later": {"batch_messages": Awaited(kind, 90)},
        "input and its closing": {"batch_messages": Blocking(kind, 90, RuntimeError)},
        "async input and its closing": {"batch_messages": Awaited(kind, 90, RuntimeError)},
        "closing": {"batch_messages": Blocking(None, 20, kind)},
        "async closing": {"batch_messages": Awaited(None, 20, kind)},
        "on_result": {"batch_messages": chats(60), "on_result": raising(kind)},
        "on_result, async input": {"batch_messages": Awaited(None, 60), "on_result": raising(kind)},
    }
    if not issubclass(kind, Exception):  # else the batch goes on
        found["progress"] = {"batch_messages": chats(60), "progress": raising(kind)}
    if kind is StopIteration:  # in an input it is the end, and a coroutine cannot raise it
        return {name: arguments for name, arguments in found.items() if "on_result" in name}
    return found


async def ended(client: QRewardClient, arguments: dict[str, Any]) -> BaseException | None:
    """What a batch raises. ``TimeoutError`` if it does not end."""
    batch = asyncio.ensure_future(client.batch_chat_completion(model=MODEL, **arguments))
    await asyncio.wait([batch], timeout=1000)
    if not batch.done():
        batch.cancel()
        await asyncio.wait([batch])
        return TimeoutError("it hangs")
    return asyncio.CancelledError() if batch.cancelled() else batch.exception()


async def others(client: QRewardClient) -> None:
    for number in range(40):
        await ask(client, f"other {number}")


async def test_a_batch_ends_whatever_its_input_or_callbacks_raise_and_other_calls_do_not_notice() -> None:
    async def case(name: str, kind: type[BaseException], arguments: dict[str, Any]) -> str | None:
        wire = FakeWire()
        async with client_of(wire, {"a": 4}) as client:
            other = asyncio.ensure_future(others(client))
            error = await ended(client, arguments)
            stopped = len(wire.sent)
            await asyncio.sleep(0.01)
            busy = wire.live["a"]
            await other
            left = leftovers(client)
        if kind is Stop:
            right = type(error) is Stop and busy <= 1  # what was sent for the batch was cancelled
        else:
            right = isinstance(error, BatchInterrupted) and isinstance(error.__cause__, kind) and error.results is not None
            right = right and all(result.error is None for result in error.results) and not wire.cancelled  # type: ignore[union-attr]
        return None if right and not left else f"{kind.__name__} of {name}: {error!r}, {busy} busy, {stopped} sent, {left}"

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # is given the second error, where there are two
    wrong = [await case(name, kind, arguments) for kind in KINDS for name, arguments in faults(kind).items()]
    assert [line for line in wrong if line] == []


async def test_a_batch_whose_on_result_raised_does_not_wait_for_more_input_when_its_other_items_have_not_begun() -> None:
    async def items() -> AsyncIterator[Any]:
        for item in (chat(1), chat(2), "no conversation"):
            yield item
        await asyncio.Event().wait()

    async with client_of(FakeWire(), {"a": 1}) as client:
        client.pause()
        with pytest.raises(BatchInterrupted, match="ValueError: boom"):
            await client.batch_chat_completion(items(), MODEL, on_result=raising(ValueError))
        assert leftovers(client) == {}


async def test_what_closing_an_input_raises_is_told_beside_the_first_error_and_does_not_undo_a_cancel() -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(type(context["exception"])))
    async with client_of(FakeWire()) as client:
        for make in (Blocking, Awaited):
            error = await ended(client, {"batch_messages": make(ValueError, 5, KeyError)})
            assert error is not None
            assert isinstance(error.__cause__, ValueError)
            for closing, expected in {OSError: asyncio.CancelledError, Stop: Stop}.items():  # the latter is to go through all that runs
                batch = asyncio.ensure_future(client.batch_chat_completion(make(None, 1000, closing), MODEL))
                await asyncio.sleep(2.5)
                batch.cancel()
                (found,) = await asyncio.gather(batch, return_exceptions=True)
                assert (type(found), leftovers(client)) == (expected, {}), (make, closing)
    assert told == [KeyError, OSError] * 2


def test_keyboard_interrupt_in_a_callback_ends_the_loop_and_cancels_what_was_sent() -> None:
    def run(arguments: dict[str, Any]) -> tuple[BaseException | None, FakeWire]:
        wire = FakeWire()

        async def main() -> None:
            async with client_of(wire, {"a": 4}) as client:
                await client.batch_chat_completion(model=MODEL, **arguments)

        try:
            on_virtual_time(main)
        except (KeyboardInterrupt, SystemExit) as error:
            return error, wire
        return None, wire

    wrong = []
    for kind in (KeyboardInterrupt, SystemExit):
        for name, arguments in faults(kind).items():
            if "and its closing" in name:
                continue  # a second error goes to the loop, which is not there any more
            error, wire = run(arguments)
            if type(error) is not kind or wire.live["a"]:
                wrong.append(f"{kind.__name__} of {name}: {error!r}, {wire.live} busy")
    assert wrong == []


async def test_items_whose_content_a_refusal_repeats_fail_alone_and_slow_no_others() -> None:
    """Five of 305 items contain words that mean overload; the server names the content and repeats it."""
    taken = {}
    for words in ("the server is busy", "too many requests", "a neutral text"):

        async def answer(name: str, prompt: str, words: str = words) -> Any:
            await asyncio.sleep(0.05)
            if int(prompt) % 61:
                return prompt
            body = {"error": {"message": f"Invalid 'messages[0].content': {words}", "code": 400}}
            return FailedReply(Reply(400, {}, json.dumps(body).encode()), name, MODEL, Secrets()).by_status()

        start = now()
        fleet = [Endpoint("http://a.example/v1", name="a", limits=Limits(max_concurrency=32))]
        async with client_of(FakeWire(answer), fleet, timeout=20.0) as client:
            batch = await client.batch_chat_completion(chats(305), MODEL)
        taken[words] = round(now() - start, 3)
        assert {index: type(error) for index, error in batch.errors.items()} == dict.fromkeys(range(0, 305, 61), BadRequest), words
    assert len(set(taken.values())) == 1, taken
