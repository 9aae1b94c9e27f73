"""How long lists may be at an endpoint that takes shorter ones than its kind, which it does not say."""

from __future__ import annotations

import asyncio
from typing import Any

from merge_tools import MODEL, ListWire, client_of, endpoint, flat, leftovers, overloaded, refused, texts

from qreward import BatchResult, Retry
from qreward.testing.virtual_time import run_in_virtual_time as run


async def scored(wire: ListWire, items: list[str]) -> BatchResult[Any]:
    async with client_of(wire, endpoint("tei", 1, "tei"), retry=Retry(base=0.01, cap=0.02)) as client:
        batch = await client.batch_score(items, MODEL)
        assert leftovers(client) == {}
        return batch


def test_an_endpoint_that_takes_shorter_lists_than_its_kind_is_found_out() -> None:
    async def test() -> None:
        async def work(_name: str, items: list[Any]) -> Any:
            await asyncio.sleep(0.1)
            return refused(422) if len(items) > 10 else None

        wire = ListWire(work)
        batch = await scored(wire, texts(2000))
        assert not batch.errors
        assert wire.sizes.count(32) <= 2
        assert set(wire.sizes[14:]) == {8}

    run(test())


def test_a_bad_item_does_not_make_lists_shorter() -> None:
    async def test() -> None:
        async def work(_name: str, items: list[Any]) -> Any:
            await asyncio.sleep(0.1)
            return refused(422) if {"x 3", "x 40"}.intersection(items) else None

        wire = ListWire(work)
        batch = await scored(wire, texts(400))
        assert set(batch.errors) == {3, 40}
        assert wire.sizes[-5:-1] == [32] * 4

    run(test())


def test_a_server_with_a_place_for_each_item_is_found_out_though_it_only_says_that_it_is_full() -> None:
    async def test() -> None:
        async def work(_name: str, items: list[Any]) -> Any:
            await asyncio.sleep(0.05)
            return overloaded() if len(items) > 20 else None

        wire = ListWire(work)
        batch = await scored(wire, texts(600))
        assert not batch.errors
        assert wire.sizes[:3] == [32, 32, 16]
        assert flat([items for items in wire.lists if len(items) <= 20]) == texts(600), "in order"
        assert 4 <= wire.sizes.count(32) <= 16, "longer ones are tried again, more and more rarely"

    run(test())


def test_when_not_even_one_item_is_let_in_lists_are_whole_again() -> None:
    async def test() -> None:
        seen = 0

        async def work(_name: str, items: list[Any]) -> Any:
            nonlocal seen
            await asyncio.sleep(0.05)
            seen += 1
            return overloaded() if seen <= 7 else None

        wire = ListWire(work)
        batch = await scored(wire, texts(320))
        assert not batch.errors
        assert wire.sizes[:8] == [32, 32, 16, 8, 4, 2, 1, 32]

    run(test())


def test_an_overload_with_a_hint_or_beside_others_makes_no_list_shorter() -> None:
    async def test() -> None:
        seen = 0

        async def work(_name: str, items: list[Any]) -> Any:
            nonlocal seen
            await asyncio.sleep(0.05)
            seen += 1
            return overloaded(1.0) if seen % 4 else None

        wire = ListWire(work)
        batch = await scored(wire, texts(320))
        assert not batch.errors
        assert set(wire.sizes) == {32}

    run(test())
