"""The one answer or failure in which a streamed attempt ends, whatever the server does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace
from openai.types.chat import ChatCompletion
from shared_tools import PATIENCE, completion, each
from stream_tools import (
    DONE,
    END,
    ENDED,
    START,
    USAGE,
    WHOLE,
    ask,
    begun,
    break_off,
    call,
    close,
    event,
    outcome_of,
    said,
    sse,
)
from transport_server import ENGINES, Connection, Request, Script, always, answer, backend_to, hang

from qreward.codecs.chat import CHAT, VERBATIM_CHAT, ChatCodec
from qreward.codecs.chat_stream import MOST_BYTES
from qreward.errors import BadRequest, ConnectionFailed, InvalidResponse, RateLimited, RequestError, ServerError
from qreward.scheduler.outcome import Answer, Cancelled, Failure, FailureKind
from qreward.transport import backend as backend_module
from qreward.transport.backend import ChatStream

COMPLETE = {
    "no [DONE]": WHOLE.removesuffix(DONE),
    "no blank line at the end": WHOLE[:-2],
    "more after [DONE]": WHOLE + said("more") + b"data: nonsense\n\n",
    "usage before the end": said("yes") + USAGE + ENDED + DONE,
    "pings among the chunks": b"event: ping\ndata: {}\n\n" + WHOLE,
    "a code that is no error": event({"code": 0, "msg": "ok", "errors": []}) + WHOLE,
    "pings in words": said("ye") + b"event: ping\ndata: still here\n\n" + said("s") + b"event: Heartbeat\ndata: {\n\n" + ENDED + DONE,
    "heartbeats without a name": b"".join(b"data: %s\n\n" % data for data in (b"null", b"[]", b"1", b"0.5", b"true", b'""')) + WHOLE,
    "two blanks before [DONE]": said("yes") + ENDED + b"data:  [DONE]\n\n",
    "[DONE] in quotes": said("yes") + ENDED + b'data: "[DONE]"\n\n',
}


@each("name", COMPLETE)
def test_a_stream_is_complete_once_its_choices_or_its_server_say_so(name: str) -> None:
    text, outcome, _ = outcome_of(always(sse(COMPLETE[name])))
    assert isinstance(outcome, Answer)
    assert text == outcome.response.text() == "yes"


@each("then", [break_off, close, always(END)])
@each("engine", ENGINES)
def test_a_stream_that_breaks_off_is_a_passing_failure_unless_the_answer_was_complete(engine: str, then: Script) -> None:
    text, outcome, _ = outcome_of(begun(said("ye") + said("s"), then), engine)
    assert isinstance(outcome, Failure)
    assert (text, outcome.kind, type(outcome.error)) == ("yes", FailureKind.TRANSIENT, ConnectionFailed)
    raised: Any = outcome.error
    assert (raised.endpoint, raised.model) == ("gpu-0", "judge-7b")
    text, outcome, _ = outcome_of(begun(said("yes") + ENDED, then), engine)
    assert isinstance(outcome, Answer)
    assert (text, outcome.response.text(), outcome.prompt_tokens, outcome.output_tokens) == ("yes", "yes", None, None)


def test_done_does_not_complete_an_answer_without_an_ending_or_with_fewer_choices_than_asked_for() -> None:
    # gateways add [DONE] to a stream that their own server has cut
    for body in (said("yes"), said("yes") + USAGE, ENDED + said("yes") + said("no", index=1)):
        _, outcome, _ = outcome_of(always(sse(body + DONE)))
        assert (outcome.kind, type(outcome.error)) == (FailureKind.TRANSIENT, InvalidResponse)
        assert "[DONE] came without a finish_reason" in str(outcome.error)
    for body in (WHOLE, WHOLE.removesuffix(DONE)):
        _, outcome, _ = outcome_of(always(sse(body)), what=call(n=8))
        assert (outcome.kind, type(outcome.error)) == (FailureKind.UNSUITABLE, InvalidResponse)
        assert "the answer has 1 of 8 choices" in str(outcome.error)
    without_length = START.replace(b"transfer-encoding: chunked", b"connection: close") + said("yes") + ENDED

    async def send_and_close(request: Request, connection: Connection) -> None:
        await connection.send(without_length)
        await close(request, connection)

    _, outcome, _ = outcome_of(send_and_close, what=call(n=8))
    assert (outcome.kind, type(outcome.error)) == (FailureKind.TRANSIENT, ConnectionFailed), "it may be cut"
    assert "the stream ended before the answer did (too few choices)" in str(outcome.error)


async def test_done_without_an_ending_is_a_passing_failure_unless_the_server_never_sends_one_for_the_model() -> None:
    """It counts against the health of an endpoint that has sent an ending for this model. Others may be served well."""

    async def kinds(*bodies: bytes, models: str = "", at_once: bool = False) -> list[tuple[FailureKind, bool] | None]:
        left, barrier = list(bodies), asyncio.Barrier(len(bodies) if at_once else 1)

        async def script(_: Request, connection: Connection) -> None:
            await barrier.wait()
            await connection.send(sse(left.pop(0)))

        async with backend_to(script) as (_, endpoint, backend):
            asked = (ask(backend, endpoint, replace(call(), model=model)) for model in models or "m" * len(bodies))
            found = await asyncio.gather(*asked) if at_once else [await one for one in asked]
        return [(outcome.kind, outcome.hurts_health) if isinstance(outcome, Failure) else None for _, outcome in found]

    cut, passing, never = said("yes") + DONE, (FailureKind.TRANSIENT, False), (FailureKind.UNSUITABLE, False)
    assert await kinds(*[cut] * 3) == [passing, never, never]
    assert await kinds(*[cut] * 8, at_once=True) == [passing] * 8, "these end before whole answers that began at the same time"
    assert await kinds(WHOLE, *[cut] * 5) == [None, *[(FailureKind.TRANSIENT, True)] * 5], "this server sends endings"
    assert await kinds(WHOLE, *[cut] * 5, models="gbcbcb") == [None, passing, passing, never, never, never]


async def test_a_server_that_never_sends_an_ending_for_a_model_should_be_sent_one_more_stream_of_it_each_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is sent more of them if there is no other."""
    now, sent = 0.0, 0
    monkeypatch.setattr(backend_module, "monotonic", lambda: now)

    async def script(_: Request, connection: Connection) -> None:
        nonlocal sent
        sent += 1
        await connection.send(sse(said("yes") + (DONE if now < 120.0 else ENDED + DONE)))

    async with backend_to(script) as (_, endpoint, backend):

        async def kinds(model: str = "m", *, other: bool = True, codec: ChatCodec = CHAT) -> list[FailureKind | None]:
            what, found = replace(call(), model=model, codec=codec), []
            for _ in range(5):
                outcome = (backend.withheld(endpoint, what) if other else None) or (await ask(backend, endpoint, what))[1]
                found.append(outcome.kind if isinstance(outcome, Failure) else None)
            return found

        never = FailureKind.UNSUITABLE
        assert (await kinds(), sent) == ([FailureKind.TRANSIENT, *[never] * 4], 2)
        assert (await kinds(other=False), sent) == ([never] * 5, 7)
        assert (await kinds(codec=VERBATIM_CHAT), sent) == ([None] * 5, 12), "these need no ending"
        now = 60.0
        assert (await kinds(), sent) == ([never] * 5, 13)
        now = 120.0
        assert (await kinds("other"), sent) == ([None] * 5, 18)
        assert (await kinds(), sent) == ([None] * 5, 23)


def test_an_ending_that_means_a_cut_or_a_failure_stays_even_if_another_one_follows() -> None:
    found = {}
    for reason in ("length", "content_filter", "abort", "length, content_filter", "odd"):
        body = said("yes") + b"".join(said("", finish=one) for one in (*reason.split(", "), "stop"))
        _, outcome, _ = outcome_of(always(sse(body + DONE)))
        found[reason] = outcome.kind if isinstance(outcome, Failure) else outcome.response.finish_reason
    refused = FailureKind.REFUSED
    answers = {"length": "length", "odd": "stop"}
    assert found == {**answers, "content_filter": refused, "abort": FailureKind.TRANSIENT, "length, content_filter": refused}


@each("engine", ENGINES)
def test_output_after_an_ending_shows_that_endings_mean_nothing_and_only_done_or_a_clean_end_completes_the_answer(engine: str) -> None:
    body = b"".join(said(word, finish="stop") for word in ("10 ", "minus ", "9"))
    without_length = START.replace(b"transfer-encoding: chunked", b"connection: close") + body

    async def send_and_close(request: Request, connection: Connection) -> None:
        await connection.send(without_length)
        await close(request, connection)

    found = {
        "cut": outcome_of(begun(body, break_off), engine)[1],
        "closed amid its chunks": outcome_of(begun(body, close), engine)[1],
        "closed, without a length": outcome_of(send_and_close, engine)[1],
        "[DONE]": outcome_of(begun(body + DONE, break_off), engine)[1],
        "a clean end": outcome_of(always(sse(body)), engine)[1],
        "the tool calls go on": outcome_of(begun(ENDED + event({"choices": [{"delta": {"tool_calls": [{}]}}]}), break_off), engine)[1],
        "the ending is said twice": outcome_of(begun(said("yes", finish="stop") + ENDED + USAGE, break_off), engine)[1],
    }
    whole = {name: outcome.response.text() for name, outcome in found.items() if isinstance(outcome, Answer)}
    assert whole == {"[DONE]": "10 minus 9", "a clean end": "10 minus 9", "the ending is said twice": "yes"}
    assert "output followed a finish_reason" in str(found["closed, without a length"].error)


@each("engine", ENGINES)
async def test_a_stream_that_stays_open_is_whole_once_its_answer_has_ended_and_can_then_be_ended(engine: str) -> None:
    for body, kind in ((ENDED + USAGE, Answer), (said("", finish="content_filter"), Failure), (b"", Cancelled)):
        async with backend_to(begun(said("yes") + body, hang), engine) as (_, endpoint, backend):
            stream = await backend.stream(endpoint, call())
            assert isinstance(stream, ChatStream)
            while len(stream._assembly.heads()) < 2 + bool(body):
                await stream.read()
            assert stream.whole == bool(body)
            reading = asyncio.ensure_future(stream.read())
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.wait([reading])
            outcome = stream.outcome
            assert outcome is stream.end()
            assert not stream.whole
            assert isinstance(outcome, kind)
            await stream.aclose()


def test_of_several_choices_all_must_have_ended() -> None:
    one = said("a") + said("b", index=1) + ENDED
    assert isinstance(outcome_of(always(sse(one)))[1], Failure)
    assert isinstance(outcome_of(always(sse(one + said("", index=1, finish="length"))))[1], Answer)
    assert isinstance(outcome_of(always(sse(said("a") + ENDED)), what=call(n=2))[1], Failure)


ERRORS: dict[str, tuple[bytes, FailureKind, type[RequestError]]] = {
    "overloaded": (event({"error": {"message": "busy", "type": "overloaded_error"}}), FailureKind.OVERLOADED, RateLimited),
    "a code": (event({"error": {"message": "upstream", "code": 502}}), FailureKind.TRANSIENT, ServerError),
    "an account used up": (event({"error": {"message": "no", "code": "insufficient_quota"}}), FailureKind.QUOTA, RateLimited),
    "the request's fault": (event({"error": {"message": "no", "code": 400}}), FailureKind.REFUSED, BadRequest),
    "an event of that name": (b'event: error\ndata: {"message": "no", "code": 503}\n\n', FailureKind.OVERLOADED, RateLimited),
    "an event in words": (b"event: error\ndata: CUDA out of memory\n\n", FailureKind.TRANSIENT, ServerError),
    "a field": (b'error: {"code": 503, "message": "loading"}\n\n', FailureKind.OVERLOADED, RateLimited),
    "a choice": (event({"choices": [{"delta": {}, "error": {"code": 429}}]}), FailureKind.OVERLOADED, RateLimited),
    "an object": (event({"object": "error", "code": 429}), FailureKind.OVERLOADED, RateLimited),
    "a code alone": (event({"code": 429, "msg": "slow down"}), FailureKind.OVERLOADED, RateLimited),
    "a code beside the words": (event({"error": "full", "code": 503}), FailureKind.OVERLOADED, RateLimited),
    "an error code": (event({"error_code": 18, "error_msg": "qps request limit reached"}), FailureKind.OVERLOADED, RateLimited),
    "a list of errors": (event({"errors": [{"code": 429}]}), FailureKind.OVERLOADED, RateLimited),
    "no json": (b'data: {"id": "chatcmpl-\n\n', FailureKind.TRANSIENT, InvalidResponse),
    "an endless event": (b"data: " + b"x" * MOST_BYTES + b"\n\n", FailureKind.TRANSIENT, InvalidResponse),
}


@each("engine, name", [*(("aiohttp", name) for name in ERRORS), ("httpx", "a code"), ("httpx2", "a code")])
def test_an_error_in_a_stream_is_its_failure_after_the_text_before_it(engine: str, name: str) -> None:
    body, kind, error = ERRORS[name]
    for end in (b"", DONE):
        text, outcome, _ = outcome_of(always(sse(said("ye") + body + end)), engine)
        assert isinstance(outcome, Failure)
        assert (text, outcome.kind, type(outcome.error)) == ("ye", kind, error)
        raised: Any = outcome.error
        assert (raised.request_id, raised.status_code) == ("r-1", 200)


async def test_an_error_leaves_at_once_what_the_server_still_wants_to_say() -> None:
    async with backend_to(begun(said("a") + ERRORS["a code"][0], hang)) as (server, endpoint, backend):
        _, outcome = await ask(backend, endpoint)
        assert isinstance(outcome, Failure)
        async with asyncio.timeout(PATIENCE):
            await server.connections[0].gone.wait()


NO_STREAM: dict[str, tuple[bytes, FailureKind, str]] = {
    "an error": (answer({"error": {"message": "busy", "code": 503}}), FailureKind.OVERLOADED, "busy"),
    "an error as text/event-stream": (answer({"error": {"code": 503}}, content_type="text/event-stream"), FailureKind.OVERLOADED, "200"),
    "half an answer": (answer(json.dumps(completion()).encode()[:90]), FailureKind.TRANSIENT, "cut off"),
    "a page": (answer(b"<html>Welcome</html>", content_type="text/html"), FailureKind.TRANSIENT, "Welcome"),
    "a list": (answer(b"[]"), FailureKind.TRANSIENT, "list"),
    "words": (answer(b"Hello from the proxy", content_type="text/plain"), FailureKind.TRANSIENT, "Hello from the proxy"),
    "nothing": (answer(b""), FailureKind.TRANSIENT, "no chunk"),
    "blanks": (answer(b" \r\n" * 9000), FailureKind.TRANSIENT, "no chunk"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", FailureKind.TRANSIENT, "no chunk"),
    "comments": (sse(b": ping\n\n" * 9), FailureKind.TRANSIENT, "no chunk"),
    "only [DONE]": (sse(DONE), FailureKind.TRANSIENT, "no chunk"),
    "only usage": (sse(USAGE + DONE), FailureKind.TRANSIENT, "no chunk"),
}


@each("engine, name", [*(("aiohttp", name) for name in NO_STREAM), ("httpx", "words"), ("httpx2", "words")])
def test_a_success_that_is_no_stream_is_a_failure_that_shows_what_came(engine: str, name: str) -> None:
    body, kind, words = NO_STREAM[name]
    text, outcome, _ = outcome_of(always(body), engine)
    assert isinstance(outcome, Failure)
    assert (text, outcome.kind) == ("", kind)
    assert words in str(outcome.error)


@each("kind", ["application/json", "text/event-stream", "text/plain"])
@each("engine", ENGINES)
def test_a_server_that_does_not_stream_gives_its_answer_as_one_chunk(engine: str, kind: str) -> None:
    text, outcome, _ = outcome_of(always(answer(completion("all of it"), content_type=kind)), engine)
    assert isinstance(outcome, Answer)
    assert (text, outcome.response.text(), outcome.prompt_tokens, outcome.output_tokens) == ("all of it", "all of it", 12, 3)
    assert outcome.response.build() == ChatCompletion.model_validate(completion("all of it"))


@each("body", [sse(said("x" * 2000) + ENDED), answer(completion("x" * 2000)), answer(b"x" * 2000, status=500)])
@each("engine", ENGINES)
def test_an_answer_longer_than_max_response_bytes_is_refused(engine: str, body: bytes) -> None:
    for cap, kind in ((1000, Failure), (9000, Answer)):
        _, outcome, _ = outcome_of(always(body), engine, max_response_bytes=cap)
        if b" 500 " not in body:
            assert type(outcome) is kind
        assert ("max_response_bytes" in str(getattr(outcome, "error", ""))) == (cap == 1000)


def test_the_wrapping_of_a_stream_does_not_count_as_its_answer() -> None:
    text, outcome, _ = outcome_of(always(sse(said("word ") * 300 + ENDED)), max_response_bytes=3000)
    assert isinstance(outcome, Answer)
    assert len(text) == 1500
