"""Items that never get a value: they fail alone, in the end, and take no endpoint out of service with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from merge_tools import MODEL, ListBackend, broken, client_of, endpoint, good, leftovers, now, refused

from qreward.errors import InvalidResponse
from qreward.scheduler.outcome import Failure, FailureKind

COUNT = 2000
POISON = frozenset(f"item {number}" for number in range(37, COUNT, 100))
ITEMS = [f"item {number}" for number in range(COUNT)]


async def without_values(_name: str, items: list[Any]) -> Any:
    """A row without a number; alone, an answer that is of no use."""
    await asyncio.sleep(0.02)
    if set(items) <= POISON:
        return Failure(FailureKind.TRANSIENT, InvalidResponse("there is no score", status_code=200))
    return good(items, POISON)


async def refused_lists(_name: str, items: list[Any]) -> Any:
    """All or nothing; alone, a failure of the server."""
    await asyncio.sleep(0.02)
    return (broken() if len(items) == 1 else refused(424)) if set(items) & POISON else None


async def breaking_lists(_name: str, items: list[Any]) -> Any:
    """The same, but of a list it says no more than of an item."""
    await asyncio.sleep(0.02)
    return broken() if set(items) & POISON else None


@pytest.mark.parametrize("script", [without_values, refused_lists, breaking_lists])
async def test_poison_in_a_hundredth_of_the_items_fails_alone_and_costs_seconds_and_no_endpoint_its_place(script: Any) -> None:
    out: set[str] = set()

    def look(_: Any) -> None:
        out.update(source.name for source in client._runtime.fleet.sources() if not source.health.in_service)

    async with client_of(ListBackend(script), endpoint("a", 16), endpoint("b", 16)) as client:
        batch = await client.batch_score(ITEMS, MODEL, on_result=look)
        assert {ITEMS[index] for index in batch.errors} == POISON
        assert [result.value for result in batch if result.ok] == [float(at) for at in range(COUNT) if ITEMS[at] not in POISON]
        assert min(len(result.attempts) for result in batch if not result.ok) >= 4
        assert leftovers(client) == {}
        assert now() < 20
    if script is not breaking_lists:  # of a list that broke it nobody knows whether the server is sound
        assert out == set()


async def test_a_server_that_fails_for_everything_is_found_out_all_the_same() -> None:
    async def breaks(name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.02)
        return broken() if name == "a" else None

    backend = ListBackend(breaks)
    async with client_of(backend, endpoint("a"), endpoint("b")) as client:
        batch = await client.batch_score(ITEMS, MODEL)
    assert not batch.errors
    assert sum(name == "a" for name, _, _ in backend.sent) < len(backend.sent) / 2
