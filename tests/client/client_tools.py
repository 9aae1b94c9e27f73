"""A server inside ``httpx``: notes each request as it would go out, and answers like a chat or an embeddings API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from qreward import Endpoint, QRewardClient

MODEL = "judge-7b"
HI = [{"role": "user", "content": "hi"}]


class Recorder(httpx.AsyncBaseTransport):
    """Answers every request with ``reply`` if that is given, else with what was asked."""

    def __init__(self, reply: Callable[[httpx.Request], httpx.Response] | None = None) -> None:
        self._reply = reply
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self._reply is not None:
            return self._reply(request)
        return httpx.Response(200, json=embeddings(request) if request.url.path.endswith("/embeddings") else completion(request))

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]

    @property
    def hosts(self) -> list[str]:
        return [request.url.host for request in self.requests]


def completion(request: httpx.Request) -> dict[str, Any]:
    body = json.loads(request.content)
    message = {"role": "assistant", "content": f"re: {body['messages'][-1]['content']}"}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def embeddings(request: httpx.Request) -> dict[str, Any]:
    body = json.loads(request.content)
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": index, "embedding": [float(len(text))]} for index, text in enumerate(texts)]
    return {"object": "list", "model": body["model"], "data": data, "usage": {"prompt_tokens": 4, "total_tokens": 4}}


def endpoint(recorder: httpx.AsyncBaseTransport, name: str = "gpu-0", **settings: Any) -> Endpoint:
    return Endpoint(f"http://{name}.example/v1", name=name, http_client=recorder, **settings)


def use(client: QRewardClient, asking: Callable[[QRewardClient], Coroutine[Any, Any, Any]]) -> Any:
    """Run one use of a client and close it."""

    async def run() -> Any:
        async with client:
            return await asking(client)

    return asyncio.run(run())
