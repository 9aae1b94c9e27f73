"""A provider's Batch API inside ``httpx``, on the loop's clock, and runs of a bulk that goes there."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.batch_api import BatchEndpoint, Batching, BatchService, line_server

from qreward import Endpoint, QRewardClient
from qreward.bulk import provider
from qreward.bulk.outputs import BulkReport
from qreward.testing.kinds import ErrorResponse

KEY = "sk-a-secret-of-the-test"
Fault = Callable[[str, str], httpx.Response | Exception | None]
"""Given the method and the path of a call: the response or error instead of the service's own, or None."""


def service(**batching: Any) -> BatchService:
    fake = BatchEndpoint("provider", models=("judge-*", "embed-*"), responder=_say)
    return BatchService(Batching(**batching), line_server(fake, _write, lambda *_: None), takes=lambda model: model != "unknown")


def _say(messages: list[Any]) -> str:
    return f"re: {messages[-1]['content']}"


def _write(messages: list[Any], _: bytes) -> str:
    return _say(messages)


class FakeProvider(httpx.AsyncBaseTransport):
    """Calls a service at the loop's time.

    Attributes:
        calls: method and path of each call.
        before, after: what happens instead of a call, or instead of its response after the service has done its work.
        on_call: called before and after each call.
        seconds: how long a call takes.
        last_body: body of the last call.
    """

    def __init__(self, given: BatchService) -> None:
        self.service = given
        self.calls: list[tuple[str, str]] = []
        self.before: Fault = lambda _method, _path: None
        self.after: Fault = lambda _method, _path: None
        self.on_call: Callable[[], object] = lambda: None
        self.seconds: Callable[[str, str], float] = lambda _method, _path: 0.0
        self.last_body = b""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        method, path = request.method, request.url.path
        body = self.last_body = await request.aread()
        self.calls.append((method, path))
        self.on_call()
        await asyncio.sleep(self.seconds(method, path))
        if "content-length" in request.headers:
            assert int(request.headers["content-length"]) == len(body)
        fault = self.before(method, path)
        if fault is None:
            response = self._respond(request, body)
            fault = self.after(method, path) or response
        self.on_call()
        if isinstance(fault, Exception):
            raise fault
        return fault

    def _respond(self, request: httpx.Request, body: bytes) -> httpx.Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return httpx.Response(401, json={"error": {"message": f"no such key: {request.headers.get('authorization')}"}})
        now, kind = asyncio.get_running_loop().time(), request.headers.get("content-type", "")
        try:
            found = self.service.respond(request.method, request.url.path, dict(request.url.params), kind, body, now)
        except ErrorResponse as error:
            return httpx.Response(error.status, json={"error": {"message": error.message, "code": error.code}})
        assert found is not None, (request.method, request.url.path)
        return httpx.Response(200, content=found)

    def count(self, method: str, path: str) -> int:
        return self.calls.count((method, path))

    def restored(self) -> FakeProvider:
        """A provider that is in the same state and goes on by itself."""
        return FakeProvider(copy.deepcopy(self.service))


def endpoint(fake: FakeProvider, name: str = "provider", **settings: Any) -> Endpoint:
    return Endpoint("http://provider/v1", name=name, kind="openai_batch", api_key=KEY, http_client=fake, **settings)


def client_of(*endpoints: Endpoint, **settings: Any) -> QRewardClient:
    return QRewardClient(list(endpoints), clock=asyncio.get_running_loop().time, telemetry=None, **settings)


def limit_lines(monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
    monkeypatch.setattr(provider, "LINES", lines)


async def run(fake: FakeProvider, lines: Any, output: Path, client: QRewardClient | None = None, **settings: Any) -> BulkReport:
    async with client or client_of(endpoint(fake)) as used:
        return await used.run(lines, output=output, progress=False, **settings)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def answers(path: Path) -> dict[str, str]:
    """custom_id -> text of the answer. Fails if a line is there twice."""
    found = rows(path)
    assert len({row["custom_id"] for row in found}) == len(found)
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in found}


def expected(count: int) -> dict[str, str]:
    return {f"id-{number}": f"re: item {number}" for number in range(count)}


def paid_once(given: BatchService, count: int) -> None:
    assert len(given.worked) == count
    assert max(given.worked.values()) == 1
