"""How long lists may be at an endpoint that takes shorter ones than its kind, which it does not say."""

from __future__ import annotations

import asyncio
from typing import Any

from merge_tools import MODEL, ListBackend, Script, broken, client_of, endpoint, flat, in_turn, leftovers, overloaded, refused, texts

from qreward import BatchResult, Retry
from qreward.codecs.rewards.base import MergeLimits
from qreward.scheduler.outcome import ProbeResult
from qreward.scoring.sizing import REFUSED_PATIENCE, EndpointLimits


async def scored(backend: ListBackend, items: list[str]) -> BatchResult[Any]:
    async with client_of(backend, endpoint("tei", 1, "tei"), retry=Retry(base=0.01, cap=0.02)) as client:
        batch = await client.batch_score(items, MODEL)
        assert leftovers(client) == {}
        return batch


def longest(items: int, outcome: Any, seconds: float) -> Script:
    """Lists of more items than these come to this."""

    async def work(_name: str, given: list[Any]) -> Any:
        await asyncio.sleep(seconds)
        return outcome if len(given) > items else None

    return work


async def test_a_server_that_fails_long_lists_gets_shorter_ones_from_then_on() -> None:
    """It has no memory for more than 64 items. In seven batches, half of all lists failed when a failure taught nothing."""
    backend = ListBackend(longest(64, broken(), 0.3))
    async with client_of(backend, endpoint("a", 2, "openrlhf"), timeout=None) as client:
        for _ in range(7):
            assert not (await client.batch_score(texts(4000), MODEL)).errors
    failed = sum(size > 64 for size in backend.sizes) / len(backend.sizes)
    assert failed < 0.25


def test_failures_of_lists_show_that_they_are_too_long_only_if_shorter_ones_are_answered_between_them() -> None:
    """Lists in order, positive if they are answered -> the longest list from then on."""
    table: list[tuple[list[int], int | None]] = [
        ([64, -128, 64, -128, 64, -128], 64),
        ([64, -128, 32, -256, 64, -100], 64),
        ([64, -128, 64, 128, -128, 64, -128], None),
        ([64, *[-128] * 20, 64, *[-128] * 20], None),
        ([64, -128, 128, -128, 128, -128, 128], None),
        ([64, -64, 64, -64, 64, -64], None),
    ]
    wrong = {}
    for number, (lists, most) in enumerate(table):
        known = EndpointLimits(MergeLimits(), None)
        for items in lists:
            if items > 0:
                known.record_answer(0.0, items, 1.0)
            else:
                known.record_failure(-items)
        if known.limits.items != most:
            wrong[number] = known.limits.items
    assert not wrong


async def test_an_endpoint_that_takes_shorter_lists_than_its_kind_is_found_out() -> None:
    backend = ListBackend(longest(10, refused(422), 0.1))
    batch = await scored(backend, texts(2000))
    assert not batch.errors
    assert backend.sizes.count(32) <= 2
    assert set(backend.sizes[14:]) == {8}


async def test_a_bad_item_does_not_make_lists_shorter() -> None:
    async def work(_name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.1)
        return refused(422) if {"x 3", "x 40"}.intersection(items) else None

    backend = ListBackend(work)
    batch = await scored(backend, texts(400))
    assert set(batch.errors) == {3, 40}
    assert backend.sizes[-5:-1] == [32] * 4


async def test_a_failure_of_the_server_behind_tei_does_not_make_lists_shorter() -> None:
    backend = ListBackend(in_turn(*[None] * 5, refused(424), None))
    assert not (await scored(backend, texts(800))).errors
    assert backend.sizes.count(16) == 2, "the list that failed is divided"
    assert backend.sizes[-5:-1] == [32] * 4


async def test_a_server_with_a_place_for_each_item_is_found_out_though_it_only_says_that_it_is_full() -> None:
    backend = ListBackend(longest(20, overloaded(), 0.05))
    batch = await scored(backend, texts(600))
    assert not batch.errors
    assert backend.sizes[:3] == [32, 32, 16]
    assert flat([items for items in backend.lists if len(items) <= 20]) == texts(600), "in order"
    assert 4 <= backend.sizes.count(32) <= 16, "longer ones are tried again, more and more rarely"


async def test_when_not_even_one_item_is_let_in_lists_are_whole_again() -> None:
    backend = ListBackend(in_turn(*[overloaded()] * 7, None))
    batch = await scored(backend, texts(320))
    assert not batch.errors
    assert backend.sizes[:8] == [32, 32, 16, 8, 4, 2, 1, 32]


async def test_an_overload_with_a_hint_makes_no_list_shorter() -> None:
    backend = ListBackend(in_turn(*[*[overloaded(1.0)] * 3, None] * 10))
    batch = await scored(backend, texts(320))
    assert not batch.errors
    assert set(backend.sizes) == {32}


async def test_what_was_found_out_of_an_endpoint_is_kept_for_all_later_batches() -> None:
    wrong = []
    for outcome, most in ((refused(422), 0), (overloaded(), 12)):  # the second is asked for more again, ever more rarely
        backend, rejects = ListBackend(longest(4, outcome, 0.1)), []
        async with client_of(backend, endpoint("tei", 1, "tei"), retry=Retry(base=0.01, cap=0.02)) as client:
            for _ in range(6):
                before = len(backend.sizes)
                batch = await client.batch_score(texts(24), MODEL)
                assert not batch.errors
                assert leftovers(client) == {}
                rejects.append(sum(size > 4 for size in backend.sizes[before:]))
                await asyncio.sleep(60)
        if rejects[0] == 0 or sum(rejects[1:]) > most:
            wrong.append(f"{outcome.kind}: {rejects} lists turned away")
    assert wrong == []


async def test_what_was_found_out_goes_with_its_endpoint() -> None:
    backend = ListBackend(longest(4, refused(422), 0.0))
    async with client_of(backend, endpoint("tei", 1, "tei")) as client:
        for number in range(5):
            await client.batch_score(texts(24), MODEL)
            client.add_endpoint(endpoint(f"other {number}", 1, "tei"))
            client.remove_endpoint(f"other {number - 1}" if number else "tei")
            before = len(backend.sizes)
            await client.batch_score(texts(24), MODEL)
            assert max(backend.sizes[before:]) == 24, "a new endpoint is asked for whole lists"
        assert len(client._runtime._list_limits._known) == 1


def test_after_many_lists_one_that_is_longer_than_what_was_refused_is_tried_again() -> None:
    known = EndpointLimits(MergeLimits(items=32), None)
    longer = []
    known.record_refusal(8)
    for number in range(4 * REFUSED_PATIENCE):
        if known.limits.items == 16:
            longer.append(number)
            known.record_refusal(8)
        known.record_answer(0.0, 8, 1.0)
        assert known.limits.items in (8, 16)
    assert longer == [REFUSED_PATIENCE, 3 * REFUSED_PATIENCE]
    for _ in range(100 * REFUSED_PATIENCE):
        known.record_answer(0.0, 8, 1.0)
    assert known.limits.items == 32, "it was the size of some items"


def test_what_a_server_says_of_its_lists_counts_instead_of_what_is_usual() -> None:
    known = EndpointLimits(MergeLimits(items=32, bytes=1000), 256)
    for items, limit in ((4, 4), (4, 4), (128, 128), (1024, 256), (1, 1), (32, 32)):
        known.report(items)
        assert known.limits == MergeLimits(items=limit, bytes=1000)
    known.record_refusal(8)
    known.report(32)
    assert known.limits.items == 8, "what it says again changes nothing"
    for usual in (MergeLimits(items=1), MergeLimits()):  # its items go alone, or it limits no lists
        known = EndpointLimits(usual, None)
        known.report(16)
        assert known.limits == usual


class SaysFour(ListBackend):
    async def look(self, _endpoint: Any) -> ProbeResult:
        return ProbeResult(ready=True, items=4)


async def test_a_server_that_is_looked_at_is_sent_no_longer_list_than_it_says_that_it_takes() -> None:
    backend = SaysFour(seconds=0.1)
    async with client_of(backend, endpoint("tei", 1, "tei", probe=1.0)) as client:
        await client.score("x 1", model=MODEL)
        await client.batch_score(texts(24), MODEL)
    assert backend.sizes[1:] == [4] * 6
