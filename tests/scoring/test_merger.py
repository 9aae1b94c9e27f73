"""How items become lists: late, in order, as long as endpoints take and the fleet can share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from merge_tools import MODEL, ListBackend, client_of, endpoint, flat, good, leftovers, texts, value_of

from qreward import Hedge, Limits, Priority, QRewardClient, RewardModel


async def scores(client: Any, items: list[Any], **settings: Any) -> list[float]:
    return await asyncio.gather(*(client.score(item, model=MODEL, **settings) for item in items))


async def test_items_that_come_together_go_together_though_slots_are_free() -> None:
    backend = ListBackend()
    async with client_of(backend, endpoint(slots=4)) as client:
        assert await scores(client, texts(100)) == [float(number) for number in range(100)]
    assert len(backend.sizes) <= 12
    assert min(backend.sizes[:4]) >= 8
    assert {at for _, at, _ in backend.sent[:4]} == {0.0}, "all slots are used"
    assert flat(backend.lists) == texts(100), "in the order in which they came"


async def test_what_comes_while_the_only_slot_is_busy_is_the_next_list() -> None:
    backend = ListBackend()
    async with client_of(backend) as client:
        first = asyncio.create_task(client.score("x 0", model=MODEL))
        await asyncio.sleep(0.1)
        later = []
        for number in range(1, 40):
            later.append(asyncio.create_task(client.score(f"x {number}", model=MODEL)))
            await asyncio.sleep(0.02)
        assert len(backend.sent) == 1, "late bound: nothing is bound to a list before it is sent"
        assert await first == 0.0
        assert await asyncio.gather(*later) == [float(number) for number in range(1, 40)]
    assert backend.sent == [("a", 0.0, ["x 0"]), ("a", 1.0, texts(39, 1))]


async def test_what_waits_for_a_rate_token_fills_one_list() -> None:
    backend = ListBackend(seconds=0.1)
    limits = Limits(max_concurrency=64, rpm=3, adaptive=False)
    async with client_of(backend, endpoint(limits=limits)) as client:
        batch = await client.batch_score(texts(600), MODEL)
        assert batch.values() == [float(number) for number in range(600)]
    assert len(backend.sent) <= 5, "requests are scarce, slots are not"


async def test_a_list_is_no_longer_than_the_endpoint_that_takes_it_allows() -> None:
    backend = ListBackend()
    async with client_of(backend, endpoint("tei", 2, "tei"), endpoint("vllm", 2, "vllm")) as client:
        batch = await client.batch_score(texts(3000), MODEL)
        assert batch.values() == [float(number) for number in range(3000)]
        assert leftovers(client) == {}
    longest = {name: max(len(items) for who, _, items in backend.sent if who == name) for name in ("tei", "vllm")}
    assert longest["tei"] == 32
    assert longest["vllm"] > 32


async def test_a_list_holds_no_more_bytes_than_the_endpoint_takes() -> None:
    backend = ListBackend()
    items = [f"{'long' * 40_000} {number}" for number in range(30)]  # 160 kB each, of 2 MB
    async with client_of(backend, endpoint("tei", 1, "tei")) as client:
        batch = await client.batch_score(items, MODEL)
        assert batch.values() == [float(number) for number in range(30)]
    assert max(backend.sizes) == 12
    assert flat(backend.lists) == items, "what did not fit was the head of the next"


async def test_pairs_are_merged_where_a_template_makes_texts_of_them_and_not_where_the_server_has_its_own() -> None:
    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(1)
        return good([item.response for item in items])

    for reward, sizes in ((RewardModel(template="{prompt} {response}"), [20]), (None, [1] * 20)):
        backend = ListBackend(work)
        async with client_of(backend, endpoint(reward=reward)) as client:
            await client.batch_score([("q", text) for text in texts(20)], MODEL)
        assert backend.sizes == sizes


async def test_items_of_different_operations_parameters_headers_models_or_tenants_never_share_a_list() -> None:
    backend = ListBackend()
    async with client_of(backend) as client:
        blocker = asyncio.create_task(client.score("x 0", model=MODEL))
        await asyncio.sleep(0.1)
        variants: list[dict[str, Any]] = [
            {"model": MODEL},
            {"model": "other"},
            {"model": MODEL, "truncate_prompt_tokens": -1},
            {"model": MODEL, "extra_body": {"truncate_prompt_tokens": -2}},
            {"model": MODEL, "extra_headers": {"x-trace": "1"}},
            {"model": MODEL, "tenant": "t"},
        ]
        asked: list[Any] = [client.score(f"x {number}", **variant) for variant in variants for number in (1, 2)]
        asked += [client.classify(f"x {number}", model=MODEL) for number in (1, 2)]
        assert await asyncio.gather(blocker, *asked) == [0.0] + [1.0, 2.0] * (len(variants) + 1)
        assert leftovers(client) == {}
    assert backend.sizes == [1] + [2] * (len(variants) + 1)
    assert backend.calls[-1].codec.name == "classify"


async def test_urgent_items_go_first_and_take_only_a_few_others_along() -> None:
    backend = ListBackend()
    async with client_of(backend, endpoint("tei", 1, "tei")) as client:
        blocker = asyncio.create_task(client.score("x 0", model=MODEL))
        await asyncio.sleep(0.1)
        low = [asyncio.create_task(client.score(text, model=MODEL, priority=Priority.LOW)) for text in texts(40, 100)]
        await asyncio.sleep(0.1)
        high = [asyncio.create_task(client.score(text, model=MODEL, priority=Priority.HIGH)) for text in texts(5, 1)]
        await asyncio.gather(blocker, *low, *high)
    assert backend.lists[1] == texts(5, 1) + texts(3, 100)
    assert backend.lists[2:] == [texts(32, 103), texts(5, 135)]


async def test_an_urgent_item_does_not_wait_for_others_to_share_its_list_while_a_slot_is_free() -> None:
    backend = ListBackend(seconds=6.0)
    async with client_of(backend, endpoint(slots=2)) as client:
        await client.score("x 0", model=MODEL)
        calls = [client.score("x 1", model=MODEL), client.score("x 2", model=MODEL, priority=Priority.HIGH)]
        asked = []
        for call in calls:
            asked.append(asyncio.create_task(call))
            await asyncio.sleep(0.1)
        await asyncio.gather(*asked)
    assert [at for _, at, _ in backend.sent] == [0.0, 6.0, 6.1]


@pytest.mark.parametrize("kind", ["list", "iterator", "async iterator"])
async def test_a_batch_reads_any_input_no_faster_than_it_is_sent_and_keeps_the_order(kind: str) -> None:
    read: list[int] = []

    def items() -> Iterator[str]:
        for number in range(5000):
            read.append(number)
            yield f"x {number}"

    async def slowly() -> AsyncIterator[str]:
        for item in items():
            yield item

    ahead = []

    async def work(_name: str, items: list[Any]) -> None:
        await asyncio.sleep(1)
        ahead.append(len(read) - max(int(value_of(item)) for item in items))

    async with client_of(ListBackend(work)) as client:
        given: Any = {"list": lambda: list(items()), "iterator": items, "async iterator": slowly}[kind]()
        batch = await client.batch_score(given, MODEL)
        assert batch.values() == [float(number) for number in range(5000)]
        assert leftovers(client) == {}
    if kind != "list":
        assert max(ahead) < 2000


async def score_one_by_one(client: QRewardClient, count: int) -> None:
    """So many single calls, one every 10 ms."""
    asked = []
    for number in range(count):
        asked.append(asyncio.create_task(client.score(f"x {number}", model=MODEL)))
        await asyncio.sleep(0.01)
    await asyncio.gather(*asked)


async def test_singles_are_paced_when_the_pool_is_busy_so_that_the_last_slots_do_not_go_to_one_each() -> None:
    backend = ListBackend(seconds=1.0)
    async with client_of(backend, endpoint(slots=8)) as client:
        await score_one_by_one(client, 400)
    sizes = backend.sizes
    assert sum(size == 1 for size in sizes) < 16
    assert len(sizes) < 60


async def test_with_idle_slots_and_little_to_do_each_item_goes_at_once() -> None:
    backend = ListBackend(seconds=0.1)
    async with client_of(backend, endpoint(slots=64)) as client:
        await score_one_by_one(client, 50)
    assert backend.sizes == [1] * 50
    assert [round(at - 0.01 * number, 2) for number, (_, at, _) in enumerate(backend.sent)] == [0.0] * 50


async def test_what_is_still_to_be_read_counts_when_a_list_is_measured() -> None:
    backend = ListBackend()
    async with client_of(backend, endpoint(slots=8)) as client:
        await client.batch_score(texts(10_000), MODEL)
    assert backend.sizes[:8] == [8] * 8, "until it is known what a list takes"
    assert {at for _, at, _ in backend.sent[:8]} == {0.0}, "and is read as long as there are slots"
    assert backend.sizes.count(256) >= 30


@pytest.mark.parametrize(("allowed", "other", "copies"), [(True, "vllm", True), (False, "vllm", False), (True, "tei", False)])
async def test_a_list_is_copied_to_another_endpoint_only_if_all_its_items_may_be_and_fit_there(
    allowed: bool, other: str, copies: bool
) -> None:
    async def work(name: str, items: list[Any]) -> None:
        await asyncio.sleep(100 if name == "a" else 1)

    backend = ListBackend(work)
    async with client_of(backend, endpoint("a", 1), endpoint("b", 1, other), hedge=Hedge(after=5.0)) as client:
        client.mark_unhealthy("b")
        asked = [asyncio.create_task(client.score(text, model=MODEL)) for text in texts(39)]
        asked.append(asyncio.create_task(client.score("x 39", model=MODEL, hedge=allowed)))
        await asyncio.sleep(0.5)
        client.mark_healthy("b")
        await asyncio.sleep(30)
        assert all(task.done() for task in asked) == copies
        await asyncio.gather(*asked)
    assert [len(items) for name, _, items in backend.sent if name == "b"] == ([40] if copies else [])
