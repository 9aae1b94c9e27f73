"""What a client tells of the cost of its batches: while they run, at their end, and when the fleet changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from client_tools import HI, MODEL, Recorder, completion, endpoint, use

from qreward import BatchInterrupted, Progress, QRewardClient

PRICE = (2.0, 10.0)
ITEM = (2.0 * 3 + 10.0 * 2) / 1e6
"""US dollars for one answer of a ``Recorder``: 3 prompt and 2 completion tokens."""


def test_a_batch_tells_its_cost_while_it_runs_and_at_its_end() -> None:
    for keep in (False, True):
        seen: list[Progress] = []
        batch = use(
            QRewardClient([endpoint(Recorder(), price=PRICE)]),
            lambda client: client.batch_chat_completion([HI] * 30, MODEL, progress=seen.append, keep_results=keep),  # noqa: B023
        )
        assert seen[0].cost == 0.0
        assert (seen[-1].cost, batch.cost) == (pytest.approx(30 * ITEM), pytest.approx(30 * ITEM))
    batch = use(QRewardClient([endpoint(Recorder(), price=PRICE)]), lambda client: client.batch_embeddings(["a", "b"], MODEL))
    assert batch.cost == pytest.approx(2.0 * 4 / 1e6), "two items of one request, which took 4 tokens"


def test_only_endpoints_of_the_route_that_have_a_price_count() -> None:
    async def asked(client: QRewardClient) -> tuple[Any, Any]:
        own = await client.batch_chat_completion([HI] * 3, "mine-1", progress=seen.append)
        return own, await client.batch_chat_completion([HI] * 20, MODEL, hedge=False)

    seen: list[Progress] = []
    fleet = [endpoint(Recorder(), "own", models=("judge-*", "mine-*")), endpoint(Recorder(), "api", models=("judge-*",), price=PRICE)]
    own, both = use(QRewardClient(fleet), asked)
    assert own.cost is None
    assert seen[-1].cost is None
    assert both.stats.endpoints["api"].won > 0
    assert both.cost == pytest.approx(both.stats.endpoints["api"].won * ITEM)


def test_what_failed_costs_nothing_and_a_batch_that_is_broken_off_tells_what_it_has_cost() -> None:
    def refuses(request: httpx.Request) -> httpx.Response:
        body = completion(request)
        return httpx.Response(200, json=body) if "good" in str(body) else httpx.Response(400, json={"error": {"message": "no"}})

    def breaks() -> Iterator[Any]:
        for word in ("good", "bad", "good"):
            yield [{"role": "user", "content": word}]
        raise LookupError("the file ends here")

    async def asked(client: QRewardClient) -> BatchInterrupted:
        with pytest.raises(BatchInterrupted) as caught:
            await client.batch_chat_completion(breaks(), MODEL)
        return caught.value

    error = use(QRewardClient([endpoint(Recorder(refuses), price=PRICE)]), asked)
    assert error.results is not None
    assert (error.results.stats.ok, error.results.stats.failed) == (2, 1)
    assert error.results.cost == pytest.approx(2 * ITEM)


def test_an_endpoint_that_comes_and_one_that_goes_amid_a_batch_are_both_counted() -> None:
    async def asked(client: QRewardClient) -> Any:
        first_is_done = asyncio.Event()

        async def items() -> AsyncIterator[Any]:
            yield HI
            await first_is_done.wait()
            client.add_endpoint(endpoint(Recorder(), "new", price=(200.0, 1000.0)))
            client.register_model_route(MODEL, ["old", "new"])  # before the old one goes: a route without any would fail
            client.remove_endpoint("old")
            yield HI

        def done(_: object) -> None:
            first_is_done.set()

        client.register_model_route(MODEL, ["old"])
        return await client.batch_chat_completion(items(), MODEL, on_result=done, progress=seen.append, hedge=False)

    seen: list[Progress] = []
    batch = use(QRewardClient([endpoint(Recorder(), "old", price=PRICE)]), asked)
    assert {name: stats.won for name, stats in batch.stats.endpoints.items()} == {"old": 1, "new": 1}
    assert (seen[-1].cost, batch.cost) == (pytest.approx(101 * ITEM), pytest.approx(101 * ITEM))


def test_an_endpoint_of_the_same_name_does_not_inherit_a_price() -> None:
    async def asked(client: QRewardClient) -> Any:
        client.remove_endpoint("gpu-0")
        client.add_endpoint(endpoint(Recorder()))
        return await client.batch_chat_completion([HI], MODEL)

    assert use(QRewardClient([endpoint(Recorder(), price=PRICE)]), asked).cost is None
