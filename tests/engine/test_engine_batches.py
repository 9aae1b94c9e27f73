"""A batch: one outcome an item in the order of the input, which is read no faster than it is sent."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import NoneType
from typing import Any
from unittest.mock import ANY

import pytest
from engine_tools import MODEL, FakeWire, Said, ask, broken, chat, chats, client_of, endpoints, leftovers, now
from shared_tools import guard_buffers

from qreward import (
    AttemptRecord,
    BatchCancelled,
    BatchInterrupted,
    BatchResult,
    ClientClosed,
    DeadlineExceeded,
    Endpoint,
    EndpointStats,
    InvalidResponse,
    Limits,
    QRewardClient,
    Result,
    Retry,
)
from qreward.engine.batch import BatchWaiter, Tallies
from qreward.engine.driver import LoopDriver
from qreward.records import PromptTokensDetails, Usage
from qreward.scheduler.outcome import Answer
from qreward.scheduler.task import READ_AHEAD


async def random_seconds(_: str, prompt: str) -> str:
    await asyncio.sleep(random.Random(prompt).uniform(0.1, 9))
    return f"re: {prompt}"


def expected(count: int) -> list[str]:
    return [f"re: {number}" for number in range(count)]


async def test_results_are_in_the_order_of_the_input_whatever_the_order_of_the_answers() -> None:
    wire, finished, seen = FakeWire(random_seconds), list[int](), list[Any]()
    async with client_of(wire, {"a": 3, "b": 5}) as client:
        batch = await client.batch_chat_completion(chats(100), MODEL, on_result=lambda result: finished.append(result.index))
        again = await client.batch_chat_completion(
            chats(100), MODEL, keep_results=False, on_result=lambda result: seen.append((result.index, result.text))
        )
    assert (len(again), again.stats.items, again.stats.ok, again.stats.failed) == (0, 100, 100, 0)
    assert sorted(seen) == list(enumerate(expected(100)))
    wire.sent = wire.sent[:100]
    assert batch.texts() == expected(100)
    assert [result.index for result in batch] == list(range(100))
    assert finished != sorted(finished)
    assert sorted(finished) == list(range(100))
    assert sorted(wire.prompts, key=int) == [str(number) for number in range(100)]
    assert wire.peak == {"a": 3, "b": 5}
    assert {name: stats.won for name, stats in batch.stats.endpoints.items()} == {
        name: sum(1 for where, _, _ in wire.sent if where == name) for name in "ab"
    }


async def test_an_empty_batch_is_done_at_once() -> None:
    async def nothing() -> AsyncIterator[Any]:
        for item in chats(0):
            yield item

    wire = FakeWire()
    async with client_of(wire) as client:
        inputs: list[Any] = [[], iter(()), (item for item in chats(0)), nothing()]
        for empty in inputs:
            batch = await client.batch_chat_completion(empty, MODEL)
            assert (len(batch), batch.texts(), batch.stats.items) == (0, [], 0)
    assert (wire.sent, now()) == ([], 0)


class Source:
    """Counts what was read, and how far that is ahead of what was sent."""

    def __init__(self, wire: FakeWire, count: int) -> None:
        self.wire, self.count = wire, count
        self.read = self.most_ahead = 0
        self.closed = False

    def _next(self) -> list[dict[str, str]]:
        self.read += 1
        self.most_ahead = max(self.most_ahead, self.read - len(self.wire.sent))
        return chat(self.read - 1)

    def generator(self) -> Iterator[Any]:
        try:
            while self.read < self.count:
                yield self._next()
        finally:
            self.closed = True

    async def async_generator(self) -> AsyncIterator[Any]:
        try:
            while self.read < self.count:
                await asyncio.sleep(0)
                yield self._next()
        finally:
            await asyncio.sleep(0)  # tidying up may take its time
            self.closed = True

    def open(self, kind: str) -> Any:
        return self.generator() if kind == "generator" else self.async_generator()


KINDS = ["generator", "async generator"]


@pytest.mark.parametrize("kind", KINDS)
async def test_input_is_read_no_faster_than_it_is_sent(kind: str) -> None:
    wire = FakeWire()
    source = Source(wire, 2000)
    async with client_of(wire, {"a": 10, "b": 6}) as client:
        batch = await client.batch_chat_completion(source.open(kind), MODEL)
    assert batch.texts() == expected(2000)
    assert 1 < source.most_ahead <= READ_AHEAD + 16 + 1  # those just dispatched have not begun yet
    assert source.closed
    assert now() == 125  # 2000 items, 16 at once, a second each: reading never made the fleet wait


async def test_a_batch_that_is_cancelled_closes_its_input_stops_what_is_under_way_and_says_how_much_is_done() -> None:
    told: dict[str, Any] = {"on_result": lambda _: None}
    for kind, settings, said in (
        ("generator", {}, "8 items were done when the batch was given up; their results are lost; on_result receives each result at once"),
        ("async generator", told, "8 items were done when the batch was given up; on_result received each of them"),
        ("list", told, "8 of 9999 items were done when the batch was given up; on_result received each of them"),
    ):
        wire = FakeWire()
        source = Source(wire, 9999)
        async with client_of(wire, {"a": 4}) as client:
            items = chats(9999) if kind == "list" else source.open(kind)
            batch = asyncio.ensure_future(client.batch_chat_completion(items, MODEL, **settings))
            await asyncio.sleep(2.5)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await batch
            assert cancelled.value.__notes__ == [said]
            assert source.closed or kind == "list"
            assert leftovers(client) == {}
            await asyncio.sleep(0.1)
        assert (len(wire.sent), wire.cancelled) == (12, ["8", "9", "10", "11"]), kind


class Unreadable(Exception):
    pass


async def test_an_input_that_raises_is_told_after_what_was_read_is_done() -> None:
    def raising() -> Iterator[Any]:
        yield from chats(50)
        raise Unreadable("line 51 is broken")

    async def awaited() -> AsyncIterator[Any]:
        for item in raising():
            yield item

    for items in (raising(), awaited()):
        async with client_of(FakeWire()) as client:
            with pytest.raises(BatchInterrupted, match=r"after 50 items \(Unreadable: line 51 is broken\)") as caught:
                await client.batch_chat_completion(items, MODEL)
        assert isinstance(caught.value.__cause__, Unreadable)
        assert isinstance(caught.value.results, BatchResult)
        assert caught.value.results.texts() == expected(50)


async def test_an_async_input_that_cannot_be_closed_is_told_after_what_was_read_is_done() -> None:
    class Unclosable:
        """Two chats, and an ``aclose`` that raises when it is called."""

        def __init__(self) -> None:
            self._left = chats(2)

        def __aiter__(self) -> Unclosable:
            return self

        async def __anext__(self) -> Any:
            if not self._left:
                raise StopAsyncIteration
            return self._left.pop(0)

        def aclose(self) -> Any:
            raise OSError("the file is gone")

    async with client_of(FakeWire(random_seconds), {"a": 3}) as client:
        with pytest.raises(BatchInterrupted) as raised:
            await asyncio.wait_for(client.batch_chat_completion(Unclosable(), MODEL), 60)
        assert isinstance(raised.value.__cause__, OSError)
        assert isinstance(raised.value.results, BatchResult)
        assert len(raised.value.results) == 2


async def test_an_on_result_that_raises_stops_the_batch_and_what_is_done_comes_back() -> None:
    told: list[int] = []

    def on_result(result: Any) -> None:
        told.append(result.index)
        if len(told) == 6:
            raise Unreadable("the disk is full")

    wire = FakeWire()
    async with client_of(wire, {"a": 4}) as client:
        with pytest.raises(BatchInterrupted, match="the disk is full") as caught:
            await client.batch_chat_completion(chats(100), MODEL, on_result=on_result)
    results = caught.value.results
    assert results is not None
    assert [result.text for result in results] == [f"re: {prompt}" for prompt in wire.prompts]
    assert len(wire.sent) < 20  # what was under way has been finished, nothing more was begun
    assert wire.cancelled == []
    assert len(told) == 6


async def test_at_the_deadline_what_is_done_comes_back_and_the_rest_is_cancelled() -> None:
    wire = FakeWire()
    async with client_of(wire, {"a": 4}) as client:
        batch = await client.batch_chat_completion(chats(100), MODEL, deadline=2.5)
        assert now() == 2.5
        assert leftovers(client) in ({}, {"slots": 4, "attempts": 4})  # the four are being stopped
        await asyncio.sleep(0.1)
    assert batch.texts() == [*expected(8), *[None] * 92]
    assert wire.cancelled == ["8", "9", "10", "11"]
    assert list(batch.errors) == list(range(8, 100))
    assert all(isinstance(error, DeadlineExceeded) for error in batch.errors.values())
    assert "deadline of 2.5 s" in str(batch.errors[99])
    assert (batch.stats.items, batch.stats.ok, batch.stats.failed) == (100, 8, 92)


@pytest.mark.parametrize("kind", KINDS)
async def test_at_the_deadline_an_input_of_unknown_length_ends_where_it_was_read(kind: str) -> None:
    wire = FakeWire()
    source = Source(wire, 10**9)
    async with client_of(wire, {"a": 4}) as client:
        batch = await client.batch_chat_completion(source.open(kind), MODEL, deadline=2.5)
        assert source.closed
    items = source.read + (kind == "async generator")  # of another input, one item more is read to know whether it goes on
    assert len(batch) == items
    assert batch.texts()[:8] == expected(8)
    assert set(batch.errors) == set(range(8, items))
    assert all(isinstance(error, DeadlineExceeded) for error in batch.errors.values())
    assert [index for index, error in batch.errors.items() if "not read to its end" in str(error)] == [items - 1]


async def test_an_input_of_unknown_length_that_was_read_to_its_last_item_has_no_result_too_many_at_the_deadline() -> None:
    for count in range(30, 45):
        async with client_of(FakeWire(seconds=5.0), {"a": 4}) as client:
            batch = await client.batch_chat_completion(iter(chats(count)), MODEL, deadline=1.0)
        assert len(batch) == min(count, 33), "32 are read"


async def test_a_batch_that_ends_early_has_one_error_for_all_items_of_unknown_number_that_were_not_read() -> None:
    async def rollouts(count: int) -> AsyncIterator[Any]:
        for number in range(count):
            await asyncio.sleep(2)
            yield chat(number)

    async def end(client: QRewardClient, way: type[Exception]) -> None:
        if way is ClientClosed:
            await client.aclose()
        elif way is BatchCancelled:
            (waiter,) = [each for each in client._runtime.engine.driver().waiters if isinstance(each, BatchWaiter)]
            waiter.cancel("enough")

    for way in (DeadlineExceeded, ClientClosed, BatchCancelled):
        for count in (10, 2):  # with 2, the input has ended before, and the second item is in flight
            told = list[Result[Any]]()
            async with client_of(FakeWire(seconds=1.5), {"a": 4}) as client:
                options: Any = {"deadline": 5.0 if way is DeadlineExceeded else None, "on_result": told.append}
                asked = asyncio.create_task(client.batch_chat_completion(rollouts(count), MODEL, **options))
                await asyncio.sleep(5)
                await end(client, way)
                batch = await asked
            assert batch.texts(default="none") == ["re: 0", *["none"] * (2 if count > 2 else 1)]
            assert {type(error) for error in batch.errors.values()} == {way}
            assert ["not read to its end" in str(error) for error in batch.errors.values()] == [False, True][: len(batch) - 1]
            assert (told, batch.stats.items, batch.stats.failed) == (list(batch), len(batch), len(batch) - 1)


async def test_at_the_deadline_every_item_of_a_sized_input_has_an_error_even_if_its_reading_ends_meanwhile() -> None:
    class Sized:
        """Items that cannot be sent, of which nothing but the deadline stops the reading."""

        read = 0

        def __len__(self) -> int:
            return 5000

        async def __aiter__(self) -> AsyncIterator[Any]:
            for number in range(5000):
                self.read = number + 1
                yield "no conversation"

    items = Sized()
    async with client_of(FakeWire()) as client:
        batch = await client.batch_chat_completion(items, MODEL, deadline=1e-9)
    assert 0 < items.read < 5000, "the deadline passes amid the reading"
    assert len(batch) == batch.stats.failed == 5000
    assert [result.index for result in batch] == list(range(5000))


async def test_a_batch_that_has_ended_is_not_kept_until_its_deadline() -> None:
    async def run(client: QRewardClient, way: str) -> weakref.ref[Any]:
        def on_result(_: Result[Any]) -> None:
            if way == "on_result raises":
                raise ValueError("enough")

        batch = asyncio.ensure_future(client.batch_chat_completion(chats(8), MODEL, deadline=1e6, on_result=on_result))
        await asyncio.sleep(1.5)
        if way == "it is cancelled":
            batch.cancel()
        await asyncio.wait([batch])
        assert batch.cancelled() or isinstance(batch.exception(), BatchInterrupted | NoneType)
        return weakref.ref(on_result)

    kept = []
    async with client_of(FakeWire(), {"a": 4}) as client:
        for way in ("it is done", "on_result raises", "it is cancelled"):
            held = await run(client, way)
            await asyncio.sleep(10)
            gc.collect()
            if held() is not None:
                kept.append(way)
    assert kept == []


async def test_one_bad_item_fails_alone() -> None:
    class Broken:
        """A message object of a broken library."""

        def model_dump(self, **_: Any) -> Any:
            raise Unreadable("cannot be dumped")

    wire = FakeWire()
    items: list[Any] = [chat(0), "no conversation", chat(2), [], chat(4), [{"content": "no role"}], [Broken()]]
    async with client_of(wire) as client:
        batch = await client.batch_chat_completion([*items, *chats(60)], MODEL)
    assert batch.texts() == ["re: 0", None, "re: 2", None, "re: 4", None, None, *expected(60)]
    assert [str(error).partition(":")[0] for error in batch.errors.values()] == [
        "item 1",
        "item 3",
        "item 5",
        "item 6 cannot be read (Unreadable",
    ]
    assert isinstance(batch.errors[6].__cause__, Unreadable)
    assert len(wire.prompts) == 63


async def test_a_result_says_where_it_comes_from_and_how_long_it_took() -> None:
    async def script(name: str, prompt: str) -> Any:
        await asyncio.sleep(2)
        return broken(name) if prompt == "bad" else f"re: {prompt}"

    async with client_of(FakeWire(script), {"a": 1}) as client:
        holding = asyncio.ensure_future(ask(client, "holds the slot"))
        await asyncio.sleep(0.5)
        batch = await client.batch_chat_completion(chats(3), MODEL)
        await holding
        assert [(each.endpoint, round(each.latency, 3)) for each in batch] == [("a", 2)] * 3
        assert batch.stats.seconds == pytest.approx(7.5)
    async with client_of(FakeWire(script), {"a": 1, "b": 1}, retry=Retry(attempts=2)) as client:
        (result,) = await client.batch_chat_completion([chat("bad")], MODEL)
    first, last = (attempt.endpoint for attempt in result.attempts)
    assert (result.endpoint, result.latency) == (last, 0.0)
    assert first != last


async def test_nothing_is_sent_of_a_slow_async_input_after_on_result_has_raised() -> None:
    async def endless() -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(1)
            yield chats(1)[0]

    def refuse(result: Any) -> None:
        raise ValueError("enough")

    wire = FakeWire(seconds=9.5)
    async with client_of(wire, {"a": 50}) as client:
        with pytest.raises(BatchInterrupted, match="enough"):
            await client.batch_chat_completion(endless(), MODEL, on_result=refuse)
    assert len(wire.sent) <= 10, "what was under way is finished, nothing else is begun"


def test_the_statistics_of_a_batch_count_every_attempt_by_its_outcome_and_sum_the_tokens() -> None:
    def attempt(name: str, outcome: str, *, hedge: bool = False) -> AttemptRecord:
        return AttemptRecord(name, outcome, 0.5, hedge=hedge)

    tallies = Tallies()
    trail = (attempt("a", "overloaded"), attempt("a", "transient"), attempt("b", "cancelled", hedge=True), attempt("a", "timeout"))
    said = Said("yes")
    said.usage = Usage(100, 10, 110, PromptTokensDetails(64))
    tallies.add(Result(0, said, None, "b", 1.5, 0.0, trail))
    tallies.add(Result(1, None, DeadlineExceeded("too late"), "a", 0.0, 0.0))
    tallies.add(Result(2, said, None, "b", 1.5, 0.0, (attempt("b", "ok"),)))
    stats = tallies.stats()
    assert stats["a"] == EndpointStats(sent=3, rejected=1, failed=2, retried=1)
    tokens: dict[str, Any] = {"prompt_tokens": 200, "completion_tokens": 20, "cached_tokens": 128}
    assert stats["b"] == EndpointStats(sent=3, answered=2, cancelled=1, hedged=1, retried=1, **tokens, p50=ANY, p95=ANY, p99=ANY)


async def test_the_statistics_of_an_endpoint_say_how_long_its_answers_take_and_when_it_takes_the_next_request() -> None:
    async def script(_: str, prompt: str) -> str:
        await asyncio.sleep(9.0 if prompt.endswith("0") else 1.0)
        return "yes"

    limited = Endpoint("http://b.example/v1", name="b", models=["slow"], limits=Limits(rpm=1, max_concurrency=2, adaptive=False))
    async with client_of(FakeWire(script), [*endpoints({"a": 4}), limited]) as client:
        await client.batch_chat_completion(chats(100), MODEL)
        stats = client.stats()["a"]
        assert (stats.p50, stats.p95, stats.p99) == (pytest.approx(1, rel=0.1), pytest.approx(9, rel=0.1), pytest.approx(9, rel=0.1))
        await client.chat_completion(chat(1), "slow")
        states = [client.stats()[name].state for name in ("a", "b")]
        assert [(state.obstacle, state.ready_in) for state in states if state is not None] == [
            ("ready", 0.0),
            ("limit of 1 requests a minute", pytest.approx(59.5, abs=0.3)),
        ]
        full = [asyncio.ensure_future(ask(client, number)) for number in range(4)]
        await asyncio.sleep(0.5)
        state = client.stats()["a"].state
        assert state is not None
        assert (state.obstacle, state.ready_in) == ("window full", None)
        await asyncio.gather(*full)


async def test_items_are_handed_over_under_the_lock_whatever_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = "the same beginning of every prompt " * 20

    async def later(count: int) -> AsyncIterator[Any]:
        for number in range(count):
            await asyncio.sleep(0)
            yield chat(f"{shared}{number}")

    inputs: dict[str, Callable[[], Any]] = {
        "a list": lambda: chats(100),
        "with prefixes": lambda: [chat(f"{shared}{number}") for number in range(500)],
        "an async input": lambda: later(100),
        "one item": lambda: chats(1),
        "with invalid items": lambda: [*chats(40), 3, *chats(40)],
    }
    for name, items in inputs.items():
        async with client_of(FakeWire(random_seconds), {"a": 3, "b": 5}) as client:
            with monkeypatch.context() as patch:
                changes = guard_buffers(patch, client._runtime.engine)
                batch = await client.batch_chat_completion(items(), MODEL)
                client.mark_unhealthy("a")
                client.mark_unhealthy("b")
                failed = await client.batch_chat_completion(items(), MODEL)
            assert changes() > 0, name
            assert batch.stats.failed == (name == "with invalid items"), name
            assert failed.stats.ok == 0, name


async def test_a_batch_of_one_is_opened_and_sent_in_one_locked_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    async with client_of(FakeWire()) as client:
        change = LoopDriver._change

        def counted(self: LoopDriver, method: Any, *arguments: Any) -> Any:
            calls.append(method.__name__)
            return change(self, method, *arguments)

        monkeypatch.setattr(LoopDriver, "_change", counted)
        assert (await client.batch_chat_completion(chats(1), MODEL)).stats.ok == 1
    assert calls[:2] == ["open", "event"]


async def test_an_answer_that_the_scheduler_cannot_record_fails_its_item_and_nothing_else() -> None:
    odd: dict[str, tuple[Any, ...]] = {"1": ("ten", 3), "3": (3, "ten"), "5": (3, 10**320), "7": (10**320, 3), "9": (3, float("nan"))}

    async def script(_: str, prompt: str) -> Any:
        await asyncio.sleep(1)
        return Answer(Said(prompt), *odd.get(prompt, (3, 4)))

    for limits in (None, Limits(max_concurrency=2), Limits(max_concurrency=1, tpm=10_000, rpm=6000)):
        fleet = [Endpoint("http://a.example/v1", name="a", limits=limits or Limits())]
        async with client_of(FakeWire(script), fleet) as client:
            batch = await client.batch_chat_completion(chats(12), MODEL, max_tokens=-1)
            assert {index for index, error in batch.errors.items() if isinstance(error, InvalidResponse)} >= {1, 3}
            assert all(isinstance(error, InvalidResponse) and str(index) in odd for index, error in batch.errors.items())
            assert await ask(client, 2) == "2"
            with pytest.raises(InvalidResponse, match="cannot be recorded: TypeError"):
                await ask(client, 1)
            assert await ask(client, 2, max_tokens=10**400) == "2"
            state = client.stats()["a"].state
            assert state is not None
            assert state.in_flight == 0
