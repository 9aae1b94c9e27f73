"""Fake reward servers as their clients see them: routes, limits, forms of errors, and scores that a test can know."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint
from fleet_tools import Answer, Client, serving

from qreward.testing import NAN, REFUSED, FakeEndpoint, Latency, Scoring
from qreward.testing.bodies import logits_of, probabilities_of, score_of
from qreward.testing.kinds import SERVER_KINDS, RouteCall


async def post(client: Client, path: str, body: Any, name: str = "a") -> Answer:
    url = client.fleet.urls[name].removesuffix("/v1") + path
    async with client._session.post(url, json=body) as response:
        return Answer(response.status, response.headers, await response.read())


async def document(client: Client, kind: str, path: str, body: Any) -> Any:
    """What the server of a kind answers."""
    return json.loads((await post(client, path, body, kind)).body)


def of_all_kinds(**settings: Any) -> list[FakeEndpoint]:
    """An endpoint of each kind, with its name."""
    return [(ModelEndpoint if kind == "vllm" else FakeEndpoint)(kind, kind=kind, **settings) for kind in sorted(SERVER_KINDS)]


def test_a_score_depends_on_what_is_scored_and_on_nothing_else() -> None:
    assert score_of("good") == score_of("good")
    assert len({score_of(item) for item in ("good", "bad", ["good", "bad"], ["bad", "good"], [1, 2])}) == 5
    assert score_of("good") == int.from_bytes(sha256(b'"good"').digest()[:4], "big") / 2**32 * 20 - 10, "as its page says"
    assert logits_of("good", ("x",)) == [score_of("good")]
    assert probabilities_of([0.0]) == [0.5]
    assert sum(probabilities_of(logits_of("good", ("x", "y")))) == pytest.approx(1)


async def test_scores_come_in_the_form_of_their_server() -> None:
    """What no codec asks for; the rest is read by the codecs in ``tests/codecs/rewards``."""
    async with serving(*of_all_kinds()) as client:
        pair = await document(client, "tei", "/predict", {"inputs": ["a", "b"], "raw_scores": True})
        assert pair == [{"score": score_of(["a", "b"]), "label": "LABEL_0"}], "two texts are one pair"
        assert (await document(client, "tei", "/predict", {"inputs": "a"}))[0]["score"] == probabilities_of([score_of("a")])[0]
        alone, (first,) = [await document(client, "sglang", "/classify", {"text": text}) for text in ("a", ["a"])]
        assert alone["embedding"] == first["embedding"] == [score_of("a")], "an object for a text, an array for a list"
        classes = await document(client, "sglang", "/v1/classify", {"model": "m", "input": ["a"]})
        assert classes["data"][0]["probs"] == [1.0]
        for left, pairs in (("q", [["q", "a"], ["q", "b"]]), (["q", "r"], [["q", "a"], ["r", "b"]])):
            body = {"model": "m", "queries": left, "documents": ["a", "b"], "use_activation": False}
            rows = (await document(client, "vllm", "/score", body))["data"]
            assert [row["score"] for row in rows] == list(map(score_of, pairs))
        texts = [f"t{index}" for index in range(6)]
        for kind, path, member in (("vllm", "/rerank", "documents"), ("sglang", "/v1/rerank", "documents"), ("tei", "/rerank", "texts")):
            found = await document(client, kind, path, {"model": "m", "query": "q", member: texts})
            rows = found["results"] if kind == "vllm" else found
            assert [row["index"] for row in rows] == sorted(range(6), key=lambda index: -score_of(["q", texts[index]]))


REFUSALS: list[tuple[str, str, Any, int, dict[str, Any]]] = [
    ("vllm", "/classify", {"model": "m", "input": ["a", REFUSED]}, 400, {"error": {"type": "BadRequestError", "code": 400}}),
    ("vllm", "/classify", {"model": "m"}, 400, {"error": {"code": 400}}),
    ("vllm", "/score", {"model": "m", "text_1": ["q", "r"], "text_2": ["a", "b", "c"]}, 400, {"error": {"code": 400}}),
    ("sglang", "/classify", {"text": ["a", REFUSED]}, 400, {"error": {}}),
    ("sglang", "/v1/classify", {"model": "m", "input": [REFUSED]}, 400, {"object": "error", "code": 400}),
    ("tei", "/predict", {"inputs": [[REFUSED]]}, 422, {"error_type": "Validation"}),
    ("tei", "/predict", {"inputs": [["a"]] * 33}, 422, {"error": "batch size 33 > maximum allowed batch size 32"}),
    ("tei", "/v1/embeddings", {"model": "m", "input": [REFUSED]}, 422, {"code": 422, "type": "Validation"}),
    ("tei", "/v1/embeddings", {"model": "m", "input": [""]}, 422, {"code": 422}),
    ("openrlhf", "/get_reward", {"query": ["a"], "prompts": []}, 422, {"detail": "query, prompts and labels must be lists of one length"}),
    ("nim", "/v1/chat/completions", {"model": "m", "messages": []}, 400, {"error": {}}),
    ("openai", "/v1/completions", {"model": "m", "prompt": []}, 400, {"error": {}}),
    ("tei", "/v1/chat/completions", {}, 404, {"code": 404, "type": "Backend"}),
]


async def test_what_a_server_refuses_it_refuses_whole_and_in_its_own_form() -> None:
    async with serving(*of_all_kinds(scoring=Scoring(max_tokens=100))) as client:
        for kind, path, body, status, members in REFUSALS:
            answer = await post(client, path, body, kind)
            told = json.loads(answer.body)
            assert answer.status == status, (kind, path, body)
            for name, expected in members.items():
                assert expected.items() <= told[name].items() if isinstance(expected, dict) else told[name] == expected, (kind, path)


async def test_no_route_breaks_on_a_body_that_is_none_and_chats_and_embeddings_go_on_where_the_server_has_them() -> None:
    async with serving(*of_all_kinds()) as client:
        for kind in SERVER_KINDS:
            root = client.fleet.urls[kind].removesuffix("/v1")
            for path in SERVER_KINDS[kind].routes:
                for body in (b"", b"[]", b"{", b"\xff", b"7"):
                    async with client._session.post(root + path, data=body) as response:
                        assert response.status in {400, 422}, (kind, path, body)
        for kind in ("vllm", "sglang"):
            assert (await client.chat(kind)).status == 200
            assert (await client.post(kind, "/embeddings", {"model": "m", "input": ["a"]})).status == 200


def test_work_on_a_list_takes_longer_with_each_item() -> None:
    spec = FakeEndpoint("a", kind="vllm", latency=Latency(base=0.02), scoring=Scoring(per_item=0.0015))
    body = json.dumps({"model": "m", "input": ["a"] * 64}).encode()
    kind = SERVER_KINDS["vllm"]
    job = kind.routes["/classify"](RouteCall(kind, "/classify", body, spec))
    assert (job.items, job.service) == (64, pytest.approx(0.116))


async def test_models_tokens_and_slots_count_for_lists_too() -> None:
    """Limits and faults are seen by the codecs in ``tests/codecs/rewards``."""
    async with serving(FakeEndpoint("a", kind="vllm", models=["rm-*"]), FakeEndpoint("b", kind="tei", max_concurrency=1)) as client:
        assert [model["id"] for model in json.loads((await client.get("a", "/v1/models")).body)["data"]] == ["rm-*"]
        assert client.fleet.seen("a").requests == 0
        assert (await post(client, "/classify", {"model": "gpt", "input": ["a"]})).status == 404
        assert (await post(client, "/classify", {"model": "rm-7b", "input": ["a", "b"]})).status == 200
        seen = client.fleet.seen("a")
        assert (seen.answered, seen.errors, seen.tokens) == (1, {"unknown_model": 1}, 2)
        for _ in range(3):  # work that fails frees its slot
            answer = await post(client, "/predict", {"inputs": [[NAN]]}, "b")
            assert (answer.status, json.loads(answer.body)["error_type"]) == (424, "Backend")
        seen = client.fleet.seen("b")
        assert (seen.errors, seen.in_flight, seen.rejected) == ({"backend": 3}, 0, 0)


async def test_each_server_has_its_own_availability_routes() -> None:
    every = {"/health", "/load", "/metrics", "/version", "/v1/models", "/ready", "/v1/loads", "/get_load", "/info", "/v1/health/ready"}
    expected = {
        "vllm": {"/health", "/load", "/metrics", "/version", "/v1/models"},
        "sglang": {"/health", "/ready", "/v1/loads", "/metrics", "/v1/models"},
        "tei": {"/health", "/info", "/metrics"},
        "openrlhf": set(),
        "nim": {"/v1/health/ready", "/v1/models"},
        "openai": {"/health", "/v1/models"},
    }
    async with serving(*of_all_kinds()) as client:
        found = {kind: {path for path in every if (await client.get(kind, path)).status == 200} for kind in SERVER_KINDS}
    assert found == expected
