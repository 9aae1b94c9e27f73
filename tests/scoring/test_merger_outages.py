"""Merged items whose endpoints are all dead end as a whole, about one timeout later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

from merge_tools import MODEL, ListBackend, client_of, endpoint, leftovers, now, texts

from qreward import RequestTimeout
from qreward.errors import ConnectionFailed
from qreward.scheduler.outcome import Failure, FailureKind

MANY = 2_000


def refused(name: str) -> Failure:
    return Failure(FailureKind.UNREACHABLE, ConnectionFailed(f"endpoint {name!r} refused the connection", endpoint=name))


async def refuses(name: str, _: list[Any]) -> Any:
    return refused(name)


async def hangs(_: str, __: list[Any]) -> Any:
    await asyncio.sleep(10**6)


async def one_by_one(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def test_all_items_fail_about_one_timeout_after_the_endpoints_have_died() -> None:
    """A quarter of the timeout more, if one was sent last."""
    kinds: list[Any] = [list, iter, one_by_one]
    for method, kind in product(("batch_score", "batch_embeddings"), kinds):
        backend, start = ListBackend(refuses), now()
        async with client_of(backend, endpoint("a", 4), endpoint("b", 4)) as client:
            batch = await getattr(client, method)(kind(texts(MANY)), MODEL, timeout=12)
            assert 12 <= now() - start < 15.5, (method, kind)
            assert leftovers(client) == {}
        assert (len(batch), len(batch.errors)) == (MANY, MANY)
        assert {type(error) for error in batch.errors.values()} == {RequestTimeout}
        assert len(backend.sent) < 100


async def test_all_items_fail_within_a_few_timeouts_where_endpoints_hang() -> None:
    """Five lists in a row must run out of their time before an endpoint is taken for dead; here each takes one at a time."""
    async with client_of(ListBackend(hangs), endpoint("a", 8), endpoint("b", 8)) as client:
        batch = await client.batch_score(iter(texts(MANY)), MODEL, timeout=12)
        assert leftovers(client) == {}
    assert 24 <= now() < 30.5
    assert len(batch.errors) == MANY


async def test_a_batch_is_rescued_by_an_endpoint_that_returns() -> None:
    async def returns(name: str, _: list[Any]) -> Any:
        return refused(name) if now() < 9 else None

    async with client_of(ListBackend(returns), endpoint("a", 4), endpoint("b", 4)) as client:
        batch = await client.batch_score(iter(texts(MANY)), MODEL, timeout=20)
    assert batch.stats.ok == MANY


async def test_two_batches_that_share_lists_end_each_in_its_own_time() -> None:
    async def timed(timeout: float) -> float:
        batch = await client.batch_score(iter(texts(2000)), MODEL, timeout=timeout)
        assert len(batch.errors) == 2000
        return now()

    async with client_of(ListBackend(refuses), endpoint("a", 4)) as client:
        short, long = await asyncio.gather(timed(5), timed(12))
        assert leftovers(client) == {}
    assert 5 <= short < 6.5
    assert 12 <= long < 15.5
