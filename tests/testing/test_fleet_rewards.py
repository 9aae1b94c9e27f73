"""Fake reward servers as their clients see them: routes, limits, forms of errors, and scores that a test can know."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import Any

import pytest
from fleet_tools import Answer, Client, run, serving

from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency
from qreward.testing.rewards import NAN, REFUSED, Scoring, logits_of, probabilities_of, score_of
from qreward.testing.server_kinds import SERVER_KINDS, RouteCall


async def post(client: Client, path: str, body: Any, name: str = "a") -> Answer:
    url = client.fleet.urls[name].removesuffix("/v1") + path
    async with client._session.post(url, json=body) as response:
        return Answer(response.status, response.headers, await response.read())


def asked(kind: Any, path: str, body: Any, **settings: Any) -> Answer:
    async def main() -> Answer:
        async with serving(FakeEndpoint("a", kind=kind, **settings)) as client:
            return await post(client, path, body)

    return run(main())


def test_a_score_depends_on_what_is_scored_and_on_nothing_else() -> None:
    assert score_of("good") == score_of("good")
    assert len({score_of(item) for item in ("good", "bad", ["good", "bad"], ["bad", "good"], [1, 2])}) == 5
    assert score_of("good") == int.from_bytes(sha256(b'"good"').digest()[:4], "big") / 2**32 * 20 - 10, "as its page says"
    assert logits_of("good", ("x",)) == [score_of("good")]
    assert probabilities_of([0.0]) == [0.5]
    assert sum(probabilities_of(logits_of("good", ("x", "y")))) == pytest.approx(1)


def test_a_list_of_two_texts_is_one_pair_for_tei_and_a_list_of_lists_is_a_batch() -> None:
    alone = asked("tei", "/predict", {"inputs": ["a", "b"], "raw_scores": True})
    assert json.loads(alone.body) == [{"score": score_of(["a", "b"]), "label": "LABEL_0"}]
    batch = asked("tei", "/predict", {"inputs": [["a"], ["b"]], "raw_scores": True})
    assert [row[0]["score"] for row in json.loads(batch.body)] == [score_of("a"), score_of("b")]
    squeezed = asked("tei", "/predict", {"inputs": "a"})
    assert json.loads(squeezed.body)[0]["score"] == probabilities_of([score_of("a")])[0]


def test_sglang_answers_a_text_with_an_object_and_a_list_with_an_array() -> None:
    alone = json.loads(asked("sglang", "/classify", {"text": "a"}).body)
    assert alone["embedding"] == [score_of("a")]
    (first,) = json.loads(asked("sglang", "/classify", {"text": ["a"]}).body)
    assert first["embedding"] == [score_of("a")]
    classes = json.loads(asked("sglang", "/v1/classify", {"model": "m", "input": ["a"]}).body)
    assert classes["data"][0]["probs"] == [1.0]


def test_vllm_scores_one_by_many_and_many_by_many() -> None:
    def scores(names: tuple[str, str], left: Any, right: Any) -> Any:
        return asked("vllm", "/score", {"model": "m", names[0]: left, names[1]: right, "use_activation": False})

    for names in (("text_1", "text_2"), ("queries", "documents")):
        broadcast = json.loads(scores(names, "q", ["a", "b"]).body)
        assert [row["score"] for row in broadcast["data"]] == [score_of(["q", "a"]), score_of(["q", "b"])]
        zipped = json.loads(scores(names, ["q", "r"], ["a", "b"]).body)
        assert [row["score"] for row in zipped["data"]] == [score_of(["q", "a"]), score_of(["r", "b"])]
        assert scores(names, ["q", "r"], ["a", "b", "c"]).status == 400


def test_rankings_come_sorted_by_score() -> None:
    texts = [f"t{index}" for index in range(6)]
    for kind, path, member in (("vllm", "/rerank", "documents"), ("sglang", "/v1/rerank", "documents"), ("tei", "/rerank", "texts")):
        found = json.loads(asked(kind, path, {"model": "m", "query": "q", member: texts}).body)
        rows = found["results"] if kind == "vllm" else found
        assert [row["index"] for row in rows] == sorted(range(6), key=lambda index: -score_of(["q", texts[index]]))


REFUSALS: list[tuple[str, str, Any, int, dict[str, Any]]] = [
    ("vllm", "/classify", {"model": "m", "input": ["a", REFUSED]}, 400, {"error": {"type": "BadRequestError", "code": 400}}),
    ("vllm", "/classify", {"model": "m", "input": ["a", "x" * 999]}, 400, {"error": {"code": 400}}),
    ("vllm", "/classify", {"model": "m"}, 400, {"error": {"code": 400}}),
    ("sglang", "/classify", {"text": ["a", REFUSED]}, 400, {"error": {}}),
    ("sglang", "/v1/classify", {"model": "m", "input": [REFUSED]}, 400, {"object": "error", "code": 400}),
    ("tei", "/predict", {"inputs": [[REFUSED]]}, 422, {"error_type": "Validation"}),
    ("tei", "/predict", {"inputs": [["a"]] * 33}, 422, {"error": "batch size 33 > maximum allowed batch size 32"}),
    ("tei", "/predict", {"inputs": [["x" * 999]]}, 422, {"error_type": "Validation"}),
    ("tei", "/predict", {"inputs": [["a"], [NAN]]}, 424, {"error_type": "Backend"}),
    ("tei", "/v1/embeddings", {"model": "m", "input": [REFUSED]}, 422, {"code": 422, "type": "Validation"}),
    ("tei", "/v1/embeddings", {"model": "m", "input": [""]}, 422, {"code": 422}),
    ("openrlhf", "/get_reward", {"query": ["a"], "prompts": []}, 422, {"detail": "query, prompts and labels must be lists of one length"}),
    ("nim", "/v1/chat/completions", {"model": "m", "messages": []}, 400, {"error": {}}),
    ("openai", "/v1/completions", {"model": "m", "prompt": []}, 400, {"error": {}}),
    ("tei", "/v1/chat/completions", {}, 404, {"code": 404, "type": "Backend"}),
]


def of_all_kinds(**settings: Any) -> list[FakeEndpoint]:
    """An endpoint of each kind, with its name."""
    return [FakeEndpoint(kind, kind=kind, **settings) for kind in sorted(SERVER_KINDS)]


def test_what_a_server_refuses_it_refuses_whole_and_in_its_own_form() -> None:
    async def main() -> None:
        async with serving(*of_all_kinds(scoring=Scoring(max_tokens=100))) as client:
            for kind, path, body, status, members in REFUSALS:
                answer = await post(client, path, body, kind)
                told = json.loads(answer.body)
                assert answer.status == status, (kind, path, body)
                for name, expected in members.items():
                    assert expected.items() <= told[name].items() if isinstance(expected, dict) else told[name] == expected, (kind, path)

    run(main())


def test_no_route_breaks_on_a_body_that_is_none() -> None:
    async def main() -> None:
        async with serving(*of_all_kinds()) as client:
            for kind in SERVER_KINDS:
                root = client.fleet.urls[kind].removesuffix("/v1")
                for path in SERVER_KINDS[kind].routes:
                    for body in (b"", b"[]", b"{", b"\xff", b"7"):
                        async with client._session.post(root + path, data=body) as response:
                            assert response.status in {400, 422}, (kind, path, body)

    run(main())


def test_an_item_without_a_score_comes_as_null() -> None:
    found = json.loads(asked("vllm", "/classify", {"model": "m", "input": ["a", NAN], "use_activation": False}).body)
    assert [row["probs"] for row in found["data"]] == [[score_of("a")], [None]]


def test_tei_tells_in_headers_what_an_answer_took() -> None:
    answer = asked("tei", "/predict", {"inputs": [["a" * 38]] * 2}, latency=Latency(base=0.002), scoring=Scoring(per_item=0.004))
    assert (answer.headers["x-compute-tokens"], answer.headers["x-inference-time"], answer.headers["x-queue-time"]) == ("20", "10", "0")


def test_the_machinery_of_the_fleet_holds_for_lists_too() -> None:
    async def main() -> None:
        full = FakeEndpoint("a", kind="tei", max_concurrency=1, latency=Latency(base=30), retry_after="seconds")
        faulty = FakeEndpoint("b", kind="sglang", faults=Faults(error_500=1))
        picky = FakeEndpoint("c", kind="vllm", models=["rm-*"])
        async with serving(full, faulty, picky) as client:
            held = asyncio.create_task(post(client, "/predict", {"inputs": [["a"]]}))
            while client.fleet.seen("a").in_flight < 1:  # noqa: ASYNC110 - counters have no event
                await asyncio.sleep(0.001)
            over = await post(client, "/predict", {"inputs": [["a"]]})
            assert (over.status, json.loads(over.body)["error_type"], over.headers["Retry-After"].isdigit()) == (429, "Overloaded", True)
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
            assert json.loads((await post(client, "/classify", {"text": ["a"]}, "b")).body) == {
                "error": {"message": "The server had an error while processing the request."}
            }
            assert (await post(client, "/classify", {"model": "gpt", "input": ["a"]}, "c")).status == 404
            assert (await post(client, "/classify", {"model": "rm-7b", "input": ["a", "b"]}, "c")).status == 200
            seen = client.fleet.seen("c")
            assert (seen.answered, seen.errors, seen.tokens) == (1, {"unknown_model": 1}, 2)
            assert client.fleet.seen("b").errors == {"error_500": 1}

    run(main())


def test_a_failure_of_the_work_comes_after_the_work_and_frees_its_slot() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", kind="tei", max_concurrency=2)) as client:
            for _ in range(3):
                assert (await post(client, "/predict", {"inputs": [[NAN]]})).status == 424
            seen = client.fleet.seen("a")
            assert (seen.errors, seen.in_flight, seen.rejected) == ({"backend": 3}, 0, 0)

    run(main())


def test_each_server_has_its_own_availability_routes() -> None:
    every = {"/health", "/load", "/metrics", "/version", "/v1/models", "/ready", "/v1/loads", "/get_load", "/info", "/v1/health/ready"}
    expected = {
        "vllm": {"/health", "/load", "/metrics", "/version", "/v1/models"},
        "sglang": {"/health", "/ready", "/v1/loads", "/metrics", "/v1/models"},
        "tei": {"/health", "/info", "/metrics"},
        "openrlhf": set(),
        "nim": {"/v1/health/ready", "/v1/models"},
        "openai": {"/health", "/v1/models"},
    }

    async def main() -> dict[str, set[str]]:
        async with serving(*of_all_kinds()) as client:
            return {kind: {path for path in every if (await client.get(kind, path)).status == 200} for kind in SERVER_KINDS}

    assert run(main()) == expected


def test_chats_and_embeddings_go_on_as_before_where_the_server_has_them() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", kind="vllm"), FakeEndpoint("b", kind="sglang")) as client:
            for name in "ab":
                assert (await client.chat(name)).status == 200
                assert (await client.post(name, "/embeddings", {"model": "m", "input": ["a"]})).status == 200

    run(main())


def test_tei_takes_embeddings_at_all_its_routes_with_and_without_a_model() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", kind="tei")) as client:
            found: dict[str, Any] = {}
            for path, body in {
                "/v1/embeddings": {"model": "m", "input": ["a", "b"]},
                "/embeddings": {"input": ["a", "b"]},
                "/embed": {"inputs": ["a", "b"], "normalize": True},
            }.items():
                answer = await post(client, path, body)
                assert answer.status == 200, path
                found[path] = json.loads(answer.body)
            vectors = found["/embed"]
            assert len(vectors) == 2
            assert all([row["embedding"] for row in found[path]["data"]] == vectors for path in ("/v1/embeddings", "/embeddings"))
            errors = {path: json.loads((await post(client, path, {"inputs": [], "input": []})).body) for path in found}
            assert [sorted(error) for error in errors.values()] == [["code", "message", "type"]] * 2 + [["error", "error_type"]]

    run(main())


def test_a_kind_and_its_scoring_travel_to_a_child_process() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", kind="tei", scoring=Scoring(labels=("good",))), process=True) as client:
            (row,) = json.loads((await post(client, "/predict", {"inputs": [["x"]], "raw_scores": True})).body)
            assert row == [{"score": score_of("x"), "label": "good"}]

    run(main())


def test_the_kind_may_be_changed_while_it_runs() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a")) as client:
            assert (await post(client, "/predict", {"inputs": "x"})).status == 404
            client.fleet.set("a", kind="tei")
            assert (await post(client, "/predict", {"inputs": "x"})).status == 200

    run(main())


def test_an_unknown_kind_or_scoring_is_refused() -> None:
    with pytest.raises(ConfigError, match="kind"):
        FakeEndpoint("a", kind="tgi")
    with pytest.raises(ConfigError, match="did you mean 'max_items'"):
        FakeFleet([{"name": "a", "scoring": {"max_item": 3}}])


def test_work_on_a_list_takes_longer_with_each_item() -> None:
    spec = FakeEndpoint("a", kind="vllm", latency=Latency(base=0.02), scoring=Scoring(per_item=0.0015))
    body = json.dumps({"model": "m", "input": ["a"] * 64}).encode()
    kind = SERVER_KINDS["vllm"]
    job = kind.routes["/classify"](RouteCall(kind, "/classify", body, spec))
    assert (job.items, job.service) == (64, pytest.approx(0.116))
