"""A provider's Batch API on a real socket, which can end the process that calls it at any step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from bulk_tools import ThreadServer

from qreward.testing.batch_api import BatchService, line_server
from qreward.testing.server_kinds import ErrorResponse
from qreward.testing.spec import Batching, FakeEndpoint


class ProviderServer(ThreadServer):
    """The server.

    Attributes:
        service: its files and batches.
        killing: the process to end with SIGKILL, the number of the call (from 0) at which that happens, and whether the call is served
            first; None for no more.
        calls: method and path of each call.
    """

    def __init__(self, **batching: Any) -> None:
        fake = FakeEndpoint("provider", kind="openai_batch")
        self.service = BatchService(Batching(**batching), line_server(fake, lambda messages, _: f"re: {messages[-1]['content']}", _ignore))
        self.killing: tuple[int, int, bool] | None = None
        self.calls: list[tuple[str, str]] = []
        self.open()

    async def _answer(self, request: web.Request) -> web.Response:
        self.calls.append((request.method, request.path))
        ends, body = self.killing is not None and len(self.calls) - 1 == self.killing[1], await request.read()
        if ends and self.killing is not None and not self.killing[2]:
            self._kill()
        kind = request.headers.get("Content-Type", "")
        try:
            found = self.service.respond(request.method, request.path, request.query, kind, body, time.monotonic())
        except ErrorResponse as error:
            return web.json_response({"error": {"message": error.message}}, status=error.status)
        if ends:
            self._kill()
        return web.Response(body=found, content_type="application/json")

    def _kill(self) -> None:
        assert self.killing is not None
        process, self.killing = self.killing[0], None
        os.kill(process, signal.SIGKILL)
        raise web.HTTPServiceUnavailable


def _ignore(*_: Any) -> None:
    return None


@contextmanager
def provider_server(**batching: Any) -> Iterator[ProviderServer]:
    server = ProviderServer(**batching)
    try:
        yield server
    finally:
        server.close()
