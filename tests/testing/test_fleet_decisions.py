"""Fake servers of decisions as their clients see them: answers, limits and errors of each dialect, and log probabilities of chats."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint
from fakes.faulty_judge import FaultyJudge, asked_of, distribution
from fakes.next_token import TOKENIZER
from fleet_tools import Answer, Client, serving, user

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions import OPENAI as OPENAI_DIALECT
from qreward.codecs.decisions import SGLANG as SGLANG_DIALECT
from qreward.codecs.decisions import SYSTEMONE, SYSTEMONE_OF_SGLANG, VLLM, Dialect, GenerativeScoringDialect
from qreward.decisions import Choice, Question, Score, YesNo
from qreward.testing import SyntheticJudge

TEXT = "The answer is 4, and it is right. "
RIGHT, CLEAR, TONE = YesNo("It is right."), Score("How clear?", levels=["bad", "fair", "good"]), Choice("Tone?", choices=["calm", "rude"])
QUESTIONS = (RIGHT, CLEAR, TONE)
JUDGE = FaultyJudge(noise=0.7, bias=0.3, temperature=0.8, flip=0.1, label_mass=0.9, seed=5)
DIALECTS = ("openai", "vllm", "vllm_unsupported", "generative_scoring", "sglang", "systemone")
KINDS = {"openai": "openai", "sglang": "sglang", "systemone": "sglang"}
DECISIONS, SYSTEM_ONE, SCORING = "/v1/decisions", "/v1/systemone", "/generative_scoring"

PREDICATE = {"type": "predicate", "instructions": "It is right."}
LEVELS = {
    "type": "score",
    "instructions": "How clear?",
    "levels": [{"label": "bad"}, {"label": "fair"}, {"label": "good", "description": "x"}],
}
VALUES = {"type": "choice", "name": "tone", "instructions": "Tone?", "choices": [{"value": "calm"}, {"value": "rude", "description": "x"}]}
OPENAI: dict[str, Any] = {"model": "m", "input": TEXT, "questions": [PREDICATE, LEVELS, VALUES]}
YES_NO = {"id": "r", "type": "yes_no", "question": "It is right.", "yes": "all of it"}
SGLANG: dict[str, Any] = {"model": "m", "input": TEXT, "questions": [
    YES_NO,
    {"id": "c", "type": "score", "question": "How clear?", "levels": ["bad", "fair", "good"]},
    {"id": "t", "type": "choice", "question": "Tone?", "options": [{"name": "calm"}, {"name": "rude", "description": "x"}]},
]}  # fmt: skip
NOUL = {"type": "noul", "instructions": "It is right.", "criteria": {"true": "all of it"}}
ONE: dict[str, Any] = {"model": "m", "state": TEXT, "questions": {
    "r": NOUL,
    "c": {"type": "score", "instructions": "How clear?", "criteria": ["bad", "fair", "good"]},
    "t": {"type": "choice", "instructions": "Tone?", "criteria": {"calm": None, "rude": "x"}},
}}  # fmt: skip
YES, NO = (TOKENIZER.ids(text)[0] for text in ("yes", "no"))
ITEM = "\n\nIs this true: It is right.\nReply with yes or no, and nothing else.\nAnswer:"
QUERY: dict[str, Any] = {"model": "m", "query": TEXT, "items": [ITEM], "label_token_ids": [YES, NO]}


def fakes(**settings: Any) -> list[ModelEndpoint]:
    settings = {"synthetic_judge": JUDGE, **settings}
    return [ModelEndpoint(name, dialect=name, kind=KINDS.get(name, "vllm"), **settings) for name in DIALECTS]


async def post(client: Client, name: str, path: str, body: Any) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = client.fleet.urls[name].removesuffix("/v1") + path
    async with client._session.post(url, data=content, headers={"Content-Type": "application/json"}) as response:
        return Answer(response.status, response.headers, await response.read())


async def document(client: Client, name: str, path: str, body: Any) -> Any:
    answer = await post(client, name, path, body)
    assert answer.status == 200, (name, path, answer)
    return json.loads(answer.body)


TRUTH = [distribution(JUDGE, TEXT, question) for question in QUESTIONS]
READERS: list[tuple[str, Dialect, tuple[float | None, ...]]] = [  # server, its dialect, and the label masses that it tells
    ("openai", OPENAI_DIALECT, (None,) * 3),
    ("vllm", VLLM, (None, 0.9, 0.9)),
    ("vllm", SYSTEMONE, (0.9,) * 3),
    ("sglang", SGLANG_DIALECT, (0.9,) * 3),
    ("sglang", SYSTEMONE_OF_SGLANG, (0.9,) * 3),
    ("systemone", SYSTEMONE_OF_SGLANG, (None,) * 3),
    *((name, GenerativeScoringDialect((YES, NO)), (None,)) for name in ("vllm", "vllm_unsupported", "generative_scoring")),
]


async def test_the_answers_are_the_judges_distribution_as_each_dialect_reads_it() -> None:
    async with serving(*fakes()) as client:
        for name, dialect, masses in READERS:
            asked = tuple(question for question in QUESTIONS if type(question) in dialect.types)
            call = WireRequest(dialect, "m", dialect.validate((TEXT, asked)), {}, None)
            root = "" if getattr(dialect, "native", False) else "/v1"
            answer = await post(client, name, root + dialect.path, dialect.encode(call, "m"))
            decision = dialect.decode(answer.body, call).build()
            assert [list(found.probabilities.values()) for found in decision] == [pytest.approx(true) for true in TRUTH[: len(asked)]], name
            assert [found.label_mass for found in decision] == [mass and pytest.approx(mass) for mass in masses], (name, dialect)
            assert decision.usage is not None
            assert decision.usage.completion_tokens == (0 if KINDS.get(name) == "sglang" else len(asked)), (name, dialect)


async def test_what_else_an_answer_says_follows_from_the_distribution() -> None:
    right, clear, tone = TRUTH
    level, chosen = pytest.approx(clear[1] + 2 * clear[2]), "calm" if tone[0] > tone[1] else "rude"
    messages = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]
    typed = {**OPENAI, "questions": [{**VALUES, "choices": [{"value": True}, {"value": "true"}]}]}
    async with serving(*fakes()) as client:
        for name in ("openai", "vllm"):
            predicate, score, choice = (await document(client, name, DECISIONS, {**OPENAI, "input": messages}))["answers"]
            assert (predicate["probability"], score["score"], score["confidence"]) == (right[0], level, max(clear) * 0.9)
            assert (choice["name"], choice["choice"], choice["confidence"]) == ("tone", chosen, max(tone) * 0.9)
            values = (await document(client, name, DECISIONS, typed))["answers"][0]["probabilities"]
            assert [each["value"] for each in values] == [True, "true"]
        plain, cold = [(await document(client, "sglang", DECISIONS, {**SGLANG, **more}))["answers"] for more in ({}, {"temperature": 0.5})]
        vllm, sglang = [(await document(client, name, SYSTEM_ONE, ONE))["answers"] for name in ("vllm", "sglang")]
    assert (plain["c"]["score"], plain["t"]["choice"]) == (level, chosen)
    yes, no = (cold["r"]["probabilities"][name] for name in ("yes", "no"))
    assert math.log(yes / no) == pytest.approx(2 * math.log(right[0] / right[1]))
    assert vllm["c"]["legend"] == sglang["c"]["legend"] == {"0": "bad", "1": "fair", "2": "good"}
    assert vllm["r"]["confidence"] == max(right) * 0.9
    assert sglang["t"]["confidence"] == pytest.approx(2 * max(tone) - 1), "how far above a uniform guess"
    spread = sum(number * abs(place - clear.index(max(clear))) for place, number in enumerate(clear))
    assert sglang["c"]["confidence"] == pytest.approx(max(0, 1 - spread / (2 / 3)))


async def test_generative_scoring_gives_the_probability_of_the_first_label() -> None:
    yes, no = TRUTH[0]
    bodies: list[tuple[dict[str, Any], float]] = [
        ({"label_token_ids": [NO, YES]}, no), ({"apply_softmax": False}, 0.9 * yes),
        ({"query": ITEM, "items": [TEXT], "item_first": True}, yes),
        ({"query": TOKENIZER.ids(TEXT), "items": [TOKENIZER.ids(ITEM)]}, yes),
    ]  # fmt: skip
    async with serving(*fakes()) as client:
        for change, wanted in bodies:
            score = (await document(client, "vllm", SCORING, {**QUERY, **change}))["data"][0]["score"]
            assert score == pytest.approx(wanted), change
        tokens = await document(client, "vllm", "/tokenize", {"model": "m", "prompt": "yes", "return_token_strs": True})
        assert tokens == {"count": 1, "max_model_len": 32768, "tokens": [YES], "token_strs": ["yes"]}


MANY = [PREDICATE] * 65
WIDE = {**VALUES, "choices": [{"value": str(number)} for number in range(27)]}
# Server, path, body -> status, type of the error, and what its message holds.
REFUSALS: list[tuple[str, str, Any, int, str, str]] = [
    ("openai", DECISIONS, {**OPENAI, "x": 1}, 400, "invalid_request_error", "x: Extra inputs are not permitted"),
    ("openai", DECISIONS, {**OPENAI, "questions": [PREDICATE] * 401}, 400, "invalid_request_error", "at most 400 items"),
    ("openai", DECISIONS, SGLANG, 400, "invalid_request_error", "Input tag 'yes_no'"),
    ("openai", DECISIONS, {**OPENAI, "input": 3}, 400, "invalid_request_error", "input"),
    ("vllm", DECISIONS, {**OPENAI, "prompt_cache_key": "x"}, 400, "Bad Request", "Extra inputs are not permitted"),
    ("vllm", DECISIONS, {**OPENAI, "input": [{"role": "system", "content": "x"}]}, 400, "Bad Request", "Input should be 'user'"),
    ("vllm", DECISIONS, {**OPENAI, "questions": MANY}, 400, "BadRequestError", "questions: at most 64 for this model"),
    ("vllm", DECISIONS, {**OPENAI, "questions": [PREDICATE] * 201}, 400, "Bad Request", "at most 200 items"),
    ("vllm", DECISIONS, {**OPENAI, "questions": [WIDE]}, 400, "BadRequestError", "This model supports at most 26 choices per question"),
    ("vllm", DECISIONS, {**OPENAI, "joint": True}, 400, "BadRequestError", "joint reads need DiffusionGemma"),
    ("vllm", DECISIONS, b"{", 400, "Bad Request", "JSON decode error"),
    ("vllm", SYSTEM_ONE, {**ONE, "questions": {}}, 400, "BadRequestError", "needs at least one question"),
    ("vllm", SYSTEM_ONE, {**ONE, "questions": {"a": {**NOUL, "x": 1}}}, 400, "BadRequestError", "question 'a': unknown field(s) ['x']"),
    ("vllm", SYSTEM_ONE, {**ONE, "questions": {"a": {"type": "yes"}}}, 400, "BadRequestError", "unknown question type 'yes'"),
    ("vllm", SYSTEM_ONE, {**ONE, "questions": {"a": {"type": "score", "criteria": [*"abcdefghijk"]}}}, 400, "BadRequestError", "most 10"),
    ("vllm", SCORING, {**QUERY, "items": []}, 400, "BadRequestError", "items must contain at least one item."),
    ("vllm", SCORING, {**QUERY, "label_token_ids": [1 << 30]}, 400, "BadRequestError", "out of vocabulary range"),
    ("vllm", "/tokenize", {"model": "m"}, 400, "BadRequestError", "Field required"),
    ("vllm_unsupported", DECISIONS, OPENAI, 501, "NotImplementedError", "The model does not support the Decisions API"),
    ("vllm_unsupported", SYSTEM_ONE, ONE, 501, "NotImplementedError", "The model does not support the structured decision API"),
    ("sglang", DECISIONS, OPENAI, 400, "Bad Request", "Input tag 'predicate' found using 'type' does not match any of the expected tags"),
    ("sglang", DECISIONS, {**SGLANG, "questions": [YES_NO, YES_NO]}, 400, "Bad Request", "question id 'r' repeats another question"),
    ("sglang", DECISIONS, {**SGLANG, "input": " "}, 400, "Bad Request", "must not be blank"),
    ("sglang", DECISIONS, {**SGLANG, "prompt_format_version": 2}, 400, "BadRequestError", "prompt_format_version 2 is not served"),
    ("systemone", DECISIONS, SGLANG, 400, "BadRequestError", "does not serve decision checkpoints, use /v1/systemone"),
]  # fmt: skip


async def test_a_refusal_has_the_form_of_its_server_and_says_what_is_wrong() -> None:
    wrong = []
    async with serving(*fakes()) as client:
        for name, path, body, status, kind, words in REFUSALS:
            answer = await post(client, name, path, body)
            found = json.loads(answer.body)
            error = found if KINDS.get(name) == "sglang" else found["error"]
            if (answer.status, error["type"]) != (status, kind) or words not in error["message"]:
                wrong.append((name, path, words, answer))
            assert set(error) - {"object"} == {"message", "type", "param", "code"}
        assert client.fleet.seen("vllm").errors == {"bad_request": sum(name == "vllm" for name, *_ in REFUSALS)}
    assert not wrong


async def test_sglangs_systemone_refuses_with_a_list_of_faults() -> None:
    wrong: tuple[dict[str, Any], ...] = ({}, {"a": {"type": "noul"}}, {"a": {**NOUL, "x": 1}})
    changes: list[dict[str, Any]] = [{"temperature": 1}, *({"questions": each} for each in wrong)]
    for change in changes:
        async with serving(*fakes()) as client:
            answer = await post(client, "sglang", SYSTEM_ONE, {**ONE, **change})
        (fault,) = json.loads(answer.body)["detail"]
        assert answer.status == 422
        assert (fault["loc"][0], "input" in fault) == ("body", False)
    async with serving(*fakes()) as client:
        assert (await post(client, "sglang", SYSTEM_ONE, {**ONE, "unknown": 1})).status == 200, "it ignores unknown members"


async def test_other_routes_are_not_there() -> None:
    bodies = {DECISIONS: OPENAI, SYSTEM_ONE: ONE, SCORING: QUERY, "/tokenize": {"prompt": "x"}}
    missing = {
        "openai": {SYSTEM_ONE, SCORING, "/tokenize"}, "generative_scoring": {DECISIONS, SYSTEM_ONE}, "sglang": {SCORING, "/tokenize"},
        "systemone": {SCORING, "/tokenize"}, "none": set(bodies),
    }  # fmt: skip
    async with serving(*fakes(), ModelEndpoint("none")) as client:
        for name in (*DIALECTS, "none"):
            found = {path for path, body in bodies.items() if (await post(client, name, path, body)).status == 404}
            assert found == missing.get(name, set()), name


async def test_keys_models_and_limits_count_for_decisions_as_for_chats() -> None:
    async with serving(*fakes(models=["m"], api_key="secret", rpm=1)) as client:
        answer = await post(client, "sglang", DECISIONS, SGLANG)
        assert (answer.status, json.loads(answer.body)["object"]) == (401, "error")
    async with serving(*fakes(models=["m"], rpm=1)) as client:
        statuses = [(await post(client, "vllm", DECISIONS, {**OPENAI, "model": model})).status for model in ("other", "m", "m")]
        assert statuses == [404, 200, 429]
        seen = client.fleet.seen("vllm")
        assert (seen.answered, seen.rejected, seen.errors) == (1, 1, {"unknown_model": 1})


async def test_a_question_can_be_refused_by_itself() -> None:
    judge = SyntheticJudge(refuse=0.3, label_mass=0.9)
    questions = [{**PREDICATE, "instructions": f"Is it {number}?", "name": str(number)} for number in range(40)]
    refused = [judge.read(TEXT, asked_of(YesNo(f"Is it {number}?"))).refused for number in range(40)]
    async with serving(*fakes(synthetic_judge=judge)) as client:
        answers = (await document(client, "openai", DECISIONS, {**OPENAI, "questions": questions}))["answers"]
        asked = [{"id": str(number), "type": "yes_no", "question": f"Is it {number}?"} for number in range(40)]
        elsewhere = (await document(client, "sglang", DECISIONS, {**SGLANG, "questions": asked}))["answers"]
    assert 0 < sum(refused) < 40
    assert [answer["type"] == "refusal" for answer in answers] == refused
    assert {tuple(answer) for answer in answers if answer["type"] == "refusal"} == {("type", "name")}
    assert [answer["label_mass"] < 0.01 for answer in elsewhere.values()] == refused, "no form for a refusal: nothing is left to the labels"


async def test_questions_share_the_input_in_the_prefix_cache() -> None:
    long = {**OPENAI, "input": TEXT * 100}
    async with serving(*fakes(served={"model": "8B", "time_scale": 0.001})) as client:
        used = [(await document(client, name, DECISIONS, long))["usage"] for name in ("vllm", "vllm", "openai", "openai")]
        seen = client.fleet.seen("vllm")
    once = len(TEXT) * 100 // 4
    cached = [each["input_tokens_details"]["cached_tokens"] for each in used]
    assert used[0]["input_tokens"] > 3 * once
    assert 1.9 * once < cached[0] < 2 * once + 16, "read once, found twice"
    assert 2.9 * once < cached[1] < used[1]["input_tokens"]
    assert once < used[2]["input_tokens"] < 1.2 * once
    assert cached[2] == 0 < 0.9 * once < cached[3]
    assert seen.cached == cached[0] + cached[1]


def chat(question: str, **params: Any) -> dict[str, Any]:
    return {"messages": user(f"{TEXT}\n\n{question}"), "max_tokens": 1, "logprobs": True, "top_logprobs": 20, **params}


CHATS: list[tuple[Question, str, tuple[str, ...]]] = [
    (RIGHT, "Is this true: It is right.\nReply with yes or no, and nothing else.", ("yes", "no")),
    (CLEAR, "Rate: How clear?\n0: bad\n1: fair\n2: good\nReply with one number.", ("0", "1", "2")),
    (TONE, "Question: Tone?\nA: calm\nB: rude: x\nReply with one letter.", ("A", "B")),
]


async def test_a_chat_that_asks_for_a_label_returns_the_judges_log_probabilities() -> None:
    async with serving(ModelEndpoint("a", synthetic_judge=JUDGE), ModelEndpoint("b", synthetic_judge=JUDGE, logprobs=False)) as client:
        for question, prompt, labels in CHATS:
            found = json.loads((await client.post("a", "/chat/completions", {"model": "m", **chat(prompt)})).body)
            (choice,) = found["choices"]
            (first,) = choice["logprobs"]["content"]
            of_label = dict.fromkeys(labels, 0.0)
            for entry in first["top_logprobs"]:
                if (label := entry["token"].strip().lower() if labels[0] == "yes" else entry["token"].strip().upper()) in of_label:
                    of_label[label] += math.exp(entry["logprob"])
            assert len(first["top_logprobs"]) == 20
            assert [number / 0.9 for number in of_label.values()] == pytest.approx(distribution(JUDGE, TEXT, question)), question
            assert sum(math.exp(entry["logprob"]) for entry in first["top_logprobs"]) == pytest.approx(1, abs=1e-3)
            assert choice["message"]["content"] == first["token"] == first["top_logprobs"][0]["token"]
            assert (choice["finish_reason"], found["usage"]["completion_tokens"]) == ("length", 1)
            ignoring = json.loads((await client.post("b", "/chat/completions", {"model": "m", **chat(prompt)})).body)["choices"][0]
            assert (ignoring["logprobs"], ignoring["message"]["content"]) == (None, first["token"])


async def test_log_probabilities_of_token_ids_are_vllms() -> None:
    body = {"model": "m", **chat(CHATS[0][1], logprob_token_ids=[YES, NO], top_logprobs=0)}
    async with serving(ModelEndpoint("vllm", kind="vllm", synthetic_judge=JUDGE), ModelEndpoint("openai", synthetic_judge=JUDGE)) as client:
        vllm, openai = [
            json.loads((await client.post(name, "/chat/completions", body)).body)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            for name in ("vllm", "openai")
        ]
    assert {"yes", "no"} <= {entry["token"] for entry in vllm}
    assert openai == []


async def test_other_chats_are_answered_as_ever_and_too_many_log_probabilities_are_refused() -> None:
    async with serving(ModelEndpoint("a")) as client:
        plain = json.loads((await client.chat("a", "hi")).body)["choices"]
        assert json.loads((await client.chat("a", "hi", logprobs=True, top_logprobs=5)).body)["choices"] == plain
        unasked = json.loads((await client.chat("a", f"{TEXT}\n\n{CHATS[0][1]}")).body)["choices"][0]
        assert unasked["message"]["content"].startswith('{"echo"')
        for params in ({"top_logprobs": 5}, {"logprobs": True, "top_logprobs": 21}):
            answer = await client.chat("a", CHATS[0][1], **params)
            assert (answer.status, b"logprobs" in answer.body) == (400, True)


async def test_a_truth_that_does_not_fit_is_an_error_of_the_server() -> None:
    async with serving(*fakes()) as client:
        answers = [await post(client, "vllm", path, body) for path, body in (
            (DECISIONS, {**OPENAI, "input": "truth=2"}), (SCORING, {**QUERY, "query": "truth=2"}),
            ("/v1/chat/completions", {"model": "m", **chat(CHATS[0][1], messages=user(f"truth=2\n\n{CHATS[0][1]}"))}),
        )]  # fmt: skip
    assert [(answer.status, b"truth='2'" in answer.body) for answer in answers] == [(500, True)] * 3
