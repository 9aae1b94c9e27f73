"""A client from a file, a mapping or the environment; and from a pickle, with everything that was changed live."""

from __future__ import annotations

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


def test_a_client_is_made_from_a_file_a_mapping_a_configuration_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "qreward.json"
    path.write_text(json.dumps(SETTINGS))
    for name, value in (("JUDGE_URL", "http://judge.example"), ("JUDGE_KEY", "sk-from-the-environment"), ("QREWARD_CONFIG", str(path))):
        monkeypatch.setenv(name, value)
    clients = [QRewardClient.from_config(source) for source in (SETTINGS, QRewardClient.from_config(SETTINGS).config, path, str(path))]
    for client in [*clients, QRewardClient.from_env()]:
        judge = client.config.endpoints[0]
        assert (judge.base_url, judge.name, judge.models) == ("http://judge.example/v1", "judge", ("judge-*",))
        assert judge.api_key is not None
        assert judge.api_key.get_secret_value() == "sk-from-the-environment"
        assert judge.limits == Limits(max_concurrency=8, rpm=600)
        assert (client.config.retry.attempts, client.config.timeout) == (6, 30)
        assert [route.pattern for route in client.list_routes()] == ["judge-*", "rm-*", "*"]
        assert client.list_routes()[1].weights == {"gpu-1": 2}


def test_a_pickled_client_has_the_fleet_as_it_was_changed_live() -> None:
    client = QRewardClient(
        [Endpoint("http://a.example/v1", name="a", api_key="sk-of-a"), Endpoint("http://gone.example/v1", name="gone")],
        routes=[Route(pattern="x-*", endpoints=("a", "gone"), strategy=LoadBalanceStrategy.LEAST_CONNECTIONS, weights={"gone": 2})],
        retry=Retry(attempts=7),
        timeout=None,
    )
    client.add_endpoint(Endpoint("http://b.example/v1", name="b", models=["judge-*"], limits=Limits(max_concurrency=3)))
    client.register_model_route("rm-*", ["a", "b"], strategy="least_connections")
    client.remove_endpoint("gone")
    copy = pickle.loads(pickle.dumps(client))
    assert copy.config == client.config
    assert copy.list_routes() == client.list_routes()
    assert [each.name for each in copy.config.endpoints] == ["a", "b"]
    assert [route.pattern for route in copy.list_routes()] == ["judge-*", "rm-*", "x-*", "*"]
    assert (copy.config.retry.attempts, copy.config.timeout) == (7, None)
    assert copy.config.endpoints[0].api_key.get_secret_value() == "sk-of-a"


async def test_a_client_in_use_can_be_pickled_unless_it_holds_an_http_client_and_the_copy_starts_anew() -> None:
    async with QRewardClient(["http://a.example/v1"]) as client:
        client.add_endpoint(endpoint(Recorder(), "corp", models=["judge-7b"]))
        await client.chat_completion(HI, "judge-7b")
        with pytest.raises(ConfigError, match="endpoint 'corp' cannot be pickled: it holds an http_client; make it in each process"):
            pickle.dumps(client)
        client.remove_endpoint("corp")
        copy = pickle.loads(pickle.dumps(client))
        assert copy.stats()["a.example"].sent == 0
        await copy.aclose()
