"""A batch of decisions is a batch: items are read late, results come as they are known, and the totals count items, not requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest
from deciding_tools import MODEL, DecisionServer, client_of, expected, now, number_of, questions, read
from scale import SCALE
from shared_tools import guard_buffers

from qreward import BadRequest, BatchInterrupted, RequestTimeout, Result, YesNo


async def test_parts_of_an_item_are_sent_at_the_same_time() -> None:
    server = DecisionServer("vllm")
    async with client_of({"a": server}, decisions="vllm") as client:
        batch = await client.batch_decide(["text"], questions(200), model=MODEL)
        assert (now(), server.asked) == (1.0, [("/decisions", 50)] * 4)
        assert read(batch[0].value) == expected(200)


async def test_the_totals_count_items_and_the_endpoints_requests() -> None:
    servers = {"a": DecisionServer("chat"), "b": DecisionServer("chat")}
    progress: list[Any] = []
    async with client_of(servers, decisions="chat", most=4) as client:
        batch = await client.batch_decide(["text"] * 10, questions(6), model=MODEL, progress=progress.append)
        fleet = client.stats()
    assert (batch.stats.items, batch.stats.ok, batch.stats.failed) == (10, 10, 0)
    assert sum(stats.won for stats in batch.stats.endpoints.values()) == 60
    assert sum(stats.prompt_tokens for stats in batch.stats.endpoints.values()) == 600
    assert {name: stats.won for name, stats in fleet.items()} == {name: stats.won for name, stats in batch.stats.endpoints.items()}
    assert (progress[-1].done, progress[-1].total) == (10, 10)
    assert [result.usage and result.usage.total_tokens for result in batch] == [66] * 10


async def test_results_are_in_the_order_of_the_input_and_come_when_the_last_part_is_done() -> None:
    server = DecisionServer("chat")
    arrived: list[tuple[int, float]] = []
    async with client_of({"a": server}, decisions="chat", most=2) as client:
        batch = await client.batch_decide(
            ["text"] * 3, questions(2), model=MODEL, on_result=lambda result: arrived.append((result.index, now())), keep_results=True
        )
        assert arrived == [(0, 1.0), (1, 2.0), (2, 3.0)]
        assert [result.index for result in batch] == [0, 1, 2]
        empty = await client.batch_decide(["text"] * 3, questions(2), model=MODEL, keep_results=False)
    assert (len(empty), empty.stats.ok) == (0, 3)


async def test_items_are_read_no_faster_than_they_are_sent() -> None:
    read_at: list[float] = []

    def inputs() -> Iterator[str]:
        for number in range(400):
            read_at.append(now())
            yield f"text {number}"

    async with client_of({"a": DecisionServer("chat")}, decisions="chat", most=4) as client:
        await client.batch_decide(inputs(), questions(4), model=MODEL)
        assert now() == 400.0
    assert sum(at == 0.0 for at in read_at) < 60
    assert read_at[-1] > 300


async def test_a_bad_question_fails_alone_and_an_item_fails_if_all_of_its_questions_do() -> None:
    for speaks in ("openai", "chat"):
        async with client_of({"a": DecisionServer(speaks)}, decisions=speaks) as client:
            items = [("text", questions(9, bad=frozenset({4}))), ("poor", questions(3, bad=frozenset({0, 1, 2}))), ("good", questions(3))]
            batch = await client.batch_decide(items, model=MODEL)
        assert (batch.stats.ok, batch.stats.failed) == (2, 1), speaks
        assert read(batch[0].value) == expected(9, bad=frozenset({4})), speaks
        assert read(batch[2].value) == expected(3), speaks
        assert batch[0].value.usage == batch[0].usage, speaks
        assert isinstance(batch[1].error, BadRequest), speaks
        assert {record.outcome for record in batch[1].attempts} == {"refused"}, speaks


async def test_whatever_is_bad_and_however_many_fit_the_answers_are_those_of_the_questions() -> None:
    for seed in range(20 * SCALE):
        rng = Random(seed)
        speaks, most = rng.choice(["openai", "vllm", "chat"]), rng.randint(1, 9)
        server = DecisionServer(speaks, seconds=rng.random(), most=most if speaks == "openai" else 64)
        cases = []
        for _ in range(rng.randint(1, 6)):
            count = rng.randint(1, 90)
            cases.append((count, frozenset(rng.sample(range(count), rng.randint(0, min(3, count - 1))))))
        async with client_of({"a": server, "b": server}, decisions=rng.choice([None, speaks]), most=rng.randint(1, 64)) as client:
            batch = await client.batch_decide([("text", questions(count, bad)) for count, bad in cases], model=MODEL)
            single = await client.decide("text", questions(*cases[0]), model=MODEL)
        assert [read(result.value) for result in batch] == [expected(*case) for case in cases], f"seed {seed}"
        assert read(single) == expected(*cases[0]), f"seed {seed}"
        assert batch.stats.ok == len(cases), f"seed {seed}"


async def test_an_item_that_cannot_be_sent_fails_alone_with_its_position() -> None:
    server = DecisionServer("openai")
    items: list[Any] = [("text", questions(2)), "no", ("text", []), ("", questions(2)), (3, questions(2)), ("text", questions(1))]
    async with client_of({"a": server}, decisions="openai") as client:
        batch = await client.batch_decide(items, model=MODEL)
    found = {index: str(error) for index, error in batch.errors.items()}
    assert [result.ok for result in batch] == [True, False, False, False, False, True]
    for index, words in {
        1: "without questions= an item is (input, questions), not a str",
        2: "at least one",
        3: "empty",
        4: "a int",
    }.items():
        assert found[index].startswith(f"item {index}: "), found[index]
        assert words in found[index], found[index]
    assert sum(count for _, count in server.asked) == 3


async def test_after_the_deadline_what_was_answered_stands_and_the_rest_has_its_error() -> None:
    server = DecisionServer("chat")
    async with client_of({"a": server}, decisions="chat", most=3) as client:
        batch = await client.batch_decide(["text"] * 3, questions(2), model=MODEL, deadline=1.5)
        assert now() == 1.5
    assert [result.ok for result in batch] == [True, True, False]
    assert read(batch[0].value) == expected(2)
    assert read(batch[1].value) == [0.01, "DeadlineExceeded"]
    assert type(batch[2].error).__name__ == "DeadlineExceeded"


async def test_an_error_of_on_result_stops_the_batch_and_keeps_what_is_done() -> None:
    server = DecisionServer("chat")

    def stop(result: Result[Any]) -> None:
        raise ValueError("enough")

    async with client_of({"a": server}, decisions="chat", most=4) as client:
        with pytest.raises(BatchInterrupted) as caught:
            await client.batch_decide(["text"] * 50, questions(2), model=MODEL, on_result=stop)
        assert now() < 4
    assert caught.value.results is not None
    assert [read(result.value) for result in caught.value.results] == [expected(2)] * len(caught.value.results)
    assert 0 < len(caught.value.results) < 8


async def test_a_batch_that_is_cancelled_leaves_nothing_behind() -> None:
    server = DecisionServer("chat", seconds=5)
    async with client_of({"a": server}, decisions="chat", most=4) as client:
        batch = asyncio.ensure_future(client.batch_decide(["text"] * 50, questions(2), model=MODEL))
        await asyncio.sleep(7)
        batch.cancel()
        await asyncio.wait([batch])
        await asyncio.sleep(0)
        runtime = client._runtime
        assert [source.inflight for source in runtime.fleet.sources()] == [0]
        assert not runtime.engine.driver().waiters
    assert server.live == 0


async def test_an_input_that_comes_late_is_sent_as_it_comes() -> None:
    async def inputs() -> Any:
        for number in range(3):
            yield f"text {number}"
            await asyncio.sleep(10)

    async with client_of({"a": DecisionServer("chat")}, decisions="chat") as client:
        arrived: list[float] = []
        await client.batch_decide(inputs(), questions(3), model=MODEL, on_result=lambda _: arrived.append(now()))
    assert arrived == [1.0, 11.0, 21.0]


async def test_the_timeout_of_an_item_holds_for_the_requests_that_follow_a_refused_one() -> None:
    server = DecisionServer("openai", seconds=2)
    async with client_of({"a": server}, decisions="openai") as client:
        batch = await client.batch_decide(["text"], questions(8, bad=frozenset({7})), model=MODEL, timeout=5)
        assert 5.0 <= now() < 5.1
    assert read(batch[0].value) == [*[(place + 1) / 100 for place in range(4)], *["RequestTimeout"] * 4]


async def test_questions_of_every_kind_go_in_one_request() -> None:
    def reply(path: str, body: dict[str, Any]) -> httpx.Response:
        answers = [{"type": "predicate", "probability": number_of(body["questions"][0]["instructions"])}, {"type": "refusal"}]
        return httpx.Response(200, json={"model": MODEL, "answers": answers})

    async with client_of({"a": DecisionServer(reply=reply)}, decisions="openai") as client:
        batch = await client.batch_decide(["text"], [YesNo("q7", name="right"), YesNo("q8", name="safe")], model=MODEL)
    decision = batch[0].value
    assert decision["right"].probability == 0.07
    with pytest.raises(KeyError, match="no question has the name 'rihgt'; did you mean 'right'"):
        decision["rihgt"]
    assert [*decision.errors] == [1]


async def test_the_parts_of_a_refused_item_are_handed_over_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    server = DecisionServer("chat")
    async with client_of({"a": server}, decisions="chat", most=4) as client:
        await client.batch_decide(["text"], questions(2), model=MODEL)
        changes = guard_buffers(monkeypatch, client._runtime.engine)
        batch = await client.batch_decide([("text", questions(4, frozenset({2}))), ("text", questions(6))], model=MODEL)
    assert changes() > 0
    assert len(batch) == 2


async def test_a_divided_decision_has_one_timeout_and_keeps_what_was_answered() -> None:
    server = DecisionServer("chat", seconds=2)
    async with client_of({"a": server}, decisions="chat", most=2) as client:
        decision = await client.decide("text", questions(4), model=MODEL, timeout=3)
        assert now() == 3.0
        assert read(decision) == [0.01, 0.02, "RequestTimeout", "RequestTimeout"]
        with pytest.raises(RequestTimeout, match="no answer within the timeout of 1 s"):
            await client.decide("text", questions(4), model=MODEL, timeout=1)
        assert now() == 4.0
