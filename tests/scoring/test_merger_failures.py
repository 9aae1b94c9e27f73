"""What becomes of a list that fails: the whole goes again, or only the bad item fails; each item gets exactly one outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merge_tools import (
    MODEL,
    EncodingBackend,
    ListBackend,
    Script,
    broken,
    client_of,
    endpoint,
    flat,
    good,
    in_turn,
    leftovers,
    overloaded,
    refused,
    texts,
)
from scale import SCALE

from qreward import BatchResult, Retry
from qreward.errors import (
    AuthenticationFailed,
    BadRequest,
    CircuitOpen,
    InvalidResponse,
    NoEndpoint,
    QueueFull,
    RequestError,
    ServerError,
)
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.testing.virtual_time import run_in_virtual_time

QUICK = Retry(base=0.01, cap=0.02)


def failing_with(failure: Failure, *bad: str, seconds: float = 0.1) -> Script:
    """Each list fails so if one of these items is in it."""

    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(seconds)
        return failure if set(bad).intersection(items) else None

    return work


async def scored(backend: ListBackend, items: list[str], *endpoints: Any, **settings: Any) -> BatchResult[Any]:
    async with client_of(backend, *endpoints, retry=QUICK, **settings) as client:
        batch = await client.batch_score(items, MODEL)
        assert leftovers(client) == {}
        return batch


async def test_the_error_of_a_bad_item_has_the_trail_of_all_lists_it_was_in() -> None:
    batch = await scored(ListBackend(failing_with(refused(), "x 0")), texts(8))
    assert isinstance(batch.errors[0], BadRequest)
    assert [record.outcome for record in batch.errors[0].attempts] == ["refused"] * 4, "8, 4, 2, 1"
    assert [record.outcome for record in batch[7].attempts] == ["refused", "ok"]
    assert [len(result.attempts) for result in batch] == [4, 4, 3, 3, 2, 2, 2, 2]


async def test_the_parts_of_a_refused_list_have_a_time_in_the_queue_that_is_not_negative() -> None:
    class Queued(list[float]):
        def call_ended(self, event: Any) -> None:
            self.append(event.queued)

    queued = Queued()
    await scored(ListBackend(failing_with(refused(), "x 0")), texts(8), observers=[queued])
    assert len(queued) > 8
    assert min(queued) == 0.0


@pytest.mark.parametrize(("hint", "kind"), [(None, "openrlhf"), (2.0, "tei")])
async def test_an_overload_sends_the_whole_list_again_first_and_in_order_and_is_no_failure(hint: float | None, kind: str) -> None:
    backend = ListBackend(in_turn(*[overloaded(hint)] * 11, None, seconds=0.5))
    async with client_of(backend, endpoint("a", 1, kind), retry=Retry(attempts=1)) as client:
        batch = await client.batch_score(texts(100), MODEL)
        assert batch.values() == [float(number) for number in range(100)]
        stats = client.stats()["a"]
        assert (stats.rejected, stats.failed) == (11, 0)
    assert backend.lists[:12] == [backend.lists[0]] * 12, "not before the next, nor cut"
    assert flat(backend.lists[11:]) == texts(100)
    assert [record.outcome for record in batch[0].attempts] == ["overloaded"] * 11 + ["ok"]
    assert len(backend.lists[0]) == (32 if kind == "tei" else 100)


async def test_a_list_that_was_turned_away_takes_along_what_came_meanwhile() -> None:
    backend = ListBackend(in_turn(overloaded(5.0), overloaded(5.0), None, seconds=0.0))
    async with client_of(backend) as client:
        first = asyncio.create_task(client.batch_score(texts(1), MODEL))
        await asyncio.sleep(1)
        later = await client.batch_score(texts(9, 1), MODEL)
        assert later.values() == [float(number) for number in range(1, 10)]
        assert [record.outcome for record in (await first)[0].attempts] == ["overloaded", "overloaded", "ok"]
        assert {len(result.attempts) for result in later} == {2}, "what was before they came is not theirs"
    assert backend.lists == [["x 0"], texts(10), texts(10)]


async def test_a_list_that_has_failed_takes_no_other_item_along() -> None:
    backend = ListBackend(failing_with(broken(), "x 0", seconds=0.5))
    async with client_of(backend, retry=Retry(base=0.1, cap=0.2)) as client:
        asked = [asyncio.create_task(client.score("x 0", model=MODEL))]
        for wave in range(8):  # some wait whenever the slot is free
            await asyncio.sleep(0.3)
            asked += [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(3, 1 + 3 * wave)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(found[0], ServerError)
        assert found[1:] == [float(number) for number in range(1, 25)]
    assert [items for items in backend.lists if "x 0" in items] == [["x 0"]] * 4


async def test_an_answer_that_is_no_list_of_results_fails_the_whole_list_and_no_part_of_it_is_sent() -> None:
    """Its parts would end as lists of one item, for which one number is an answer."""

    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.01)
        one = InvalidResponse(f"the answer has 1 results for {len(items)} items", status_code=200)
        return Failure(FailureKind.TRANSIENT, one) if len(items) > 1 else None

    backend = ListBackend(work)
    batch = await scored(backend, texts(8), endpoint("a"))
    assert {type(error) for error in batch.errors.values()} == {InvalidResponse}
    assert len(batch.errors) == 8
    assert 1 not in backend.sizes


@pytest.mark.parametrize("attempts", [1, 2])
async def test_the_error_of_an_item_without_a_value_in_the_list_names_the_endpoint_and_the_attempts(attempts: int) -> None:
    async def work(name: str, items: list[Any]) -> Any:
        return good(items, frozenset(["x 1"])) if len(items) > 1 else Failure(FailureKind.TRANSIENT, InvalidResponse("none", endpoint=name))

    async with client_of(ListBackend(work), retry=Retry(attempts=attempts)) as client:
        batch = await client.batch_score(texts(4), MODEL)
        (error,) = batch.errors.values()
        assert isinstance(error, InvalidResponse)
        assert (error.endpoint, batch[1].endpoint, len(error.attempts)) == ("a", "a", attempts)
        assert error.attempts[0].outcome == "transient"


async def test_an_outage_costs_each_item_at_most_twice_its_own_tries() -> None:
    backend = ListBackend(in_turn(broken(), seconds=0.01))
    async with client_of(backend, retry=Retry(attempts=3, base=0.01, cap=0.02)) as client:
        batch = await client.batch_score(texts(64), MODEL)
        assert len(batch.errors) == 64
    assert len(backend.sent) <= 2 * 255, "the whole three times, each part of it twice: 255; in an outage at most twice as often"


async def test_several_documents_that_fail_are_one_error_of_their_ranking() -> None:
    async with client_of(ListBackend(failing_with(refused(), "x 1", "x 2", "x 5")), endpoint(slots=8)) as client:
        with pytest.raises(BadRequest):
            await client.rerank("q", texts(8), MODEL)
        assert leftovers(client) == {}
        client.mark_unhealthy("a")  # all of them fail in one turn
        with pytest.raises(CircuitOpen):
            await client.rerank("q", texts(8), MODEL)
        assert leftovers(client) == {}


async def test_an_item_that_cannot_be_written_fails_alone() -> None:
    backend = EncodingBackend()
    items = [{"prompt": "q", "response": text, "label": float("nan") if text == "x 7" else 1.0} for text in texts(20)]

    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.1)
        return good([item.response for item in items])

    backend._script = work
    async with client_of(backend, endpoint("rm", 1, "openrlhf")) as client:
        batch = await client.batch_score(items, MODEL)
    assert set(batch.errors) == {7}
    assert isinstance(batch.errors[7], BadRequest)


@pytest.mark.parametrize("endpoints", [1, 3])
@pytest.mark.parametrize("error", [AuthenticationFailed("no", status_code=401), BadRequest("no such model", status_code=404)])
async def test_an_endpoint_that_is_configured_wrongly_ends_the_list_at_once_and_gives_each_item_an_error_of_its_own(
    error: RequestError, endpoints: int
) -> None:
    backend = ListBackend(in_turn(Failure(FailureKind.UNSUITABLE, error, misconfigured=True)))
    batch = await scored(backend, texts(20), *map(endpoint, "abc"[:endpoints]))
    assert len(backend.sizes) <= 2 * endpoints, "no part of a list is sent"
    assert sum(backend.sizes) <= 20 * endpoints
    assert {type(error) for error in batch.errors.values()} == {type(error)}
    assert len({id(error) for error in batch.errors.values()}) == 20


async def test_an_item_that_is_no_item_is_its_own_error_and_is_never_sent() -> None:
    backend = ListBackend()
    batch = await scored(backend, ["x 0", 7, ("a", "b", "c"), "x 3"])  # type: ignore[list-item]
    assert set(batch.errors) == {1, 2}
    assert "an item to score must be (prompt, response), a text or a list of messages, not a int" in str(batch.errors[1])
    assert backend.lists == [["x 0", "x 3"]]


async def test_items_that_no_endpoint_can_serve_any_more_fail_with_the_reason() -> None:
    backend = ListBackend()
    async with client_of(backend, endpoint("a")) as client:
        client.mark_unhealthy("a")
        batch = await client.batch_score(texts(3), MODEL)
        assert {type(error) for error in batch.errors.values()} == {CircuitOpen}
        with pytest.raises(CircuitOpen):
            await client.score("x 1", model=MODEL)
        client.mark_healthy("a")
        asked = [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(1)]
        await asyncio.sleep(0.1)
        asked += [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(4, 1)]
        await asyncio.sleep(0.1)
        client.remove_endpoint("a")
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert found[0] == 0.0
        assert {type(each) for each in found[1:]} == {NoEndpoint}
        assert leftovers(client) == {}


async def test_more_single_items_than_may_wait_are_turned_away_by_themselves() -> None:
    async with client_of(ListBackend(), max_queued=5) as client:
        blocker = asyncio.create_task(client.score("x 0", model=MODEL))
        await asyncio.sleep(0.1)
        found = await asyncio.gather(*(client.score(text, model=MODEL) for text in texts(8, 1)), return_exceptions=True)
        assert found[:5] == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert [type(each) for each in found[5:]] == [QueueFull] * 3
        assert await blocker == 0.0
        batch = await client.batch_score(texts(50), MODEL)
        assert not batch.errors, "a batch reads as it can"
        assert leftovers(client) == {}
    async with client_of(ListBackend(), max_queued=1) as client:
        waiting = []
        for _ in range(2):
            waiting.append(asyncio.create_task(client.score("x 0", model=MODEL)))
            await asyncio.sleep(0.1)
        for number in range(3):
            with pytest.raises(QueueFull):
                await client.score("x 0", model=MODEL, tenant=f"tenant {number}")
        assert leftovers(client)["mergers"] == 1, "the one of the items that wait"
        await asyncio.gather(*waiting)
        assert leftovers(client) == {}


async def test_settings_of_a_reload_hold_for_items_that_share_requests_with_earlier_ones() -> None:
    async def work(_: str, items: list[Any]) -> Any:
        await asyncio.sleep(1)
        return good(items, frozenset({"x 1"}))

    async with client_of(ListBackend(work)) as client:
        blocker = asyncio.create_task(client.score("x 0", model=MODEL))
        await asyncio.sleep(0.1)
        client.reload(client.config.model_copy(update={"max_queued": 5, "retry": Retry(attempts=1)}))
        found: list[Any] = await asyncio.gather(*(client.score(text, model=MODEL) for text in texts(8, 1)), return_exceptions=True)
        assert [len(found[0].attempts), *found[1:5]] == [1, 2.0, 3.0, 4.0, 5.0]
        assert [type(each) for each in found[5:]] == [QueueFull] * 3
        assert await blocker == 0.0


async def test_a_list_that_moves_to_an_endpoint_of_shorter_lists_leaves_the_rest_at_the_head_of_the_queue() -> None:
    async def work(name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.1)
        return broken() if name == "vllm" else None

    backend = ListBackend(work)
    async with client_of(backend, endpoint("vllm", 1, "vllm"), retry=QUICK) as client:
        asked = asyncio.create_task(client.batch_score(texts(100), MODEL))
        await asyncio.sleep(0.05)
        client.add_endpoint(endpoint("tei", 1, "tei"))
        batch = await asked
        assert batch.values() == [float(number) for number in range(100)]
        assert leftovers(client) == {}
    assert backend.sent[0][2] == texts(100)
    assert next(items for name, _, items in backend.sent if name == "tei") == texts(32)
    assert max(len(items) for name, _, items in backend.sent if name == "tei") <= 32


@settings(max_examples=30 * SCALE)
@given(
    count=st.integers(1, 120),
    bad=st.sets(st.integers(0, 119), max_size=6),
    script=st.lists(st.sampled_from(["ok", "ok", "overloaded", "broken", "missing"]), max_size=12),
    slots=st.integers(1, 3),
    kinds=st.sampled_from([("vllm",), ("tei",), ("vllm", "tei")]),
    status=st.sampled_from([400, 413, 422]),
)
def test_each_item_has_exactly_one_outcome_and_only_the_bad_fail(
    count: int, bad: set[int], script: list[str], slots: int, kinds: tuple[str, ...], status: int
) -> None:
    told: Counter[int] = Counter()
    alone: set[str] = set()

    async def test() -> BatchResult[Any]:
        steps = iter(script)
        poison = {f"x {number}" for number in bad}

        async def work(_name: str, items: list[Any]) -> Any:
            await asyncio.sleep(0.05)
            step = next(steps, "ok")
            if step == "overloaded":
                return overloaded()
            if step == "broken":
                return broken()
            if poison.intersection(items):
                alone.update(items if len(items) == 1 else ())
                return refused(status)
            return good(items, frozenset(items[:1]) if step == "missing" and len(items) > 1 else frozenset())

        endpoints = [endpoint(kind, slots, kind) for kind in kinds]
        async with client_of(ListBackend(work), *endpoints, retry=Retry(attempts=20, base=0.01, cap=0.02)) as client:
            batch = await client.batch_score(texts(count), MODEL, on_result=lambda result: told.update([result.index]))
            assert leftovers(client) == {}
            return batch

    batch = run_in_virtual_time(test())
    assert told == dict.fromkeys(range(count), 1)
    assert set(batch.errors) == {number for number in bad if number < count}
    assert {getattr(error, "status_code", None) for error in batch.errors.values()} <= {status}
    assert alone == {f"x {number}" for number in batch.errors}, "an item is only blamed when it was alone"
    assert all(batch[index].value == index for index in range(count) if index not in bad)
    assert all(batch[index].attempts[-1].outcome == "ok" for index in range(count) if index not in bad)


async def test_pairs_for_a_server_that_takes_texts_say_what_to_set() -> None:
    async with client_of(EncodingBackend(), endpoint("sg", 1, "sglang")) as client:
        with pytest.raises(BadRequest, match=r"RewardModel\(template=...\)"):
            await client.score("q", "a", model=MODEL)
