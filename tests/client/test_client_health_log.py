"""The log says once that an endpoint went out of service and once that it is back, with the reason and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
from math import inf

import httpx
import pytest
from client_tools import HI, MODEL, Recorder, completion, endpoint

from qreward import BadRequest, Limits, QRewardClient, Retry
from qreward.testing.virtual_time import run_in_virtual_time


class Mortal(Recorder):
    """A server that answers after a tenth of a second, and refuses connections for eight seconds after a while."""

    def __init__(self, after: float) -> None:
        super().__init__()
        self._after = after

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.1)
        if self._after <= asyncio.get_running_loop().time() < self._after + 8:
            raise httpx.ConnectError("connection refused")
        return httpx.Response(200, json=completion(request))


def test_an_endpoint_that_dies_and_returns_is_logged_once_each_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qreward")

    async def main() -> None:
        limits = Limits(max_concurrency=4, adaptive=False)
        ends = [endpoint(Mortal(2.0), "mortal", api_key="sk-very-secret", limits=limits), endpoint(Mortal(inf), "well", limits=limits)]
        async with QRewardClient(ends, retry=Retry(attempts=20)) as client:  # until both were logged
            batch = await client.batch_chat_completion((HI for _ in range(100_000) if len(caplog.records) < 2), MODEL)
        assert not batch.errors

    run_in_virtual_time(main())
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"], caplog.text
    out, back = caplog.messages
    assert out.startswith("endpoint 'mortal' is out of service: ConnectionFailed: ")
    assert out.endswith("it is tried again every few seconds")
    assert back.startswith("endpoint 'mortal' is back in service after ")
    assert "sk-very-secret" not in caplog.text


def test_the_log_of_an_endpoint_that_answers_errors_names_the_model_and_not_the_servers_text(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(0.1)
            return httpx.Response(500, json={"error": {"message": f"no: {request.content!r}"}})

    async def main() -> None:
        async with QRewardClient([endpoint(Broken(), "a")]) as client:
            await client.batch_chat_completion([HI] * 20, MODEL, timeout=5.0)

    run_in_virtual_time(main())
    out = caplog.messages[0]
    assert out == f"endpoint 'a' is out of service: ServerError: it answered 500 for model {MODEL!r}; it is tried again every few seconds"


def test_the_log_of_an_account_that_is_used_up_says_that_it_is_tried_again_after_minutes(caplog: pytest.LogCaptureFixture) -> None:
    error = {"error": {"code": "insufficient_quota", "message": "no"}}

    async def main() -> None:
        async with QRewardClient([endpoint(Recorder(lambda _: httpx.Response(429, json=error)), "a"), endpoint(Recorder(), "b")]) as client:
            await client.batch_chat_completion([HI] * 4, MODEL)

    run_in_virtual_time(main())
    (out,) = caplog.messages
    assert out == f"endpoint 'a' is out of service: RateLimited: it answered 429 for model {MODEL!r}; it is tried again in 5 min"


def test_a_misspelt_model_takes_no_endpoint_out_of_service_for_the_other_models(caplog: pytest.LogCaptureFixture) -> None:
    class OfOneModel(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(0.1)
            if json.loads(request.content)["model"] == MODEL:
                return httpx.Response(200, json=completion(request))
            error = {"message": "The model `judgee` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
            return httpx.Response(404, json={"error": error})

    async def main() -> None:
        async with QRewardClient([endpoint(OfOneModel(), name, models=("*",)) for name in ("a", "b")]) as client:
            for _ in range(20):
                wrong = await asyncio.gather(*(client.chat_completion(HI, "judgee") for _ in range(4)), return_exceptions=True)
                assert {type(error) for error in wrong} == {BadRequest}
                begin = asyncio.get_running_loop().time()
                await client.chat_completion(HI, MODEL)
                assert asyncio.get_running_loop().time() - begin == pytest.approx(0.1, abs=0.01)
            assert [stats.state and stats.state.obstacle for stats in client.stats().values()] == ["ready", "ready"]

    run_in_virtual_time(main())
    assert caplog.messages == []
