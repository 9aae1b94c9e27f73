"""Each operation and each error at each kind of server over real HTTP: every item gets its own value, which a test can compute."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reward_tools import answered, ask, call, codec, failed
from shared_tools import each, run

from qreward.codecs.base import EmbeddedError, Reply
from qreward.codecs.rewards.base import Operation, RewardScore, splits
from qreward.codecs.rewards.kinds import BUILT_IN, CLASSIFY, COMPLETE, EMBED, MODERATE, RERANK, SCORE
from qreward.errors import AuthenticationFailed, BadRequest, ConfigError, InvalidResponse, RateLimited, RequestError
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import BATCH_KIND, SERVER_KINDS, Endpoint, RewardModel
from qreward.testing import NAN, REFUSED, FakeEndpoint, FakeFleet, Faults, Scoring
from qreward.testing.bodies import canonical, digest_of, echo_text, logits_of, probabilities_of, score_of, softmax, vector
from qreward.transport.backend import HttpBackend
from qreward.transport.connection_settings import Secrets
from qreward.transport.error_mapping import FailedReply

TEXTS = ["good", "bad", "großer 😀 \u2028", "good again"]
PAIRS = [("2 + 2?", "4"), ("2 + 2?", "5"), ("why {prompt}?", "{response}")]
THREE = Scoring(labels=("bad", "fair", "good"))
TEMPLATE = "<u>{prompt}<a>{response}"


def fake(kind: Any, **settings: Any) -> FakeEndpoint:
    return FakeEndpoint("gpu-0", kind=kind, **settings)


RAW_SCORES: list[tuple[str, dict[str, Any], Scoring]] = [
    ("vllm", {}, Scoring()),
    ("vllm", {"route": "classify"}, Scoring()),
    ("vllm", {"route": "pooling"}, Scoring()),
    ("vllm", {"route": "embeddings"}, Scoring(reward_vectors=True)),
    ("sglang", {}, Scoring()),
    ("sglang", {"route": "embeddings"}, Scoring(reward_vectors=True)),
    ("tei", {}, Scoring()),
    ("openrlhf", {}, Scoring()),
]


@each("kind, settings, scoring", RAW_SCORES)
def test_each_text_gets_its_own_raw_score_and_a_template_makes_one_text_of_each_pair(
    kind: str, settings: dict[str, Any], scoring: Scoring
) -> None:
    answer = answered(fake(kind, scoring=scoring), call(SCORE, TEXTS), RewardModel(**settings))
    assert answer.items == [pytest.approx(score_of(text)) for text in TEXTS]
    assert all(type(item) is RewardScore for item in answer.items)
    answer = answered(fake(kind, scoring=scoring), call(SCORE, PAIRS), RewardModel(template=TEMPLATE, **settings))
    assert answer.items == [pytest.approx(score_of(f"<u>{prompt}<a>{response}")) for prompt, response in PAIRS]


@each("settings", [{}, {"route": "score"}])
def test_pairs_stay_pairs_where_the_server_takes_them(settings: dict[str, Any]) -> None:
    kind = "vllm" if settings else "tei"
    answer = answered(fake(kind), call(SCORE, PAIRS), RewardModel(**settings))
    assert answer.items == [pytest.approx(score_of(list(pair))) for pair in PAIRS]


@each("route", ["classify", "pooling"])
def test_a_pair_or_a_chat_goes_through_the_template_of_vllm_alone(route: Any) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    for item in (("2 + 2?", "4"), messages, {"messages": messages}, (messages[:1], "4")):
        answer = answered(fake("vllm"), call(SCORE, [item]), RewardModel(route=route))
        assert answer.items == [pytest.approx(score_of(messages))]


def test_nim_gives_its_attributes_and_the_one_that_is_the_reward() -> None:
    scoring = Scoring(labels=("helpfulness", "correctness"))
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    answer = answered(fake("nim", scoring=scoring), call(SCORE, [("q", "a")]), RewardModel(label="helpfulness"))
    helpfulness, correctness = logits_of(messages, scoring.labels)
    (score,) = answer.items
    assert score == pytest.approx(helpfulness, abs=5e-4)
    assert score.attributes == {"helpfulness": score, "correctness": pytest.approx(correctness, abs=5e-4)}
    (lone,) = answered(fake("nim"), call(SCORE, [messages])).items
    assert lone == pytest.approx(score_of(messages), abs=5e-4)


def test_openrlhf_gives_the_reward_its_score_and_its_logs() -> None:
    (score,) = answered(fake("openrlhf"), call(SCORE, [("2 + 2?", "4")])).items
    assert score == pytest.approx(score_of("2 + 2?4"))
    assert score.attributes["score"] == pytest.approx(score / 10)
    assert score.attributes["length"] == 7
    (length,) = answered(fake("openrlhf"), call(SCORE, ["abc"]), RewardModel(label="length")).items
    assert length == 3.0


@each("kind", ["vllm", "tei"])
def test_an_activation_is_applied_where_it_is_asked_for(kind: str) -> None:
    answer = answered(fake(kind), call(SCORE, TEXTS), RewardModel(activation=True))
    assert answer.items == [pytest.approx(probabilities_of([score_of(text)])[0]) for text in TEXTS]


@each("kind", ["vllm", "sglang", "tei"])
def test_classes_come_as_probabilities_by_label(kind: str) -> None:
    settings = RewardModel() if kind == "tei" else RewardModel(labels=THREE.labels)
    answer = answered(fake(kind, scoring=THREE), call(CLASSIFY, TEXTS), settings)
    for text, found in zip(TEXTS, answer.items, strict=True):
        assert found == pytest.approx(dict(zip(THREE.labels, softmax(logits_of(text, THREE.labels)), strict=True)))


@each("kind, label, labels", [("vllm", "fair", THREE.labels), ("vllm", 1, ()), ("tei", "fair", ()), ("tei", 1, THREE.labels)])
def test_the_class_that_is_the_reward_may_be_named_or_counted(kind: str, label: Any, labels: tuple[str, ...]) -> None:
    answer = answered(fake(kind, scoring=THREE), call(SCORE, TEXTS), RewardModel(label=label, labels=labels))
    assert answer.items == [pytest.approx(logits_of(text, THREE.labels)[1]) for text in TEXTS]


@each("kind", ["vllm", "sglang", "tei"])
def test_a_ranking_comes_back_in_the_order_of_the_documents(kind: str) -> None:
    answer = answered(fake(kind), call(RERANK, TEXTS, query="q"))
    expected = [score_of(["q", text]) for text in TEXTS]
    assert expected != sorted(expected, reverse=True), "the texts would not show a wrong order"
    squeezed = expected if kind == "sglang" else [probabilities_of([score])[0] for score in expected]
    assert answer.items == [pytest.approx(score) for score in squeezed]


@each("kind", ["openai", "vllm", "sglang", "tei"])
@each("form", ["float", "base64"])
def test_each_text_gets_its_own_vector_in_either_form(kind: str, form: str) -> None:
    answer = answered(fake(kind), call(EMBED, TEXTS, encoding_format=form))
    assert answer.items == [pytest.approx(vector(canonical(text), 16).tolist()) for text in TEXTS]


@each("kind", ["openai", "vllm", "sglang"])
def test_each_prompt_gets_its_own_choices(kind: str) -> None:
    answer = answered(fake(kind), call(COMPLETE, TEXTS, n=2, max_tokens=5))
    for text, choices in zip(TEXTS, answer.items, strict=True):
        assert [choice["index"] for choice in choices] == [0, 1]
        assert {choice["text"] for choice in choices} == {echo_text(digest_of(text))}
    shares = answer.shares()
    assert [share.text() for share in shares] == [echo_text(digest_of(text)) for text in TEXTS]  # type: ignore[union-attr]


def test_moderations_take_texts_or_the_parts_of_one() -> None:
    answer = answered(fake("openai"), call(MODERATE, TEXTS))
    assert [item["flagged"] for item in answer.items] == [score_of(text) > 0 for text in TEXTS]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (alone,) = answered(fake("openai"), call(MODERATE, [parts])).items
    assert alone["flagged"] == (score_of(parts) > 0)


@each("kind", ["vllm", "sglang", "tei", "openrlhf"])
def test_a_base_url_may_end_in_v1_or_not(kind: str) -> None:
    items = answered(fake(kind), call(SCORE, TEXTS), rooted=True).items
    assert items == [pytest.approx(score_of(text)) for text in TEXTS]


def test_usage_is_exact_for_each_item_of_sglang_and_shared_out_for_vllm() -> None:
    for kind, estimated in (("sglang", False), ("vllm", True)):
        answer = answered(fake(kind), call(SCORE, TEXTS))
        shares = answer.shares()
        assert [share.estimated for share in shares] == [estimated] * len(TEXTS)  # type: ignore[union-attr]
        assert answer.usage is not None
        assert sum(share.usage.prompt_tokens for share in shares) == answer.usage.prompt_tokens  # type: ignore[union-attr, misc]


UNASKABLE: list[tuple[str, Operation]] = [
    ("openrlhf", RERANK),
    ("openrlhf", EMBED),
    ("nim", CLASSIFY),
    ("tei", COMPLETE),
    ("vllm", MODERATE),
    ("openai", SCORE),
]


@each("kind, operation", UNASKABLE)
def test_a_server_that_cannot_be_asked_that_is_passed_over_for_another(kind: str, operation: Operation) -> None:
    failure = failed(fake(kind), call(operation, ["a"], query="q"))
    assert (failure.kind, type(failure.error), failure.misconfigured) == (FailureKind.UNSUITABLE, ConfigError, True)


@each(
    "kind, item, said",
    [
        ("sglang", ("q", "a"), "template"),
        ("sglang", [{"role": "user", "content": "q"}], "no conversations"),
        ("tei", [{"role": "user", "content": "q"}], "no conversations"),
        ("openrlhf", [{"role": "user", "content": "q"}], "no conversations"),
        ("nim", "a text", "judges conversations"),
    ],
)
def test_an_item_in_a_shape_that_the_server_does_not_take_is_not_sent(kind: str, item: Any, said: str) -> None:
    failure = failed(fake(kind), call(SCORE, [item]))
    assert (failure.kind, type(failure.error)) == (FailureKind.UNSENDABLE, BadRequest)
    assert said in str(failure.error)


def test_a_conversation_cannot_share_a_request_and_the_codec_says_so_before() -> None:
    asked = call(SCORE, [("q", "a"), ("q", "b")])
    assert not codec("vllm", asked).mergeable(asked.inputs[0])
    assert codec("vllm", asked, template=TEMPLATE).mergeable(asked.inputs[0])
    assert codec("vllm", asked, route="score").mergeable(asked.inputs[0])
    assert "one chat per request" in str(failed(fake("vllm"), asked).error)


def test_every_kind_of_the_policy_has_a_fake_and_can_be_asked_something() -> None:
    assert [kind.name for kind in BUILT_IN] == SERVER_KINDS
    fakes = FakeEndpoint.model_fields["kind"].annotation.__args__  # type: ignore[union-attr]
    assert [*fakes, BATCH_KIND] == SERVER_KINDS
    for kind in sorted({*SERVER_KINDS} - {BATCH_KIND}):
        assert codec(kind, call(EMBED if kind == "openai" else SCORE, ["a"])).path.startswith("/")


# errors, in their own forms: what they mean, and what is done about a list

LONG = "x" * 400


SHORT = Scoring(max_tokens=50)
ONE_BAD: list[tuple[str, str, FailureKind, int, bool]] = [
    # kind, bad item, what it comes to, status, whether the list is halved
    ("vllm", LONG, FailureKind.UNSUITABLE, 400, True),
    ("vllm", REFUSED, FailureKind.REFUSED, 400, True),
    ("sglang", LONG, FailureKind.UNSUITABLE, 400, True),
    ("sglang", REFUSED, FailureKind.REFUSED, 400, True),
    ("tei", LONG, FailureKind.UNSUITABLE, 422, True),
    ("tei", REFUSED, FailureKind.REFUSED, 422, True),
    ("tei", NAN, FailureKind.TRANSIENT, 424, True),
    ("openrlhf", REFUSED, FailureKind.REFUSED, 422, True),
    ("openrlhf", NAN, FailureKind.TRANSIENT, 500, False),
]


@each("kind, bad, expected, status, halved", ONE_BAD)
def test_one_bad_item_fails_its_whole_list(kind: str, bad: str, expected: FailureKind, status: int, halved: bool) -> None:
    failure = failed(fake(kind, scoring=SHORT), call(SCORE, ["a", bad, "b"]))
    assert isinstance(failure.error, RequestError)
    assert (failure.kind, failure.error.status_code) == (expected, status)
    assert not failure.misconfigured
    assert splits(failure, 3) is halved


def test_a_score_that_is_null_fails_its_item_alone_and_if_there_is_no_other_the_whole_answer() -> None:
    for kind in ("vllm", "sglang"):
        outcome = run(ask(fake(kind), call(SCORE, ["a", NAN, "b"])))
        assert isinstance(outcome, Answer)
        first, bad, last = outcome.response.items
        assert (first, last) == (pytest.approx(score_of("a")), pytest.approx(score_of("b")))
        assert isinstance(bad, InvalidResponse)
    for kind, item in (("vllm", NAN), ("sglang", NAN), ("nim", ("q", NAN))):
        failure = failed(fake(kind), call(SCORE, [item]))
        assert (failure.kind, type(failure.error)) == (FailureKind.TRANSIENT, InvalidResponse), kind


@each("kind, status", [("tei", 429), ("sglang", 503), ("vllm", 503)])
@each("operation", [SCORE, RERANK, EMBED])
async def test_an_overload_is_never_halved_whatever_the_route_says_it_in(kind: Any, status: int, operation: Operation) -> None:
    full = FakeEndpoint("gpu-0", kind=kind, rpm=1, burst=1, reject_status=status)
    async with FakeFleet([full]) as fleet:
        endpoint, backend = Endpoint(fleet.urls["gpu-0"], kind=kind, proxy=""), HttpBackend()
        await backend.send(endpoint, call(operation, ["a"], query="q"))
        outcome = await backend.send(endpoint, call(operation, ["a", "b"], query="q"))
        await backend.aclose()
    assert isinstance(outcome, Failure)
    assert (outcome.kind, type(outcome.error)) == (FailureKind.OVERLOADED, RateLimited)
    assert not splits(outcome, 2)


def test_a_list_of_more_items_than_tei_has_permits_is_overload_for_ever() -> None:
    failure = failed(FakeEndpoint("gpu-0", kind="tei", max_concurrency=4), call(SCORE, list("abcde")))
    assert failure.kind is FailureKind.OVERLOADED


@each("kind", ["vllm", "sglang", "tei", "openrlhf", "nim"])
def test_a_wrong_key_is_understood_from_every_kind_of_server(kind: str) -> None:
    fake = FakeEndpoint("gpu-0", kind=kind, api_key="sk-right")
    asked = (
        call(EMBED, ["a"]) if kind == "vllm" else call(SCORE, [("q", "a")] if kind == "nim" else ["a"])
    )  # /classify of vLLM needs no key
    failure = failed(fake, asked)
    assert (failure.kind, type(failure.error), failure.misconfigured) == (FailureKind.UNSUITABLE, AuthenticationFailed, True)


@each("kind", ["vllm", "sglang", "tei", "openrlhf", "nim"])
@each(
    "fault, expected",
    [
        ("error_503", FailureKind.OVERLOADED),
        *((name, FailureKind.TRANSIENT) for name in ("error_500", "truncated", "malformed", "error_in_200")),
    ],
)
def test_faults_are_understood_from_every_kind_of_server(kind: str, fault: str, expected: FailureKind) -> None:
    faults: dict[str, Any] = {fault: 1.0}
    faulty = FakeEndpoint("gpu-0", kind=kind, faults=Faults(**faults))
    assert failed(faulty, call(SCORE, [("q", "a")] if kind == "nim" else ["a"])).kind is expected


EMBEDDED = [
    ({"error": "Model is overloaded", "error_type": "Overloaded"}, FailureKind.OVERLOADED),
    ({"error": "x", "error_type": "Validation"}, FailureKind.REFUSED),
    ({"object": "error", "message": "The request queue is full.", "type": "503", "code": 503}, FailureKind.OVERLOADED),
    ({"object": "error", "message": "x", "type": "BadRequest", "code": 400}, FailureKind.REFUSED),
    ({"object": "error", "message": "x", "code": 400}, FailureKind.REFUSED),
    ({"error": {"message": "x", "code": 400}}, FailureKind.REFUSED),
    ({"message": "x", "code": 429, "type": "Overloaded"}, FailureKind.OVERLOADED),
    ({"error": "scorer crashed", "reward": 0.0, "rewards": [0.0]}, FailureKind.TRANSIENT),
]


@each("document, expected", EMBEDDED)
@each("kind", ["vllm", "sglang", "tei", "openrlhf", "nim"])
def test_an_error_with_status_200_is_an_error_and_its_zero_is_no_reward(kind: str, document: Any, expected: FailureKind) -> None:
    asked = call(SCORE, ["a"] if kind != "nim" else [("q", "a")])
    with pytest.raises(EmbeddedError) as caught:
        codec(kind, asked).decode(json.dumps(document).encode(), asked)
    failure = FailedReply(Reply(200, {}, b""), "gpu-0", "m", Secrets()).by_body(caught.value)
    assert failure.kind is expected
