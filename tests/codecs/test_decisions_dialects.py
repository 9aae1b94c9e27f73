"""What each dialect sends, and that what its servers answer is read as it was meant."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from decision_tools import ALL, CLEAR, QUESTIONS, RIGHT, SCORING, TONE, TYPED, answer, body_of, call, in_groups

from qreward.codecs.base import EmbeddedError, WireRequest
from qreward.codecs.decisions import (
    CHATS,
    CHATS_WITHOUT_THINKING,
    DIALECTS,
    LIKE_VLLM,
    OPENAI,
    ORDER,
    PROBE,
    SGLANG,
    SYSTEMONE,
    SYSTEMONE_OF_SGLANG,
    TAKE_ALL,
    VLLM,
    DecisionCodec,
    DecisionInput,
    Dialect,
    OpenAIDialect,
    as_text,
    unique_names,
)
from qreward.decisions import Choice, Question, Score, YesNo
from qreward.errors import BadRequest, ConfigError
from qreward.settings.policies import Endpoint

TALK = [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
AS_ONE = "system: Be strict.\n\nuser: 2 + 2?\n\nassistant: 4"
NUMBERS = {
    RIGHT.instructions: (0.75, 0.25), CLEAR.instructions: (0.125, 0.25, 0.625), TONE.instructions: (0.875, 0.125),
    TYPED.instructions: (0.0625, 0.5, 0.1875, 0.25),
}  # fmt: skip


def test_every_question_comes_back_with_its_distribution_and_label_mass_in_every_dialect() -> None:
    """OpenAI tells no label mass; vLLM tells it by the confidence of choices and scores; without a minimum any label mass is told."""
    told: dict[str, tuple[type, ...]] = {"openai": (), "vllm": (Score, Choice), "generative_scoring": ()}
    usages: dict[str, tuple[int, int, int, int | None]] = {
        "openai": (40, 4, 44, 16), "vllm": (40, 4, 44, 16), "sglang": (40, 0, 40, None), "chat": (40, 1, 41, None),
        "generative_scoring": (40, 4, 44, None),
    }  # fmt: skip
    faults = []
    for dialect in ALL:
        output = 4 if dialect is SYSTEMONE else 0
        for questions, share in itertools.product(in_groups(dialect), (1.0, 0.9, 0.01)):
            numbers = [NUMBERS[question.instructions] for question in questions]
            asked = call(dialect, questions)
            asked.inputs = asked.inputs._replace(min_label_mass=0.0)
            decision = dialect.decode(json.dumps(answer(dialect, questions, numbers, share)).encode(), asked).build()
            for question, found, wanted in zip(questions, decision, numbers, strict=True):
                mass = pytest.approx(share) if isinstance(question, told.get(dialect.name, (YesNo, Score, Choice))) else None
                right = pytest.approx(dict(zip(question.options, wanted, strict=True)))
                if found.question is not question or found.probabilities != right or found.label_mass != mass:
                    faults.append(f"{dialect!r} {question}: {found.error or found.probabilities}, {found.label_mass} of {share}")
            usage = decision.usage
            assert usage is not None
            counts = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cached_tokens
            assert (counts, decision.model) == (usages.get(dialect.name, (40, output, 40 + output, None)), "served"), dialect
    assert not faults, "\n".join(faults)


def test_the_confidence_of_system_one_is_ours_as_its_servers_compute_different_ones() -> None:
    for dialect in (SYSTEMONE, SYSTEMONE_OF_SGLANG):
        body = json.dumps(answer(dialect, [TONE], [(0.875, 0.125)], 0.5)).encode()
        assert dialect.decode(body, call(dialect, [TONE])).answers[0].confidence == 0.875 * 0.5


def test_questions_are_sent_as_each_server_takes_them() -> None:
    tone = {"type": "choice", "name": "tone", "instructions": "Which tone?"}
    labelled = [
        {"label": "bad", "description": "nobody understands it"},
        {"label": "fair"},
        {"label": "good", "description": "a child does"},
    ]
    levels = ["bad: nobody understands it", "fair", "good: a child does"]
    both = {
        "model": "served", "input": "2 + 2 = 4",
        "questions": [
            {"type": "predicate", "name": "right", "instructions": "The sum is right."},
            {"type": "score", "name": "clear", "instructions": "How clear is it?", "levels": labelled},
            {**tone, "choices": [{"value": "calm", "description": "factual"}, {"value": "rude"}]},
            {"type": "choice", "instructions": "Which value?", "choices": [{"value": each} for each in (True, "true", False, "True")]},
        ],
    }  # fmt: skip
    names = ["true", "true (2)", "false", "True (3)"]
    sglang = [
        {"id": "0", "type": "yes_no", "question": "The sum is right."},
        {"id": "1", "type": "score", "question": "How clear is it?", "levels": levels},
        {"id": "2", "type": "choice", "question": "Which tone?", "options": [{"name": "calm", "description": "factual"}, {"name": "rude"}]},
        {"id": "3", "type": "choice", "question": "Which value?", "options": [{"name": name} for name in names]},
    ]
    systemone = {
        "0": {"type": "noul", "instructions": "The sum is right."},
        "1": {"type": "score", "instructions": "How clear is it?", "criteria": levels},
        "2": {"type": "choice", "instructions": "Which tone?", "criteria": {"calm": "factual", "rude": None}},
        "3": {"type": "choice", "instructions": "Which value?", "criteria": dict.fromkeys(names)},
    }
    assert body_of(OPENAI, QUESTIONS) == both
    assert body_of(VLLM, QUESTIONS) == both
    assert body_of(SGLANG, QUESTIONS) == {"model": "served", "input": "2 + 2 = 4", "questions": sglang}
    assert body_of(SYSTEMONE, QUESTIONS) == {"model": "served", "state": "2 + 2 = 4", "questions": systemone}
    assert body_of(SCORING, [RIGHT]) == {
        "model": "served", "query": "2 + 2 = 4", "label_token_ids": [9693, 2201], "apply_softmax": True,
        "items": ["\n\nIs this true: The sum is right.\nReply with yes or no, and nothing else.\nAnswer:"],
    }  # fmt: skip
    prompt = "Question: Which tone?\nA: calm: factual\nB: rude\nReply with the letter of one option, and nothing else."
    assert body_of(CHATS[0], [TONE]) == {
        "model": "served", "max_tokens": 1, "logprobs": True, "top_logprobs": 20, "temperature": 1.0,
        "messages": [{"role": "user", "content": f"2 + 2 = 4\n\n{prompt}"}],
    }  # fmt: skip


def test_what_yes_and_no_mean_is_sent_in_every_dialect() -> None:
    question = YesNo("Is it polite?", yes="no insult in it", no="one insult or more")
    for dialect in ALL:
        assert all(text in json.dumps(body_of(dialect, [question])) for text in ("no insult in it", "one insult or more")), dialect
    means = {"true": "no insult in it", "false": "one insult or more"}
    assert body_of(SYSTEMONE, [question])["questions"]["0"]["criteria"] == means


def test_messages_are_sent_as_they_are_to_openai_and_as_one_text_to_others() -> None:
    assert body_of(OPENAI, [RIGHT], TALK)["input"] == TALK
    for dialect in (VLLM, SGLANG, SYSTEMONE, SCORING):
        assert body_of(dialect, [RIGHT], TALK)[dialect.input_member] == AS_ONE
    messages = body_of(CHATS[0], [RIGHT], TALK)["messages"]
    assert messages[0] == TALK[0]
    assert [each["role"] for each in messages] == ["system", "user"]
    assert messages[1]["content"].startswith("user: 2 + 2?\n\nassistant: 4\n\nIs this true: The sum is right.")
    assert as_text(TALK[1:2]) == "2 + 2?"


def test_thinking_is_switched_off_where_the_kind_of_server_knows_how() -> None:
    for kind, wanted in {
        "openai": CHATS[0],
        "tei": CHATS[0],
        "vllm": CHATS_WITHOUT_THINKING[0],
        "sglang": CHATS_WITHOUT_THINKING[0],
    }.items():
        assert DIALECTS["chat"](Endpoint("http://a", kind=kind))[0] is wanted
    assert body_of(CHATS_WITHOUT_THINKING[0], [RIGHT])["chat_template_kwargs"] == {"enable_thinking": False}
    assert [each.most_options for each in DIALECTS["systemone"](Endpoint("http://a", kind="sglang"))] == [255]


def test_the_label_mass_of_vllm_is_read_only_where_the_settings_say_that_it_is_vllm() -> None:
    body = json.dumps(answer(VLLM, [TONE], [(0.875, 0.125)], 0.6)).encode()
    for settings, wanted in (({"kind": "vllm"}, 0.6), ({"decisions": "vllm"}, 0.6), ({}, None)):
        (dialect,) = DIALECTS["vllm"](Endpoint("http://a", **settings))  # type: ignore[arg-type]
        (found,) = dialect.decode(body, call(dialect, [TONE])).answers
        assert found.label_mass == (None if wanted is None else pytest.approx(wanted)), settings


def test_parameters_of_the_caller_are_sent_but_not_those_that_the_call_sets() -> None:
    assert body_of(VLLM, [RIGHT], cache_salt="s")["cache_salt"] == "s"
    chat = body_of(CHATS_WITHOUT_THINKING[0], [RIGHT], max_completion_tokens=4, top_logprobs=5, chat_template_kwargs={"a": 1})
    assert ("max_tokens" in chat, chat["top_logprobs"], chat["chat_template_kwargs"]) == (False, 5, {"a": 1})
    reserved = {
        "openai": "questions",
        "vllm": "input",
        "sglang": "model",
        "systemone": "state",
        "generative_scoring": "items",
        "chat": "logprobs",
    }
    for dialect in ALL:
        with pytest.raises(BadRequest, match=f"'{reserved[dialect.name]}' is set by decide"):
            dialect.encode(call(dialect, [RIGHT], **{reserved[dialect.name]: 1}), "m")


def test_options_get_names_that_differ_by_more_than_case_and_fit_a_line() -> None:
    cases: list[tuple[list[str | bool], list[str]]] = [
        ([True, False], ["true", "false"]),
        (["Yes", "yes", "YES"], ["Yes", "yes (2)", "YES (3)"]),
        (["a", "a (2)", "A"], ["a", "a (2)", "A (3)"]),
        (["two\nlines", "two lines", "\x00\x1b"], ["two lines", "two lines (2)", "?"]),
        (["a\u2028b"], ["a b"]),
    ]
    assert [unique_names(options) for options, _ in cases] == [names for _, names in cases]


def test_what_a_dialect_cannot_ask_is_refused_with_what_can() -> None:
    many = Choice("Which?", choices=[f"c{at}" for at in range(30)])
    cases: list[tuple[Dialect, list[Question], str]] = [
        (
            SCORING,
            [RIGHT, CLEAR],
            r"questions\[1\] is a Score; .*'generative_scoring' takes YesNo only, one with 'openai', .*'chat' takes all",
        ),
        (SCORING, [TONE], "takes YesNo only"),
        (CHATS[0], [RIGHT, TONE], "takes 1 questions per request, not 2"),
        (VLLM, [RIGHT] * 65, "takes 64 questions per request, not 65"),
    ]
    for limited in (VLLM, SGLANG, SYSTEMONE, CHATS[0]):
        cases.append((limited, [many], r"questions\[0\] has 30 choices; .* takes 2"))
    for dialect, questions, words in cases:
        with pytest.raises(BadRequest, match=words):
            dialect.encode(WireRequest(dialect, "m", DecisionInput("2", tuple(questions)), {}, None), "m")
    assert len(body_of(OPENAI, [many] * 3)["questions"]) == 3
    assert len(body_of(SYSTEMONE_OF_SGLANG, [many])["questions"]["0"]["criteria"]) == 30


def test_a_bad_input_is_refused_with_what_to_change() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        ("", [RIGHT], BadRequest, "the input is empty"),
        (" \n", [RIGHT], BadRequest, "the input is empty"),
        (None, [RIGHT], BadRequest, "the input is a NoneType; give a text, or messages"),
        ({"role": "user"}, [RIGHT], BadRequest, "the input is a dict; give a text, or messages"),
        ([], [RIGHT], BadRequest, "messages is empty"),
        ([{"content": "x"}], [RIGHT], BadRequest, r"messages\[0\] has no 'role'"),
        ([{"role": "tool", "content": "x"}], [RIGHT], BadRequest, r"messages\[0\] has the role 'tool'"),
        (image, [RIGHT], BadRequest, r"messages\[0\] has no content that is a text"),
        ([{"role": "user", "content": ""}], [RIGHT], BadRequest, r"messages\[0\] has no content that is a text"),
        ("2", [], ConfigError, "at least one"),
        ("2", RIGHT, ConfigError, "must be a list"),
    ]
    for given, questions, kind, words in cases:
        for dialect in ALL:
            with pytest.raises(kind, match=words):
                dialect.validate((given, questions))
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert OPENAI.validate((parts, [RIGHT])).input == [{"role": "user", "content": "ab"}]


def test_texts_that_utf8_cannot_hold_are_sent_escaped() -> None:
    question = YesNo("Is \ud800 in it?")
    for dialect in ALL:
        assert b"\\ud800" in dialect.encode(call(dialect, [question], "a \ud800"), "m"), dialect


def test_equal_questions_of_two_judges_are_written_apart_and_a_kept_question_is_written_once() -> None:
    written = []

    class Counting(OpenAIDialect):
        def write(self, question: Question) -> Any:
            written.append(question)
            return super().write(question)

    dialect, questions = Counting(), (RIGHT, CLEAR)
    first = [dialect.encode(call(dialect, questions), "m") for _ in range(3)]
    assert (len(set(first)), written) == (1, [RIGHT, CLEAR])
    for at in range(5000):
        dialect.encode(call(dialect, [YesNo(f"It is {at}.")]), "m")
    assert dialect.encode(call(dialect, questions), "m") == first[0]
    assert json.loads(dialect.encode(call(dialect, [YesNo("It is 3.")]), "m"))["questions"][0]["instructions"] == "It is 3."


def test_tokens_are_estimated_by_input_and_questions() -> None:
    for dialect in ALL:
        short, output = dialect.estimate_tokens(call(dialect, [RIGHT], "x" * 350))
        long, _ = dialect.estimate_tokens(call(dialect, [RIGHT], "x" * 700))
        assert (long - short, output) == (pytest.approx(100), 1.0)
        assert dialect.estimate_tokens(call(dialect, [RIGHT], TALK))[0] < short


def test_an_error_in_a_successful_response_is_one() -> None:
    for dialect in ALL:
        with pytest.raises(EmbeddedError):
            dialect.decode(b'{"error": {"message": "overloaded"}}', call(dialect, [RIGHT]))


def test_the_dialect_of_an_endpoint_is_remembered_for_a_model() -> None:
    decide, endpoint, other = DecisionCodec(), Endpoint("http://a", name="a"), Endpoint("http://b", name="b", kind="sglang")
    assert (decide.known(endpoint, "m"), decide.dialect_at(endpoint, "m"), decide.dialect_at(other, "m")) == (None, OPENAI, SGLANG)
    assert [decide.dialect_at(Endpoint("http://c", kind=kind), "m") for kind in ("vllm", "tei")] == [VLLM, OPENAI]
    assert decide.most_questions([endpoint, Endpoint("http://c", kind="vllm")], "m") == 64
    decide.remember(endpoint, "m", CHATS[0])
    assert [decide.known(*at) for at in ((endpoint, "m"), (endpoint, "other"), (other, "m"))] == [CHATS[0], None, None]
    assert decide.most_questions([endpoint, Endpoint("http://c", kind="vllm")], "m") == 1
    for change in ({"decisions": "vllm"}, {"kind": "vllm"}):
        assert decide.dialect_at(endpoint.model_copy(update=change), "m") is VLLM, change


def test_other_labels_are_sent_once_the_settings_name_them() -> None:
    decide = DecisionCodec()
    for labels in ((9693, 2201), (2201, 9693)):
        endpoint = Endpoint("http://a", decisions="generative_scoring", decision_labels=labels)
        decide.remember(endpoint, "m", dialect := decide.dialect_at(endpoint, "m"))
        assert body_of(dialect, [RIGHT])["label_token_ids"] == list(labels)


TOO_MANY = BadRequest("Requested sample logprobs of 20, which is greater than max allowed: 5", status_code=400)


def test_a_refused_request_is_sent_in_the_other_dialects_unless_the_settings_name_one_or_it_is_known() -> None:
    """Kind of the endpoint, the dialects tried with the status of each, and the next one if the first is known, and if it is not."""
    cases: list[tuple[str, list[tuple[Dialect, int]], str | None, str | None]] = [
        ("openai", [(OPENAI, 404)], "systemone", "systemone"),
        ("openai", [(OPENAI, 404), (SYSTEMONE, 404)], "chat", "chat"),
        ("openai", [(OPENAI, 404), (SYSTEMONE, 404), (CHATS[0], 404)], None, None),
        ("openai", [(OPENAI, 400)], None, "vllm"),
        ("openai", [(OPENAI, 400), (LIKE_VLLM, 422)], None, "sglang"),
        ("openai", [(OPENAI, 503)], None, None),
        ("vllm", [(VLLM, 501)], "systemone", "systemone"),
        ("sglang", [(SYSTEMONE_OF_SGLANG, 405)], "sglang", "sglang"),
    ]
    for kind, refusals, if_known, if_not in cases:
        tried: dict[Dialect, Exception] = {dialect: BadRequest("no", status_code=status) for dialect, status in refusals}
        for known, wanted in ((True, if_known), (False, if_not)):
            decide, endpoint = DecisionCodec(), Endpoint("http://a", kind=kind)
            if known:
                decide.remember(endpoint, "m", refusals[0][0])
            named = endpoint.model_copy(update={"decisions": refusals[0][0].name})
            assert decide.next_dialect(named, "m", tried) is None
            found = decide.next_dialect(endpoint, "m", tried)
            assert (None if found is None else found.name) == wanted, (kind, refusals, known)
            if wanted is not None and refusals[-1][1] in (404, 405, 501):
                assert decide.known(endpoint, "m") == (found if known else None), "the path of a server that was replaced is gone"
    decide, endpoint = DecisionCodec(), Endpoint("http://a")
    decide.remember(endpoint, "m", SYSTEMONE)
    assert decide.next_dialect(endpoint, "m", {OPENAI: BadRequest("no", status_code=400)}) is SYSTEMONE, "it became known meanwhile"


def test_a_server_that_refuses_twenty_log_probabilities_is_asked_for_fewer_until_none_are_left() -> None:
    for named in (None, "chat"):
        decide, endpoint = DecisionCodec(), Endpoint("http://a", kind="vllm", decisions=named)  # type: ignore[arg-type]
        tops, tried = list[int](), dict[Dialect, Exception]()
        dialect: Dialect | None = CHATS_WITHOUT_THINKING[0]
        while dialect is not None:
            tops.append(body_of(dialect, [RIGHT]).get("top_logprobs", 0))
            tried[dialect] = TOO_MANY if dialect.name == "chat" else BadRequest("no", status_code=404)
            dialect = decide.next_dialect(endpoint, "m", tried)
        assert [top for top in tops if top > 0] == [20, 10, 5]
        assert "vLLM: --max-logprobs 20" in decide.advice(endpoint, "m", next(iter(tried)), TOO_MANY)
        decide.answered(endpoint, "m", CHATS_WITHOUT_THINKING[0], {})
        assert decide.next_dialect(endpoint, "m", {CHATS_WITHOUT_THINKING[0]: TOO_MANY}) is None, "it has answered for twenty"


def test_an_error_that_a_wrong_dialect_may_have_caused_says_how_to_name_the_right_one() -> None:
    codec = DecisionCodec()
    endpoints = [Endpoint("http://a", name=name, decisions=None if name == "unknown" else "vllm") for name in ("unknown", "set")]
    codec.remember(known := Endpoint("http://b", name="known"), "judge-7b", VLLM)
    told = {
        (endpoint.name, status): "set decisions= of endpoint"
        in codec.advice(endpoint, "judge-7b", VLLM, BadRequest("x", status_code=status))
        for endpoint in (*endpoints, known)
        for status in (400, 404, 413)
    }
    assert [case for case, advised in told.items() if advised] == [("unknown", 400), ("unknown", 404), ("set", 404), ("known", 404)]


def test_every_dialect_is_listed_by_its_name_and_the_probe_is_valid() -> None:
    assert set(DIALECTS) == {"openai", "vllm", "sglang", "systemone", "generative_scoring", "chat"}
    names = [*DIALECTS, *TAKE_ALL, *(each for row in ORDER.values() for each in row)]
    assert all(each.name == name for name in names for each in DIALECTS[name](Endpoint("http://a")))
    assert OPENAI.validate(PROBE) == PROBE
