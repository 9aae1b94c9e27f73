"""What a client tells of the cost of its batches: while they run, at their end, and when the fleet changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from client_tools import HI, MODEL, Recorder, completion, endpoint, use

from qreward import BatchInterrupted, Endpoint, Progress, QRewardClient

PRICE = (2.0, 10.0)
ITEM = (2.0 * 3 + 10.0 * 2) / 1e6
"""US dollars for one answer of a ``Recorder``: 3 prompt and 2 completion tokens."""


@pytest.mark.parametrize("keep", [False, True])
def test_a_batch_tells_its_cost_while_it_runs_and_at_its_end(keep: bool) -> None:
    seen: list[Progress] = []
    batch = use(
        QRewardClient([endpoint(Recorder(), price=PRICE)]),
        lambda client: client.batch_chat_completion([HI] * 30, MODEL, progress=seen.append, keep_results=keep),
    )
    assert seen[0].cost == 0.0
    assert seen[-1].cost == pytest.approx(30 * ITEM)
    assert batch.cost == pytest.approx(30 * ITEM)


def test_embeddings_cost_what_their_prompts_cost() -> None:
    batch = use(QRewardClient([endpoint(Recorder(), price=PRICE)]), lambda client: client.batch_embeddings(["a", "b"], MODEL))
    assert batch.cost == pytest.approx(2.0 * 4 / 1e6), "two items of one request, which took 4 tokens"


def test_only_endpoints_of_the_route_that_have_a_price_count() -> None:
    def fleet() -> list[Endpoint]:
        own = endpoint(Recorder(), "own", models=("judge-*", "mine-*"))
        return [own, endpoint(Recorder(), "api", models=("judge-*",), price=PRICE)]

    async def asked(client: QRewardClient) -> tuple[Any, Any]:
        own = await client.batch_chat_completion([HI] * 3, "mine-1", progress=seen.append)
        return own, await client.batch_chat_completion([HI] * 20, MODEL, hedge=False)

    seen: list[Progress] = []
    own, both = use(QRewardClient(fleet()), asked)
    assert own.cost is None
    assert seen[-1].cost is None
    assert both.stats.endpoints["api"].won > 0
    assert both.cost == pytest.approx(both.stats.endpoints["api"].won * ITEM)


def test_what_failed_costs_nothing() -> None:
    def refuses(request: httpx.Request) -> httpx.Response:
        body = completion(request)
        return httpx.Response(200, json=body) if "good" in str(body) else httpx.Response(400, json={"error": {"message": "no"}})

    chats = [[{"role": "user", "content": word}] for word in ("good", "bad", "good")]
    batch = use(QRewardClient([endpoint(Recorder(refuses), price=PRICE)]), lambda client: client.batch_chat_completion(chats, MODEL))
    assert (batch.stats.ok, batch.stats.failed) == (2, 1)
    assert batch.cost == pytest.approx(2 * ITEM)


def test_a_batch_that_is_broken_off_tells_what_it_has_cost() -> None:
    def breaks() -> Iterator[Any]:
        yield from [HI] * 5
        raise LookupError("the file ends here")

    async def asked(client: QRewardClient) -> BatchInterrupted:
        with pytest.raises(BatchInterrupted) as caught:
            await client.batch_chat_completion(breaks(), MODEL)
        return caught.value

    error = use(QRewardClient([endpoint(Recorder(), price=PRICE)]), asked)
    assert error.results is not None
    assert error.results.cost == pytest.approx(5 * ITEM)


async def while_it_runs(client: QRewardClient, change: Callable[[], None], progress: list[Progress]) -> Any:
    """A batch of two items, between which the fleet is changed."""
    first_is_done = asyncio.Event()

    async def items() -> AsyncIterator[Any]:
        yield HI
        await first_is_done.wait()
        change()
        yield HI

    def done(_: object) -> None:
        first_is_done.set()

    return await client.batch_chat_completion(items(), MODEL, on_result=done, progress=progress.append, hedge=False)


def test_an_endpoint_that_comes_and_one_that_goes_amid_a_batch_are_both_counted() -> None:
    async def asked(client: QRewardClient) -> Any:
        def change() -> None:
            client.add_endpoint(endpoint(Recorder(), "new", price=(200.0, 1000.0)))
            client.register_model_route(MODEL, ["old", "new"])  # before the old one goes: a route without any would fail
            client.remove_endpoint("old")

        client.register_model_route(MODEL, ["old"])
        return await while_it_runs(client, change, seen)

    seen: list[Progress] = []
    batch = use(QRewardClient([endpoint(Recorder(), "old", price=PRICE)]), asked)
    assert {name: stats.won for name, stats in batch.stats.endpoints.items()} == {"old": 1, "new": 1}
    assert batch.cost == pytest.approx(101 * ITEM)
    assert seen[-1].cost == pytest.approx(101 * ITEM)


def test_an_endpoint_of_the_same_name_does_not_inherit_a_price() -> None:
    async def asked(client: QRewardClient) -> Any:
        client.remove_endpoint("gpu-0")
        client.add_endpoint(endpoint(Recorder()))
        return await client.batch_chat_completion([HI], MODEL)

    assert use(QRewardClient([endpoint(Recorder(), price=PRICE)]), asked).cost is None
