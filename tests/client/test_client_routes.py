"""Routes: the exact name, then the most specific pattern; an endpoint's own patterns; what changes live, and what is kept."""

from __future__ import annotations

import asyncio

import pytest
from client_tools import HI, Recorder, endpoint, use

from qreward import ConfigError, LoadBalanceStrategy, NoEndpoint, QRewardClient, Route


def asked(client: QRewardClient, recorder: Recorder, *models: str) -> list[str]:
    """Where models go: the names of the endpoints."""
    for model in models:
        asyncio.run(client.chat_completion(HI, model))
    return [host.removesuffix(".example") for host in recorder.hosts[-len(models) :]]


def test_the_exact_name_goes_first_then_the_most_specific_pattern_in_whatever_order_they_came() -> None:
    own = [("any", ["*"]), ("judges", ["judge-*"]), ("small", ["judge-7b*"]), ("one", ["judge-7b"])]
    wanted = {"judge-7b": "one", "judge-7b-v2": "small", "judge-70b": "judges", "gpt-4": "any", "JUDGE-7b": "any"}
    for order in (own, own[::-1], [own[2], own[0], own[3], own[1]]):
        recorder = Recorder()
        client = QRewardClient([endpoint(recorder, name, models=models) for name, models in order])
        assert asked(client, recorder, *wanted) == list(wanted.values()), order
        assert [route.pattern for route in client.list_routes()] == ["judge-7b", "judge-7b*", "judge-*", "*"]
        asyncio.run(client.aclose())


def test_endpoints_with_one_pattern_share_a_route() -> None:
    recorder = Recorder()
    client = QRewardClient([endpoint(recorder, name, models=["judge-*"]) for name in ("a", "b", "c")])
    assert client.list_routes() == [Route(pattern="judge-*", endpoints=("a", "b", "c"))]
    use(client, lambda client: client.batch_chat_completion([HI] * 30, "judge-7b"))
    assert set(recorder.hosts) == {"a.example", "b.example", "c.example"}


def test_routes_may_be_given_with_the_client() -> None:
    recorder = Recorder()
    routes = [Route(pattern="rm-*", endpoints=("b",)), Route(pattern="rm-1", endpoints=("a",))]
    client = QRewardClient([endpoint(recorder, "a"), endpoint(recorder, "b", models=["nothing"])], routes=routes)
    assert asked(client, recorder, "rm-1", "rm-2", "x") == ["a", "b", "a"]
    asyncio.run(client.aclose())


def test_a_registered_route_goes_before_an_endpoints_own_pattern_of_that_name_until_it_loses_its_endpoints() -> None:
    recorder = Recorder()
    client = QRewardClient([endpoint(recorder, "a", models=["judge-*"]), endpoint(recorder, "b", models=["other"])])
    assert asked(client, recorder, "judge-7b") == ["a"]
    client.register_model_route("judge-*", ["b"], strategy="least_connections")
    assert asked(client, recorder, "judge-7b") == ["b"]
    route = next(route for route in client.list_routes() if route.pattern == "judge-*")
    assert (route.endpoints, route.strategy) == (("b",), LoadBalanceStrategy.LEAST_CONNECTIONS)
    client.remove_endpoint("b")
    assert asked(client, recorder, "judge-7b") == ["a"]
    asyncio.run(client.aclose())


def test_an_endpoint_that_is_removed_leaves_its_routes() -> None:
    recorder = Recorder()
    client = QRewardClient([endpoint(recorder, "a", models=["judge-*"]), endpoint(recorder, "b", models=["other"])])
    client.register_model_route("both-*", ["a", "b"], strategy="weighted_round_robin", weights={"a": 3})
    client.register_model_route("mine", ["a"])
    client.register_model_route("judge-7b", ["b"])
    client.remove_endpoint("a")
    assert client.list_routes() == [
        Route(pattern="other", endpoints=("b",)),
        Route(pattern="judge-7b", endpoints=("b",)),
        Route(pattern="both-*", endpoints=("b",), strategy="weighted_round_robin"),  # type: ignore[arg-type]
    ]
    assert asked(client, recorder, "both-1") == ["b"]
    for model in ("mine", "judge-70b"):
        with pytest.raises(NoEndpoint, match="there are routes for 'other', 'judge-7b', 'both-"):
            asked(client, recorder, model)
    with pytest.raises(ConfigError, match="there is no endpoint 'a'"):
        client.mark_healthy("a")
    asyncio.run(client.aclose())


def test_an_endpoint_may_be_added_by_its_url_or_its_settings() -> None:
    client = QRewardClient(["http://a:1/v1", {"base_url": "http://b:2/v1", "models": ["x"]}])
    client.add_endpoint("http://c:3/v1")
    client.add_endpoint({"base_url": "http://d:4/v1", "name": "d"})
    assert list(client.stats()) == ["a:1", "b:2", "c:3", "d"]
    assert client.list_routes() == [Route(pattern="x", endpoints=("b:2",)), Route(pattern="*", endpoints=("a:1", "c:3", "d"))]
