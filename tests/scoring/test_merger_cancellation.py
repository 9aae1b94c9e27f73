"""Items that end before their answer: by a deadline, by being cancelled, by the client's end. Nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from merge_tools import MODEL, ListBackend, broken, client_of, endpoint, flat, good, leftovers, now, overloaded, texts

from qreward import Limits, QRewardClient, Retry
from qreward.errors import ClientClosed, DeadlineExceeded, RequestTimeout


async def test_an_item_that_waits_too_long_is_dropped_before_it_is_sent_and_says_so() -> None:
    backend = ListBackend(seconds=10)
    async with client_of(backend) as client:
        blocker = asyncio.create_task(client.score("x 0", model=MODEL))
        await asyncio.sleep(0.1)
        patient = asyncio.create_task(client.score("x 1", model=MODEL, timeout=60))
        with pytest.raises(RequestTimeout, match=r"within the timeout of 2 s.*never sent") as caught:
            await client.score("x 2", model=MODEL, timeout=2)
        assert now() == pytest.approx(2.1)
        assert caught.value.attempts == ()
        assert await asyncio.gather(blocker, patient) == [0.0, 1.0]
        assert leftovers(client) == {}
    assert backend.lists == [["x 0"], ["x 1"]]


async def test_an_item_under_way_with_others_ends_in_time_and_the_others_go_on() -> None:
    backend = ListBackend(seconds=10)
    async with client_of(backend) as client:
        hasty = asyncio.create_task(client.score("x 1", model=MODEL, timeout=3))
        patient = asyncio.create_task(client.score("x 2", model=MODEL))
        with pytest.raises(RequestTimeout, match="under way"):
            await hasty
        assert now() == 3.0
        assert await patient == 2.0
        assert now() == 10.0
    assert (backend.sizes, backend.cancelled) == ([2], [])


async def test_a_list_is_cancelled_when_its_last_item_has_left() -> None:
    backend = ListBackend(seconds=10)
    async with client_of(backend) as client:
        asked = [asyncio.create_task(client.score(text, model=MODEL, timeout=1 + number)) for number, text in enumerate(texts(3))]
        await asyncio.sleep(0.5)
        asked[2].cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in found] == [RequestTimeout, RequestTimeout, asyncio.CancelledError]
        assert now() == 2.0
        await asyncio.sleep(0)
        assert backend.cancelled == [texts(3)]
        await asyncio.sleep(0.1)
        assert leftovers(client) == {}


async def test_cancelled_items_leave_the_queue_and_are_never_sent() -> None:
    for left in (slice(None, None, 2), slice(None)):  # if all have left, no empty request is made
        backend = ListBackend()
        async with client_of(backend) as client:
            blocker = asyncio.create_task(client.score("x 0", model=MODEL))
            await asyncio.sleep(0.1)
            asked = [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(1000, 1)]
            await asyncio.sleep(0.1)
            for task in asked[left]:
                task.cancel()
            found = await asyncio.gather(blocker, *asked, return_exceptions=True)
            assert sum(isinstance(each, asyncio.CancelledError) for each in found) == len(asked[left])
            assert await client.score("x 9", model=MODEL) == 9.0
            assert leftovers(client) == {}
        stay = texts(1000, 1)
        del stay[left]
        assert flat(backend.lists) == ["x 0", *stay, "x 9"]
        assert [] not in backend.lists


async def test_a_request_whose_items_have_left_does_not_wait_in_the_scheduler() -> None:
    async with client_of(ListBackend()) as client:
        blocker = asyncio.create_task(client.classify("x 0", model=MODEL))
        await asyncio.sleep(0.1)
        asked = asyncio.create_task(client.score("x 1", model=MODEL))
        await asyncio.sleep(0.1)
        assert leftovers(client)["queued"] == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        left = leftovers(client)
        assert (left.get("queued"), left["mergers"]) == (None, 1)
        await blocker


async def test_an_item_whose_list_waits_to_be_sent_again_still_ends_in_time_with_its_trail() -> None:
    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.1)
        return overloaded(30.0)

    async with client_of(ListBackend(work)) as client:
        with pytest.raises(RequestTimeout, match="too busy") as caught:
            await client.score("x 1", model=MODEL, timeout=5)
        assert now() == 5.0
        assert [record.outcome for record in caught.value.attempts] == ["overloaded"]
        assert leftovers(client) == {}


async def test_the_time_of_a_bulks_item_begins_when_it_is_taken_not_when_it_is_read() -> None:
    async with client_of(ListBackend(seconds=2), endpoint("tei", 1, "tei")) as client:
        batch = await client.batch_score(texts(320), MODEL, timeout=3)
        assert not batch.errors
        assert now() >= 20.0
        assert max(result.queued for result in batch) == 0.0


async def test_the_deadline_of_a_batch_ends_what_is_missing() -> None:
    backend = ListBackend(seconds=1)
    async with client_of(backend, endpoint("tei", 1, "tei")) as client:
        batch = await client.batch_score(texts(2000), MODEL, deadline=3.5)
        assert now() == 3.5
        assert (batch.stats.ok, batch.stats.failed) == (96, 1904)
        assert {type(error) for error in batch.errors.values()} == {DeadlineExceeded}
        await asyncio.sleep(0.01)
        assert len(backend.cancelled) == 1
        assert leftovers(client) == {}


async def test_at_the_deadline_an_input_without_a_length_that_was_not_read_to_its_end_is_an_error_too() -> None:
    async with client_of(ListBackend(seconds=1), endpoint("tei", 1, "tei")) as client:
        batch = await client.batch_score(iter(texts(2000)), MODEL, deadline=3.5)
        assert (batch.stats.ok, batch.stats.failed, list(batch.errors)) == (96, len(batch) - 96, list(range(96, len(batch))))
        assert [index for index, error in batch.errors.items() if "not read to its end" in str(error)] == [len(batch) - 1]
        await asyncio.sleep(0.01)
        assert leftovers(client) == {}


async def test_a_cancelled_batch_leaves_the_items_of_others_alone() -> None:
    backend = ListBackend(seconds=1)
    async with client_of(backend) as client:
        one = asyncio.create_task(client.batch_score(texts(20), MODEL))
        other = asyncio.create_task(client.batch_score(texts(20, 100), MODEL))
        await asyncio.sleep(0.5)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        assert (await other).values() == [float(number) for number in range(100, 120)]
        assert leftovers(client) == {}
    assert not backend.cancelled


async def test_closing_the_client_ends_what_waits_what_is_under_way_and_what_is_to_be_sent_again() -> None:
    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.1)
        return broken()

    client = client_of(ListBackend(work), endpoint("tei", 1, "tei"), retry=Retry(base=50, cap=50))
    asked: list[asyncio.Task[Any]] = [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(50)]
    asked.append(asyncio.create_task(client.batch_score(texts(2000), MODEL)))
    await asyncio.sleep(0.3)
    await client.aclose()
    found: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
    *singles, batch = found
    assert {type(each) for each in singles} == {ClientClosed}
    assert len(batch) == 2000
    assert {type(error) for error in batch.errors.values()} == {ClientClosed}
    assert leftovers(client) == {}
    with pytest.raises(ClientClosed):
        await client.score("x 1", model=MODEL)


def test_several_loops_share_the_limits_and_each_has_its_own_lists() -> None:
    peak, live, lock = 0, 0, threading.Lock()

    async def work(_name: str, items: list[Any]) -> Any:
        nonlocal peak, live
        with lock:
            live += 1
            peak = max(peak, live)
        await asyncio.sleep(0.002)
        with lock:
            live -= 1
        return good(items)

    limits = Limits(max_concurrency=2, adaptive=False)
    client = QRewardClient([endpoint("tei", kind="tei", limits=limits)], backend_factory=lambda: ListBackend(work))
    found: dict[int, list[float]] = {}

    def use(number: int) -> None:
        async def main() -> None:
            singles = asyncio.gather(*(client.score(text, model=MODEL) for text in texts(50, 10_000 * number)))
            batch = await client.batch_score(texts(1000, 10_000 * number), MODEL)
            assert await singles == [float(10_000 * number + index) for index in range(50)]
            found[number] = batch.values()
            await client._runtime.engine.leave()

        asyncio.run(main())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: [float(10_000 * number + index) for index in range(1000)] for number in range(4)}
    assert peak <= 2
    assert leftovers(client) == {}


def test_a_loop_that_is_closed_amid_a_batch_gives_back_what_it_held() -> None:
    async def forever(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(3600)

    backends = [ListBackend(forever), ListBackend(seconds=0.001)]
    limits = Limits(max_concurrency=1, adaptive=False)
    client = QRewardClient([endpoint(limits=limits)], backend_factory=lambda: backends.pop(0))
    loop = asyncio.new_event_loop()
    asked = loop.create_task(client.score("x 1", model=MODEL))
    loop.run_until_complete(asyncio.sleep(0.02))
    loop.close()

    async def main() -> float:
        async with client:
            return float(await client.score("x 2", model=MODEL, timeout=20))

    assert asyncio.run(main()) == 2.0
    asked.get_coro().close()  # type: ignore[union-attr]
    del asked
