"""The whole way of an attempt: it ends in exactly one answer or failure, and raises nothing but a cancel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from shared_tools import PATIENCE, completion, each
from stream_tools import COUNTS, ask
from transport_server import ENGINES, Server, always, answer, backend_to, endpoint_of, hang

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.errors import BadRequest, ClientClosed, ConfigError, RequestError
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import Endpoint
from qreward.transport.backend import HttpBackend

OK = answer(completion("fine"))


def call(content: Any = "?", *, model: str = "judge-7b", headers: dict[str, str] | None = None, **params: Any) -> WireRequest:
    return WireRequest(CHAT, model, [{"role": "user", "content": content}], params, headers)


@each("engine", ENGINES)
async def test_a_chat_is_sent_under_the_servers_name_of_the_model_and_its_answer_read(engine: str) -> None:
    script = always(answer(completion("fine", usage=COUNTS), status=201))
    async with backend_to(script, engine, model_names={"judge-7b": "org/judge"}) as (server, endpoint, backend):
        outcome = await backend.send(endpoint, call(temperature=0, headers={"X-Call": "1"}))
    assert isinstance(outcome, Answer)
    assert (outcome.response.text(), outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == ("fine", 12, 3, 4)
    (request,) = server.requests
    assert request.json == {"model": "org/judge", "messages": [{"role": "user", "content": "?"}], "temperature": 0}
    assert request.headers["x-call"] == "1"


async def test_a_call_with_a_group_carries_it_in_the_header_that_the_router_reads() -> None:
    async with backend_to(always(OK), group_header="X-Session-ID") as (server, endpoint, backend):
        for group, headers in (("q1", {"X-Call": "1"}), ("q1", None), (("rubric", "q1"), None), ("q2", None), (None, None)):
            await backend.send(endpoint, WireRequest(CHAT, "judge-7b", [{"role": "user", "content": "?"}], {}, headers, group))
    first, same, *others, none = (request.headers.get("x-session-id") for request in server.requests)
    assert (first == same, len({first, *others}), none) == (True, 3, None)
    assert server.requests[0].headers["x-call"] == "1"


@each("status", [200, 429])
async def test_an_outcome_brings_the_rate_limits_that_the_server_states(status: int) -> None:
    line = answer(completion("fine"), status=status, x_ratelimit_limit_requests="5000", x_ratelimit_remaining_requests="4999")
    async with backend_to(always(line)) as (_, endpoint, backend):
        outcome = await backend.send(endpoint, call())
    assert isinstance(outcome, Answer if status == 200 else Failure)
    assert outcome.limits is not None
    assert outcome.limits.requests is not None
    assert (outcome.limits.requests.limit, outcome.limits.requests.remaining) == (5000, 4999)


async def test_embeddings_go_where_the_kind_of_server_takes_them() -> None:
    body = {"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 2, "total_tokens": 2}}
    table = {("tei", ""): "/v1/embeddings", ("tei", "/v1"): "/v1/embeddings", ("tei", "/at/v1"): "/at/v1/embeddings"}
    for kind in ("openai", "vllm", "sglang", "openrlhf", "nim"):
        table |= {(kind, "/v1"): "/v1/embeddings", (kind, ""): "/embeddings", (kind, "/at"): "/at/embeddings"}
    async with Server(always(answer(body))) as server:
        backend, found = HttpBackend(), {}
        for kind, base in table:
            endpoint = Endpoint(server.url.removesuffix("/v1") + base, kind=kind, proxy="")  # type: ignore[arg-type]
            outcome = await backend.send(endpoint, WireRequest(EMBEDDINGS, "e", ["a"], {}, None))
            assert isinstance(outcome, Answer)
            assert outcome.response.build().data[0].embedding == [0.5]
            assert (outcome.prompt_tokens, outcome.output_tokens) == (2, None)
            found[kind, base] = server.requests[-1].line.split()[1]
        opened = len(server.connections)
        root = Endpoint(server.url.removesuffix("/v1"), kind="tei", proxy="")
        for request in (WireRequest(EMBEDDINGS, "e", ["a"], {}, None), call()):
            await backend.send(root, request)
        assert len(server.connections) == opened + 1, "if base_url is the root of the server, one transport is enough"
        await backend.aclose()
    assert found == table


ENDINGS: list[tuple[bytes, FailureKind]] = [
    (answer({"error": {"message": "slow down"}}, status=429, retry_after="2"), FailureKind.OVERLOADED),
    (answer({"error": {"message": "no"}}, status=400), FailureKind.REFUSED),
    (answer(b"", status=500), FailureKind.TRANSIENT),
    (answer(b"", status=401), FailureKind.UNSUITABLE),
    (answer(b"", status=307, location="http://other.example"), FailureKind.UNSUITABLE),
    (answer({"error": {"code": 429, "message": "upstream"}}), FailureKind.OVERLOADED),
    (answer(b"{"), FailureKind.TRANSIENT),
    (answer(b""), FailureKind.TRANSIENT),
    (answer(b"", status=204), FailureKind.TRANSIENT),
    (answer(completion(choices=[])), FailureKind.TRANSIENT),
    (b"nonsense\r\n\r\n", FailureKind.TRANSIENT),
]


@each("streamed", [False, True])
@each("engine, line, kind", [*(("aiohttp", *row) for row in ENDINGS), ("httpx", *ENDINGS[0]), ("httpx2", *ENDINGS[0])])
async def test_an_attempt_that_fails_says_how(engine: str, line: bytes, kind: FailureKind, streamed: bool) -> None:
    async with backend_to(always(line), engine, name="gpu-0") as (server, endpoint, backend):
        outcome: Any = (await ask(backend, endpoint))[1] if streamed else await backend.send(endpoint, call())
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.retry_after) == (kind, 2.0 if b"retry-after" in line else None)
    assert len(server.requests) == 1
    assert isinstance(outcome.error, RequestError)
    assert (outcome.error.endpoint, outcome.error.model) == ("gpu-0", "judge-7b")


@each("way", ["send", "stream"])
async def test_what_cannot_be_sent_is_a_failure_and_nothing_is_sent(way: str) -> None:
    async with Server(always(OK)) as server, endpoint_of("aiohttp", server.url) as endpoint:
        backend = HttpBackend()
        attempt: Any = getattr(backend, way)
        wrongly_set_up = Endpoint("https://judge.example/v1", verify="/no/such/bundle.pem")
        found = [await attempt(endpoint, call(b"bytes")), await attempt(endpoint, call(headers={"X": "a\nb"}))]
        found.append(await attempt(wrongly_set_up, call()))
        for _ in range(2):
            await backend.aclose()
        found.append(await attempt(endpoint, call()))
    assert [(outcome.kind, type(outcome.error), outcome.misconfigured) for outcome in found] == [
        (FailureKind.UNSENDABLE, BadRequest, False),
        (FailureKind.UNSENDABLE, BadRequest, False),
        (FailureKind.UNSUITABLE, ConfigError, True),
        (FailureKind.UNSENDABLE, ClientClosed, False),
    ]
    assert [outcome.error.model for outcome in found[:2]] == ["judge-7b"] * 2
    assert server.connections == []


async def test_a_bug_ends_the_attempt_with_its_exception_chained() -> None:
    class Broken(type(CHAT)):  # type: ignore[misc]
        def decode(self, body: bytes, model: str) -> Any:
            raise KeyError("a bug")

    async with backend_to(always(OK)) as (_, endpoint, backend):
        outcome = await backend.send(endpoint, WireRequest(Broken(), "m", [], {}, None))
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.UNSENDABLE
    assert isinstance(outcome.error.__cause__, KeyError)


async def test_a_cancel_is_a_cancel() -> None:
    async with backend_to(hang) as (server, endpoint, backend):
        task = asyncio.create_task(backend.send(endpoint, call()))
        await server.until(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(PATIENCE):
            await server.connections[0].gone.wait()


async def test_each_endpoint_has_its_own_connections_even_under_one_name() -> None:
    async with Server(always(OK)) as one, Server(always(OK)) as two:
        backend = HttpBackend()
        for server in (one, two, one):
            endpoint = Endpoint(server.url, name="same", proxy="")
            assert isinstance(await backend.send(endpoint, call()), Answer)
        await backend.aclose()
        assert (len(one.requests), len(two.requests)) == (2, 1)
