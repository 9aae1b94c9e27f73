"""The log says once that an endpoint went out of service and once that it is back, with the reason and without secrets."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest
from client_tools import HI, MODEL, Recorder, completion, endpoint

from qreward import QRewardClient
from qreward.settings.policies import Retry
from qreward.testing.virtual_time import run_in_virtual_time


class Mortal(Recorder):
    """A server that answers after a tenth of a second, and refuses connections from the second second to the tenth."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.1)
        if 2.0 <= asyncio.get_running_loop().time() - self.began < 10.0:
            raise httpx.ConnectError("connection refused")
        return httpx.Response(200, json=completion(request))

    async def start(self) -> None:
        self.began = asyncio.get_running_loop().time()


def test_an_endpoint_that_dies_and_returns_is_logged_once_each_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qreward")
    mortal = Mortal()
    well = Mortal()

    def logged() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name.startswith("qreward")]

    async def main() -> None:
        await mortal.start()
        well.began = float("inf")
        ends = [endpoint(mortal, "mortal", api_key="sk-very-secret"), endpoint(well, "well")]
        async with QRewardClient(ends, retry=Retry(attempts=20)) as client:  # until both were logged
            batch = await client.batch_chat_completion((HI for _ in range(100_000) if len(logged()) < 2), MODEL)
        assert not batch.errors

    run_in_virtual_time(main())
    texts = [record.getMessage() for record in logged()]
    assert [record.levelname for record in logged()] == ["WARNING", "WARNING"], texts
    assert texts[0].startswith("endpoint 'mortal' is out of service: ConnectionFailed: ")
    assert texts[0].endswith("it is tried again every few seconds")
    assert texts[1].startswith("endpoint 'mortal' is back in service after ")
    assert "sk-very-secret" not in caplog.text
