"""Chunks and what they make up: read as servers send them, and put together as the openai SDK does where it is right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from scale import SCALE
from shared_tools import each

from qreward.codecs.base import EmbeddedError, Malformed
from qreward.codecs.chat_stream import ChatChunk, Event, StreamAccumulator, read_chunk
from qreward.results import Usage

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "judge-7b", "system_fingerprint": "fp"}
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
Chunk = dict[str, Any]


def chunk(delta: Any = None, *, index: int = 0, finish: Any = None, **members: Any) -> Chunk:
    """One chunk as the OpenAI API sends it, ``members`` being added to its choice."""
    return HEAD | {"choices": [{"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": finish} | members]}


def said(*texts: str, finish: str | None = "stop") -> list[Chunk]:
    return [chunk({"role": "assistant", "content": ""}), *(chunk({"content": text}) for text in texts), chunk(finish=finish)]


def read(document: Any, name: str = "") -> ChatChunk:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    found = read_chunk(Event(body, name), "asked-for")
    assert found is not None
    return found


def assembled(chunks: list[Chunk]) -> StreamAccumulator:
    assembly = StreamAccumulator("asked-for")
    for document in chunks:
        assembly.add(read(document))
    return assembly


def call(index: int, arguments: str, **members: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": members.pop("name")} if "name" in members else {})
    return {"index": index, "function": function} | members


def token(word: str) -> dict[str, Any]:
    return {"token": word, "logprob": -0.25, "bytes": list(word.encode()), "top_logprobs": [{"token": "x", "logprob": -9.0, "bytes": None}]}


FIRST = {"id": "call_a", "type": "function"}
SECOND = {"id": "call_b", "type": "function"}
OPENAI_IS_RIGHT: dict[str, list[Chunk]] = {
    "words": said("The", " answer", "", " is", " 日本 🎈", "."),
    "usage at the end": [*said("a", "b"), HEAD | {"choices": [], "usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}}],
    "no role": [chunk({"content": "a"}), chunk({"content": "b"}, finish="stop")],
    "a refusal": [chunk({"role": "assistant", "refusal": ""}), chunk({"refusal": "I "}), chunk({"refusal": "won't"}), chunk(finish="stop")],
    "one tool call": [
        chunk({"role": "assistant", "content": None, "tool_calls": [call(0, "", name="get", **FIRST)]}),
        *(chunk({"tool_calls": [call(0, piece)]}) for piece in ('{"ci', 'ty": "', 'Paris"}')),
        chunk(finish="tool_calls"),
    ],
    "two tool calls, pieces mixed": [
        chunk({"role": "assistant", "tool_calls": [call(0, "{", name="get", **FIRST), call(1, "[", name="put", **SECOND)]}),
        chunk({"tool_calls": [call(1, "1"), call(0, '"a":')]}),
        chunk({"tool_calls": [call(0, "2}"), call(1, "]")]}),
        chunk(finish="tool_calls"),
    ],
    "a function call": [
        chunk({"role": "assistant", "function_call": {"name": "get", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"a"'}}),
        chunk({"function_call": {"arguments": ": 1}"}}, finish="function_call"),
    ],
    "several choices": [
        chunk({"role": "assistant", "content": ""}, index=0),
        chunk({"role": "assistant", "content": ""}, index=1),
        chunk({"content": "a"}, index=1),
        chunk({"content": "b"}, index=0),
        chunk({"content": "c"}, index=1),
        chunk(index=1, finish="length"),
        chunk(index=0, finish="stop"),
    ],
    "log probabilities": [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}, logprobs={"content": [token("a")], "refusal": None}),
        chunk({"content": "bc"}, logprobs={"content": [token("b"), token("c")], "refusal": None}),
        chunk(finish="stop"),
    ],
    "reasoning": [
        chunk({"role": "assistant", "reasoning_content": "hm"}),
        chunk({"reasoning_content": ", well"}),
        chunk({"content": "yes"}, finish="stop"),
    ],
    "a field nobody knows": [chunk({"role": "assistant", "thoughts": {"text": "a"}}), chunk({"thoughts": {"text": "b"}}, finish="stop")],
}


def plain(value: Any) -> Any:
    """A completion's members that say something; the index of a tool call belongs to its stream."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items() if inner is not None and (name != "index" or "message" in value)}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


@each("name", OPENAI_IS_RIGHT)
def test_a_stream_comes_to_the_completion_that_the_openai_sdk_makes_of_it_and_its_chunks_to_its_chunks(name: str) -> None:
    state: Any = ChatCompletionStreamState()
    for document in OPENAI_IS_RIGHT[name]:
        state.handle_chunk(ChatCompletionChunk.model_validate(document))
    theirs = state.current_completion_snapshot.model_dump()
    assembly = assembled(OPENAI_IS_RIGHT[name])
    ours = assembly.build()
    assert type(ours) is ChatCompletion
    ours_plain, theirs_plain = plain(ours.model_dump()), plain(theirs)
    for choice in ours_plain["choices"]:
        choice["message"].setdefault("role", "assistant")
    for choice in theirs_plain["choices"]:  # they leave out a role that did not come
        choice["message"].setdefault("role", "assistant")
    assert ours_plain == theirs_plain
    assert assembly.text() == (ours.choices[0].message.content or "")
    assert assembly.finished(len(ours.choices))
    chunks = [read(document) for document in OPENAI_IS_RIGHT[name]]
    assert "".join(each.text for each in chunks) == assembly.text()
    assert [each.build() for each in chunks] == [ChatCompletionChunk.model_validate(document) for document in OPENAI_IS_RIGHT[name]]


def message_of(*chunks: Chunk) -> dict[str, Any]:
    (choice,) = assembled([*chunks]).document()["choices"]
    message: dict[str, Any] = choice["message"]
    return message


GET = {"id": "call_a", "type": "function", "function": {"name": "get", "arguments": "{}"}}
PUT = {"id": "call_b", "type": "function", "function": {"name": "put", "arguments": "[]"}}


def without_index(piece: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in piece.items() if name != "index"}


A_PIECE, A_REST = call(0, "{", name="get", **FIRST), call(0, "}")
B_PIECE = call(0, "[", name="put", **SECOND)
WHOLE = call(0, "{}", name="get", **FIRST), call(0, "[]", name="put", **SECOND)
TOOL_CALLS: dict[str, tuple[list[list[dict[str, Any]]], list[Any]]] = {  # the pieces in each chunk, and the tool calls
    "name, id and type with every piece": ([[A_PIECE], [call(0, "}", name="get", **FIRST)]], [GET]),
    "an empty id afterwards": ([[A_PIECE], [call(0, "}", id="")], [call(0, "", id=None)]], [GET]),
    "no index": ([[without_index(A_PIECE)], [without_index(A_REST)]], [GET]),
    "index null": ([[A_PIECE | {"index": None}], [A_REST | {"index": None}]], [GET]),
    "an index that does not begin at 0": ([[A_PIECE | {"index": 1}], [A_REST | {"index": 1}]], [GET]),
    "whole ones without index and id in one chunk": (
        [[without_index(call(0, "{}", name="get")), without_index(call(0, "[]", name="get"))]],
        [{"function": {"name": "get", "arguments": arguments}} for arguments in ("{}", "[]")],
    ),
    **{
        f"one index for all calls, without ids: get and {name}": (
            [[call(0, "{}", name="get", id=""), call(0, "", id="")], [call(0, '{"a"', name=name, id="")], [call(0, ":1}")]],
            [
                {"id": "", "function": {"name": "get", "arguments": "{}"}},
                {"id": "", "function": {"name": name, "arguments": '{"a":1}'}},
            ],
        )
        for name in ("get", "put")
    },
    "one index for all calls, with ids, in turns": (
        [[A_PIECE], [B_PIECE], [call(0, "}", name="get", id=FIRST["id"])], [call(0, "]", id=SECOND["id"])]],
        [GET, PUT],
    ),
    "one index for all calls, with ids in the first pieces": ([[A_PIECE], [A_REST], [B_PIECE], [call(0, "]")]], [GET, PUT]),
    "in the order of their index": ([[WHOLE[1] | {"index": 1}, WHOLE[0]]], [GET, PUT]),
    **{
        f"whole ones with the indexes {indexes} in {count} chunks": (chunks, [GET, PUT])
        for indexes in ((0, 0), (0, 1), (3, 7), (None, None))
        for pieces in [[piece | {"index": index} for piece, index in zip(WHOLE, indexes, strict=True)]]
        for count, chunks in ((1, [pieces]), (2, [[piece] for piece in pieces]))
    },
}


@each("name", TOOL_CALLS)
def test_tool_calls_in_odd_pieces_are_put_together_and_whole_ones_stay_apart(name: str) -> None:
    pieces, expected = TOOL_CALLS[name]
    assert message_of(*(chunk({"tool_calls": each}) for each in pieces))["tool_calls"] == expected


def test_an_empty_list_of_tool_calls_is_none_and_a_role_with_every_chunk_counts_once() -> None:
    assert message_of(*[chunk({"role": "assistant", "content": "a", "tool_calls": []})] * 3) == {"role": "assistant", "content": "aaa"}


def test_reasoning_details_are_put_together_by_index() -> None:
    piece = {"type": "reasoning.text", "format": "v1", "index": 0}
    first, second = piece | {"text": "a"}, piece | {"text": "b"}
    other = {"type": "reasoning.encrypted", "index": 1, "data": "x"}
    message = message_of(chunk({"reasoning_details": [first]}), chunk({"reasoning_details": [second, other]}))
    assert message["reasoning_details"] == [piece | {"text": "ab"}, other]


def test_many_parts_of_a_list_are_put_together_in_linear_time() -> None:
    many = [{"index": place, "text": "a"} for place in range(100_000)]
    assert message_of(chunk({"reasoning_details": many}))["reasoning_details"] == many


def test_arguments_that_may_be_whole_are_read_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def is_object(text: str) -> bool:
        read.append(text)
        return False

    monkeypatch.setattr("qreward.codecs.chat_stream._is_object", is_object)
    pieces = [call(0, '{"a":"', name="get"), *(call(0, "{}", name="get") for _ in range(200))]
    assert message_of(*(chunk({"tool_calls": [piece]}) for piece in pieces))["tool_calls"] == [
        {"function": {"name": "get", "arguments": '{"a":"' + "{}" * 200}}
    ]
    assert len(read) == 50


def test_members_of_a_choice_that_openai_does_not_have_are_kept() -> None:
    ours = assembled(
        [
            chunk({"content": "a"}, token_ids=[1], stop_reason=None, content_filter_results={"hate": {"severity": "safe"}}),
            chunk({"content": "b"}, token_ids=[2, 3], content_filter_results={"hate": {"severity": "safe"}, "violence": {}}),
            chunk(finish="stop", stop_reason="</s>", matched_stop=7),
        ]
    ).build()
    choice = ours.choices[0]
    assert (choice.message.content, choice.token_ids, choice.stop_reason, choice.matched_stop) == ("ab", [1, 2, 3], "</s>", 7)
    assert choice.content_filter_results == {"hate": {"severity": "safe"}, "violence": {}}


def test_members_beside_the_choices_are_kept_from_the_first_and_the_last_chunks() -> None:
    filtered = HEAD | {"id": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [1]}
    padded = [{**each, "obfuscation": "xyz"} for each in said("a")]
    chunks = [filtered, *padded, HEAD | {"choices": [], "usage": USAGE, "timings": {"n": 1}}]
    document = assembled(chunks).document()
    assert (document["id"], document["created"], document["model"]) == (HEAD["id"], HEAD["created"], HEAD["model"])
    assert (document["prompt_filter_results"], document["timings"], document["usage"]) == ([1], {"n": 1}, USAGE)
    assert (document["object"], "obfuscation" in document) == ("chat.completion", False)


def test_usage_counts_as_it_came_last_and_without_any_there_is_none() -> None:
    assembly = assembled([{**each, "usage": USAGE | {"completion_tokens": number}} for number, each in enumerate(said("a", "b"))])
    assert assembly.usage == Usage(12, 3, 15)
    assembly.add(read(HEAD | {"choices": [], "usage": {}}))
    assert (assembly.usage, assembly.build().usage.completion_tokens) == (Usage(12, 3, 15), 3)
    assert assembled(said("a")).usage is assembled(said("a")).build().usage is None


def test_an_answer_is_finished_when_as_many_choices_as_were_asked_for_have_ended() -> None:
    assembly = StreamAccumulator("m")
    assert (assembly.count, assembly.finished(1)) == (0, False)
    assembly.add(read(chunk({"content": "a"}, index=0)))
    assert (assembly.count, assembly.finished(1)) == (1, False)
    assembly.add(read(chunk(index=0, finish="stop")))
    assert (assembly.finished(1), assembly.finished(2)) == (True, False)
    assembly.add(read(chunk({"content": "a"}, index=1)))
    assert (assembly.finished(1), assembly.finished(2)) == (False, False)
    assembly.add(read(chunk(index=1, finish="stop")))
    assert assembly.finished(2)


@each("ending", [None, "", "null"])
def test_a_finish_reason_that_says_nothing_ends_nothing(ending: str | None) -> None:
    assembly = assembled([chunk({"content": "a"}, finish=ending)])
    assert not assembly.finished(1)
    assert assembly.document()["choices"][0]["finish_reason"] is None
    assert read(chunk({"content": "a"}, finish=ending)).finish_reason is None


ODD: dict[str, tuple[Any, str]] = {
    "content in parts": (chunk({"content": [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}]}), "yes"),
    "delta null, message instead": (HEAD | {"choices": [{"index": 0, "delta": None, "message": {"content": "yes"}}]}, "yes"),
    "no index": ({"choices": [{"delta": {"content": "yes"}}]}, "yes"),
    "a finish reason nobody knows": (chunk({"content": "yes"}, finish="eos_token"), "yes"),
    "a finish reason that is no text": (chunk({"content": "yes"}, finish={"type": "stop"}), "yes"),
    "usage as floats": ({**chunk({"content": "yes"}), "usage": {"completion_tokens": 3.0}}, "yes"),
    "usage that is none": ({**chunk({"content": "yes"}), "usage": "none"}, "yes"),
    "minus infinity": (json.dumps(chunk({"content": "yes"}, logprobs={"content": [{"logprob": float("-inf")}]})).encode(), "yes"),
    "control characters": (json.dumps(chunk({"content": "y@es"})).encode().replace(b"@", b"\t"), "y\tes"),
    "half a character": (json.dumps(chunk({"content": "yes@"})).encode().replace(b"@", b"\xf0\x9f"), "yes\ufffd"),
    "half a surrogate": (json.dumps(chunk({"content": "yes@"})).encode().replace(b"@", b"\\ud83d"), "yes\ud83d"),
    "an error of a choice that is none": (chunk({"content": "yes"}, error=None), "yes"),
    "nothing in the delta": (HEAD | {"choices": [{"index": 0}]}, ""),
    "no choice is a dict": (HEAD | {"choices": ["a"]}, ""),
}


@each("name", ODD)
def test_an_odd_chunk_is_read_and_can_be_built(name: str) -> None:
    document, text = ODD[name]
    found = read(document)
    assert found.text == text
    built = found.build()
    assert type(built) is ChatCompletionChunk
    assert (built.object, [choice.index for choice in built.choices]) == ("chat.completion.chunk", [0])
    assembly = StreamAccumulator("asked-for")
    assembly.add(found)
    completion = assembly.build()
    assert type(completion) is ChatCompletion
    if found.choices:
        assert (completion.choices[0].message.content or "") == assembly.text() == text


def test_what_is_no_chunk_is_passed_over_and_usage_alone_is_one() -> None:
    for body in (b"", b"  ", b'{"type": "ping"}', b'{"choices": null}'):
        assert read_chunk(Event(body), "m") is None
    assert read({"usage": USAGE}).usage == Usage(12, 3, 15)


ERRORS: dict[str, tuple[Event, Any]] = {
    "an object": (Event(b'{"error": {"message": "no", "code": 500}}'), {"message": "no", "code": 500}),
    "a text": (Event(b'{"error": "no", "error_type": "overloaded"}'), "no"),
    "beside a choice": (Event(json.dumps({**chunk({"content": ""}, finish="error"), "error": {"code": 502}}).encode()), {"code": 502}),
    "of a choice": (Event(json.dumps(chunk({}, finish="error", error={"code": 502})).encode()), {"code": 502}),
    "as an older server says it": (Event(b'{"object": "error", "message": "no"}'), {"object": "error", "message": "no"}),
    "an event of that name": (Event(b'{"message": "no"}', "error"), {"message": "no"}),
    "an event of that name, in words": (Event(b"out of memory", "error"), "out of memory"),
    "an event of that name, without words": (Event(b"", "error"), ""),
}


@each("name", ERRORS)
def test_an_error_is_an_error_in_each_of_its_forms(name: str) -> None:
    event, body = ERRORS[name]
    with pytest.raises(EmbeddedError) as caught:
        read_chunk(event, "m")
    assert caught.value.body == body


@each("body", [b"{", b'{"choices": [{"delta": {"con', b"hello", b"[1]", b'"text"', b"[" * 100_000])
def test_what_is_no_json_object_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        read_chunk(Event(body), "m")


def test_the_first_output_is_what_the_model_says_and_not_the_beginning_of_a_message() -> None:
    assert not read(chunk({"role": "assistant", "content": ""})).has_output
    assert not read(chunk({"role": "assistant", "content": None, "reasoning_content": None, "tool_calls": []})).has_output
    assert not read(chunk(finish="stop")).has_output
    assert not read(HEAD | {"choices": [], "usage": USAGE}).has_output
    for delta in ({"content": "a"}, {"reasoning_content": "a"}, {"tool_calls": [call(0, "")]}, {"refusal": "a"}):
        assert read(chunk(delta)).has_output
        assert read(chunk(delta, index=1)).has_output


def test_a_whole_message_of_one_choice_beside_a_delta_of_another_is_no_repetition() -> None:
    both = {"choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}, {"index": 1, "delta": {"content": "ld"}}]}
    whole = assembled([chunk({"content": "hello"}), chunk({"content": "wor"}, index=1), HEAD | both])
    assert [choice["message"]["content"] for choice in whole.document()["choices"]] == ["hello", "world"]


def test_a_chunk_of_another_choice_adds_no_text_and_does_not_end_the_first() -> None:
    found = read(chunk({"content": "a"}, index=1, finish="stop"))
    assert (found.text, found.finish_reason) == ("", None)
    assert read(chunk(finish="stop")).finish_reason == "stop"


def test_a_character_that_was_cut_in_two_is_one_character_in_tokens_and_texts_and_the_completion() -> None:
    cases: dict[str, list[Chunk]] = {
        "two chunks": said("a\ud83d", "\ude00b"),
        "a chunk between": [
            chunk({"content": "a\ud83d"}),
            chunk({"role": "assistant"}),
            chunk({"content": "\ude00b"}),
            chunk(finish="stop"),
        ],
        "parts": [chunk({"content": [{"text": "a\ud83d"}, {"text": "\ude00b"}]}, finish="stop")],
        "two in a row": said("a\ud83d", "\ude00\ud83d", "\ude00b"),
        "another choice between": [chunk({"content": "a\ud83d"}), chunk({"content": "x"}, index=1), *said("\ude00b")],
        "the first half at the end": said("a\ud83d"),
    }
    for name, documents in cases.items():
        assembly, tokens = StreamAccumulator("m"), ""
        for document in documents:
            one = read(document)
            assembly.add(one)
            tokens += one.text
        whole = {"two in a row": "a😀😀b", "the first half at the end": "a\ud83d"}.get(name, "a😀b")
        assert (tokens, assembly.text(), assembly.build().choices[0].message.content) == (whole,) * 3, name
    reasoning = assembled([chunk({"reasoning_content": "\ud83d"}), chunk({"reasoning_content": "\ude00"}), *said("x")])
    assert reasoning.document()["choices"][0]["message"]["reasoning_content"] == "😀"


def test_two_pieces_of_the_first_choice_in_one_chunk_are_both_in_its_text() -> None:
    pair = HEAD | {"choices": [{"index": index, "delta": {"content": text}} for index, text in ((1, "x"), (0, "a"), (0, "b"))]}
    assembly = assembled([pair])
    assert read(pair).text == assembly.text() == "ab"


def test_a_message_that_repeats_the_whole_stream_at_its_end_counts_once() -> None:
    message = {"role": "assistant", "content": "7 of 10", "reasoning_content": "hm"}
    ending = {**HEAD, "object": "chat.completion", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
    for delta in ({}, {"delta": None}):
        last = ending | {"choices": [{"index": 0, "message": message, "finish_reason": "stop", **delta}]}
        for first, missing in (([chunk({"role": "assistant", "content": "7 of"}), chunk({"content": " 10"})], ""), ([], "7 of 10")):
            assembly, chunks = StreamAccumulator("m"), [read(document) for document in [*first, chunk({"reasoning_content": "hm"}), last]]
            for piece in chunks:
                assembly.add(piece)
            built = assembly.build()
            assert (assembly.text(), built.choices[0].message.content, chunks[-1].text) == ("7 of 10", "7 of 10", missing)
            assert (built.choices[0].message.reasoning_content, built.usage.completion_tokens) == ("hm", 2)
            assert chunks[-1].build().choices[0].delta.content == (missing or None)
            assert assembly.finished(1)


def test_a_message_that_differs_from_the_text_before_it_is_an_error_and_other_members_of_its_chunk_are_kept() -> None:
    whole = [HEAD | {"choices": [{"index": 0, "message": {"content": text}}]} for text in ("The answer", " is 42")]
    with pytest.raises(Malformed, match="differs from the text before it"):
        assembled(whole)
    filtered = {"content_filter_results": {"hate": {"filtered": False}}}
    for late in ({}, {"message": {"role": "assistant", "content": "a"}}):
        assembly, last = assembled(said("a")), read(HEAD | {"choices": [{"index": 0, "finish_reason": None} | filtered | late]})
        assembly.add(last)
        assert (assembly.text(), last.text) == ("a", "")
        for choice in (last.build().choices[0], assembly.build().choices[0]):
            assert choice.content_filter_results == filtered["content_filter_results"]


def test_a_whole_answer_becomes_one_chunk() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    found = read({**HEAD, "object": "chat.completion", "choices": [choice]})
    built = found.build()
    assert (found.text, found.finish_reason, built.object) == ("yes", "stop", "chat.completion.chunk")
    assert (built.choices[0].delta.content, built.choices[0].delta.role) == ("yes", "assistant")


def test_what_is_kept_grows_with_the_answer_and_not_with_its_wrapping() -> None:
    assembly = assembled(said(*["word "] * 1000))
    assert 5000 <= assembly.size < 8000


_NAMES = ["id", "index", "type", "role", "content", "reasoning", "tool_calls", "function", "name", "arguments", "logprobs", "finish_reason"]
_LEAVES = st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text("ab日", max_size=3)
_TREES = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4))
_FUNCTIONS = st.fixed_dictionaries({"name": _LEAVES, "arguments": _LEAVES})
_PARTS = st.dictionaries(st.sampled_from(["index", "id", "function", "type"]), _LEAVES | _FUNCTIONS | _TREES, max_size=4)
_DELTAS = st.dictionaries(st.sampled_from(_NAMES), _TREES, max_size=3) | st.fixed_dictionaries({"tool_calls": st.lists(_PARTS, max_size=3)})
_MEMBERS = {"index": _LEAVES, "delta": _DELTAS | _TREES, "finish_reason": _TREES, "logprobs": _TREES, "odd": _TREES}
_CHOICES = st.fixed_dictionaries({}, optional=_MEMBERS)
_DOCUMENTS = st.fixed_dictionaries({"choices": st.lists(_CHOICES | _TREES, max_size=3)}, optional={"usage": _TREES, "id": _TREES})


@given(documents=st.lists(_DOCUMENTS, max_size=5))
@settings(max_examples=60 * SCALE, deadline=None)
def test_whatever_json_comes_is_taken_or_refused_as_malformed_and_what_is_taken_can_be_built(documents: list[Any]) -> None:
    assembly = StreamAccumulator("m")
    for document in documents:
        try:
            found = read_chunk(Event(json.dumps(document).encode()), "m")
        except (Malformed, EmbeddedError):
            continue
        if found is not None:
            assert isinstance(found.text, str)
            found.build()
            assembly.add(found)
    assert isinstance(assembly.text(), str)
    assert type(assembly.build()) is ChatCompletion
