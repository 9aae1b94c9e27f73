"""Failures as the openai SDK raises them: each under its right name, with its words, and after one request of the SDK, not three."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web
from openai_tools import LIBRARIES, MODEL, ask, fleet_and_client, quick, requests, sdk, serving, sync_sdk

import qreward
from qreward import BatchFailed, BatchInterrupted, Endpoint, Priority, QRewardClient, Retry, SyncQRewardClient, Timeouts, errors
from qreward.codecs.chat_stream import ChatChunk
from qreward.integrations.openai import BASE_URL, EventStream, described, event, refused, status_of, transport
from qreward.testing import FakeFleet, Faults, echo_of, run_in_virtual_time

pytestmark = pytest.mark.real_time

ONCE = Retry(attempts=1)
TABLE: list[tuple[errors.QRewardError, int, str]] = [
    (errors.NoEndpoint("x"), 404, "model_not_found"),
    (errors.ConfigError("x"), 400, "config_error"),
    (errors.BadRequest("x"), 400, "bad_request"),
    (errors.BadRequest("x", status_code=422), 422, "bad_request"),
    (errors.BadRequest("x", status_code=200), 400, "bad_request"),
    (errors.BadRequest("the maximum context length is 8 tokens", status_code=400), 400, "context_length_exceeded"),
    (errors.AuthenticationFailed("x", status_code=401), 401, "authentication_failed"),
    (errors.AuthenticationFailed("x", status_code=403), 403, "authentication_failed"),
    (errors.AuthenticationFailed("x", status_code=407), 401, "authentication_failed"),
    (errors.RateLimited("x", status_code=503), 429, "rate_limited"),
    (errors.ServerError("x", status_code=500), 500, "server_error"),
    (errors.ServerError("x", status_code=424), 502, "server_error"),
    (errors.RequestTimeout("x"), 504, "request_timeout"),
    (errors.ConnectionFailed("x"), 502, "connection_failed"),
    (errors.InvalidResponse("x", status_code=200), 502, "invalid_response"),
    (errors.StreamInterrupted("x", status_code=200), 502, "stream_interrupted"),
    (errors.QueueFull("x"), 503, "queue_full"),
    (errors.CircuitOpen("x"), 503, "circuit_open"),
    (errors.DeadlineExceeded("x"), 504, "deadline_exceeded"),
    (errors.ClientClosed("x"), 503, "client_closed"),
    (errors.RequestError("x"), 500, "request_error"),
]


def test_each_error_has_its_status_and_its_code() -> None:
    wrong = []
    for error, status, code in TABLE:
        replied, headers, body = refused(error)
        assert isinstance(body, bytes)
        found = (status_of(error), replied, described(error)["code"], headers["x-should-retry"])
        if found != (status, status, code, "false") or json.loads(body)["error"]["message"] != str(error):
            wrong.append((error, found, body))
    assert wrong == []


def test_the_table_leaves_out_no_error() -> None:
    exported = [*vars(errors).values(), *(getattr(qreward, name) for name in qreward.__all__)]
    classes = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, errors.QRewardError)}
    of_batches_and_judges = {BatchFailed, BatchInterrupted, errors.BatchCancelled, errors.BudgetExceeded}
    assert classes - {type(error) for error, _, _ in TABLE} == {errors.QRewardError, errors.Rejected, *of_batches_and_judges}


def test_names_that_headers_cannot_hold_are_escaped() -> None:
    _, headers, _ = refused(errors.ServerError("x", endpoint="gpu-\u96f6", status_code=500, request_id="r\u00e9q"))
    assert (headers["x-qreward-endpoint"], headers["x-request-id"]) == ("gpu-\\u96f6", "r\\xe9q")


async def read(stream: Any, said: list[str]) -> None:
    async for chunk in stream:
        said.append(chunk.choices[0].delta.content or "")


class Refusing:
    """A server that says no to everything, always alike."""

    def __init__(self, status: int, body: Any) -> None:
        self.status, self.body, self.count = status, body, 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.count += 1
        await request.read()
        return web.json_response(self.body, status=self.status, headers={"x-request-id": "req-7", "retry-after": "0"})


SAID = {"error": {"message": "no, sk-of-the-endpoint, not this", "type": "x", "param": None, "code": "x"}}
REFUSALS = [
    (400, SAID, openai.BadRequestError),
    (422, SAID, openai.UnprocessableEntityError),
    (401, SAID, openai.AuthenticationError),
    (403, SAID, openai.PermissionDeniedError),
    (404, SAID, openai.NotFoundError),
    (500, SAID, openai.InternalServerError),
    (429, {"error": {"message": "pay, not this", "code": "insufficient_quota"}}, openai.RateLimitError),
]


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_refusal_is_raised_by_its_name_and_was_sent_once(library: str) -> None:
    for status, body, kind in REFUSALS:
        server = Refusing(status, body)
        async with serving(server) as url:
            endpoint = Endpoint(url, name="strict", api_key="sk-of-the-endpoint", proxy="")
            for count, stream in enumerate((False, True), start=1):
                async with QRewardClient([endpoint], retry=ONCE) as client, sdk(client, library) as ours:
                    with pytest.raises(kind, match="not this") as caught:
                        await ours.chat.completions.create(model=MODEL, messages=ask(), stream=stream)
                error: Any = caught.value
                found = (error.status_code, error.body["endpoint"], error.body["attempts"], error.request_id, server.count)
                assert found == (status, "strict", 1, "req-7", count), (status, stream)
                assert "sk-of" not in f"{error}{error.body}{error.response.text}"
                assert error.code == ("insufficient_quota" if status == 429 else error.code)


async def test_the_sdk_multiplies_no_tries() -> None:
    async with (
        fleet_and_client(quick("a", faults=Faults(error_500=1)), retry=Retry(attempts=3)) as (fleet, client),
        sdk(client) as ours,
    ):
        assert ours.max_retries == 2
        with pytest.raises(openai.InternalServerError):
            await ours.chat.completions.create(model=MODEL, messages=ask())
        assert requests(fleet) == 3


async def test_requests_that_make_no_sense_are_refused_and_not_sent() -> None:
    async with fleet_and_client(quick("a", models=["judge-*"])) as (fleet, client), sdk(client) as ours:
        wrong: list[tuple[Any, type[Exception], str]] = [
            (lambda: ours.chat.completions.create(model="gpt-9", messages=ask()), openai.NotFoundError, r"gpt-9.*judge-\*"),
            (lambda: ours.models.retrieve("gpt-9"), openai.NotFoundError, "judge-"),
            (lambda: ours.get("/files", cast_to=object), openai.NotFoundError, "chat/completions"),
            (lambda: ours.post("/responses", cast_to=object, body={"model": MODEL}), openai.NotFoundError, "POST /v1/responses"),
            (lambda: ours.completions.create(model=MODEL, prompt="a", stream=True), openai.NotFoundError, "streamed /completions"),
            (lambda: ours.moderations.create(input="a"), openai.BadRequestError, "the request has no model"),
            (lambda: ours.chat.completions.create(model=MODEL, messages=[]), openai.BadRequestError, "messages is empty"),
            (lambda: ours.post("/embeddings", cast_to=object, body=[1]), openai.BadRequestError, "JSON list"),  # type: ignore[arg-type]
        ]
        for call, kind, said in wrong:
            with pytest.raises(kind, match=said):
                await call()
        assert requests(fleet) == 0


def test_a_body_that_is_no_json_is_refused() -> None:
    with SyncQRewardClient(["http://127.0.0.1:9/v1"]) as client, httpx.Client(transport=transport(client)) as http:
        for body in (b"", b"{", b"\xff\xfe", b"%PDF"):
            response = http.post(f"{BASE_URL}/chat/completions", content=body)
            assert response.status_code == 400, body
            assert "not JSON" in response.json()["error"]["message"], body


async def test_a_stream_that_breaks_off_is_an_error_and_never_a_short_answer() -> None:
    async with fleet_and_client(quick("a", faults=Faults(cut=1))) as (_, client):
        async with sdk(client) as ours:
            said: list[str] = []
            stream = await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True)
            with pytest.raises(openai.APIError, match="broke off after") as caught:
                await read(stream, said)
            assert caught.value.code == "stream_interrupted"
            assert 0 < len("".join(said)) < len(echo_of(ask()))
        async with httpx.AsyncClient(transport=transport(client)) as http:  # who looks at no event finds the line broken
            with pytest.raises(httpx.RemoteProtocolError, match="broke off"):
                await http.post(f"{BASE_URL}/chat/completions", json={"model": MODEL, "messages": ask(), "stream": True})


def test_a_stream_that_breaks_off_is_an_error_in_blocking_code_too() -> None:
    with FakeFleet([quick("a", faults=Faults(cut=1))]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        with sync_sdk(client) as ours, pytest.raises(openai.APIError, match="broke off after"):
            list(ours.chat.completions.create(model=MODEL, messages=ask(), stream=True))
        with httpx.Client(transport=transport(client)) as http, pytest.raises(httpx.RemoteProtocolError, match="broke off"):
            http.post(f"{BASE_URL}/chat/completions", json={"model": MODEL, "messages": ask(), "stream": True})


async def test_before_the_first_token_a_stream_fails_over_unseen() -> None:
    bad, good = quick("bad", faults=Faults(error_500=0.5, error_503=0.5)), quick("good")
    async with fleet_and_client(bad, good) as (fleet, client), sdk(client) as ours:
        for number in range(8):
            stream = await ours.chat.completions.create(model=MODEL, messages=ask(str(number)), stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == echo_of(ask(str(number)))
        assert fleet.seen("bad").requests > 0


async def test_the_timeout_of_the_sdk_is_the_budget_and_over_it_nothing_is_tried_again() -> None:
    async with fleet_and_client(quick("a", faults=Faults(hang=1))) as (fleet, client), sdk(client) as ours:
        create = ours.chat.completions.create
        calls = [create(model=MODEL, messages=ask(), stream=stream, timeout=1.5) for stream in (False, True)]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, openai.InternalServerError)
            assert "1.5" in str(error)
            assert (error.status_code, error.code) == (504, "request_timeout")
        assert requests(fleet) == 2
    async with fleet_and_client(quick("a", faults=Faults(hang=1)), timeout=0.1) as (_, client), sdk(client) as ours:
        with pytest.raises(openai.InternalServerError, match=r"0\.1"):  # that of the client, if it is shorter
            await ours.chat.completions.create(model=MODEL, messages=ask(), timeout=50)


class Paced:
    """A stream whose chunks come after these pauses, in seconds."""

    def __init__(self, *pauses: float) -> None:
        self._pauses = list(pauses)

    def _open(self) -> Paced:
        return self

    async def take(self) -> ChatChunk | None:
        if not self._pauses:
            return None
        await asyncio.sleep(self._pauses.pop(0))
        return ChatChunk(b"{}", MODEL, [], None, "")

    def _drop(self) -> None:
        """Holds nothing."""


def test_the_timeout_of_the_sdk_is_that_of_each_pause_in_a_stream_and_not_of_all_of_it() -> None:
    async def main() -> None:
        ended = EventStream(Paced(0.9, 0.9, 0.9), 1.0, wants_usage=True)  # type: ignore[arg-type]
        assert [each async for each in ended] == [event(b"{}")] * 3 + [b"data: [DONE]\n\n"]
        broken = aiter(EventStream(Paced(0.9, 5.0), 1.0, wants_usage=True))  # type: ignore[arg-type]
        assert await anext(broken) == event(b"{}")
        assert b"nothing arrived for 1 s during the answer" in await anext(broken)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(broken)

    run_in_virtual_time(main())


async def test_a_server_that_is_away_and_a_client_that_is_closed_are_different_errors() -> None:
    async with fleet_and_client() as (fleet, _):
        gone = fleet.endpoints
    settings = {"timeouts": Timeouts(connect=0.5)}
    async with QRewardClient([gone[0].model_copy(update=settings)], retry=ONCE, timeout=2) as client, sdk(client) as ours:
        with pytest.raises(openai.InternalServerError) as caught:
            await ours.chat.completions.create(model=MODEL, messages=ask())
        assert (caught.value.status_code, caught.value.code) in ((502, "connection_failed"), (504, "request_timeout"))
        await client.aclose()
        with pytest.raises(openai.InternalServerError, match="closed") as caught:
            await ours.chat.completions.create(model=MODEL, messages=ask())
        assert (caught.value.status_code, caught.value.code) == (503, "client_closed")


async def test_a_priority_and_a_tenant_go_with_all_requests_of_a_transport() -> None:
    async with fleet_and_client() as (_, client), sdk(client, priority=Priority.HIGH, tenant="evals", hedge=False) as ours:
        assert (await ours.chat.completions.create(model=MODEL, messages=ask())).choices[0].message.content == echo_of(ask())
        with pytest.raises(errors.ConfigError, match="tenant"):
            transport(client, tenant="")
