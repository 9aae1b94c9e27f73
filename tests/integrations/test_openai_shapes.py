"""Odd requests and odd answers: what cannot be read strictly is written anew, everything else is left alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from openai_tools import MODEL, ask, sdk, serving

from qreward import Endpoint, QRewardClient, Retry
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import PassthroughCodec
from qreward.codecs.chat_stream import Parser
from qreward.errors import BadRequest
from qreward.integrations import openai as asked
from qreward.integrations.openai import BASE_URL, event, in_pieces, strict, transport

pytestmark = pytest.mark.real_time

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_json_that_is_strict_is_left_as_it_is_and_comes_whole_through_an_event(value: Any, indented: bool) -> None:
    body = json.dumps(value, ensure_ascii=False, indent=2 if indented else None).encode()
    assert strict(body) is body
    (found,) = Parser().feed(event(body))
    assert json.loads(found.data) == value


def test_json_that_is_not_strict_is_written_anew_and_a_chunk_that_speaks_of_a_message_is_not() -> None:
    for body in (b'\xef\xbb\xbf{"a": "b"}', b'{"a": "b\x01"}', b'{"a": "b\xff"}', b'{"a": NaN}'):
        assert "a" in json.loads(strict(body)), body
    bodies = [
        b'{"choices": [{"delta": {"content": "\\"message\\""}}]}',
        b'{"choices": null, "message": 1}',
        b'{"choices": [1], "message": 1}',
        b'{"choices": [{"delta": {"content": "message"}}], "x": "message"}',
        b'{"choices": [{"delta": {"content": "a"}, "message": null}]}',
        b'{"choices": [{"delta": {"content": "a"}, "message": {"content": "a"}}]}',
    ]
    assert [body for body in bodies if in_pieces(body) is not body] == []


def test_a_whole_answer_becomes_a_chunk_with_all_its_members() -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b", "index": 7}]}
    whole = {"x": 1, "choices": [{"index": 0, "message": message, "finish_reason": "stop", "y": 2}, {"message": None}, None]}
    assert json.loads(in_pieces(json.dumps(whole).encode())) == {
        "x": 1,
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "y": 2,
                "delta": {"role": "assistant", "tool_calls": [{"index": 0, "id": "a"}, {"index": 7, "id": "b"}]},
            },
            {"delta": {}},
            None,
        ],
    }


def test_the_end_of_the_path_says_what_is_asked() -> None:
    routes = {
        "/v1/chat/completions": "/chat/completions",
        "/openai/deployments/judge-7b/chat/completions": "/chat/completions",
        "/completions": "/completions",
        "/v1/embeddings": "/embeddings",
        "/v1/chat/completions/abc": None,
        "/v1/responses": None,
        "/": None,
    }
    assert {path: asked.route_of(path) for path in routes} == routes


def test_no_key_of_the_program_is_passed_on_however_it_is_written() -> None:
    given = [("AUTHORIZATION", "x"), ("Api-Key", "x"), ("X-Stainless-Lang", "x"), ("Cookie", "x"), ("X-Mine", "kept"), ("OpenAI-Beta", "y")]
    assert asked.read("/completions", given, b'{"model": "m"}').headers == {"x-mine": "kept", "openai-beta": "y"}
    assert asked.read("/completions", given[:3], b'{"model": "m"}').headers is None


def test_a_body_without_a_model_is_refused() -> None:
    for body in (b'{"messages": []}', b'{"model": ""}', b'{"model": 7}', b"null", b"[" * 100_000):
        with pytest.raises(BadRequest):
            asked.read("/completions", [], body)


def test_the_length_of_a_plain_request_is_guessed() -> None:
    def guess(prompt: Any, **params: Any) -> tuple[float, float]:
        _, codec = asked.ROUTES["/completions"]
        return codec.estimate_tokens(WireRequest(codec, MODEL, prompt, {"prompt": prompt, **params}, None))

    assert guess("a" * 35) == (10, 0)
    assert guess(["a", "b"], max_tokens=5, n=3)[1] == 30
    assert guess([1, 2, 3], max_tokens=5)[1] == 5
    assert guess(None, max_tokens="many")[1] == 0
    assert guess("\ud800")[0] > 0
    assert guess([{"text": "a" * 35, "image": "data:image/png;base64," + "x" * 10**6}])[0] == 10


def test_the_length_of_any_other_request_is_guessed_from_its_texts_and_not_from_its_images() -> None:
    for params, tokens in (
        ({"input": "a" * 35}, 10),
        ({"input": [1, 2, 3], "other": [["b" * 35]]}, 13),
        ({"messages": [{"role": "user", "content": [{"image_url": {"url": "data:image/png;base64," + "x" * 10**6}}]}]}, 4 / 3.5),
    ):
        codec = PassthroughCodec("/v1/responses")
        assert codec.estimate_tokens(WireRequest(codec, MODEL, None, params, None))[0] == pytest.approx(tokens), params


class Saying:
    """A server that answers every path with these bytes, and keeps what it was sent."""

    def __init__(self, body: bytes, kind: str = "application/json") -> None:
        self.body, self.kind = body, kind
        self.seen: list[tuple[str, Any]] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append((request.path, json.loads(await request.read())))
        return web.Response(body=self.body, content_type=self.kind)


async def test_an_answer_or_a_chunk_that_is_not_quite_json_reaches_the_sdk_as_json() -> None:
    odd = b'{"choices": [{"index": 0, "finish_reason": "stop", "%b": {"role": "assistant", "content": "a\x01b"}}], "score": NaN}'
    whole, chunk = b"\xef\xbb\xbf" + odd % b"message", b"data: " + odd % b"delta" + b"\n\ndata: [DONE]\n\n"
    async with serving(Saying(whole)) as url, QRewardClient([Endpoint(url, proxy="")]) as client, sdk(client) as ours:
        assert (await ours.chat.completions.create(model=MODEL, messages=ask())).choices[0].message.content == "a\x01b"
    async with serving(Saying(chunk, "text/event-stream")) as url, QRewardClient([Endpoint(url, proxy="")]) as client, sdk(client) as ours:
        (found,) = [each async for each in await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True)]
        assert found.choices[0].delta.content == "a\x01b"


async def test_an_error_in_an_answer_that_claims_success_is_an_error() -> None:
    once = Retry(attempts=1)
    for body in (b'{"error": {"message": "out of order", "code": 500}}', b"<html>out of order</html>", b"[]"):
        async with serving(Saying(body)) as url, QRewardClient([Endpoint(url, proxy="")], retry=once) as client, sdk(client) as ours:
            with pytest.raises(openai.InternalServerError):
                await ours.completions.create(model=MODEL, prompt="a")
            with pytest.raises(openai.InternalServerError):
                await ours.moderations.create(model=MODEL, input="a")


async def test_a_ranking_goes_as_it_is_under_the_name_that_the_endpoint_has_for_the_model() -> None:
    answer = {"id": "r", "results": [{"index": 1, "relevance_score": 0.9, "document": {"text": "b"}}], "usage": {"total_tokens": 3}}
    sent = {"model": MODEL, "query": "q", "documents": ["a", "b"], "top_n": 1}
    server = Saying(json.dumps(answer).encode())
    async with serving(server) as url:
        endpoint = Endpoint(url, proxy="", model_names={MODEL: "bge"})
        async with QRewardClient([endpoint]) as client, httpx.AsyncClient(transport=transport(client)) as http:
            assert (await http.post(f"{BASE_URL}/rerank", json=sent)).json() == answer
    assert server.seen == [("/v1/rerank", {**sent, "model": "bge"})]
