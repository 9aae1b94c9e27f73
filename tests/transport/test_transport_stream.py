"""The way of a streamed attempt: what is asked, the chunks as they come, leaving early, and using the connection again."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from shared_tools import PATIENCE, completion, each, run
from stream_tools import (
    DONE,
    END,
    ENDED,
    MESSAGES,
    START,
    WHOLE,
    ask,
    begun,
    call,
    event,
    outcome_of,
    piece,
    read_on,
    said,
    sse,
)
from transport_server import ENGINES, Connection, Request, Script, always, answer, backend_to, hang

import qreward
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind
from qreward.transport.backend import ChatStream


@each("engine", ENGINES)
def test_a_stream_gives_its_words_and_ends_in_the_whole_answer(engine: str) -> None:
    what = call(temperature=0, headers={"X-Call": "1"})
    text, outcome, (request,) = outcome_of(always(sse(WHOLE)), engine, what, model_names={"judge-7b": "org/judge"})
    assert text == "yes"
    assert isinstance(outcome, Answer)
    assert (outcome.response.text(), outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == ("yes", 12, 3, 4)
    built = outcome.response.build()
    assert type(built) is ChatCompletion
    assert built.usage is not None
    assert (built.choices[0].message.content, built.choices[0].finish_reason, built.usage.total_tokens) == ("yes", "stop", 15)
    expected = {"model": "org/judge", "messages": MESSAGES, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    assert request.json == expected
    assert request.headers["x-call"] == "1"


@each("engine", ENGINES)
async def test_the_rate_limits_come_first_then_chunks_as_soon_as_they_are_sent_and_keep_alives_are_signs_of_life(engine: str) -> None:
    sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(_: Request, connection: Connection) -> None:
        told = b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 7\r\ntransfer-encoding"
        await connection.send(START.replace(b"transfer-encoding", told))
        while data := await sent.get():
            await connection.send(piece(data))
        await connection.send(END)

    async with backend_to(script, engine) as (_server, endpoint, backend):
        stream = await backend.stream(endpoint, call())
        assert isinstance(stream, ChatStream)
        assert (stream.outcome, stream.headers.get("x-request-id")) == (None, "r-1")
        assert stream.limits is not None
        assert stream.limits.requests is not None
        assert (stream.limits.requests.limit, stream.limits.requests.remaining) == (60, 7)
        first, second = said("ye"), said("s")
        expected = [(first, ["ye"]), (b": ping\n\n", []), (second[:40], []), (second[40:] + ENDED, ["s", ""]), (DONE, None)]
        for data, texts in expected:
            sent.put_nowait(data)
            chunks = await stream.read()
            assert ([chunk.text for chunk in chunks] if chunks else chunks) == texts
        assert isinstance(stream.outcome, Answer)
        sent.put_nowait(b"")
        await stream.aclose()


@each("engine", ENGINES)
def test_a_stream_of_crlf_and_comments_byte_by_byte_is_the_same_stream(engine: str) -> None:
    async def trickle(_: Request, connection: Connection) -> None:
        await connection.send(START)
        for byte in b"\xef\xbb\xbf: hello\r\n\r\n" + WHOLE.replace(b"\n", b"\r\n"):
            await connection.send(piece(bytes([byte])))
        await connection.send(END)

    text, outcome, _ = outcome_of(trickle, engine)
    assert (text, outcome.response.text(), outcome.output_tokens) == ("yes", "yes", 3)


UNKNOWN = (400, {"error": {"message": "Unrecognized request argument supplied: stream_options"}})
EXTRA = (422, {"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]})
OTHER = (422, {"detail": [{"loc": ["body", "top_p"], "input": "stream_options"}]})


@each(
    "engine, refusal, without, kind, asked",
    [
        *((engine, refusal, None, None, [True, False, False, False]) for engine in ENGINES for refusal in (UNKNOWN, EXTRA)),
        ("aiohttp", OTHER, (422, OTHER[1]), FailureKind.REFUSED, [True, False] * 3),
        ("aiohttp", OTHER, (503, {}), FailureKind.OVERLOADED, [True, False] * 3),
        ("aiohttp", (400, {"error": "bad temperature"}), None, FailureKind.REFUSED, [True] * 3),
        ("aiohttp", (503, {"error": "no stream_options now"}), None, FailureKind.OVERLOADED, [True] * 3),
    ],
)
async def test_a_server_is_asked_without_stream_options_once_it_refused_them_and_answered_without(
    engine: str, refusal: tuple[int, Any], without: tuple[int, Any] | None, kind: FailureKind | None, asked: list[bool]
) -> None:
    async def script(request: Request, connection: Connection) -> None:
        reply = refusal if "stream_options" in request.json else without
        await connection.send(sse(WHOLE) if reply is None else answer(reply[1], status=reply[0]))

    async with backend_to(script, engine) as (server, endpoint, backend):
        for _ in range(3):
            text, outcome = await ask(backend, endpoint)
            assert (text, getattr(outcome, "kind", None)) == ("yes" if kind is None else "", kind)
        assert ["stream_options" in request.json for request in server.requests] == asked
        assert len(server.connections) == 1


@each("options", [None, {"include_usage": False}, {"include_usage": True, "continuous_usage_stats": True}])
def test_stream_options_of_the_callers_own_are_sent_as_they_are_and_no_second_time(options: Any) -> None:
    refusal = answer({"error": {"message": "stream_options?"}}, status=400)
    _, outcome, (request,) = outcome_of(always(refusal), what=call(stream_options=options))
    assert request.json["stream_options"] == options
    assert isinstance(outcome, Failure)


@each("engine, tls, how", itertools.product(ENGINES, [False, True], ["unread", "early", "close", "cancel"]))
async def test_a_stream_that_is_left_also_while_it_is_read_is_closed_at_once_and_counts_as_cancelled(
    engine: str, tls: bool, how: str
) -> None:
    async with backend_to(begun(said("ye"), hang), engine, tls=tls) as (server, endpoint, backend):
        stream = await backend.stream(endpoint, call())
        assert isinstance(stream, ChatStream)
        async with aclosing(stream):
            if how != "unread":
                assert await stream.read()
            reader = asyncio.create_task(stream.read()) if how in ("close", "cancel") else None
            await asyncio.sleep(0.01)
            if reader is not None and how == "cancel":
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
        assert reader is None or how == "cancel" or await reader is None
        assert (stream.outcome, await stream.read()) == (CANCELLED, None)
        await stream.aclose()
        async with asyncio.timeout(PATIENCE):
            await server.connections[0].gone.wait()


@each("engine", ENGINES)
async def test_a_connection_is_used_again_after_done_though_the_body_ends_a_little_later(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qreward.transport.backend.DRAIN", PATIENCE)

    async def late(_: Request, connection: Connection) -> None:
        await asyncio.sleep(0.005)
        await connection.send(END)

    async with backend_to(begun(WHOLE, late), engine) as (server, endpoint, backend):
        for _ in range(3):
            assert (await ask(backend, endpoint))[0] == "yes"
        assert (len(server.requests), len(server.connections)) == (3, 1)


@each("then", [hang, always(b"5\r\nab"), always(b"nonsense\r\n")])
@each("engine", ENGINES)
async def test_a_body_that_does_not_end_properly_after_done_does_not_delay_the_reader(engine: str, then: Script) -> None:
    done = asyncio.Event()

    async def script(request: Request, connection: Connection) -> None:
        await done.wait()
        await then(request, connection)
        await connection.hang()

    async with backend_to(begun(WHOLE, script), engine) as (server, endpoint, backend):
        stream = await backend.stream(endpoint, call())
        assert isinstance(stream, ChatStream)
        async with asyncio.timeout(PATIENCE):
            text, outcome = await read_on(stream)
            assert text == "yes"
            assert isinstance(outcome, Answer)
            done.set()
            await stream.aclose()
            await server.connections[0].gone.wait()
        await stream.aclose()


def test_keys_and_headers_show_in_no_failure_of_a_stream() -> None:
    key, header = "key-of-mine-1", "header-of-mine-2"
    words = f"no such key {key} nor {header}"
    for body in (event({"error": {"message": words}}), f"data: {{{words}\n\n".encode(), f"event: error\ndata: {words}\n\n".encode()):
        for line in (sse(body), sse(said("a") + body), answer(words.encode()), answer(words.encode(), status=400)):
            _, outcome, _ = outcome_of(always(line), what=call(headers={"X-Mine": header}), api_key=key)
            assert isinstance(outcome, Failure)
            assert key not in repr(outcome)
            assert header not in repr(outcome)
            assert "***" in str(outcome.error)


@each("streamed", [False, True])
def test_attempts_leave_no_warning_and_no_garbage_of_ours(streamed: bool) -> None:
    """Reference cycles would cost every request time in the garbage collector. Those of the test's server do not count."""
    ours = str(Path(qreward.__file__).parent)

    def is_ours(thing: Any) -> bool:
        code = getattr(thing, "f_code", None)
        return code.co_filename.startswith(ours) if code else type(thing).__module__.startswith("qreward")

    async def test() -> None:
        async with backend_to(always(sse(WHOLE) if streamed else answer(completion()))) as (_, endpoint, backend):
            for _ in range(20):
                outcome = (await ask(backend, endpoint))[1] if streamed else await backend.send(endpoint, call())
                assert isinstance(outcome, Answer)
            gc.collect()
            assert [type(thing) for thing in gc.garbage if is_ours(thing)] == []

    gc.collect()
    gc.freeze()  # what is there now is not looked at: it would take most of the time
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gc.set_debug(gc.DEBUG_SAVEALL)  # the collector keeps in gc.garbage what it would have freed
        try:
            run(test())
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
        gc.collect()
    assert [str(warning.message) for warning in seen] == []
