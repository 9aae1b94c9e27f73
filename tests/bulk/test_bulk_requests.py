"""The three forms of a line, and the message of every wrong one."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from qreward.bulk.inputs import Line, digest_of
from qreward.bulk.requests import BulkSettings, RequestReader
from qreward.errors import BadRequest

CHAT = [{"role": "user", "content": "hi"}]


def line_of(fields: Any) -> Line:
    content = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return Line("in.jsonl:17", digest_of(content), content)


def invented(fields: Any) -> str:
    return f"qreward-{line_of(fields).key:015x}"


def entry_of(reader: RequestReader, fields: Any) -> Line:
    line = line_of(fields)
    reader.read(line)
    return line


def request_of(fields: Any, **settings: Any) -> Line:
    return entry_of(RequestReader(BulkSettings(**settings)), fields)


def body_of(fields: Any, **settings: Any) -> tuple[str, dict[str, Any]]:
    """The route and the body that are sent."""
    call = request_of(fields, **settings).content
    return call.codec.path, json.loads(call.codec.encode(call, call.model))


def test_the_lines_of_vllm_are_the_same_for_every_route_that_it_takes() -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": CHAT, "max_completion_tokens": 50},
        "/v1/embeddings": {"input": "text"},
        "/score": {"text_1": "q", "text_2": ["a", "b"]},
        "/v1/score": {"queries": "q", "documents": "a"},
        "/rerank": {"query": "q", "documents": ["a", "b"]},
        "/v1/rerank": {"query": "q", "documents": ["a", "b"]},
        "/v2/rerank": {"query": "q", "documents": ["a", "b"]},
        "/v1/completions": {"prompt": "x"},
        "/classify": {"input": ["x"]},
    }
    for url, body in bodies.items():
        path, sent = body_of({"custom_id": "1", "method": "POST", "url": url, "body": {"model": "m", **body}})
        assert path == url.removeprefix("/v1") if url in ("/v1/chat/completions", "/v1/embeddings") else path == url
        assert sent == {"model": "m", **body} or (url == "/v1/embeddings" and sent["input"] in ("text", ["text"])), url


def test_a_plain_line_has_messages_or_a_prompt_and_other_fields_are_parameters() -> None:
    assert body_of({"messages": CHAT, "temperature": 1}, model="m") == (
        "/chat/completions",
        {"model": "m", "messages": CHAT, "temperature": 1},
    )
    for prompt in ({"prompt": "hi"}, {"prompt": CHAT}, {"prompt": "hi", "messages": None}, {"prompt": None, "messages": CHAT}):
        assert body_of({**prompt, "model": "other"}, model="m")[1] == {"model": "other", "messages": CHAT}, prompt
    system = {"role": "system", "content": "be brief"}
    assert body_of({"prompt": "hi"}, model="m", system="be brief")[1]["messages"] == [system, *CHAT]
    assert body_of({"messages": CHAT}, model="m", system="be brief")[1]["messages"] == [system, *CHAT]


def test_numbers_of_a_plain_line_may_be_texts_as_in_a_csv_file() -> None:
    texts = {"max_tokens": "10", "n": "2.0", "temperature": ".5", "seed": "many", "user": "7", "presence_penalty": "nan"}
    numbers = {**texts, "max_tokens": 10, "n": 2, "temperature": 0.5}
    assert body_of({"prompt": "hi", "top_p": "", **texts}, model="m")[1] == {"model": "m", "messages": CHAT, **numbers}
    assert body_of({"prompt": "hi", "seed": "9007199254740993"}, model="m")[1]["seed"] == 9007199254740993


def test_a_template_makes_the_prompt_of_a_row_whose_other_columns_are_not_sent() -> None:
    row = {"id": 5, "question": "why?", "url": "http://x", "body": "of a mail", "answer": {"a": 1}}
    found = request_of(row, model="m", template="Q: {question} A: {answer}", system="of {body}")
    assert found.custom_id == "5"
    assert found.content.inputs == [{"role": "system", "content": "of of a mail"}, {"role": "user", "content": 'Q: why? A: {"a": 1}'}]
    assert found.content.params == {}
    assert request_of({"question": "?", "model": "n"}, model="m", template="{question}").content.model == "n"
    blank = request_of({"reference": ""}, model="m", template="[{reference}]")  # a column of a table, not what a judge compares with
    assert blank.content.inputs == [{"role": "user", "content": "[]"}]


def test_parameters_of_the_run_are_those_of_lines_that_do_not_set_them() -> None:
    settings = {"model": "m", "params": {"max_tokens": 5, "temperature": 0}}
    assert body_of({"prompt": "hi", "max_tokens": 9}, **settings)[1] == {"model": "m", "messages": CHAT, "max_tokens": 9, "temperature": 0}
    batch = {"url": "/v1/chat/completions", "body": {"messages": CHAT, "temperature": 1}}
    assert body_of(batch, **settings)[1] == {"model": "m", "messages": CHAT, "max_tokens": 5, "temperature": 1}


def test_a_line_is_identified_by_custom_id_then_id_then_its_content() -> None:
    for fields, expected in (
        ({"custom_id": "a", "id": "b"}, "a"),
        ({"id": "b"}, "b"),
        ({"custom_id": None, "id": 7}, "7"),
        ({"id": None}, None),
        ({}, None),
        ({"custom_id": ""}, ""),
    ):
        line: dict[str, Any] = {"prompt": "hi", **fields}
        found = request_of(line, model="m")
        assert found.custom_id == (invented(line) if expected is None else expected), fields
        assert found.content.params == {}, fields
    line = {"url": "/v1/score", "body": {"model": "m"}}
    assert request_of(line).custom_id == invented(line)


def test_the_identifier_that_a_line_gets_is_that_of_no_other_line() -> None:
    reader, cut = RequestReader(BulkSettings(model="m")), b'{"custom_id": "2", "prompt": "cut'
    names = []
    for fields in ({"custom_id": 3}, cut, {"a": 1}, {"custom_id": "5"}, {"custom_id": "qreward-5"}, {"prompt": "hi"}):
        line = line_of(fields)
        with suppress(BadRequest):
            reader.read(line)
        names.append(line.custom_id)
    assert names == ["3", invented(cut), invented({"a": 1}), "5", "qreward-5", invented({"prompt": "hi"})]


def test_every_wrong_line_says_where_what_and_how_to_mend_it() -> None:
    chat = {"url": "/v1/chat/completions"}
    cases: list[tuple[Any, str]] = [
        (b"{oops", "it is not JSON"),
        ([1], "it is a JSON list, not an object"),
        ({}, "it has no fields; give the line messages or prompt, or the run a template that names its columns"),
        ({"question": "?", "answer": "!"}, "it has 'answer', 'question'; give the line messages or prompt"),
        ({"prompt": "hi"}, "it names no model; add one to the line, or set one for the run"),
        ({"prompt": "hi", "model": 5}, "it names no model"),
        ({**chat, "body": None}, "body is a NoneType; it must be an object"),
        ({**chat, "body": "x"}, "body is a str; it must be an object"),
        (
            {"url": "http://x/v1/score", "body": {}},
            "url is 'http://x/v1/score'; it must be the route of the server, such as '/v1/chat/completions'",
        ),
        ({"url": 5, "body": {}}, "url is 5; it must be the route"),
        ({**chat, "body": {}, "method": "GET"}, "method is 'GET'; only POST is possible"),
        ({**chat, "body": {}, "costum_id": "1"}, "unknown field 'costum_id'; did you mean 'custom_id'?"),
        ({"prompt": "hi", "model": "m", "stream": True}, "stream is true; a bulk run does not stream, so leave it out"),
        ({"messages": "hi", "model": "m"}, "messages"),
        ({"prompt": None}, "it needs either messages or prompt; both are empty"),
        ({"messages": [], "prompt": None}, "it needs either messages or prompt; both are empty"),
        ({"messages": CHAT, "prompt": "hi"}, "it needs either messages or prompt; leave one of them out"),
        ({"prompt": {"text": "hi"}}, "prompt is a dict; it must be a text or a list of messages"),
        ({"prompt": 7}, "prompt is a int; it must be a text or a list of messages"),
        ({"prompt": ["hi", "there"]}, "messages"),
        ({"prompt": [], "model": "m"}, "messages"),
        ({**chat, "body": {"model": "m", "messages": [{"content": "no role"}]}}, "messages"),
        ({"url": "/v1/embeddings", "body": {"model": "m"}}, "input"),
    ]
    for fields, message in cases:
        with pytest.raises(BadRequest) as caught:
            request_of(fields)
        assert str(caught.value).startswith("in.jsonl:17: "), fields
        assert message in str(caught.value), (fields, str(caught.value))


def test_a_row_without_a_column_of_the_template_says_which() -> None:
    with pytest.raises(BadRequest, match=r"in\.jsonl:17: .*'question'"):
        request_of({"answer": "!"}, model="m", template="{question}")


def test_items_of_a_scorer_take_their_fields_from_the_columns() -> None:
    reader = RequestReader(BulkSettings(columns={"prompt": "question", "response": "answer"}), is_scored=True)
    found = entry_of(reader, {"id": 3, "question": "?", "answer": "!", "reference": "ref"})
    assert (found.custom_id, found.content) == ("3", {"id": 3, "prompt": "?", "response": "!", "reference": "ref"})
    with pytest.raises(BadRequest, match=r"in\.jsonl:17: it has no 'answer', which columns names; it has 'question'"):
        entry_of(reader, {"question": "?"})
    swapped = RequestReader(BulkSettings(columns={"prompt": "response", "response": "prompt"}), is_scored=True)
    item = {"prompt": "a", "response": "b"}
    found = entry_of(swapped, item)
    assert (found.custom_id, found.content) == (invented(item), {"prompt": "b", "response": "a"})
    with pytest.raises(BadRequest, match=r"in\.jsonl:17: it is not JSON"):
        entry_of(reader, b"{")
