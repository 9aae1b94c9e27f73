"""A client that takes over another configuration while it works: nothing is lost, what stays is kept, what is wrong changes nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import random
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from engine_tools import MODEL
from reload_tools import Servers, ask, begin, config_of, endpoint, over, source_of

from qreward import (
    ConfigError,
    Hedge,
    Limits,
    NoEndpoint,
    PrefixAffinity,
    QRewardClient,
    QueueFull,
    Retry,
    Route,
    SyncQRewardClient,
    Timeouts,
)
from qreward.errors import ServerError
from qreward.scheduler.limits.concurrency import AdaptiveLimit
from qreward.scheduler.limits.rate import Gcra, HeaderRateLimit
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.scheduler.scheduler import Scheduler
from qreward.settings.client import ClientConfig

BEFORE = config_of(
    endpoint("a", api_key="sk-a"),
    endpoint("b", models=["rm-*"]),
    routes=(Route(pattern="x-*", endpoints=("a", "b")),),
    retry=Retry(attempts=3),
)
CHANGES: list[tuple[ClientConfig, set[str]]] = [
    (BEFORE, set()),
    (config_of(*reversed(BEFORE.endpoints), routes=BEFORE.routes, retry=BEFORE.retry), set()),
    (BEFORE.model_copy(update={"timeout": 5.0}), {"timeout"}),
    (BEFORE.model_copy(update={"retry": Retry(attempts=4)}), {"retry"}),
    (BEFORE.model_copy(update={"hedge": None}), {"hedge"}),
    (BEFORE.model_copy(update={"max_queued": 7}), {"max_queued"}),
    (BEFORE.model_copy(update={"routes": ()}), {"routes"}),
    (BEFORE.model_copy(update={"routes": (Route(pattern="x-*", endpoints=("a",)),)}), {"routes"}),
    (BEFORE.model_copy(update={"endpoints": (*BEFORE.endpoints, endpoint("c"))}), {"c"}),
    (BEFORE.model_copy(update={"endpoints": BEFORE.endpoints[:1], "routes": ()}), {"b", "routes"}),
    (BEFORE.model_copy(update={"endpoints": (endpoint("a", api_key="sk-b"), BEFORE.endpoints[1])}), {"a"}),
    (config_of(endpoint("z", models=["z"]), timeout=9), {"a", "b", "z", "routes", "retry", "timeout"}),
]


def routes_of(client: QRewardClient) -> dict[str, set[str]]:
    return {route.pattern: set(route.endpoints) for route in client.list_routes()}


def test_a_reload_says_what_changed_and_the_client_is_then_what_it_would_have_been_made() -> None:
    for after, names in CHANGES:
        client, fresh = QRewardClient.from_config(BEFORE), QRewardClient.from_config(after)
        assert (client.reload(after), client.reload(after)) == (names, frozenset())
        assert client.config == fresh.config, names
        assert routes_of(client) == routes_of(fresh), names
        assert list(client.stats()) == list(fresh.stats()), names
        assert pickle.loads(pickle.dumps(client)).config == fresh.config, names


def test_a_client_takes_a_file_a_mapping_or_a_configuration_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"endpoints": [{"base_url": "http://b.example/v1", "name": "b"}]}))
    wrong: list[tuple[Any, str]] = [
        ({"endpoints": []}, "endpoints: must contain at least one endpoint"),
        ({"endpoints": [{"base_url": "http://b"}], "routes": {"x": {"endpoints": ["a"]}}}, "routes.x.endpoints: there is no endpoint 'a'"),
        ("nowhere.json", "cannot be read"),
    ]
    for client in (QRewardClient([endpoint("a")]), SyncQRewardClient([endpoint("a")])):
        assert client.reload(path) == {"a", "b"}
        assert client.reload(str(path)) == frozenset()
        assert client.reload({"endpoints": [{"base_url": "http://c.example/v1", "name": "c"}]}) == {"b", "c"}
        assert client.reload(BEFORE) == {"a", "b", "c", "routes", "retry"}
        stats = client.stats()
        for given, said in wrong:
            with pytest.raises(ConfigError, match=said):
                client.reload(given)
            assert (client.config, client.stats()) == (BEFORE, stats)


def test_an_endpoint_that_was_marked_unhealthy_stays_so_even_if_it_is_replaced() -> None:
    client = QRewardClient.from_config(BEFORE)
    client.mark_unhealthy("a")
    client.reload(config_of(endpoint("a", api_key="sk-b"), endpoint("b")))
    assert source_of(client, "a").health.marked_unhealthy
    client.reload(config_of(endpoint("b")))
    client.reload(config_of(endpoint("a"), endpoint("b")))
    assert not source_of(client, "a").health.marked_unhealthy, "one that was removed is forgotten"


async def test_what_is_in_flight_is_finished_and_what_waits_goes_to_the_new_endpoints_also_under_an_old_name() -> None:
    async with over(config_of(endpoint("a"))) as (client, servers):
        batch, single = begin(client, 30), ask(client)
        await asyncio.sleep(1.5)
        assert client.reload(config_of(endpoint("a", host="moved"))) == {"a"}
        await asyncio.sleep(0)
        assert servers.live == {"a": 4}
        await asyncio.sleep(0.7)
        await single
        assert servers.hosts(after=1.5) == {"moved"}
        assert client.reload(config_of(endpoint("b", 3), endpoint("c", 1))) == {"a", "b", "c"}
        assert servers.live == {"a": 2}
        await asyncio.sleep(0)
        assert servers.live == {"a": 2, "b": 3, "c": 1}
        assert (await batch).stats.ok == 30
        assert servers.cancelled == []
        assert servers.hosts(after=2.2) == {"b", "c"}


async def test_limits_weight_price_models_and_timeouts_change_without_a_new_beginning() -> None:
    async with over(config_of(endpoint("a"))) as (client, servers):
        await begin(client, 10)
        source = source_of(client, "a")
        seconds = source.latency.mean
        batch = begin(client, 60)
        await asyncio.sleep(0.5)
        limits = Limits(max_concurrency=5, adaptive=False, tpm=6e6, tpm_counts="reserved")
        after = endpoint("a", limits=limits, weight=3, price=(1, 2), timeouts=Timeouts(attempt=9), models=["*", "y"])
        assert client.reload(config_of(after)) == {"a"}
        assert source_of(client, "a") is source
        await asyncio.sleep(0)
        assert servers.live == {"a": 5}
        assert source.reserved
        assert isinstance(source.tokens, Gcra)
        assert source.tokens.rate == 100_000.0
        assert (source.latency.mean, source.tally.ok, source.weight, source.attempt_timeout) == (seconds, 10, 3.0, 9.0)
        assert client.config.endpoints == (after,)
        assert (await batch).stats.ok == 60
        assert source.tally.ok == client.stats()["a"].sent == 70
        assert (await begin(client, 1)).cost == pytest.approx(30e-6)
        client.reload(config_of(endpoint("a")))
        assert (await begin(client, 1)).cost is None


async def test_a_shorter_time_limit_of_an_attempt_holds_at_once_also_for_what_is_under_way() -> None:
    async with over(config_of(endpoint("a"), retry=Retry(attempts=1))) as (client, _):
        await ask(client)
        call = ask(client)
        await asyncio.sleep(0.3)
        client.reload(config_of(endpoint("a", timeouts=Timeouts(attempt=0.5)), retry=Retry(attempts=1)))
        for each in (call, ask(client)):
            with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
                await each


def test_an_endpoint_that_is_added_or_removed_costs_no_look_at_each_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    usual = Scheduler.changed
    monkeypatch.setattr(Scheduler, "changed", lambda self, now, source: (looked.append(source.name), usual(self, now, source)))
    client = QRewardClient([endpoint(f"a-{number}") for number in range(100)])
    looked.clear()
    client.add_endpoint(endpoint("b"))
    client.remove_endpoint("a-7")
    assert looked == ["b"]


async def test_a_rate_may_come_change_and_go() -> None:
    async with over(config_of(endpoint("a", 10))) as (client, servers):
        batch = begin(client, 400)
        counts = []
        for rpm in (None, 6, 36, None):
            client.reload(config_of(endpoint("a", limits=Limits(max_concurrency=10, adaptive=False, rpm=rpm))))
            await asyncio.sleep(1.2)  # what is due already
            sent = len(servers.sent)
            await asyncio.sleep(10)
            counts.append(len(servers.sent) - sent)
        assert counts == [100, 0, pytest.approx(10, abs=2), 100]
        assert (await batch).stats.ok == 400
    before, after = (config_of(endpoint("a", limits=Limits(adaptive=False, rpm=rpm))) for rpm in (2, 1))
    async with over(before) as (client, servers):
        await ask(client)
        client.reload(after)
        await ask(client)
        assert servers.sent[1][2] - servers.sent[0][2] >= 60, "what was sent before the rate changed counts against the new one"


def test_what_a_server_told_of_its_rate_is_kept_beside_the_operators() -> None:
    client = QRewardClient([endpoint("a", limits=Limits())])
    source = source_of(client, "a")
    source.requests = told = HeaderRateLimit()
    for rpm, rate in ((60, 1.0), (120, 2.0)):
        client.reload(config_of(endpoint("a", limits=Limits(rpm=rpm))))
        assert source.requests is told
        assert told.configured is not None
        assert told.configured.rate == rate
    client.reload(config_of(endpoint("a", limits=Limits())))
    assert source.requests is told
    assert told.configured is None


def adaptive(most: int | None) -> ClientConfig:
    return config_of(endpoint("a", limits=Limits(max_concurrency=most)))


def test_what_was_found_out_of_a_window_is_kept_under_another_limit() -> None:
    for before, seen, after, limit, kept in (
        (8, 8, 40, 40, False),  # held by the operator alone: as if it were set so from the start
        (None, 32, 8, 8, True),
        (None, 300, 400, 300, True),
        (64, 20, 48, 20, True),  # found out to be less: that stays true
        (64, 20, None, 20, True),
        (200, 200, 300, 200, True),  # a new one would start lower
    ):
        client = QRewardClient.from_config(adaptive(before))
        source = source_of(client, "a")
        window = source.window
        assert isinstance(window, AdaptiveLimit)
        window.limit = seen
        window.changes["down", "rejected"] = 3
        client.reload(adaptive(after))
        assert source_of(client, "a") is source
        assert (source.window.limit, source.window is window) == (limit, kept), (before, seen, after)
        assert cast("AdaptiveLimit", source.window).most == (after or AdaptiveLimit(random.Random()).most)
        assert source.window.changes == {("down", "rejected"): 3}, "what is counted never falls"


def test_a_prefix_cache_has_the_configured_size_on_old_and_new_endpoints() -> None:
    client = QRewardClient([endpoint("a")])
    client.reload(config_of(endpoint("a"), endpoint("b"), prefix_affinity=PrefixAffinity(capacity=5_000)))
    client.add_endpoint(endpoint("c"))
    assert [source_of(client, name).prefix_cache.capacity for name in "abc"] == [5_000] * 3


OTHERS: list[dict[str, Any]] = [{"host": "moved"}, {"api_key": "sk-b"}, {"headers": {"X-Team": "b"}}, {"kind": "vllm"}, {"verify": False}]


def test_another_address_key_dialect_or_way_of_finding_limits_is_a_new_beginning() -> None:
    for other in (*OTHERS, {"limits": Limits(adaptive=True)}):
        client = QRewardClient.from_config(config_of(endpoint("a")))
        source = source_of(client, "a")
        assert client.reload(config_of(endpoint("a", **other))) == {"a"}
        assert source_of(client, "a") is not source, other
        assert (source.removed, source.pools) == (True, [])


def failing(_: str) -> Failure:
    return Failure(FailureKind.TRANSIENT, ServerError("it answered 500", status_code=500))


async def test_retries_are_counted_by_the_new_policy_also_for_what_is_under_way() -> None:
    async with over(config_of(endpoint("a"), retry=Retry(attempts=9)), Servers(failing)) as (client, servers):
        call = ask(client)
        await asyncio.sleep(0.5)
        client.reload(config_of(endpoint("a"), retry=Retry(attempts=2, base=0.01)))
        with pytest.raises(ServerError):
            await call
        assert len(servers.sent) == 2


async def test_a_request_whose_last_try_is_under_way_is_hedged_once_it_may_be_tried_more_often() -> None:
    async with over(config_of(endpoint("a"), endpoint("b"), hedge=Hedge(after=1.5), retry=Retry(attempts=1))) as (client, servers):
        fleet = [endpoint("a"), endpoint("b")]
        await asyncio.gather(ask(client), ask(client))
        servers.seconds = 30.0
        call = ask(client)
        await asyncio.sleep(5)
        assert servers.live.total() == 1
        client.reload(config_of(*fleet, hedge=Hedge(after=1.5), retry=Retry(attempts=4)))
        await asyncio.sleep(1)
        assert servers.live.total() == 2
        await call


async def test_hedges_begin_and_end_with_the_policy_also_for_what_is_under_way() -> None:
    async with over(config_of(endpoint("a"), endpoint("b"), hedge=None)) as (client, servers):
        fleet = [endpoint("a"), endpoint("b")]
        await asyncio.gather(ask(client), ask(client))
        servers.seconds = 30.0
        call = ask(client)
        await asyncio.sleep(1)
        client.reload(config_of(*fleet, hedge=Hedge(after=1.5)))
        await asyncio.sleep(1)
        assert servers.live.total() == 2
        client.reload(config_of(*fleet, hedge=None))
        await call
        call = ask(client)
        await asyncio.sleep(20)
        assert servers.live.total() == 1
        await call


async def test_the_queue_and_the_time_of_calls_are_bounded_by_the_new_settings() -> None:
    async with over(config_of(endpoint("a", 1))) as (client, servers):
        calls = [ask(client) for _ in range(5)]
        await asyncio.sleep(0.5)
        client.reload(config_of(endpoint("a", 1), max_queued=4, timeout=0.9))
        with pytest.raises(QueueFull):
            await ask(client)
        await asyncio.gather(*calls)  # they came before
        servers.seconds = 1.0
        with pytest.raises(TimeoutError):
            await ask(client)


def test_other_threads_may_reload_a_client_that_works() -> None:
    servers = Servers(seconds=0.002)
    configs = [config_of(endpoint("a", 3)), config_of(endpoint("b", 3)), config_of(endpoint("a", 2, host="moved"), endpoint("b", 4))]
    done = threading.Event()

    def meddle(first: int) -> None:
        for number in itertools.count(first):
            client.reload(configs[number % 3])
            if done.wait(0.001):
                return

    with SyncQRewardClient(configs[0].endpoints, backend_factory=lambda: cast("Any", servers)) as client:
        threads = [threading.Thread(target=meddle, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        batch = client.batch_chat_completion([[{"role": "user", "content": str(number)}] for number in range(300)], MODEL, timeout=60)
        done.set()
        for thread in threads:
            thread.join()
        assert client.config in configs
    assert batch.texts() == [f"re: {number}" for number in range(300)]
    assert servers.cancelled == []
    assert len(servers.hosts()) > 1


async def test_nothing_is_lost_while_configurations_change_at_random() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def some_config() -> ClientConfig:
        names = rng.sample("abcdef", rng.randint(1, 5))
        endpoints = [
            endpoint(name, rng.randint(1, 4), host=f"{name}{rng.randint(0, 1)}", models=rng.choice([["*"], ["judge-*"], ["*", "judge-7b"]]))
            for name in names
        ]
        routes = [Route(pattern=pattern, endpoints=tuple(rng.sample(names, rng.randint(1, len(names))))) for pattern in ("judge-*", "*")]
        hedge = rng.choice([None, Hedge(), Hedge(after=0.2)])
        return config_of(*endpoints, routes=rng.sample(routes, rng.randint(0, 2)), hedge=hedge, retry=Retry(base=rng.uniform(0.01, 1)))

    def answer(_: str) -> Any:
        servers.seconds = rng.uniform(0.01, 0.6)
        return failing("") if rng.random() < 0.03 else None

    servers = Servers(answer)

    async with over(some_config(), servers) as (client, _):

        async def meddle() -> None:
            while True:
                await asyncio.sleep(rng.uniform(0, 0.4))
                wanted = some_config()
                client.reload(wanted)
                assert client.config.endpoints == wanted.endpoints
                client.add_endpoint(endpoint("more", rng.randint(1, 4)))
                await asyncio.sleep(rng.uniform(0, 0.2))
                client.remove_endpoint("more")

        meddling = asyncio.ensure_future(meddle())
        batches = await asyncio.gather(*(begin(client, 300, timeout=None) for _ in range(3)))
        meddling.cancel()
        await asyncio.wait([meddling])
        assert meddling.cancelled(), meddling.exception()
        for batch in batches:
            assert all(result.ok or len(result.attempts) >= 4 for result in batch), seed
            assert not any(isinstance(error, NoEndpoint) for error in batch.errors.values()), seed
