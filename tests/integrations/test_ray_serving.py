"""A scorer as a deployment: the options for Serve, and what a replica answers; the app is the reward server's, driven without a cluster."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from ray_fakes import FakeRay, installed

from qreward.errors import ConfigError
from qreward.integrations.ray import deployment
from qreward.integrations.ray.pool import ScorerSpec
from qreward.integrations.ray.serving import AsgiProxy, Replica

pytestmark = pytest.mark.real_time


class FakeServe(ModuleType):
    """A Serve that keeps its options and what it is given."""

    def __init__(self) -> None:
        super().__init__("ray.serve")
        self.options: dict[str, Any] = {}
        self.proxy: Any = None
        self.bound: tuple[Any, ...] = ()

    def deployment(self, **options: Any) -> Callable[[Any], Any]:
        self.options = options
        return lambda kind: SimpleNamespace(bind=lambda *args: (kind, args))

    def ingress(self, proxy: Any) -> Callable[[Any], Any]:
        self.proxy = pickle.loads(pickle.dumps(proxy))  # as it is in a replica
        return lambda kind: kind


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    yield from installed(monkeypatch)


@pytest.fixture
def serve(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    made = FakeServe()
    monkeypatch.setitem(sys.modules, "ray.serve", made)
    return made


class Model:
    closed = 0

    def __call__(self, completions: list[str]) -> list[Any]:
        return [OSError("bad") if text == "bad" else float(len(text)) for text in completions]

    async def close(self) -> None:
        Model.closed += 1


async def awaited(completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
    return [meta["reward"] for meta in metadata]


@asynccontextmanager
async def replica_of(scorer: Any, prefix: str = "", **settings: Any) -> AsyncIterator[tuple[Replica, httpx.AsyncClient]]:
    """A replica, and its app as the proxy of Serve calls it."""
    replica, proxy = Replica(ScorerSpec(scorer), settings, "key"), AsgiProxy("key")
    transport = httpx.ASGITransport(app=proxy, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://replica{prefix}") as http:
        yield replica, http


def test_serve_gets_the_options_and_takes_as_many_requests_as_whole_batches_need(serve: FakeServe) -> None:
    actor = {"num_gpus": 1}
    deployment(Model, name="rm", num_replicas=3, ray_actor_options=actor, max_batch_size=64, serve_options={"health_check_period_s": 5})
    options = {"name": "rm", "num_replicas": 3, "ray_actor_options": actor, "health_check_period_s": 5, "max_ongoing_requests": 128}
    assert serve.options == options
    deployment(Model, max_batch_size=8)
    assert serve.options == {"name": "reward", "max_ongoing_requests": 100}
    deployment(Model, max_ongoing_requests=7, num_replicas="auto")
    assert serve.options == {"name": "reward", "max_ongoing_requests": 7, "num_replicas": "auto"}


def test_what_is_bound_makes_a_replica_that_the_proxy_of_the_app_finds(serve: FakeServe) -> None:
    kind, (spec, settings, key) = deployment(Model, max_batch_size=8, token="${NOT_SET_HERE}")
    assert (kind, spec, serve.proxy.key) == (Replica, ScorerSpec(Model), key)
    assert settings == {"max_batch_size": 8, "token": "${NOT_SET_HERE}"}


def test_a_setting_that_is_wrong_is_said_before_anything_is_deployed(serve: FakeServe) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_batch_sise": 8}, "max_batch_size"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"port": 80}, "port cannot be set here; use serve.start"),
    ]
    for given, says in wrong:
        with pytest.raises(ConfigError, match=says):
            deployment(Model, **given)


async def test_a_replica_answers_in_the_forms_of_the_reward_server_at_any_route_prefix() -> None:
    token = {"authorization": "Bearer x"}
    for prefix in ("", "/rm"):
        async with replica_of(Model, prefix=prefix, token="x") as (_, http):
            assert (await http.get("/health")).json() == {"status": "ok"}
            asked = {"query": ["a", "bbb"], "prompts": ["", ""], "labels": ["", ""]}
            assert (await http.post("/get_reward", json=asked, headers=token)).json()["rewards"] == [1.0, 3.0]
            classified = await http.post("/classify", json={"model": "reward", "input": ["aa"]}, headers=token)
            assert classified.json()["data"][0]["probs"] == [2.0]
            assert 'route="/get_reward",status="200"} 1' in (await http.get("/metrics", headers=token)).text
            assert (await http.get("/metrics")).status_code == 401


async def test_a_replica_scores_by_handle_and_its_outcomes_can_travel() -> None:
    async with replica_of(Model) as (replica, _):
        one, two = pickle.loads(pickle.dumps(await replica.score(["a", "bad"])))
        assert (one.reward, one.error) == (1.0, None)
        assert (two.reward, two.error, two.cause) == (None, "OSError: bad", None)
        assert (await replica.add_query({"query": "abc"})).reward == 3.0  # type: ignore[union-attr]
    async with replica_of(awaited) as (replica, _):
        assert [one.reward for one in await replica.score(["a"], [{"reward": 0.5}])] == [0.5]


async def test_callers_of_a_replica_share_batches() -> None:
    sizes = []

    async def slow(completions: list[str]) -> list[float]:
        sizes.append(len(completions))
        for _ in range(500):  # turns of the loop, in which the others come
            await asyncio.sleep(0)
        return [0.0] * len(completions)

    async with replica_of(slow, max_batch_size=16) as (replica, http):
        by_handle = [replica.score(["a"]) for _ in range(10)]
        by_http = [http.post("/get_reward", json={"query": ["a"]}) for _ in range(10)]
        await asyncio.gather(*by_handle, *by_http)
        assert sum(sizes) == 20
        assert len(sizes) <= 4


async def test_a_replica_that_ends_lets_the_scorer_put_away_what_it_has() -> None:
    before = Model.closed
    said: list[str] = []

    Replica(ScorerSpec(Model), {}, "ends")
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        said.append(f"{message['type']} {Model.closed - before}")

    await AsgiProxy("ends")({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete 0", "lifespan.shutdown.complete 1"]
