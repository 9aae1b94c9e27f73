"""Routes under another configuration: what waits follows its model, and pools are neither lost nor gathered."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from weakref import ref

import pytest
from engine_tools import MODEL
from reload_tools import ask, begin, config_of, endpoint, over

from qreward import LoadBalanceStrategy, NoEndpoint, QRewardClient, Route
from qreward.settings.client import ClientConfig


def routed(*routes: Route, **models: list[str]) -> ClientConfig:
    return config_of(*(endpoint(name, models=patterns) for name, patterns in models.items()), routes=routes)


J_AT_A, J_AT_B = Route(pattern="judge-*", endpoints=("a",)), Route(pattern="judge-*", endpoints=("b",))
STAYS: list[tuple[str, ClientConfig, ClientConfig]] = [
    ("the same pattern of another endpoint", routed(a=["judge-*"]), routed(b=["judge-*"])),
    ("an own pattern that is registered", routed(a=["judge-*"]), routed(J_AT_B, b=["z"])),
    ("an own pattern that is registered elsewhere", routed(a=["judge-*"]), routed(J_AT_B, a=["judge-*"], b=["z"])),
    ("a registered one that is an own one again", routed(J_AT_A, a=["z"], b=["judge-*"]), routed(a=["z"], b=["judge-*"])),
    ("a wider pattern", routed(a=["judge-7b"]), routed(b=["judge-*"])),
    ("a still wider one", routed(a=["judge-7?"]), routed(b=["*"], c=["gpt-*"])),
    ("a narrower pattern", routed(a=["*"]), routed(b=["judge-*"], c=["gpt-*"])),
    ("another that matches as well", routed(a=["judge-*"]), routed(b=["*-7b"], c=["judge-70b"])),
    (
        "other endpoints and another strategy of a route",
        routed(J_AT_A, a=["z"], b=["z"]),
        routed(J_AT_B.model_copy(update={"strategy": LoadBalanceStrategy.ROUND_ROBIN}), a=["z"], b=["z"]),
    ),
]


async def test_what_waits_on_a_route_follows_it() -> None:
    for case, before, after in STAYS:
        async with over(before) as (client, servers):
            batch, singles = begin(client, 20), [ask(client) for _ in range(3)]
            await asyncio.sleep(0.5)
            client.reload(after)
            assert (await batch).stats.ok == 20
            await asyncio.gather(*singles)
            await begin(client, 2)
            assert servers.hosts(after=0.5) == {"b"}, case


async def test_what_waits_on_a_route_that_is_gone_fails_with_the_reason_and_what_is_in_flight_does_not() -> None:
    async with over(routed(a=["judge-*"])) as (client, _):
        batch = begin(client, 10)
        await asyncio.sleep(0.5)
        client.reload(routed(a=["rm-*"]))
        results = await batch
        assert results.stats.ok == 2
        assert {type(error) for error in results.errors.values()} == {NoEndpoint}
        with pytest.raises(NoEndpoint, match="there are routes for 'rm-"):
            await ask(client)


async def test_what_waits_follows_its_model_over_several_changes_of_its_route() -> None:
    async with over(routed(a=["*"])) as (client, servers):
        batches = []
        for number, patterns in enumerate((["*"], ["judge-*"], ["*-7b"], ["judge-7?"], ["judge-7b"])):
            client.reload(routed(**{f"host-{number}": patterns}))
            batches.append(begin(client, 20))
            await asyncio.sleep(0.5)
        assert [batch.stats.ok for batch in await asyncio.gather(*batches)] == [20] * 5
        assert servers.hosts(after=2.1) == {"host-4"}


def test_routes_that_come_and_go_again_and_again_leave_nothing_behind() -> None:
    one = routed(Route(pattern="judge-*", endpoints=("a",)), a=["judge-*", "x"], b=["judge-*"])
    two = routed(a=["judge-7b"], b=["*", "judge-?b"])
    client = QRewardClient.from_config(one)
    for _ in range(3):
        client.reload(two)
        client.reload(one)
    pools = {source.name: len(source.pools) for source in client._runtime.fleet.sources()}
    for _ in range(20):
        client.reload(two)
        client.reload(one)
    assert {source.name: len(source.pools) for source in client._runtime.fleet.sources()} == pools


async def test_pools_of_endpoints_that_were_removed_or_of_patterns_that_are_gone_are_freed() -> None:
    async with over(routed(a=["judge-*"])) as (client, _):
        pools = []
        for number in range(20):
            client.add_endpoint(endpoint(f"e{number}", models=[f"m{number}"]))
            await ask(client, model=f"m{number}")
            pools.append(ref(client._runtime.fleet.pool(f"m{number}")))
            client.remove_endpoint(f"e{number}")
        for number in range(20):  # each pattern serves the model, so that the endpoint would take over what waits for it
            client.reload(routed(a=["judge-7b" + "*" * (number + 1)]))
            await ask(client)
            pools.append(ref(client._runtime.fleet.pool(MODEL)))
        gc.collect()
        assert sum(pool() is not None for pool in pools) <= 2  # the one in use, and the one before it
        (source,) = client._runtime.fleet.sources()
        assert len(source.pools) <= 4


async def test_a_batch_whose_input_pauses_while_its_pattern_goes_is_served_by_the_endpoints_of_its_model_then() -> None:
    async def slowly() -> AsyncIterator[list[dict[str, str]]]:
        for number in range(6):
            await asyncio.sleep(10)
            yield [{"role": "user", "content": str(number)}]

    async with over(routed(a=["j*"])) as (client, servers):
        batch = asyncio.ensure_future(client.batch_chat_completion(slowly(), MODEL))
        for pattern in ("judge-7*", "judge-?b", "judge-*"):
            await asyncio.sleep(15)
            gc.collect()
            client.reload(routed(b=[pattern]))
        assert (await batch).stats.ok == 6
        assert servers.hosts(after=20) == {"b"}


def test_a_balancer_that_is_not_changed_goes_on_where_it_was() -> None:
    config = routed(Route(pattern="j*", endpoints=("a", "b"), strategy="weighted_round_robin", weights={"a": 3}), a=["z"], b=["z"])  # type: ignore[arg-type]
    client = QRewardClient.from_config(config)
    balancer = client._runtime.fleet.pool("judge").balancer
    client.reload(config.model_copy(update={"timeout": 5.0}))
    assert client._runtime.fleet.pool("judge").balancer is balancer
    client.reload(config.model_copy(update={"routes": (Route(pattern="j*", endpoints=("a", "b")),)}))
    assert client._runtime.fleet.pool("judge").balancer is not balancer
