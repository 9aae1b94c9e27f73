"""Items that never get a value: they fail alone, in the end, and take no endpoint out of service with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from merge_tools import MODEL, ListWire, client_of, endpoint, good, leftovers

from qreward.errors import BadRequest, InvalidResponse, ServerError
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
    if set(items) & POISON:
        broken = Failure(FailureKind.TRANSIENT, ServerError("it failed", status_code=500))
        return broken if len(items) == 1 else Failure(FailureKind.REFUSED, BadRequest("no", status_code=424))
    return None


async def breaking_lists(_name: str, items: list[Any]) -> Any:
    """The same, but of a list it says no more than of an item."""
    await asyncio.sleep(0.02)
    return Failure(FailureKind.TRANSIENT, ServerError("it failed", status_code=500)) if set(items) & POISON else None


async def test_items_that_break_whole_lists_fail_alone_though_most_lists_have_one() -> None:
    client = client_of(ListWire(breaking_lists), endpoint("a", 16), endpoint("b", 16))
    batch = await client.batch_score(ITEMS, MODEL)
    assert {ITEMS[index] for index in batch.errors} == POISON
    assert asyncio.get_running_loop().time() < 20
    await client.aclose()


@pytest.mark.parametrize("script", [without_values, refused_lists])
async def test_poison_in_a_hundredth_of_the_items_takes_no_endpoint_out_of_service_and_seconds_not_minutes(script: Any) -> None:
    loop = asyncio.get_running_loop()
    client = client_of(ListWire(script), endpoint("a", 16), endpoint("b", 16))
    out: set[str] = set()

    def look(_: Any) -> None:
        out.update(source.name for source in client._runtime.fleet.sources() if not source.health.in_service)

    batch = await client.batch_score(ITEMS, MODEL, on_result=look)
    assert {ITEMS[index] for index in batch.errors} == POISON
    assert [result.value for result in batch if result.ok] == [float(at) for at in range(COUNT) if ITEMS[at] not in POISON]
    assert {len(result.attempts) >= 4 for result in batch if not result.ok} == {True}
    assert (out, leftovers(client)) == (set(), {})
    assert loop.time() < 20
    await client.aclose()


async def test_a_server_that_fails_for_everything_is_found_out_all_the_same() -> None:
    async def broken(name: str, items: list[Any]) -> Any:
        await asyncio.sleep(0.02)
        return Failure(FailureKind.TRANSIENT, ServerError("it failed", status_code=500)) if name == "a" else None

    wire = ListWire(broken)
    client = client_of(wire, endpoint("a"), endpoint("b"))
    batch = await client.batch_score(ITEMS * 5, MODEL)
    assert not batch.errors
    assert sum(name == "a" for name, _, _ in wire.sent) < len(wire.sent) / 2
    await client.aclose()
