"""JSON both ways: what cannot be sent says where it is, and odd answers are still read."""

from __future__ import annotations

import datetime
import json
import math
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_tools import each

from qreward.codecs import json as jsonio
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT, passthrough
from qreward.codecs.chat_stream import Event, read_chunk
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.rewards.kinds import COMPLETE, EMBED, SCORE, bound
from qreward.errors import BadRequest
from qreward.integrations.openai import ROUTES
from qreward.records import PromptTokensDetails
from qreward.results import Usage
from qreward.settings.policies import Endpoint


def chat(messages: Any, **params: Any) -> bytes:
    return CHAT.encode(WireRequest(CHAT, "asked", messages, params, None), "served")


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "judge"}, {"role": "user", "content": content}]


def test_a_chat_is_written_with_the_servers_model_name_and_everything_the_caller_passed() -> None:
    body = chat(user("?"), temperature=0.5, stop=["\n"], response_format={"type": "json_object"}, seed=None, my_own={"a": [1]})
    assert json.loads(body) == {
        "model": "served",
        "messages": user("?"),
        "temperature": 0.5,
        "stop": ["\n"],
        "response_format": {"type": "json_object"},
        "seed": None,
        "my_own": {"a": [1]},
    }


PNG = {"type": "image_url", "image_url": {"url": b"png"}}
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
UNSENDABLE = [
    (user(math.nan), {}, r"messages\[1\]\.content is nan"),
    (user(b"text"), {}, r"messages\[1\]\.content holds bytes"),
    (user([{"type": "text", "text": "x"}, PNG]), {}, r"messages\[1\]\.content\[1\]\.image_url\.url holds bytes"),
    (user(object()), {}, r"messages\[1\]\.content is a object"),
    (user({1, b"x"}), {}, r"messages\[1\]\.content\[\d\] holds bytes"),
    (user("?"), {"temperature": math.nan}, "temperature is nan"),
    (user("?"), {"temperature": -math.inf}, "temperature is -inf"),
    (user("?"), {"logit_bias": {"7": math.inf}}, r"logit_bias\.7 is inf"),
    (
        user("?"),
        {"tools": [{"function": {"name": "f", "parameters": {"default": bytearray(b"x")}}}]},
        r"parameters\.default holds bytearray",
    ),
    (user("?"), {"extra": {None: 1}}, "extra has a key that is a NoneType"),
    (user("?"), {"extra": lambda: 1}, "extra is a function"),
    (user("?"), {"extra": pydantic.create_model("M", x=(float, ...))(x=math.nan)}, r"extra\.x is nan"),
    (user("?"), {"extra": CYCLE}, "refers to itself"),
    (user("\ud800"), {"top_p": math.nan}, "top_p is nan"),
]


@each("messages, params, expected", UNSENDABLE)
def test_what_json_cannot_hold_is_refused_with_its_place(messages: Any, params: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadRequest, match=expected):
        chat(messages, **params)


def test_the_refusal_does_not_repeat_the_content() -> None:
    with pytest.raises(BadRequest) as caught:
        chat(user(b"the patient's name"))
    assert "patient" not in str(caught.value)


class Colour(pydantic.BaseModel):
    name: str
    shade: str | None = None


SENDABLE = [
    ("null in a text", "null in a text"),
    (None, None),
    ([{"type": "text", "text": "null"}], [{"type": "text", "text": "null"}]),
    (("a", 1, 2.5, True), ["a", 1, 2.5, True]),
    (Colour(name="red"), {"name": "red"}),
    ([Colour(name="red")], [{"name": "red"}]),
    (OrderedDict(a=1), {"a": 1}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (type("Float32", (float,), {})(0.5), 0.5),
    (type("Text", (str,), {})("t"), "t"),
    (datetime.date(2026, 1, 2), "2026-01-02"),
    ({3: "x"}, {"3": "x"}),
    (10**30, 10**30),
]


@each("content, expected", SENDABLE)
def test_what_json_can_hold_is_sent(content: Any, expected: Any) -> None:
    for body in (chat(user(content)), chat(user("?"), extra=content)):
        document = json.loads(body)
        assert expected in (document["messages"][1]["content"], document.get("extra", "\0"))


@each("text", ["\ud800", "a\udfffb", "fine \U0001f600 and \ud83d"])
def test_a_lone_surrogate_is_sent_escaped(text: str) -> None:
    assert json.loads(chat(user(text), extra=Colour(name=text)))["messages"][1]["content"] == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_is_either_sent_as_it_is_or_refused_and_never_changed(value: Any) -> None:
    try:
        body = chat(user(value), extra=value)
    except BadRequest:
        assert _has_unsendable(value)
    else:
        assert not _has_unsendable(value)
        assert json.loads(body)["extra"] == json.loads(body)["messages"][1]["content"] == value


def _has_unsendable(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_unsendable, value.values()))
    if isinstance(value, list):
        return any(map(_has_unsendable, value))
    return isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value))


def test_ordinary_calls_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check may cost next to nothing: parameters that may be no JSON one by one, messages only where a value is no text."""
    walked: list[str] = []
    check = jsonio.check
    monkeypatch.setattr(jsonio, "check", lambda value, path: (walked.append(path), check(value, path)))
    chat(user("a text with null in it"), temperature=0.0, max_tokens=5)
    assert walked == ["temperature"]
    EMBEDDINGS.encode(WireRequest(EMBEDDINGS, "m", ["a"] * 1000, {}, None), "m")
    assert walked == ["temperature"]


@each("inputs, expected", [("text", "text"), (["a", "b"], ["a", "b"]), ([1, 2], [1, 2]), ([[1, 2], [3]], [[1, 2], [3]]), (("a",), ["a"])])
def test_embeddings_are_written_in_the_shape_they_were_given(inputs: Any, expected: Any) -> None:
    body = EMBEDDINGS.encode(WireRequest(EMBEDDINGS, "asked", EMBEDDINGS.validate(inputs), {"dimensions": 8}, None), "served")
    assert json.loads(body) == {"model": "served", "input": expected, "dimensions": 8}


@each(
    "raw, expected",
    [
        ({"prompt_tokens": 1.0, "completion_tokens": "2", "total_tokens": None}, Usage(1, 2, None)),
        ({"prompt_tokens": [], "completion_tokens": math.nan, "total_tokens": math.inf}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": 10**400, "total_tokens": "9" * 320}, Usage()),
        ({"prompt_tokens": -1, "completion_tokens": "-19", "total_tokens": -0.0}, Usage(None, None, 0)),
        ({"prompt_tokens": 2.5, "completion_tokens": "2.5", "prompt_tokens_details": {"cached_tokens": -4}}, Usage(2)),
        ({"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}, Usage(3, 4, 7, PromptTokensDetails(2))),
        ({"input_tokens": 3, "output_tokens": -4}, Usage(3)),
        ({}, Usage()),
        (None, None),
        (7, None),
    ],
)
def test_odd_usage_is_read_as_far_as_it_goes(raw: Any, expected: Usage | None) -> None:
    assert jsonio.usage_of(raw) == expected


ODD_COUNTS = (-19, 10**400, 2**70, True, "-1", -1.5, None, [3])


def test_no_codec_passes_on_a_count_of_tokens_that_no_response_can_have() -> None:
    endpoint = Endpoint("http://gpu-0/v1")
    choice = {"index": 0, "finish_reason": "stop", "text": "x", "message": {"content": "x"}, "delta": {"content": "x"}}
    calls = {
        "chat": WireRequest(CHAT, "m", [{"role": "user", "content": "?"}], {}, None),
        "embeddings": WireRequest(EMBEDDINGS, "m", "x", {}, None),
        "any route": WireRequest(passthrough("/v1/responses"), "m", None, {}, None),
        "the SDK's other routes": WireRequest(ROUTES["/completions"][1], "m", "x", {"prompt": "x"}, None),
        "completions": bound(WireRequest(COMPLETE, "m", ["x"], {}, None), endpoint),
        "lists of embeddings": bound(WireRequest(EMBED, "m", ["x"], {}, None), endpoint),
        "sglang": bound(WireRequest(SCORE, "m", ["x"], {}, None), Endpoint("http://gpu-0", kind="sglang")),
    }
    passed: list[Any] = []
    for name, call in calls.items():
        for count in ODD_COUNTS:
            usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), count)
            usage["prompt_tokens_details"] = {"cached_tokens": count}  # type: ignore[assignment]
            body: Any = {"choices": [choice], "data": [{"index": 0, "embedding": [0.5]}], "usage": usage}
            if name == "sglang":
                body = [{"embedding": [0.5], "meta_info": usage}]
            found = call.codec.decode(json.dumps(body).encode(), call).usage
            if found not in (None, Usage(), Usage(None, None, None, PromptTokensDetails(None))):
                passed.append((name, count, found))
    for count in ODD_COUNTS:
        chunk = read_chunk(Event(json.dumps({"choices": [choice], "usage": {"completion_tokens": count}}).encode()), "m")
        passed += [] if chunk is not None and chunk.usage in (None, Usage()) else [("stream", count, chunk)]
    assert passed == []
