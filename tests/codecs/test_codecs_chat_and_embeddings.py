"""Reading answers: the sixteen odd ones that strict types refuse among them, and what is no answer at all."""

from __future__ import annotations

import base64
import json
import math
import pickle
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from shared_tools import completion, each

from qreward.codecs.base import EmbeddedError, Malformed, WireRequest
from qreward.codecs.chat import CHAT, VERBATIM_CHAT, passthrough
from qreward.codecs.embeddings import EMBEDDINGS, MERGED_EMBEDDINGS
from qreward.errors import BadRequest
from qreward.integrations.openai import ROUTES
from qreward.judge.calls import parse_reply
from qreward.results import Usage

USER = {"role": "user", "content": "12345678901234"}
ASKED = WireRequest(CHAT, "judge-7b", [USER], {}, None)


def _input(*texts: str) -> WireRequest:
    return WireRequest(EMBEDDINGS, "e", list(texts), {}, None)


def _choice(**members: Any) -> dict[str, Any]:
    return completion(choices=[completion()["choices"][0] | members])


def _message(**members: Any) -> dict[str, Any]:
    return _choice(message={"role": "assistant", "content": "yes"} | members)


ODD = {
    "as it should be": completion(),
    "nothing but choices": {"choices": [{"message": {"content": "yes"}}]},
    "finish_reason eos_token": _choice(finish_reason="eos_token"),
    "finish_reason null": _choice(finish_reason=None),
    "role model": _message(role="model"),
    "no role": _choice(message={"content": "yes"}),
    "float created": completion(created=1700000000.25),
    "text created": completion(created="2026-01-01"),
    "content as parts": _message(content=[{"type": "text", "text": "y"}, {"type": "text", "text": "es"}]),
    "content as texts": _message(content=["y", "es"]),
    "usage null": completion(usage=None),
    "usage of floats": completion(usage={"prompt_tokens": 12.0, "completion_tokens": 3.0}),
    "usage of texts": completion(usage="unknown"),
    "index missing": completion(choices=[{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]),
    "unknown members": completion(kv_transfer_params={"x": 1}, prompt_logprobs=[None]),
    "empty error": completion(error=None),
    "empty error object": completion(error={}),
    "tool calls null": _message(tool_calls=None),
}
ODD_BYTES = {name: json.dumps(document).encode() for name, document in ODD.items()} | {
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(completion()).encode(),
    "minus infinity": json.dumps(_choice(logprobs={"content": [{"token": "y", "logprob": 0.0, "bytes": None, "top_logprobs": []}]}))
    .replace("0.0", "-Infinity")
    .encode(),
    "broken utf-8 elsewhere": json.dumps(completion(system_fingerprint="@")).encode().replace(b"@", b"\xff"),
}


@each("name", ODD_BYTES)
def test_an_odd_but_real_answer_is_read_and_becomes_an_openai_object(name: str) -> None:
    answer = CHAT.decode(ODD_BYTES[name], ASKED)
    assert answer.text() == "yes"
    assert answer.body == ODD_BYTES[name]
    built = answer.build()
    assert type(built) is ChatCompletion
    assert built.choices[0].message.content == "yes"
    assert built.choices[0].index == 0
    assert isinstance(built.id, str)
    assert built.object == "chat.completion"
    assert isinstance(built.model, str)
    assert pickle.loads(pickle.dumps(answer)) == answer


def test_usage_and_texts_are_read_as_far_as_they_go() -> None:
    usages = {"as it should be": Usage(12, 3, 15), "usage of floats": Usage(12, 3, None), "byte order mark": Usage(12, 3, 15)}
    for name in (*usages, "usage null", "usage of texts"):
        assert CHAT.decode(ODD_BYTES[name], ASKED).usage == usages.get(name), name
    details: list[tuple[Any, int | None]] = [
        ({"cached_tokens": 8}, 8),
        ({"cached_tokens": "8"}, 8),
        ({"cached_tokens": None}, None),
        ("8", None),
    ]
    for given, cached in details:
        body = completion(usage={"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "prompt_tokens_details": given})
        usage = CHAT.decode(json.dumps(body).encode(), ASKED).usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.cached_tokens) == (12, cached), given
    broken = json.dumps(completion("bad @ byte")).encode().replace(b"@", b"\xff")
    for odd, text in ((json.dumps(completion("a\ud800b")).encode(), "a\ud800b"), (broken, "bad \ufffd byte")):
        answer = CHAT.decode(odd, ASKED)
        assert answer.text() == answer.build().choices[0].message.content == text


@each("content", [None, "", [], 7, {}, [{"type": "thinking", "text": "7"}]])
def test_an_answer_without_words_has_an_empty_text(content: Any) -> None:
    answer = CHAT.decode(json.dumps(_message(content=content, tool_calls=[])).encode(), ASKED)
    assert answer.text() == ""
    assert type(answer.build()) is ChatCompletion


NO_ANSWER = [b"", b" \n", b"{", b"[" * 100_000, b"null", b"[]", b'"yes"', b"{}", b"<html>502</html>", ODD_BYTES["as it should be"][:-20]]
NO_CHAT = [
    *NO_ANSWER,
    b'{"choices": null}',
    b'{"choices": []}',
    b'{"choices": [null]}',
    b'{"choices": {}}',
    b'{"choices": [{"message": null}]}',
]
NO_VECTORS = [*NO_ANSWER, b'{"data": null}', b'{"data": []}', b'{"data": {}}']


@each("call, body", [*((ASKED, body) for body in NO_CHAT), *((_input("one"), body) for body in NO_VECTORS)])
def test_what_is_no_answer_is_malformed(call: WireRequest, body: bytes) -> None:
    with pytest.raises(Malformed):
        call.codec.decode(body, call)


def test_fewer_choices_than_asked_for_are_malformed() -> None:
    answer = json.dumps(completion(choices=[_choice()["choices"][0], _choice()["choices"][0] | {"index": 1}])).encode()
    for codec, n in (*((CHAT, n) for n in (None, 0, "3", 1, 2)), (VERBATIM_CHAT, 3)):
        assert len(codec.decode(answer, WireRequest(codec, "judge-7b", [USER], {"n": n}, None)).build().choices) == 2
    with pytest.raises(Malformed, match="2 of 3 choices"):
        CHAT.decode(answer, WireRequest(CHAT, "judge-7b", [USER], {"n": 3}, None))


ERROR = {"code": 429, "message": "slow down"}


@each(
    "document, expected",
    [
        ({"error": ERROR}, ERROR),
        (completion(error=ERROR), ERROR),
        ({"error": "out of memory", "choices": None}, "out of memory"),
        (_choice(error=ERROR, finish_reason="error"), ERROR),
        ({"error": ERROR, "choices": "odd"}, ERROR),
    ],
)
def test_an_error_in_a_successful_answer_is_found(document: dict[str, Any], expected: Any) -> None:
    with pytest.raises(EmbeddedError) as caught:
        CHAT.decode(json.dumps(document).encode(), ASKED)
    assert caught.value.body == expected
    for body in (b'{"error": "no"}', b'\xef\xbb\xbf{"error": "no"}'):
        with pytest.raises(EmbeddedError):
            EMBEDDINGS.decode(body, _input("one"))


def test_the_first_choice_is_the_one_with_index_0_in_whatever_order_choices_come() -> None:
    choices = [
        {"index": index, "finish_reason": reason, "message": {"role": "assistant", "content": text, "reasoning_content": f"why {text}"}}
        for index, reason, text in ((2, "length", "c"), (0, "stop", "a"), (1, "tool_calls", "b"))
    ]
    for odd in ({}, {"usage": "unknown"}):
        answer = CHAT.decode(json.dumps({"choices": choices, **odd}).encode(), ASKED)
        assert (answer.text(), answer.finish_reason, parse_reply(answer).reasoning) == ("a", "stop", "why a")
        assert [choice.message.content for choice in answer.build().choices] == ["a", "b", "c"]
    for index in (1, None, True, "0"):
        answer = CHAT.decode(json.dumps({"choices": [{**choices[1], "index": index}, choices[0]]}).encode(), ASKED)
        assert (answer.text(), parse_reply(answer).reasoning) == ("a", "why a"), index


def _vectors(*items: Any, **members: Any) -> bytes:
    usage = {"prompt_tokens": 4, "total_tokens": 4}
    return json.dumps({"object": "list", "model": "e", "data": items, "usage": usage} | members).encode()


def _item(index: int, vector: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": vector}


PACKED = base64.b64encode(struct.pack("<2f", 0.5, -2.0)).decode()


@each(
    "body",
    [
        _vectors(_item(0, [0.5, -2.0]), _item(1, [1.0, 1.0])),
        _vectors(_item(1, [1.0, 1.0]), _item(0, [0.5, -2.0])),
        _vectors(_item(0, PACKED), _item(1, [1.0, 1.0])),
        _vectors(_item(1, [1.0, 1.0]), _item(0, PACKED)),
        _vectors({"embedding": [0.5, -2.0]}, {"embedding": [1.0, 1.0]}, object=None),
        _vectors(_item(0, [0.5, -2.0]), _item(1, [1.0, 1.0]), usage=None),
        b"\xef\xbb\xbf" + _vectors(_item(0, PACKED), _item(1, [1, 1])),
    ],
)
def test_vectors_come_as_floats_in_the_order_of_the_input(body: bytes) -> None:
    answer = EMBEDDINGS.decode(body, _input("one", "two"))
    assert answer.text() == ""
    built = answer.build()
    assert type(built) is CreateEmbeddingResponse
    assert [item.embedding for item in built.data] == [[0.5, -2.0], [1.0, 1.0]]


NAN_PACKED = base64.b64encode(struct.pack("<2f", 0.5, math.nan)).decode()
BAD_VECTORS: tuple[Any, ...] = (
    "not base64!",
    base64.b64encode(b"abc").decode(),
    None,
    {},
    [],
    "",
    [0.5, None],
    [math.nan],
    [math.inf],
    NAN_PACKED,
    [True],
    ["1"],
)


@each("vector", BAD_VECTORS)
def test_a_vector_that_is_none_or_has_a_member_that_is_no_finite_number_is_no_answer(vector: Any) -> None:
    with pytest.raises(Malformed, match="embedding 1 of the answer is not valid"):
        EMBEDDINGS.decode(_vectors(_item(0, [0.5]), _item(1, vector)), _input("one", "two"))


def test_only_an_answer_to_merged_calls_may_have_some_vectors_that_are_not_valid() -> None:
    two = WireRequest(EMBEDDINGS, "e", ["one", "two"], {}, None)
    for vector in BAD_VECTORS:
        answer = MERGED_EMBEDDINGS.decode(_vectors(_item(1, [0.5]), _item(0, vector)), two)
        assert [row["embedding"] for row in json.loads(answer.body)["data"]] == [[0.5], None], vector
        with pytest.raises(Malformed, match="embedding 0 of the answer is not valid"):
            MERGED_EMBEDDINGS.decode(_vectors(_item(0, vector), _item(1, vector)), two)


def test_vectors_whose_indexes_do_not_match_the_inputs_are_no_answer() -> None:
    taken = []
    for pair in ((0, 0), (1, 1), (1, 2), (-1, 0), (0, None), (True, False), ("0", "1"), (0.5, 1)):
        try:
            EMBEDDINGS.decode(_vectors(*[_item(index, [0.5]) for index in pair]), _input("one", "two"))  # type: ignore[arg-type]
            taken.append(pair)
        except Malformed as error:
            taken += [] if "indexes" in str(error) else [pair]
    assert taken == []
    with pytest.raises(Malformed, match="embedding 0"):
        EMBEDDINGS.decode(_vectors(_item(0, [1.5])).replace(b"1.5", b"1e999"), _input("one"))


IMAGE = {"type": "image_url", "image_url": {"url": "x" * 999}}


@each(
    "codec, inputs, params, expected",
    [
        (CHAT, [USER], {}, (4.0, 0.0)),
        (CHAT, [USER, USER], {"max_tokens": 100}, (8.0, 100.0)),
        (CHAT, [USER], {"max_completion_tokens": 7, "max_tokens": 100}, (4.0, 7.0)),
        (CHAT, [USER], {"max_tokens": 10, "n": 3}, (4.0, 30.0)),
        (CHAT, [USER], {"max_tokens": "many"}, (4.0, 0.0)),
        (CHAT, [USER], {"max_tokens": -1}, (4.0, 0.0)),
        (CHAT, [USER], {"max_tokens": True}, (4.0, 0.0)),
        (CHAT, [USER], {"max_tokens": 10, "n": -3}, (4.0, 10.0)),
        (CHAT, [USER], {"max_tokens": 10**400}, (4.0, 1e9)),
        (passthrough("/v1/responses"), None, {"max_tokens": -1}, (0.0, 0.0)),
        (ROUTES["/completions"][1], None, {"prompt": ["a", "b"], "max_tokens": -1}, (2 / 3.5, 0.0)),
        (ROUTES["/completions"][1], None, {"prompt": ["a", "b"], "max_tokens": 10, "n": 3}, (2 / 3.5, 60.0)),
        (CHAT, [{"role": "user", "content": [{"type": "text", "text": "1234567"}, IMAGE]}], {}, (2.0, 0.0)),
        (CHAT, [{"role": "assistant", "tool_calls": []}], {}, (0.0, 0.0)),
        (EMBEDDINGS, "1234567", {}, (2.0, 0.0)),
        (EMBEDDINGS, ["1234567"] * 2, {}, (4.0, 0.0)),
        (EMBEDDINGS, [1, 2, 3], {}, (3.0, 0.0)),
        (EMBEDDINGS, [[1, 2], [3]], {}, (3.0, 0.0)),
    ],
)
def test_tokens_are_estimated(codec: Any, inputs: Any, params: dict[str, Any], expected: tuple[float, float]) -> None:
    assert codec.estimate_tokens(WireRequest(codec, "m", inputs, params, None)) == pytest.approx(expected)


def test_message_objects_become_dicts_and_messages_of_the_right_shape_pass_untouched() -> None:
    messages = [{"role": "system", "content": "x"}, USER]
    assert CHAT.validate(messages) is messages
    spoken = ChatCompletionMessage(role="assistant", content="hello")
    assert CHAT.validate((USER, spoken)) == [USER, {"role": "assistant", "content": "hello"}]


@each(
    "codec, inputs, expected",
    [
        (CHAT, "hello", "messages is a text"),
        (CHAT, USER, "messages is one message; put it in a list"),
        (CHAT, None, "messages is a NoneType"),
        (CHAT, iter([USER]), "messages is a list_iterator"),
        (CHAT, [], "messages is empty"),
        (CHAT, (), "messages is empty"),
        (CHAT, [USER, "hello"], r"messages\[1\] is a str"),
        (CHAT, [[USER]], "batch_chat_completion"),
        (CHAT, [USER, {"content": "x"}], r"messages\[1\] has no 'role'"),
        (CHAT, [{"role": None, "content": "x"}], r"messages\[0\]\.role is a NoneType"),
        (CHAT, [SimpleNamespace(role="user")], r"messages\[0\] is a SimpleNamespace"),
        (EMBEDDINGS, None, "input is None"),
        (EMBEDDINGS, {"a": 1}, "input is a dict"),
        (EMBEDDINGS, [], "input is empty"),
        (EMBEDDINGS, ["a", 1], r"input\[1\] is a int"),
        (EMBEDDINGS, [1.5], r"input\[0\] is a float"),
        (EMBEDDINGS, [None], r"input\[0\] is a NoneType"),
        (EMBEDDINGS, [[1], []], r"input\[1\] is empty"),
        (EMBEDDINGS, [[1], [2, "x"]], r"input\[1\]\[1\] is a str"),
        (EMBEDDINGS, [[1], "x"], r"input\[1\] is a str"),
    ],
)
def test_inputs_of_a_wrong_shape_are_refused_with_what_to_change(codec: Any, inputs: Any, expected: str) -> None:
    with pytest.raises(BadRequest, match=expected):
        codec.validate(inputs)


def test_texts_of_a_subclass_of_str_are_sent_as_texts() -> None:
    text = type("Text", (str,), {"__str__": lambda _: "another"})("a")
    for given in (text, [text], [text, "b"]):
        found = EMBEDDINGS.validate(given)
        assert (found, {type(each) for each in found}) == (given, {str})


@each("inputs", ["one text", ["one text"], [1, 2, 3], [[1, 2, 3]]])
def test_two_vectors_for_one_input_are_no_answer(inputs: Any) -> None:
    call = WireRequest(EMBEDDINGS, "e", inputs, {}, None)
    assert EMBEDDINGS.decode(_vectors(_item(0, [1.0])), call).build().data[0].embedding == [1.0]
    with pytest.raises(Malformed, match="2 vectors for 1 input"):
        EMBEDDINGS.decode(_vectors(_item(0, [1.0]), _item(1, [2.0])), call)
