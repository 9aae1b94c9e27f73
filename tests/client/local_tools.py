"""Servers and actors that answer after a known time, on the time of the running loop."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import httpx


class Server(httpx.AsyncBaseTransport):
    """Answers chats, and the lists of ``kind="tei"``, after some seconds for each chat or item."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        await asyncio.sleep(self._seconds * len(body.get("inputs", [1])))
        if "messages" in body:
            message = {"role": "assistant", "content": body["messages"][-1]["content"]}
            return httpx.Response(200, json={"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
        return httpx.Response(200, json=[[{"label": "reward", "score": float(len(response))}] for _, response in body["inputs"]])


class RayActorError(Exception):
    """The name by which an actor's death is known."""


class Actor:
    """The handle of a Ray actor that scores one list at a time, in some seconds for each item."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds, self.dead, self._free_at, self.lists = seconds, False, 0.0, 0
        self.score = SimpleNamespace(remote=self._remote)

    def _remote(self, items: list[Any]) -> Any:
        future: Future[Any] = Future()
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time()) + self._seconds * len(items)
        self.lists += 1

        def settle() -> None:
            if future.cancelled():
                return
            if self.dead:
                future.set_exception(RayActorError("The actor died."))
            else:
                future.set_result([float(len(item["response"])) for item in items])

        timer = loop.call_at(self._free_at, settle)
        future.add_done_callback(lambda _: timer.cancel())
        return SimpleNamespace(future=lambda: future)
