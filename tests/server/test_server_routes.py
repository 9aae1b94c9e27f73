"""What the server answers, over real HTTP: each form, errors by completion, and what it tells of itself."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any

import pytest
from server_tools import Lengths, served
from shared_tools import run, until

from qreward.errors import ConfigError
from qreward.server import ServerConfig, create_app


def ask(scorer: Any, *asked: tuple[str, Any], **settings: Any) -> list[tuple[int, Any]]:
    """Status and document of each request, sent one after the other."""

    async def main() -> list[tuple[int, Any]]:
        async with served(scorer, **settings) as server:
            answers = [await server.post(path, body) for path, body in asked]
            return [(answer.status_code, answer.json()) for answer in answers]

    return run(main())


def picky(completions: list[str], metadata: list[dict[str, Any]]) -> list[Any]:
    """A number, metadata and an error each in its way."""
    return [
        {"reward": math.nan} if text == "nan" else {"reward": len(text), "score": 0.5, "said": text, "odd": {1, 2}, "meta": meta}
        for text, meta in zip(completions, metadata, strict=True)
    ]


def test_openrlhf_gets_rewards_scores_and_the_numbers_of_the_logs_and_hands_prompts_and_labels_to_the_scorer() -> None:
    body = {"query": ["p1a", "p2bb"], "prompts": ["p1", "p2"], "labels": ["x", 7]}
    scored = {"rewards": [3.0, 4.0], "scores": [0.5, 0.5], "extra_logs": {"score": [0.5, 0.5]}}
    assert ask(picky, ("/get_reward", body)) == [(200, scored)]
    scorer = Lengths()
    bodies = [
        {"query": ["a"], "prompts": ["p"], "labels": [{"answer": 4}]},
        {"query": ["b"]},
        {"query": "c", "prompts": None, "labels": "l"},
    ]
    answers = ask(scorer, *(("/get_reward", body) for body in bodies))
    assert answers == [(200, {"rewards": [1.0], "scores": [1.0], "extra_logs": {}})] * 3
    assert scorer.metadata == [{"prompt": "p", "label": {"answer": 4}}, {}, {"label": "l"}]


def test_openrlhf_gets_an_error_status_and_no_number_where_a_reward_is_missing() -> None:
    first, some, none = ask(picky, *(("/get_reward", {"query": texts}) for texts in (["nan"], ["nan", "aa"], ["nan"])))
    assert (first[0], some[0], none[0]) == (500, 424, 422)  # as soon as something was scored, what is not has itself to blame
    assert some[1]["error"]["errors"] == ["the scorer returned nan, which is not a reward", None]
    assert "rewards" not in some[1]
    assert some[1]["error"]["message"].startswith("1 of 2 completions have no reward")


def test_the_buffers_form_is_known_by_its_metadata_and_gives_errors_beside_rewards() -> None:
    single, several, failed, none = ask(
        picky,
        ("/get_reward", {"query": "aa", "metadata": {"k": 1}, "prompts": "p"}),
        ("/get_reward", {"query": ["aa", "nan"], "metadata": [{}, {}], "prompts": None}),
        ("/get_reward", {"query": "nan", "metadata": {}}),
        ("/get_reward", {"query": [], "metadata": []}),
    )
    meta = {"score": 0.5, "said": "aa", "odd": [1, 2]}
    assert single == (200, {"reward": 2.0, "error": None, "meta": {**meta, "k": 1, "prompt": "p"}, "next_turn_feedback": None})
    error = "the scorer returned nan, which is not a reward"
    assert several[0] == 200
    assert (several[1]["rewards"], several[1]["errors"], several[1]["metas"]) == ([2.0, None], [None, error], [meta, {}])
    assert failed == (200, {"reward": None, "error": error, "meta": {}, "next_turn_feedback": None})
    assert none == (200, {"rewards": [], "error": None, "errors": [], "metas": [], "next_turn_feedback": None})


def test_singleton_mode_answers_lists_of_one_as_one_and_refuses_longer_ones() -> None:
    one, two = ask(
        Lengths(),
        ("/get_reward", {"query": ["aa"], "metadata": [{}]}),
        ("/get_reward", {"query": ["a", "b"], "metadata": [{}, {}]}),
        mode="singleton",
    )
    assert one[1]["reward"] == 2.0
    assert two[0] == 422
    assert "singleton mode" in two[1]["error"]["message"]


def test_what_json_cannot_hold_in_a_scorers_result_becomes_text() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop

    async def scorer(completions: list[str]) -> list[Any]:
        return [{"reward": 1, "odd": object, "bytes": b"x", "loop": loop, "lone": "\ud800", ("a", 1): math.nan} for _ in completions]

    ((status, answer),) = ask(scorer, ("/get_reward", {"query": "a", "metadata": {}}))
    assert (status, answer["reward"]) == (200, 1.0)
    assert answer["meta"]


def test_classify_gives_the_reward_as_the_only_class() -> None:
    one, list_ = ask(
        Lengths(),
        ("/classify", {"model": "rm", "input": "aaa"}),
        ("/classify", {"model": "rm", "input": ["a", "poison", "cc"], "use_activation": False}),
    )
    row = {"index": 0, "label": "LABEL_0", "probs": [3.0], "num_classes": 1}
    assert one[1]["data"] == [row]
    assert (one[1]["object"], one[1]["model"]) == ("list", "reward")
    failed = {"index": 1, "label": None, "probs": [None], "num_classes": 1, "error": "ValueError: poison was found"}
    assert list_[1]["data"][1] == failed
    assert [row["probs"] for row in list_[1]["data"]] == [[1.0], [None], [2.0]]


def test_an_activation_is_applied_under_each_of_its_names() -> None:
    squeezed = pytest.approx(1 / (1 + math.exp(-3)))
    classes = ask(Lengths(), *(("/classify", {"input": ["aaa"], name: True}) for name in ("use_activation", "activation", "softmax")))
    assert [answer["data"][0]["probs"] for _, answer in classes] == [[squeezed]] * 3
    scores = ask(Lengths(), *(("/score", {"text_1": "q", "text_2": "aaa", name: True}) for name in ("use_activation", "activation")))
    assert [answer["data"][0]["score"] for _, answer in scores] == [squeezed] * 2


def test_classify_judges_the_last_message_of_a_conversation() -> None:
    scorer = Lengths()
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "an earlier question"},
        {"role": "assistant", "content": "an earlier answer"},
        {"role": "user", "content": [{"type": "text", "text": "2 + 2"}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "4444"},
    ]
    ((status, answer),) = ask(scorer, ("/classify", {"messages": messages}))
    assert (status, answer["data"][0]["probs"]) == (200, [4.0])
    assert scorer.metadata == [{"prompt": "2 + 2?", "messages": messages[:-1]}]


def test_score_takes_pairs_one_by_many_or_many_by_many_under_any_name() -> None:
    scorer = Lengths()
    names = [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"), ("queries", "items")]
    forms = [(path, left, right) for path in ("/score", "/v1/score") for left, right in names]
    one = ask(scorer, *((path, {left: "q", right: ["a", "bb"]}) for path, left, right in forms))
    assert [meta["prompt"] for meta in scorer.metadata] == ["q"] * 16
    scorer.metadata.clear()
    many = ask(scorer, *((path, {left: ["q", "r"], right: ["a", "poison"]}) for path, left, right in forms))
    assert [meta["prompt"] for meta in scorer.metadata[:2]] == ["q", "r"]
    rows = [{"index": 0, "object": "score", "score": 1.0}, {"index": 1, "object": "score", "score": 2.0}]
    assert [answer["data"] for _, answer in one] == [rows] * len(forms)
    assert [[row["score"] for row in answer["data"]] for _, answer in many] == [[1.0, None]] * len(forms)
    assert {answer["data"][1]["error"] for _, answer in many} == {"ValueError: poison was found"}


def test_a_list_without_any_reward_is_a_failure_and_one_out_of_time_a_timeout() -> None:
    (failed,) = ask(Lengths(), ("/classify", {"input": ["poison", "poison"]}))
    (late,) = ask(Lengths(30.0), ("/score", {"text_1": "q", "text_2": "a"}), timeout=0.05)
    assert (failed[0], failed[1]["error"]["type"]) == (500, "scorer_failed")
    assert (late[0], late[1]["error"]["type"]) == (504, "timeout")


WRONG_BODIES: list[tuple[str, Any, list[Any]]] = [
    ("/get_reward", {"query": ["a", 3]}, ["query", 1]),
    ("/get_reward", {"query": None}, ["query"]),
    ("/get_reward", {}, []),
    ("/get_reward", [1], []),
    ("/get_reward", {"query": ["a"], "prompts": []}, ["prompts"]),
    ("/get_reward", {"query": ["a"], "labels": ["x", "y"]}, ["labels"]),
    ("/get_reward", {"query": ["a"], "metadata": [{}, {}]}, ["metadata"]),
    ("/get_reward", {"query": ["a"], "metadata": [3]}, ["metadata", 0]),
    ("/get_reward", {"query": ["a"], "metadata": [{}], "labels": ["x"]}, ["labels"]),
    ("/get_reward", {"query": ["a"] * 4}, ["query"]),
    ("/get_reward", {"query": ["a", "b" * 11]}, ["query", 1]),
    ("/get_reward", {"query": "b" * 11}, ["query"]),
    ("/classify", {}, ["input"]),
    ("/classify", {"input": [1, 2]}, ["input", 0]),
    ("/classify", {"input": "a", "messages": []}, ["input"]),
    ("/classify", {"messages": []}, ["messages"]),
    ("/classify", {"messages": [{"role": "user", "content": None}]}, ["messages", 0, "content"]),
    ("/score", {"text_1": "a"}, ["text_2"]),
    ("/score", {"text_1": "a", "queries": "a", "text_2": "b"}, ["text_1"]),
    ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, ["text_2"]),
]


def test_a_wrong_body_is_refused_with_the_place_and_never_scored() -> None:
    scorer, wrong = Lengths(), []
    answers = ask(scorer, *((path, body) for path, body, _ in WRONG_BODIES), max_items=3, max_text_chars=10)
    for (path, body, where), (status, answer) in zip(WRONG_BODIES, answers, strict=True):
        error = answer["error"]
        if (status, error["where"]) != (422, where) or not error["message"].startswith(".".join(map(str, where))):
            wrong.append((path, body, status, error))
    assert wrong == []
    assert scorer.batches == []
    ((status, answer),) = ask(scorer, ("/get_reward", {"query": ["a" * 10, "b", "c"]}), max_items=3, max_text_chars=10)
    assert (status, answer["rewards"]) == (200, [10.0, 1.0, 1.0]), "as many as may be"


async def test_requests_of_all_forms_share_batches() -> None:
    scorer = Lengths(held=True)
    async with served(scorer) as server:
        first = asyncio.ensure_future(server.post("/get_reward", {"query": ["a"]}))
        await until(lambda: scorer.batches)
        bodies = [
            ("/classify", {"input": "bb"}),
            ("/score", {"text_1": "q", "text_2": "ccc"}),
            ("/get_reward", {"query": "d", "metadata": {}}),
        ]
        others = [asyncio.ensure_future(server.post(*asked)) for asked in bodies]
        await until(lambda: server.service.buffer.waiting == 3)
        assert scorer.release is not None
        scorer.release.set()
        assert {answer.status_code for answer in await asyncio.gather(first, *others)} == {200}
        assert [len(batch) for batch in scorer.batches] == [1, 3]


async def test_the_server_shows_its_health_and_its_model() -> None:
    async with served(Lengths(), model="my-verifier") as server:
        for path in ("/health", "/liveness"):
            assert (await server.client.get(path)).json() == {"status": "ok"}
        assert (await server.client.get("/v1/models")).json()["data"][0]["id"] == "my-verifier"
        wrong = await server.client.get("/get_reward")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert (await server.client.get("/nowhere")).json()["error"]["type"] == "not_found"


def test_the_metrics_are_what_prometheus_reads_and_agree_with_what_happened() -> None:
    async def main() -> str:
        async with served(Lengths()) as server:
            await server.post("/get_reward", {"query": ["a", "bb", "poison"]})
            await server.post("/get_reward", {"query": 3})
            await server.post("/strange/path", {})
            answer = await server.client.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            return answer.text

    text = run(main())
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [-+0-9.e]+', line), line
    assert samples['qreward_server_requests_total{route="/get_reward",status="424"}'] == "1"
    assert samples['qreward_server_requests_total{route="/get_reward",status="422"}'] == "1"
    assert samples['qreward_server_requests_total{route="other",status="404"}'] == "1"
    assert samples['qreward_server_completions_total{outcome="scored"}'] == "2"
    assert samples['qreward_server_completions_total{outcome="failed"}'] == "1"
    assert samples["qreward_serve_actual_batch_size_sum"] == "3"
    assert samples['qreward_serve_actual_batch_size_bucket{le="2"}'] == "0"
    assert samples['qreward_serve_actual_batch_size_bucket{le="4"}'] == samples["qreward_serve_actual_batch_size_count"] == "1"
    assert samples["qreward_serve_batch_wait_time_seconds_count"] == "3"
    assert samples["qreward_serve_batch_queue_length"] == "0"
    assert samples['qreward_server_rejections_total{reason="invalid_request"}'] == "1"


async def test_an_unexpected_failure_is_answered_500_without_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(Lengths()) as server:
        monkeypatch.setattr(server.service.buffer, "score", None)
        answer = await server.post("/get_reward", {"query": ["a"]})
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal_error")
        assert "NoneType" not in answer.text


def test_settings_come_as_a_config_or_by_name_and_not_both() -> None:
    assert create_app(Lengths(), ServerConfig(model="x")).config.model == "x"
    with pytest.raises(ConfigError, match="not both"):
        create_app(Lengths(), ServerConfig(), model="x")
    assert json.loads(ServerConfig().model_dump_json())["port"] == 5000
