"""A client from a file, a mapping or the environment; and from a pickle, with everything that was changed live."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from client_tools import HI, Recorder, endpoint

from qreward import ConfigError, Endpoint, Limits, LoadBalanceStrategy, QRewardClient, Retry, Route

SETTINGS: dict[str, Any] = {
    "endpoints": [
        {
            "base_url": "${JUDGE_URL}/v1",
            "name": "judge",
            "api_key": "${JUDGE_KEY}",
            "models": ["judge-*"],
            "limits": {"max_concurrency": 8, "rpm": 600},
        },
        {"base_url": "http://gpu-1:8000/v1", "name": "gpu-1"},
    ],
    "routes": {"rm-*": {"endpoints": ["judge", "gpu-1"], "strategy": "weighted_round_robin", "weights": {"gpu-1": 2}}},
    "retry": {"attempts": 6},
    "timeout": 30,
}


@pytest.fixture(autouse=True)
def judge_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_URL", "http://judge.example")
    monkeypatch.setenv("JUDGE_KEY", "sk-from-the-environment")


def check(client: QRewardClient) -> None:
    """It is the client of the settings above."""
    config = client.config
    judge = config.endpoints[0]
    assert (judge.base_url, judge.name, judge.models) == ("http://judge.example/v1", "judge", ("judge-*",))
    assert judge.api_key is not None
    assert judge.api_key.get_secret_value() == "sk-from-the-environment"
    assert judge.limits == Limits(max_concurrency=8, rpm=600)
    assert (config.retry.attempts, config.timeout) == (6, 30)
    assert [route.pattern for route in client.list_routes()] == ["judge-*", "rm-*", "*"]
    assert client.list_routes()[1].weights == {"gpu-1": 2}


def test_a_client_is_made_from_a_file_a_mapping_a_configuration_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "qreward.json"
    path.write_text(json.dumps(SETTINGS))
    monkeypatch.setenv("QREWARD_CONFIG", str(path))
    for source in (SETTINGS, QRewardClient.from_config(SETTINGS).config, path, str(path)):
        check(QRewardClient.from_config(source))
    check(QRewardClient.from_env())


def changed() -> QRewardClient:
    """A client whose fleet is not what it was made with."""
    client = QRewardClient(
        [Endpoint("http://a.example/v1", name="a", api_key="sk-of-a"), Endpoint("http://gone.example/v1", name="gone")],
        routes=[Route(pattern="x-*", endpoints=("a", "gone"), strategy=LoadBalanceStrategy.LEAST_CONNECTIONS, weights={"gone": 2})],
        retry=Retry(attempts=7),
        timeout=None,
    )
    client.add_endpoint(Endpoint("http://b.example/v1", name="b", models=["judge-*"], limits=Limits(max_concurrency=3)))
    client.register_model_route("rm-*", ["a", "b"], strategy="power_of_two")
    client.remove_endpoint("gone")
    return client


def test_a_pickled_client_has_the_fleet_as_it_was_changed_live() -> None:
    client = changed()
    copy = pickle.loads(pickle.dumps(client))
    assert copy.config == client.config
    assert copy.list_routes() == client.list_routes()
    assert [each.name for each in copy.config.endpoints] == ["a", "b"]
    assert [route.pattern for route in copy.list_routes()] == ["judge-*", "rm-*", "x-*", "*"]
    assert (copy.config.retry.attempts, copy.config.timeout) == (7, None)
    assert copy.config.endpoints[0].api_key.get_secret_value() == "sk-of-a"


def test_a_client_in_use_can_be_pickled_and_the_copy_starts_anew() -> None:
    recorder = Recorder()

    async def test() -> None:
        async with QRewardClient(["http://a.example/v1"]) as client:
            client.add_endpoint(endpoint(recorder, "mine", models=["judge-7b"]))
            await client.chat_completion(HI, "judge-7b")
            client.remove_endpoint("mine")  # what it holds cannot be pickled
            copy = pickle.loads(pickle.dumps(client))
            assert copy.stats()["a.example"].sent == 0
            await copy.aclose()

    asyncio.run(test())


def test_a_client_that_holds_an_http_client_says_why_it_cannot_be_pickled() -> None:
    client = QRewardClient([endpoint(Recorder(), "corp")])
    with pytest.raises(ConfigError, match="endpoint 'corp' cannot be pickled: it holds an http_client; make it in each process"):
        pickle.dumps(client)
